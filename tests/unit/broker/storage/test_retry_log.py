from __future__ import annotations

from nsqflow.broker.engine.journal import (
    Clear,
    Create,
    Drop,
    FanOut,
    Finish,
    Load,
    Operation,
    Pause,
    Requeue,
)
from nsqflow.broker.storage.operations import RetryLog
from tests.unit.broker.storage.rows import id_of, put


def retried(*operations: Operation) -> list[Operation]:
    """Return what is retried after operations that failed one by one."""
    retry_log = RetryLog()
    for operation in operations:
        retry_log.add([operation])
    assert bool(retry_log) is bool(retry_log.operations())
    return retry_log.operations()


def test_new_messages_are_not_retried() -> None:
    assert retried(put(1, 1, 2)) == []


def test_of_a_message_only_the_last_is_retried() -> None:
    first, last, other = (Requeue(1, id_of(1), n, 10 * n) for n in (1, 2, 3))
    assert retried(first, last) == [last]
    assert retried(first, last, Finish(1, [id_of(1)])) == [Finish(1, [id_of(1)])]
    elsewhere = Requeue(2, other.id, other.attempts, other.due)
    assert retried(last, elsewhere) == [last, elsewhere]


def test_messages_that_are_finished_one_by_one_are_retried_together() -> None:
    ids = [id_of(number) for number in range(100)]
    assert retried(*(Finish(1, [id]) for id in ids)) == [Finish(1, ids)]


def test_what_is_written_is_not_retried_again() -> None:
    retry_log = RetryLog()
    retry_log.add([Pause(1, True), put(1, 10), Finish(1, [id_of(9)])])
    assert retry_log
    retry_log.clear()
    assert not retry_log
    assert retry_log.operations() == []


def test_operations_on_queues_are_retried_in_their_order() -> None:
    operations: list[Operation] = [
        Create(1, "t"),
        FanOut(1, (2,)),
        Load(2, b"", 9),
        Pause(1, True),
        Clear(1),
        FanOut(1, (2, 3)),
        Drop(1),
    ]
    assert retried(*operations) == operations


def test_messages_are_moved_to_a_channel_before_they_are_finished() -> None:
    finish, again, fan_out = Finish(2, [id_of(1)]), Requeue(2, id_of(2), 1, 1), FanOut(1, (2,))
    assert (
        retried(fan_out, finish, again)
        == retried(again, fan_out, finish)
        == [fan_out, finish, again]
    )


def test_pages_can_be_read_of_queues_whose_waiting_messages_do_not_change() -> None:
    loads = [Load(queue_id, b"", 9) for queue_id in range(1, 8)]
    retry_log = RetryLog()
    retry_log.add([Pause(1, True), Finish(2, [id_of(1)]), Requeue(3, id_of(1), 1, 1)])
    retry_log.add([Clear(4), Drop(5), FanOut(6, (7,)), *loads])
    assert retry_log.safe_loads() == loads[:3]
    retry_log.remove(loads[:3])
    assert retry_log.safe_loads() == []
    assert [
        operation for operation in retry_log.operations() if isinstance(operation, Load)
    ] == loads[3:]
