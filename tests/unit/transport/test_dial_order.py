"""Which nsqd is dialled next, and how many at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.transport.dial import DialQueue
from nsqflow.transport.dial_order import MAX_DIALS, DialOrder
from tests.fixtures.loops import asynchronous

BAD, GOOD = "bad:4161", "good:4161"


def taken(order: DialOrder[str]) -> list[str]:
    """Start all that may be started now."""
    tickets = []
    while (ticket := order.next()) is not None:
        tickets.append(ticket)
    return tickets


def test_only_some_are_dialled_at_a_time() -> None:
    order: DialOrder[str] = DialOrder()
    for number in range(1000):
        order.add(str(number), None)
    first = taken(order)
    assert first == [str(number) for number in range(MAX_DIALS)]
    order.remove("3")
    order.remove("500")  # given up while it waits
    assert taken(order) == [str(MAX_DIALS)]


def test_preferred_ones_go_first_and_find_a_turn_though_all_others_hang() -> None:
    order: DialOrder[str] = DialOrder(limit=5, reserved=1)
    for number in range(10):
        order.add(f"bad{number}", BAD)
        order.add(f"worse{number}", f"another {BAD}")
    order.add("known", None)
    assert taken(order) == ["known", "bad0", "worse0", "bad1", "worse1"]
    order.remove("known")
    assert taken(order) == [], "its turn is kept for the next preferred one"
    order.add("known again", None)
    assert taken(order) == ["known again"]


def test_each_nsqlookupd_has_the_same_share() -> None:
    order: DialOrder[str] = DialOrder(limit=4, reserved=0)
    for number in range(3000):
        order.add(f"bad{number}", BAD)
    assert taken(order) == ["bad0", "bad1"], "half of them, even if no other waits yet"
    for number in range(6):
        order.add(f"good{number}", GOOD)
    assert taken(order) == ["good0", "good1"]
    # Those that are answered make way for others of the same nsqlookupd.
    order.remove("good0")
    order.remove("good1")
    assert taken(order) == ["good2", "good3"]
    order.remove("good2")
    order.remove("good3")
    assert taken(order) == ["good4", "good5"]


tickets = st.integers(0, 40)
steps = st.one_of(
    st.tuples(st.just("add"), st.sampled_from([None, BAD, GOOD])),
    st.tuples(st.just("remove"), tickets),
    st.tuples(st.just("next"), st.none()),
)


@given(st.integers(1, 6), st.lists(steps, max_size=150))
def test_no_more_than_allowed_are_under_way_and_each_gets_its_turn(
    limit: int, given: list[tuple[str, str | int | None]]
) -> None:
    order: DialOrder[int] = DialOrder(limit, reserved=limit // 4)
    added: dict[int, str | None] = {}
    under_way: dict[int, str | None] = {}
    for step, value in given:
        if step == "add":
            ticket = len(added)
            added[ticket] = value if isinstance(value, str) else None
            order.add(ticket, added[ticket])
        elif step == "remove":
            assert isinstance(value, int)
            under_way.pop(value, None)
            order.remove(value)
        elif (started := order.next()) is not None:
            assert started not in under_way
            under_way[started] = added[started]
        assert len(under_way) <= limit
        shares = Counter(lookupd for lookupd in under_way.values() if lookupd)
        assert shares.total() <= limit - limit // 4
    # Whatever there is left gets its turn once the others are done.
    while under_way or (started := order.next()) is not None:
        if not under_way:
            assert started is not None
            under_way[started] = None
        for ticket in list(under_way):
            del under_way[ticket]
            order.remove(ticket)
    assert not order._preferred
    assert not order._others
    assert not order._shares


@asynchronous
async def test_a_turn_that_is_cancelled_is_given_to_the_next() -> None:
    queue, dialling, go_on = DialQueue(), list[str](), asyncio.Event()

    async def dial(address: str) -> None:
        async with queue.turn(address, ()):
            dialling.append(address)
            await go_on.wait()

    tasks = [asyncio.create_task(dial(str(number))) for number in range(MAX_DIALS + 5)]
    await asyncio.sleep(0)
    assert len(dialling) == MAX_DIALS
    tasks[-4].cancel()  # waits
    tasks[0].cancel()  # is dialled
    await asyncio.wait([tasks[0], tasks[-4]])
    await asyncio.sleep(0)
    assert dialling[MAX_DIALS:] == [str(MAX_DIALS)]
    go_on.set()
    await asyncio.wait(tasks)
    assert len(dialling) == MAX_DIALS + 4


@asynchronous
async def test_one_nsqlookupd_leaves_turns_to_those_of_another_and_to_preferred_ones() -> None:
    queue, dialling, forever = DialQueue(), list[str](), asyncio.Event()

    async def dial(address: str, *named_by: str) -> None:
        async with queue.turn(address, named_by):
            dialling.append(address)
            await forever.wait()

    queue.connected("before:4150")
    tasks = [asyncio.create_task(dial(f"bad{number}", BAD)) for number in range(1000)]
    tasks.append(asyncio.create_task(dial("before:4150", BAD)))
    tasks.append(asyncio.create_task(dial("both:4150", BAD, GOOD)))
    tasks.append(asyncio.create_task(dial("new:4150", GOOD)))
    await asyncio.sleep(0)
    assert dialling[-3:] == ["before:4150", "both:4150", "new:4150"]
    assert len(dialling) <= MAX_DIALS / 2 + 3
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
