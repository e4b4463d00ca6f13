from __future__ import annotations

from nsqflow.broker.storage.changes import Batch, Finish, Requeue
from tests.unit.broker.storage.rows import id_of, put, rows


def test_the_changes_of_one_run_are_written_together() -> None:
    batch = Batch()
    batch.add(put(1, 1, 2))
    batch.add(Finish(1, [id_of(0)]))
    batch.add(put(2, 3))
    batch.add(Finish(1, [id_of(1)]))
    assert batch.put == [*rows(1, [1, 2]), *rows(2, [3])]
    assert batch.finished == {1: [id_of(0), id_of(1)]}
    assert batch.last_id == id_of(3)
    batch.clear()
    assert (batch.put, batch.finished, batch.requeued) == ([], {}, {})
    assert batch.last_id == id_of(3), "it stays"


def test_what_is_requeued_and_finished_in_one_run_is_only_finished() -> None:
    batch = Batch()
    for id in (id_of(1), id_of(2)):
        batch.add(Requeue(1, id, 3, 77))
    batch.add(Finish(1, [id_of(1)]))
    batch.add(Finish(2, [id_of(2)]))
    assert batch.requeued == {(1, id_of(2)): (3, 77)}
    assert batch.finished == {1: [id_of(1)], 2: [id_of(2)]}
