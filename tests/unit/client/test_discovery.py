"""Rounds of queries to nsqlookupd: which are asked, which are awaited, and the merged answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.address import HttpAddress
from nsqflow.client.config import ClientConfig
from nsqflow.client.discovery import Discovery, LookupRound, merge, rounds_between
from nsqflow.client.lookup_poller import LookupPoller
from nsqflow.client.lookup_schedule import LookupSchedule
from nsqflow.errors import DiscoveryError, NsqError
from nsqflow.http.client import HttpClient
from nsqflow.protocol import LookupAnswer, Node, TopicMeta
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE

A, B, C = "10.0.0.1:4161", "10.0.0.2:4161", "10.0.0.3:4161"
BROKEN = DiscoveryError("it fails")


def node(number: int, version: str = "") -> Node:
    return Node(broadcast_address=f"10.1.0.{number}", tcp_port=4150, version=version)


def knows(*numbers: int) -> LookupAnswer:
    return LookupAnswer(producers=tuple(map(node, numbers)))


def discovery(*addresses: str) -> Discovery:
    return Discovery(addresses)


def finish(machine: Discovery, this: LookupRound, answers: dict[str, LookupAnswer]) -> None:
    """End every question of a round: with an answer, or with a failure where there is none."""
    for address in this.asked:
        if address in answers:
            machine.succeeded(address, answers[address])
        else:
            machine.failed(address, BROKEN)


def finish_one(machine: Discovery, answers: dict[str, LookupAnswer]) -> LookupRound:
    """Hold an ordinary round."""
    this = machine.begin_round(early=False)
    finish(machine, this, answers)
    return this


def fail_times(machine: Discovery, address: str, failures: int) -> None:
    """Let one nsqlookupd fail ``failures`` times, while the others know nothing."""
    while machine.health()[address].failures < failures:
        this = machine.begin_round(early=False)
        finish(machine, this, {each: knows() for each in this.asked if each != address})


# --- which nsqlookupd a round asks, and which it waits for


def test_a_round_asks_all_and_waits_for_all() -> None:
    assert discovery(A, B).begin_round(early=False) == LookupRound((A, B), (A, B))


def test_one_that_fails_is_asked_less_and_less_often() -> None:
    machine, asked = discovery(A, B), list[int]()
    for number in range(1, 70):
        this = machine.begin_round(early=False)
        if A in this.asked:
            asked.append(number)
        finish(machine, this, {B: knows()})
    assert asked == [1, 2, 3, 5, 9, 17, 33, 49, 65]


def test_where_all_have_failed_often_all_are_asked_in_each_round() -> None:
    machine = discovery(A, B)
    for _ in range(20):
        this = machine.begin_round(early=False)
        assert this.asked == (A, B)
        finish(machine, this, {})
    finish(machine, machine.begin_round(early=False), {B: knows()})
    asked = [finish_one(machine, {B: knows()}).asked for _ in range(3)]
    assert asked == [(B,), (A, B), (B,)], "only 3 of its failures count"


def test_an_early_round_asks_all_and_waits_for_none_that_fails_often() -> None:
    machine = discovery(A, B)
    fail_times(machine, A, 6)
    for _ in range(3):
        this = machine.begin_round(early=True)
        assert (this.asked, this.awaited) == ((A, B), (B,))
        finish(machine, this, {B: knows()})


def test_failures_of_early_rounds_make_no_ordinary_round_skip_one() -> None:
    machine = discovery(A, B)
    for _ in range(10):
        finish(machine, machine.begin_round(early=True), {B: knows()})
    asked = [finish_one(machine, {B: knows()}) for _ in range(5)]
    assert [A in this.asked for this in asked] == [True, True, True, False, True]
    assert {this.awaited for this in asked} == {(B,)}


@pytest.mark.parametrize(
    ("failures", "rounds"), [(0, 1), (2, 1), (3, 2), (4, 4), (5, 8), (6, 16), (7, 16), (10**6, 16)]
)
def test_the_rounds_between_two_questions_double_up_to_16(failures: int, rounds: int) -> None:
    assert rounds_between(failures) == rounds


def test_a_single_success_restores_it_at_once() -> None:
    machine = discovery(A, B)
    fail_times(machine, A, 6)
    while A not in (this := machine.begin_round(early=False)).asked:
        finish(machine, this, {B: knows()})
    assert this.awaited == (B,)
    finish(machine, this, {A: knows(), B: knows()})
    assert machine.begin_round(early=False) == LookupRound((A, B), (A, B))


def test_a_question_still_open_is_not_asked_a_second_time() -> None:
    machine = discovery(A, B)
    fail_times(machine, A, 3)
    while A not in (this := machine.begin_round(early=False)).asked:
        finish(machine, this, {B: knows()})
    for _ in range(20):
        machine.succeeded(B, knows())
        assert machine.begin_round(early=False).asked == (B,)
    machine.failed(A, BROKEN)
    machine.succeeded(B, knows())
    assert machine.begin_round(early=False).asked == (A, B)


def test_an_abandoned_question_may_be_asked_again() -> None:
    machine = discovery(A)
    machine.begin_round(early=False)
    machine.abandon()
    assert machine.settled
    assert machine.begin_round(early=False).asked == (A,)


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.fixed_dictionaries({A: st.booleans(), B: st.booleans(), C: st.booleans()}),
        )
    )
)
def test_each_is_asked_by_its_own_failures_and_no_round_waits_for_a_failing_one(
    rounds: list[tuple[bool, dict[str, bool]]],
) -> None:
    machine, ordinary = discovery(A, B, C), 0
    failures, counted = dict.fromkeys((A, B, C), 0), dict.fromkeys((A, B, C), 0)
    last = dict.fromkeys((A, B, C), 0)
    for early, well in rounds:
        ordinary += not early
        everyone = early or min(failures.values()) >= 3
        due = {each: last[each] + rounds_between(counted[each]) for each in (A, B, C)}
        this = machine.begin_round(early=early)
        assert this.asked == tuple(e for e in (A, B, C) if everyone or due[e] <= ordinary)
        assert this.awaited == tuple(each for each in this.asked if failures[each] < 3)
        finish(machine, this, {each: knows() for each in this.asked if well[each]})
        for each in this.asked:
            failures[each] = 0 if well[each] else failures[each] + 1
            counted[each] = 0 if well[each] else counted[each] + (not everyone)
            last[each] = last[each] if early else ordinary
        assert {each: health.failures for each, health in machine.health().items()} == failures


@given(st.floats(0, 1000), st.integers(1, 3), st.booleans(), st.floats(0, 0.999))
def test_after_an_outage_of_all_the_first_answer_comes_as_the_early_rounds_promise(
    outage: float, count: int, one_stays_dead: bool, jitter: float
) -> None:
    """All nsqlookupd are away as long as the nsqd, which was lost with them."""
    interval, jitter, lost_at = 60.0, 0.3, 1000.0
    dead = "10.0.0.9:4161"
    addresses = (A, B, C)[:count] + (dead,) * one_stays_dead
    machine, schedule = discovery(*addresses), LookupSchedule(interval, jitter)
    schedule.begin()
    schedule.end(lost_at - 10, jitter)
    schedule.lost("10.1.0.1:4150", lost_at, jitter, worked=True)
    back_at = lost_at + outage
    while True:
        now = schedule.round_at
        this = machine.begin_round(early=schedule.begin())
        well = {each: knows(1) for each in this.asked if now >= back_at and each != dead}
        finish(machine, this, well)
        schedule.end(now, jitter)
        if well:
            break
    waited = now - back_at
    assert waited <= min(outage + 1, interval) * (1 + jitter) + 1e-6


# --- what comes of it


@given(st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.sets(st.integers(1, 9)))))
def test_the_answer_is_the_union_of_the_last_round_that_had_any(
    rounds: list[dict[str, set[int]]],
) -> None:
    machine, kept = discovery(A, B, C), dict[str, set[int]]()
    for known in rounds:
        this = machine.begin_round(early=False)
        heard = {each: known[each] for each in this.asked if each in known}
        finish(machine, this, {each: knows(*numbers) for each, numbers in heard.items()})
        replaced = heard.keys() & set(this.awaited)  # late ones only add to the rest
        kept = heard if replaced else kept | heard
        expected = {node(number).address for numbers in kept.values() for number in numbers}
        addresses = [each.address for each in machine.answer().producers]
        assert sorted(addresses) == sorted(expected)


def test_the_last_good_answer_is_kept_when_all_fail() -> None:
    machine = discovery(A, B)
    finish(machine, machine.begin_round(early=False), {A: knows(1), B: knows(2)})
    finish(machine, machine.begin_round(early=False), {})
    assert machine.answer() == knows(1, 2)
    assert not machine.answered
    finish(machine, machine.begin_round(early=False), {B: knows(3)})
    assert machine.answer() == knows(3)


def test_that_the_topic_is_unknown_is_an_answer() -> None:
    machine = discovery(A)
    finish(machine, machine.begin_round(early=False), {A: knows(1)})
    finish(machine, machine.begin_round(early=False), {A: knows()})
    assert machine.answer() == LookupAnswer()
    assert machine.answered


def test_half_a_round_changes_nothing_yet() -> None:
    machine = discovery(A, B)
    finish(machine, machine.begin_round(early=False), {A: knows(1), B: knows(2)})
    machine.begin_round(early=False)
    machine.succeeded(A, knows(3))
    assert machine.answer() == knows(1, 2)
    assert not machine.settled
    machine.failed(B, BROKEN)
    assert machine.answer() == knows(3)
    assert machine.settled


def test_a_late_answer_is_merged_into_the_one_that_counts() -> None:
    machine = discovery(A, B)
    fail_times(machine, A, 3)
    while A not in machine.begin_round(early=False).asked:
        machine.succeeded(B, knows(2))
    machine.succeeded(B, knows(2))
    assert machine.settled
    machine.succeeded(A, knows(1))
    assert machine.answer() == knows(1, 2)


def test_a_late_answer_alone_does_not_replace_what_the_healthy_ones_said() -> None:
    machine = discovery(A, B)
    fail_times(machine, A, 3)
    machine.begin_round(early=False)
    machine.succeeded(B, knows(2))
    assert machine.begin_round(early=False) == LookupRound((A, B), (B,))
    machine.succeeded(A, knows(1))
    machine.failed(B, BROKEN)
    assert machine.answer() == knows(1, 2)


def test_where_two_speak_of_the_same_thing_the_first_counts() -> None:
    first = LookupAnswer(
        producers=(node(1, version="1.3.0"), node(2)),
        channels=("b", "a"),
        partitions={0: node(1)},
    )
    meta = TopicMeta(partition_num=2)
    second = LookupAnswer(
        producers=(node(3), node(1, version="1.2.0")),
        channels=("a", "c"),
        partitions={0: node(3), 1: node(3)},
        meta=meta,
    )
    assert merge([first, second]) == LookupAnswer(
        producers=(node(1, version="1.3.0"), node(2), node(3)),
        channels=("b", "a", "c"),
        partitions={0: node(1), 1: node(3)},
        meta=meta,
    )
    assert merge([]) == LookupAnswer()


def test_which_nsqlookupd_name_an_nsqd_is_kept() -> None:
    machine = discovery(A, B)
    assert machine.named_by() == {}
    finish(machine, machine.begin_round(early=False), {A: knows(1, 2, 2), B: knows(2, 3)})
    one, two, three = (node(number).address for number in (1, 2, 3))
    assert machine.named_by() == {one: (A,), two: (A, B), three: (B,)}
    finish(machine, machine.begin_round(early=False), {B: knows(2)})
    assert machine.named_by() == {two: (B,)}


def test_how_each_is_doing_can_be_read() -> None:
    machine = discovery(A, B)
    finish(machine, machine.begin_round(early=False), {A: knows(1), B: knows(1)})
    finish(machine, machine.begin_round(early=False), {A: knows(1)})
    health = machine.health()
    assert (health[A].failures, health[A].last_error) == (0, None)
    assert (health[B].failures, health[B].last_error) == (1, BROKEN)


# --- the poller around it, with nsqlookupd that are functions


class Lookupds:
    """What each nsqlookupd does when it is asked, and what the poller says of it."""

    def __init__(self, **behaviour: Callable[[], Awaitable[LookupAnswer]]) -> None:
        self.behaviour = behaviour
        self.asked: list[str] = []
        self.answers: asyncio.Queue[LookupAnswer] = asyncio.Queue()
        self.failures: asyncio.Queue[tuple[str, NsqError]] = asyncio.Queue()

    async def query(self, _: HttpClient, address: HttpAddress) -> LookupAnswer:
        self.asked.append(address.host)
        return await self.behaviour[address.host]()

    def poller(self, *, interval: float = 0.001, timeout: float = PATIENCE) -> LookupPoller:
        config = ClientConfig(
            lookupd=tuple(f"{name}:4161" for name in self.behaviour),
            lookupd_poll_interval=interval,
            lookupd_poll_jitter=0,
            lookupd_poll_timeout=timeout,
        )
        return LookupPoller(
            config,
            self.query,
            HttpClient(timeout=PATIENCE),
            on_answer=self.answers.put_nowait,
            on_failure=lambda address, error: self.failures.put_nowait((address, error)),
        )


class Running:
    """A poller that runs within a ``with`` block."""

    def __init__(self, poller: LookupPoller) -> None:
        self.poller = poller

    async def __aenter__(self) -> LookupPoller:
        self.task = asyncio.create_task(self.poller.run())
        return self.poller

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert self.task.cancelled()


async def soon(awaitable: Awaitable[LookupAnswer]) -> LookupAnswer:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def fails() -> LookupAnswer:
    raise BROKEN


async def hangs() -> LookupAnswer:
    await asyncio.Event().wait()
    raise AssertionError("it is never set")


def answering(*numbers: int) -> Callable[[], Awaitable[LookupAnswer]]:
    async def answers() -> LookupAnswer:
        return knows(*numbers)

    return answers


@asynchronous
async def test_all_are_asked_at_the_same_time_and_their_union_is_reported_once() -> None:
    together = asyncio.Barrier(2)

    async def meets() -> LookupAnswer:
        await together.wait()
        return knows(1)

    lookupds = Lookupds(a=meets, b=meets)
    async with Running(lookupds.poller(interval=3600)):
        assert await soon(lookupds.answers.get()) == knows(1)
    assert lookupds.asked == ["a", "b"]
    assert lookupds.answers.empty()


@asynchronous
async def test_a_round_follows_a_round() -> None:
    lookupds = Lookupds(a=answering(1))
    async with Running(lookupds.poller()):
        for _ in range(3):
            assert await soon(lookupds.answers.get()) == knows(1)


@asynchronous
async def test_one_that_never_answers_delays_no_round_once_it_counts_as_failing() -> None:
    release = asyncio.Event()

    async def hangs_when_sick() -> LookupAnswer:
        if lookupds.asked.count("a") <= 3:
            raise BROKEN
        await release.wait()
        return knows(1)

    lookupds = Lookupds(a=hangs_when_sick, b=answering(2))
    async with Running(lookupds.poller()) as poller:
        while lookupds.asked.count("a") < 4:
            await soon(lookupds.answers.get())
        for _ in range(20):
            assert await soon(lookupds.answers.get()) == knows(2)
        assert lookupds.asked.count("a") == 4
        release.set()
        while await soon(lookupds.answers.get()) != knows(1, 2):
            pass
        assert not poller.health()["a:4161"].failing


@asynchronous
async def test_one_that_is_too_slow_has_failed() -> None:
    lookupds = Lookupds(a=hangs, b=answering(2))
    async with Running(lookupds.poller(interval=3600, timeout=0.01)):
        assert await soon(lookupds.answers.get()) == knows(2)
    address, error = lookupds.failures.get_nowait()
    assert address == "a:4161"
    assert str(error) == "a:4161: no answer within 0.01 s"


@asynchronous
async def test_a_recovery_is_reported_even_if_the_answer_is_the_same() -> None:
    """A client that lost a connection meanwhile waits for this to connect again."""
    well = asyncio.Event()
    well.set()

    async def says_or_burns() -> LookupAnswer:
        return knows(1) if well.is_set() else await fails()

    lookupds = Lookupds(a=says_or_burns)
    async with Running(lookupds.poller()) as poller:
        await soon(lookupds.answers.get())
        well.clear()
        while not poller.health()["a:4161"].failing:
            await lookupds.failures.get()
        while not lookupds.answers.empty():
            lookupds.answers.get_nowait()
        well.set()
        assert await soon(lookupds.answers.get()) == knows(1)


@asynchronous
async def test_cancelling_ends_all_queries_and_it_can_run_again() -> None:
    asked = asyncio.Semaphore(0)

    async def hangs_once_asked() -> LookupAnswer:
        asked.release()
        return await hangs()

    poller = Lookupds(a=hangs_once_asked).poller()
    for _ in range(2):
        async with Running(poller):
            await asked.acquire()
        assert len(asyncio.all_tasks()) == 1


@asynchronous
async def test_a_loss_makes_the_next_rounds_early_ones_until_the_nsqd_is_connected() -> None:
    lookupds = Lookupds(a=answering(1))
    async with Running(lookupds.poller(interval=3600)) as poller:
        await soon(lookupds.answers.get())
        poller.lost("10.1.0.1:4150", worked=True)
        for _ in range(2):
            assert await soon(lookupds.answers.get()) == knows(1)
        poller.connected("10.1.0.1:4150")
        assert poller._schedule.round_at > asyncio.get_running_loop().time() + 3000


@asynchronous
async def test_a_retry_makes_the_next_round_an_early_one() -> None:
    lookupds = Lookupds(a=answering(1))
    async with Running(lookupds.poller(interval=3600)) as poller:
        await soon(lookupds.answers.get())
        poller.retry()
        assert await soon(lookupds.answers.get()) == knows(1)


@asynchronous
async def test_no_mistake_elsewhere_ends_the_polling(caplog: pytest.LogCaptureFixture) -> None:
    async def mistaken() -> LookupAnswer:
        raise ZeroDivisionError("a bug")

    def misled(answer: LookupAnswer) -> None:
        lookupds.answers.put_nowait(answer)
        raise ZeroDivisionError("another")

    lookupds = Lookupds(a=mistaken, b=answering(2))
    poller = lookupds.poller()
    poller._on_answer = misled
    async with Running(poller):
        for _ in range(5):
            assert await soon(lookupds.answers.get()) == knows(2)
    address, error = lookupds.failures.get_nowait()
    assert (address, str(error)) == ("a:4161", "a:4161: ZeroDivisionError: a bug")
    assert "a callback of the nsqlookupd poller failed" in caplog.text


@asynchronous
async def test_a_failing_nsqlookupd_is_logged_when_its_state_changes_and_not_every_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "nsqflow.client.lookup_poller")
    well = asyncio.Event()

    async def says_or_burns() -> LookupAnswer:
        return knows(1) if well.is_set() else await fails()

    lookupds = Lookupds(a=says_or_burns)
    async with Running(lookupds.poller()):
        for _ in range(5):
            await lookupds.failures.get()
        well.set()
        await soon(lookupds.answers.get())
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "nsqlookupd failed: it fails"),
        ("WARNING", "nsqlookupd failed 3 times and is no longer waited for: it fails"),
        ("INFO", "nsqlookupd a:4161 answers again after 5 failures"),
    ]
