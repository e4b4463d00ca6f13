from __future__ import annotations

from nsqflow.broker.engine.journal import Finish, Requeue
from nsqflow.broker.storage.operations import MergedOperations
from tests.unit.broker.storage.rows import id_of, put, rows


def test_operations_of_one_series_are_merged() -> None:
    merged = MergedOperations()
    merged.add(put(1, 1, 2))
    merged.add(Finish(1, [id_of(0)]))
    merged.add(put(2, 3))
    merged.add(Finish(1, [id_of(1)]))
    assert merged.put == [*rows(1, [1, 2]), *rows(2, [3])]
    assert merged.finished == {1: [id_of(0), id_of(1)]}
    assert merged.last_id == id_of(3)
    merged.clear()
    assert (merged.put, merged.finished, merged.requeued) == ([], {}, {})
    assert merged.last_id == id_of(3), "it stays"


def test_a_message_requeued_and_finished_in_one_series_is_only_finished() -> None:
    merged = MergedOperations()
    for id in (id_of(1), id_of(2)):
        merged.add(Requeue(1, id, 3, 77))
    merged.add(Finish(1, [id_of(1)]))
    merged.add(Finish(2, [id_of(2)]))
    assert merged.requeued == {(1, id_of(2)): (3, 77)}
    assert merged.finished == {1: [id_of(1)], 2: [id_of(2)]}
