from __future__ import annotations

from nsqflow.broker.storage.changes import (
    Change,
    Clear,
    Create,
    Drop,
    Finish,
    Load,
    Pause,
    Requeue,
    Spread,
)
from nsqflow.broker.storage.debt import Debt
from tests.unit.broker.storage.rows import id_of, put


def owed(*changes: Change) -> list[Change]:
    """What is left of changes that came one by one."""
    debt = Debt()
    for change in changes:
        debt.add([change])
    assert bool(debt) is bool(debt.changes())
    return debt.changes()


def test_new_messages_are_not_owed() -> None:
    assert owed(put(1, 1, 2)) == []


def test_of_a_message_only_the_last_is_owed() -> None:
    first, last, other = (Requeue(1, id_of(1), n, 10 * n) for n in (1, 2, 3))
    assert owed(first, last) == [last]
    assert owed(first, last, Finish(1, [id_of(1)])) == [Finish(1, [id_of(1)])]
    elsewhere = Requeue(2, other.id, other.attempts, other.due)
    assert owed(last, elsewhere) == [last, elsewhere]


def test_messages_that_are_finished_one_by_one_are_owed_together() -> None:
    ids = [id_of(number) for number in range(100)]
    assert owed(*(Finish(1, [id]) for id in ids)) == [Finish(1, ids)]


def test_what_is_paid_is_owed_no_more() -> None:
    debt = Debt()
    debt.add([Pause(1, True), put(1, 10), Finish(1, [id_of(9)])])
    assert debt
    debt.clear()
    assert not debt
    assert debt.changes() == []


def test_of_a_place_only_what_counts_is_owed() -> None:
    pause, go_on = Pause(1, True), Pause(1, False)
    assert owed(pause, go_on, Pause(2, True), pause) == [Pause(2, True), pause]
    assert owed(Clear(1), Clear(2), Clear(1)) == [Clear(2), Clear(1)]
    assert owed(Clear(1), pause, Load(1, b"", 9), Drop(1)) == [Load(1, b"", 9), Drop(1)]


def test_a_place_that_came_and_went_leaves_nothing() -> None:
    create = Create(1, "t", None)
    assert owed(create, Pause(1, True), Clear(1), Drop(1)) == []
    assert owed(Create(2, "u", None), create, Drop(1)) == [Create(2, "u", None)]


def test_a_place_that_got_the_messages_of_another_must_be_dropped() -> None:
    spread = Spread(1, (2,))
    assert owed(Create(2, "t", "c"), spread, Drop(2)) == [spread, Drop(2)]


def test_the_messages_of_a_topic_go_to_those_channels_it_had_first() -> None:
    first, later = Spread(1, (2,)), Spread(1, (2, 3))
    create = Create(3, "t", "c")
    assert owed(first, create, later, Spread(9, (3,))) == [first, create, Spread(9, (3,))]


def test_what_came_to_a_channel_is_there_before_it_is_finished() -> None:
    finish, again, spread = Finish(2, [id_of(1)]), Requeue(2, id_of(2), 1, 1), Spread(1, (2,))
    assert owed(spread, finish, again) == owed(again, spread, finish) == [spread, finish, again]


def test_pages_can_be_read_of_places_whose_waiting_messages_stay_as_they_are() -> None:
    loads = [Load(place, b"", 9) for place in range(1, 8)]
    debt = Debt()
    debt.add([Pause(1, True), Finish(2, [id_of(1)]), Requeue(3, id_of(1), 1, 1)])
    debt.add([Clear(4), Drop(5), Spread(6, (7,)), *loads])
    assert debt.readable() == loads[:3]
    debt.forget(loads[:3])
    assert debt.readable() == []
    assert [change for change in debt.changes() if isinstance(change, Load)] == loads[3:]
