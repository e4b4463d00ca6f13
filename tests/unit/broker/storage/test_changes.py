from __future__ import annotations

from nsqflow.broker.storage.changes import Batch, Finish, Requeue
from tests.unit.broker.storage.rows import id_of, put


def test_what_is_put_and_finished_in_one_run_is_never_written() -> None:
    batch = Batch()
    batch.add(put(1, 1, 2))
    batch.add(put(2, 1, 2))
    batch.add(Finish(1, [id_of(1), id_of(2)]))
    batch.add(Finish(2, [id_of(2), id_of(0)]))
    assert not batch.put[1]
    assert list(batch.put[2]) == [id_of(1)]
    assert not batch.finished[1]
    assert batch.finished[2] == [id_of(0)]
    assert batch.last_id == id_of(2)


def test_what_is_put_and_requeued_in_one_run_is_written_once() -> None:
    batch = Batch()
    batch.add(put(1, 1))
    batch.add(Requeue(1, id_of(1), 3, 77))
    assert batch.put[1][id_of(1)] == (1, id_of(1), 1_001, 3, 77, b"body 1")
    assert not batch.requeued


def test_what_is_requeued_and_finished_in_one_run_is_only_finished() -> None:
    batch = Batch()
    for id in (id_of(1), id_of(2)):
        batch.add(Requeue(1, id, 3, 77))
    batch.add(Finish(1, [id_of(1)]))
    batch.add(Finish(2, [id_of(2)]))
    assert batch.requeued == {(1, id_of(2)): (3, 77)}
    assert batch.finished == {1: [id_of(1)], 2: [id_of(2)]}
