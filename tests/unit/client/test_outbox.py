"""The outbox: every call has one outcome, every byte is given back, nobody is overtaken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.config import ProducerConfig
from nsqflow.client.news import News, Newsroom
from nsqflow.client.outbox import Outbox
from nsqflow.client.outlet import Outlet
from nsqflow.client.parcel import Outcome, Parcel
from nsqflow.client.room import Room
from nsqflow.errors import (
    AuthFailedError,
    BadMessageError,
    LocalProtocolError,
    NetworkError,
    NsqError,
    PublishUncertain,
    RequestTimeout,
    ServerError,
)
from nsqflow.protocol import CommandFailed
from tests.fixtures.loops import asynchronous

LONG = 1000.0  # seconds: never, here


class FakeOutlet(Outlet):
    """A connection that takes all, and answers when it is told to."""

    def __init__(self, address: str, sender: Outbox) -> None:
        super().__init__(address, sender)
        self.open = True
        self.commands: list[list[bytes]] = []
        self.flushes = 0

    @property
    def ready(self) -> bool:
        return self.open

    def load(self, parcel: Parcel) -> bool:
        if parcel.command() is None:
            self._sender.done(parcel)
            return False
        self.commands.append(list(parcel.bodies))
        self.unanswered.append(parcel)
        return True

    def flush(self) -> None:
        self.flushes += 1

    def refuse(self, code: str) -> None:
        """Answer the oldest with an error, and close, as nsqd does."""
        self.open = False
        self.command_failed(CommandFailed(ServerError.from_frame(code.encode()), "PUB", True))

    def lose(self) -> None:
        self.open = False
        self.connection_lost(NetworkError("lost"))


class Fleet:
    """Carriers of an outbox: some outlets, in turn."""

    def __init__(self, count: int = 1, **options: Any) -> None:
        self.news: list[News] = []
        options = {"max_msg_size": 92, "max_body_size": 100, "max_pending": 200} | options
        config = ProducerConfig(nsqd=("127.0.0.1:1",), **options)
        self.outbox = Outbox(config, self, Newsroom(self.news.append))
        self.outlets = [FakeOutlet(f"nsqd{i}", self.outbox) for i in range(count)]
        self.error: NsqError | None = None  # that no waiting can fix
        self.asked: list[str] = []  # topics for which a connection was asked for
        self._turn = 0

    def pick(self, parcel: Parcel) -> Outlet | None:
        ready = [outlet for outlet in self.outlets if outlet.ready]
        ready = [o for o in ready if o.address not in parcel.refused_by] or ready
        self._turn += 1
        return ready[self._turn % len(ready)] if ready else None

    def connect(self, topic: str) -> None:
        self.asked.append(topic)

    def final_error(self, topic: str) -> NsqError | None:
        return self.error

    def why_waiting(self, topic: str) -> str:
        return f"nobody takes {topic}"

    def nsqds(self, topic: str) -> int:
        return len(self.outlets)


def add(fleet: Fleet, *bodies: bytes, topic: str = "t", timeout: float = LONG) -> list[Outcome]:
    return [fleet.outbox.add(topic, body, timeout) for body in bodies]


def put(fleet: Fleet, *bodies: bytes, topic: str = "t", timeout: float = LONG) -> Outcome:
    """Queue a parcel as ``publish_many`` does."""
    loop = asyncio.get_running_loop()
    parcel = Parcel(topic, loop.time() + timeout)
    parcel.bodies = [*bodies]
    parcel.outcomes = [loop.create_future()]
    parcel.size = 4 + sum(4 + len(body) for body in bodies)
    fleet.outbox.put(parcel, at_once=True)
    return parcel.outcomes[0]


async def turn() -> None:
    """Let a turn of the loop pass, and what it leads to."""
    for _ in range(3):
        await asyncio.sleep(0)


async def begun(*calls: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(call) for call in calls]
    await turn()
    return tasks


def fate(outcome: asyncio.Future[Any]) -> str:
    if not outcome.done():
        return "open"
    if outcome.cancelled():
        return "cancelled"
    error = outcome.exception()
    return "stored" if error is None else type(error).__name__


# Taking in and handing out


@asynchronous
async def test_one_turn_is_one_parcel_and_one_flush() -> None:
    fleet = Fleet()
    outcomes = add(fleet, b"1", b"2", b"3")
    assert fleet.outlets[0].commands == [], "the turn is not over"
    await turn()
    assert fleet.outlets[0].commands == [[b"1", b"2", b"3"]]
    assert fleet.outlets[0].flushes == 1
    fleet.outlets[0].published(None)
    assert [fate(outcome) for outcome in outcomes] == ["stored"] * 3
    assert fleet.outbox.room.taken == 0


@asynchronous
async def test_what_is_published_behind_goes_behind() -> None:
    fleet = Fleet()
    add(fleet, b"1")
    add(fleet, b"2", timeout=LONG / 2)
    add(fleet, b"3")
    put(fleet, b"4", b"5")
    add(fleet, b"6")
    add(fleet, b"x", topic="u")
    await turn()
    commands = [[b"1"], [b"2"], [b"3"], [b"4", b"5"], [b"6"], [b"x"]]
    assert fleet.outlets[0].commands == commands


@asynchronous
async def test_a_parcel_takes_no_more_than_fits() -> None:
    fleet = Fleet()
    add(fleet, b"1" * 44, b"2" * 44, b"3" * 44)
    await turn()
    assert fleet.outlets[0].commands == [[b"1" * 44, b"2" * 44], [b"3" * 44]]


@asynchronous
async def test_a_wrong_topic_leaves_nothing_behind() -> None:
    fleet = Fleet()
    with pytest.raises(NsqError, match="'a b'"):
        add(fleet, b"1", topic="a b")
    await turn()
    assert fleet.outbox.room.taken == 0
    await fleet.outbox.empty()


@asynchronous
async def test_what_nobody_could_take_goes_when_somebody_can() -> None:
    fleet = Fleet()
    fleet.outlets[0].open = False
    add(fleet, b"1")
    await turn()
    add(fleet, b"2")
    await turn()
    fleet.outlets[0].open = True
    fleet.outbox.pump()
    assert fleet.outlets[0].commands == [[b"1"], [b"2"]]
    assert fleet.outlets[0].flushes == 1


# Answers


@asynchronous
async def test_a_bad_message_fails_alone_and_the_others_go_again_in_order() -> None:
    fleet = Fleet(2)
    first, second = fleet.outlets
    second.open = False
    bad = add(fleet, b"1", b"2")
    await turn()
    behind = add(fleet, b"3")
    await turn()
    second.open = True
    first.refuse("E_BAD_MESSAGE too big")
    assert [fate(outcome) for outcome in bad + behind] == ["open"] * 3
    await turn()
    assert second.commands == [[b"1"], [b"2"], [b"3"]]
    second.published(None)
    first.open = True
    second.refuse("E_BAD_MESSAGE too big")
    await turn()
    first.published(None)
    fates = [fate(outcome) for outcome in bad + behind]
    assert fates == ["stored", BadMessageError.__name__, "stored"]
    assert fleet.outbox.room.taken == 0


@asynchronous
async def test_a_shared_parcel_that_is_refused_is_not_split() -> None:
    fleet = Fleet()
    outcome = put(fleet, b"1", b"2")
    fleet.outlets[0].refuse("E_BAD_MESSAGE too big")
    assert fate(outcome) == "BadMessageError"
    assert fleet.outbox.room.taken == 0


@asynchronous
async def test_what_one_could_not_store_is_offered_once_to_each() -> None:
    fleet = Fleet(3)
    [outcome] = add(fleet, b"1")
    for _ in range(3):
        assert not outcome.done()
        await turn()
        [outlet] = [outlet for outlet in fleet.outlets if outlet.unanswered]
        outlet.refuse("E_PUB_FAILED disk is full")
        outlet.open = True
    assert fate(outcome) == "PublishFailedError"
    assert [outlet.commands for outlet in fleet.outlets] == [[[b"1"]]] * 3


@asynchronous
async def test_what_was_lost_is_uncertain_and_told_once_per_command() -> None:
    fleet = Fleet()
    outcomes = add(fleet, b"1", b"2")
    await turn()
    outcomes.append(put(fleet, b"3"))
    fleet.outlets[0].lose()
    assert [fate(outcome) for outcome in outcomes] == ["PublishUncertain"] * 3
    assert [news.kind for news in fleet.news] == ["uncertain"] * 2
    assert fleet.outbox.room.taken == 0


@asynchronous
async def test_at_least_once_never_ends_as_if_nothing_had_been_sent() -> None:
    fleet = Fleet(retry_uncertain=True)
    [late] = add(fleet, b"1", timeout=0.02)
    [refused] = add(fleet, b"2", topic="u")
    [closed] = add(fleet, b"3", topic="v")
    await turn()
    fleet.outlets[0].lose()
    await asyncio.wait([late])
    assert (fate(refused), fate(closed)) == ("open", "open")
    fleet.error = AuthFailedError("E_AUTH_FAILED")
    fleet.outbox.pump()
    assert fate(refused) == "PublishUncertain"
    fleet.error = None
    fleet.outbox.abandon(LocalProtocolError("closed"))
    assert [fate(outcome) for outcome in (late, closed)] == ["PublishUncertain"] * 2


# Deadlines


@asynchronous
async def test_time_runs_out_for_what_was_not_sent_and_for_what_was() -> None:
    fleet = Fleet()
    [sent] = add(fleet, b"1", timeout=0.02)
    await turn()
    fleet.outlets[0].open = False
    [waiting] = add(fleet, b"2", timeout=0.03)
    [patient] = add(fleet, b"3", timeout=LONG)
    await asyncio.wait([sent, waiting])
    assert isinstance(sent.exception(), PublishUncertain)
    assert isinstance(waiting.exception(), RequestTimeout)
    assert "nobody takes t" in str(waiting.exception())
    assert not patient.done()
    assert fleet.outbox.room.taken == 5
    fleet.outlets[0].published(None)  # the answer to the first, at last
    assert fleet.outbox.room.taken == 5, "its bytes were given back before"
    fleet.outlets[0].open = True
    fleet.outbox.pump()
    fleet.outlets[0].published(None)
    assert fate(patient) == "stored"


@asynchronous
async def test_what_no_waiting_can_fix_fails_at_once() -> None:
    fleet = Fleet()
    fleet.outlets[0].open = False
    outcomes = add(fleet, b"1", timeout=100) + add(fleet, b"2", timeout=10)
    await turn()
    assert [fate(outcome) for outcome in outcomes] == ["open", "open"]
    fleet.error = AuthFailedError("E_AUTH_FAILED")
    fleet.outbox.pump()
    assert [fate(outcome) for outcome in outcomes] == ["AuthFailedError"] * 2
    assert fleet.outbox.room.taken == 0
    # Those that come later fail too, but ask for a connection: the cause may be gone by now.
    fleet.asked.clear()
    [later] = add(fleet, b"3")
    await turn()
    assert (fate(later), fleet.asked) == ("AuthFailedError", ["t"])


@asynchronous
async def test_each_turn_that_finds_no_connection_asks_for_one() -> None:
    fleet = Fleet()
    add(fleet, b"0")
    await turn()
    assert fleet.asked == [], "there is one"
    fleet.outlets[0].open = False
    add(fleet, b"1", b"2")
    add(fleet, b"3", topic="u")
    await turn()
    assert fleet.asked == ["t", "u"]
    put(fleet, b"4")
    assert fleet.asked == ["t", "u", "t"]
    for _ in range(3):  # a dial has failed, say: nothing new was published
        fleet.outbox.pump()
    assert fleet.asked == ["t", "u", "t"]
    fleet.outlets[0].open = True
    fleet.outbox.pump()
    assert not fleet.outbox._waiting


@asynchronous
async def test_a_connection_is_asked_for_again_each_second_while_something_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    passed = 0.0
    monkeypatch.setattr(loop, "time", lambda: began + passed)
    fleet = Fleet()
    fleet.outlets[0].open = False
    [first] = add(fleet, b"1", timeout=3.5)
    await turn()
    asked = []
    for _ in range(8):
        passed += 0.5
        await turn()
        asked.append(len(fleet.asked))
    assert asked == [1, 2, 2, 3, 3, 4, 4, 4]
    assert fate(first) == "RequestTimeout"
    assert fleet.outbox._sweep_at == fleet.outbox._redial_at == float("inf"), "nothing waits"
    [second] = add(fleet, b"2")
    await turn()
    fleet.outlets[0].open = True
    fleet.outbox.pump()
    fleet.outlets[0].published(None)
    passed += 10
    await turn()
    assert (fate(second), len(fleet.asked)) == ("stored", 5)
    assert fleet.outbox._redial_at == float("inf")


# Closing


@asynchronous
async def test_abandoning_fails_all_there_is_and_all_that_comes() -> None:
    fleet = Fleet()
    [sent] = add(fleet, b"1")
    await turn()
    fleet.outlets[0].open = False
    [waiting] = add(fleet, b"2")
    await turn()
    [fresh] = add(fleet, b"3", topic="u")
    [crowd] = await begun(fleet.outbox.room.wait(199, asyncio.get_running_loop().time() + LONG))
    [emptying] = await begun(fleet.outbox.empty())
    fleet.outbox.abandon(LocalProtocolError("closed"))
    fates = [fate(outcome) for outcome in (sent, waiting, fresh)]
    assert fates == ["PublishUncertain", "LocalProtocolError", "LocalProtocolError"]
    with pytest.raises(LocalProtocolError, match="closed"):
        await crowd
    await emptying
    assert fleet.outbox.room.taken == 0
    with pytest.raises(LocalProtocolError, match="closed"):
        add(fleet, b"4")
    with pytest.raises(LocalProtocolError, match="closed"):
        put(fleet, b"4")
    with pytest.raises(LocalProtocolError, match="closed"):
        await fleet.outbox.room.wait(1, 0)
    assert fleet.outlets[0].commands == [[b"1"]]
    fleet.outlets[0].published(None)  # the answer that came too late
    fleet.outlets[0].lose()
    assert fleet.outbox.room.taken == 0


@asynchronous
async def test_empty_waits_for_those_who_wait_and_for_nobody_else() -> None:
    fleet = Fleet()
    fleet.outlets[0].open = False
    [forsaken, awaited] = [*add(fleet, b"1"), *add(fleet, b"2", topic="u")]
    [emptying] = await begun(fleet.outbox.empty())
    awaited.cancel()
    await turn()
    assert not emptying.done()
    forsaken.cancel()
    async with asyncio.timeout(10):
        await emptying


# Room


@asynchronous
async def test_room_is_given_in_order() -> None:
    room = Room(100, lambda _: None)
    room.taken = 100
    order: list[int] = []

    async def wait(number: int, size: int) -> None:
        await room.wait(size, LONG)
        room.taken += size
        order.append(number)

    tasks = await begun(wait(1, 60), wait(2, 10), wait(3, 90), wait(4, 1))
    tasks[1].cancel()
    room.free(50)
    await turn()
    assert order == [], "the first does not fit, and the others are behind it"
    room.free(50)
    await turn()
    assert order == [1], "two is gone, three does not fit"
    assert not room.has(1), "who comes now waits behind them"
    room.free(60)
    await asyncio.gather(tasks[2], tasks[3])
    assert (order, room.taken) == ([1, 3, 4], 91)


@asynchronous
async def test_room_that_was_given_to_somebody_cancelled_is_given_on() -> None:
    room = Room(100, lambda _: None)
    room.taken = 100
    first, second = await begun(room.wait(100, LONG), room.wait(100, LONG))
    room.free(100)
    first.cancel()  # in the same turn
    await second
    assert first.cancelled()
    assert room.taken == 0


@asynchronous
async def test_who_waits_too_long_for_room_is_told_so() -> None:
    wakes: list[float] = []
    room = Room(100, wakes.append)
    room.taken = 100
    first, second = await begun(room.wait(10, 5.0), room.wait(20, 7.0))
    assert wakes == [5.0, 7.0]
    assert room.expire(4.9) == 5.0
    assert room.expire(5.0) == 7.0
    with pytest.raises(RequestTimeout, match="no room for 10 bytes in time: max_pending is 100"):
        await first
    room.free(100)
    await second
    assert room.expire(LONG) == float("inf")
    assert room.taken == 0


# Whatever happens


class Story:
    """Random things happen to an outbox; each call is watched."""

    def __init__(self, retry: bool, count: int) -> None:
        self.fleet = Fleet(count, retry_uncertain=retry)
        self.calls: list[asyncio.Task[None]] = []
        self.ends: deque[str] = deque()

    async def publish(self, size: int, timeout: float) -> None:
        outbox = self.fleet.outbox
        room, loop = outbox.room, asyncio.get_running_loop()
        if not room.has(size + 4):
            await room.wait(size + 4, loop.time() + timeout)
        await outbox.add("t", b"x" * size, timeout)

    async def publish_many(self, sizes: list[int]) -> None:
        total = 4 + sum(size + 4 for size in sizes)
        await self.fleet.outbox.room.wait(total, asyncio.get_running_loop().time() + LONG)
        await put(self.fleet, *(b"x" * size for size in sizes))

    async def step(self, deed: str, number: int) -> None:
        outlets = self.fleet.outlets
        outlet = outlets[number % len(outlets)]
        if deed == "publish":
            self.call(self.publish(number % 92 + 1, LONG))
        elif deed == "hurry":
            self.call(self.publish(number % 92 + 1, 0.001))
        elif deed == "many":
            self.call(self.publish_many([number % 20 + 1] * (number % 4 + 1)))
        elif deed == "cancel" and self.calls:
            self.calls[number % len(self.calls)].cancel()
        elif deed == "answer" and outlet.unanswered:
            outlet.published(None)
        elif deed == "refuse" and outlet.unanswered:
            codes = ("E_BAD_MESSAGE", "E_PUB_FAILED", "E_MPUB_FAILED", "E_BAD_BODY")
            outlet.refuse(codes[number % 4])
        elif deed == "lose" and outlet.open:
            outlet.lose()
        elif deed == "open":
            outlet.open = True
            self.fleet.outbox.pump()
        elif deed == "turn":
            await asyncio.sleep(0.002 if number % 7 == 0 else 0)

    def call(self, publish: Coroutine[Any, Any, None]) -> None:
        self.calls.append(asyncio.create_task(publish))

    async def end(self) -> None:
        """Answer all that is asked, until nothing is."""
        emptying = asyncio.create_task(self.fleet.outbox.empty())
        async with asyncio.timeout(20):
            while not emptying.done() or not all(call.done() for call in self.calls):
                for outlet in self.fleet.outlets:
                    outlet.open = True
                    while outlet.unanswered:
                        outlet.published(None)
                self.fleet.outbox.pump()
                await asyncio.sleep(0)


deeds = st.tuples(
    st.sampled_from(
        ["publish"] * 4
        + ["turn"] * 4
        + ["answer"] * 2
        + ["hurry", "many", "cancel", "refuse", "lose", "open", "open"]
    ),
    st.integers(0, 1000),
)


@given(st.lists(deeds, max_size=80), st.booleans(), st.integers(1, 3))
def test_every_call_has_one_outcome_and_every_byte_is_given_back(
    story: list[tuple[str, int]], retry: bool, count: int
) -> None:
    @asynchronous
    async def run() -> None:
        told = Story(retry, count)
        room = told.fleet.outbox.room
        for deed, number in story:
            await told.step(deed, number)
            assert 0 <= room.taken <= 200
        await told.end()
        assert room.taken == 0
        assert room.has(200), "and nobody is left in line"
        for call in told.calls:
            if not call.cancelled():
                assert isinstance(call.exception(), NsqError | None)
        told.fleet.outbox.abandon(LocalProtocolError("closed"))

    run()
