"""Backoff, as nsqd sees it: a consumer whose messages fail stops, tests, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from nsqflow import ClientEvent, Consumer, Message
from nsqflow import protocol as nsq
from tests.conformance.server_side import (
    kinds,
    publish,
    rdy_counts,
    reading,
    take,
    topic_of,
    warm_up,
)
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, start_nsqd


@pytest.fixture(scope="module")
def three(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Three nsqd that know nothing of each other."""
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp("nsqd") for _ in range(3)]
        yield [stack.enter_context(start_nsqd(folder, kind=server_kind)) for folder in folders]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def addresses(nsqds: list[Nsqd]) -> list[str]:
    return [nsqd.tcp_address for nsqd in nsqds]


def level(consumer: Consumer) -> int:
    return consumer.stats().backoff_level


async def flushed(consumer: Consumer) -> None:
    """Wait until all that was answered is accounted for."""
    await eventually(lambda: not consumer.stats().outstanding)


@pytest.mark.proves(rows=[44, 46])
@asynchronous
async def test_after_a_failure_all_nsqd_are_stopped_then_one_tests_then_all_flow_again(
    three: list[Nsqd], topic: str
) -> None:
    events: list[ClientEvent] = []
    bodies: list[bytes] = []

    async def handle(message: Message) -> None:
        bodies.append(message.body)
        if len(bodies) == 1:
            raise RuntimeError("no database")

    async with Consumer(
        topic,
        "ch",
        nsqd=addresses(three),
        max_in_flight=9,
        backoff_multiplier=0.3,
        on_event=events.append,
    ) as consumer:
        running = asyncio.create_task(consumer.run(handle, signals=False))
        await eventually(lambda: rdy_counts(three, topic) == [3, 3, 3])
        await publish(three[0], topic, b"fails")
        await eventually(lambda: kinds(events)[3:] == ["backoff"])
        # (0.6 s are long enough to see it.)
        await eventually(lambda: rdy_counts(three, topic) == [0, 0, 0])
        assert level(consumer) == 1
        await eventually(lambda: sum(rdy_counts(three, topic)) == 1)
        assert level(consumer) == 1, "the test has begun, and has no result yet"
        for nsqd in three:  # whichever is the one
            await publish(nsqd, topic, b"succeeds")
        await eventually(lambda: rdy_counts(three, topic) == [3, 3, 3])
        assert level(consumer) == 0
        assert kinds(events)[3:] == ["backoff", "resumed"]
        await eventually(lambda: bodies == [b"fails", *[b"succeeds"] * 3])
        await consumer.close()
        await running


@pytest.mark.proves(rows=[44])
@asynchronous
async def test_rdy_0_goes_out_before_the_result_that_causes_it(topic: str) -> None:
    # Scripted: nsqd does not show the order. If the result came first it would send another
    # message in its place, or the failed one again, before it reads RDY 0.
    async with (
        ScriptedNsqd() as peer,
        Consumer(topic, "ch", nsqd=peer.address, backoff_multiplier=0.01) as consumer,
    ):
        async with reading(consumer):
            await peer.received(nsq.Rdy)
        for number, answer in enumerate(["requeue", "requeue", "finish"]):
            message = nsq.Message(timestamp=0, attempts=1, id=b"%016d" % number, body=b"x")
            peer.connections[0].send_messages([message])
            [taken] = await take(consumer, 1)
            getattr(taken, answer)()
            await peer.received(nsq.Fin if answer == "finish" else nsq.Req)
            assert isinstance(peer.commands[-2], nsq.Rdy), peer.commands
            assert peer.commands[-2].count == 0
            await peer.received(lambda command: command == nsq.Rdy(1))


@pytest.mark.proves(rows=[45])
@asynchronous
async def test_each_failed_test_doubles_the_time_without_messages(
    three: list[Nsqd], topic: str
) -> None:
    events: list[ClientEvent] = []
    clock = asyncio.get_running_loop().time
    async with Consumer(
        topic,
        "ch",
        nsqd=three[0].tcp_address,
        backoff_multiplier=0.1,
        max_backoff_duration=0.5,
        on_event=events.append,
    ) as consumer:
        await publish(three[0], topic, b"fails")
        gaps = []
        [message] = await take(consumer, 1)
        for _ in range(4):
            failed_at = clock()
            message.requeue(0)
            [message] = await take(consumer, 1)
            gaps.append(clock() - failed_at)
        message.finish()
    assert [each.text for each in events if each.kind == "backoff"] == [
        "level 1, no messages for 0.2 s",
        "level 2, no messages for 0.4 s",
        "level 3, no messages for 0.5 s",  # not 0.8: max_backoff_duration
        "level 3, no messages for 0.5 s",
        "level 2, no messages for 0.4 s",  # of the success
    ]
    assert all(gap >= least for gap, least in zip(gaps, [0.2, 0.4, 0.5, 0.5], strict=True))


@pytest.mark.proves(rows=[47])
@asynchronous
async def test_of_many_results_within_one_timeout_only_the_first_counts(
    three: list[Nsqd], topic: str
) -> None:
    events: list[ClientEvent] = []
    async with Consumer(
        topic, "ch", nsqd=three[0].tcp_address, backoff_multiplier=30, on_event=events.append
    ) as consumer:
        await publish(three[0], topic, *(b"%d" % i for i in range(6)))
        messages = await take(consumer, 6)
        for message in messages[:3]:
            message.requeue(60)
            await asyncio.sleep(0)  # each goes to nsqd by itself
        for message in messages[3:]:
            message.finish()
            await asyncio.sleep(0)
        await flushed(consumer)
        assert level(consumer) == 1
        assert kinds(events) == ["connected", "backoff"]


@pytest.mark.proves(rows=[46, 47])
@asynchronous
async def test_each_success_lowers_the_level_by_one_until_the_full_rdy_is_back(
    three: list[Nsqd], topic: str
) -> None:
    events: list[ClientEvent] = []
    async with Consumer(
        topic,
        "ch",
        nsqd=three[0].tcp_address,
        max_in_flight=10,
        backoff_multiplier=0.05,
        on_event=events.append,
    ) as consumer:
        await warm_up(consumer, three[0], topic)
        await publish(three[0], topic, *(b"%d" % i for i in range(3)))
        await eventually(lambda: consumer.stats().queued == 3)
        for message in await take(consumer, 3):
            await eventually(lambda: rdy_counts(three[:1], topic) != [0])  # a test is on
            message.requeue(0)
            await flushed_one(consumer, message)
        levels = [level(consumer)]
        while levels[-1]:
            [message] = await take(consumer, 1)
            assert consumer.stats().connections[0].rdy == 1
            message.finish()
            await flushed(consumer)
            levels.append(level(consumer))
        assert levels == [3, 2, 1, 0]
        assert kinds(events) == ["connected", *["backoff"] * 5, "resumed"]
        await eventually(lambda: rdy_counts(three[:1], topic) == [10])


async def flushed_one(consumer: Consumer, message: Message) -> None:
    before = consumer.stats().counts.requeued
    assert message.answered
    await eventually(lambda: consumer.stats().counts.requeued > before)


@pytest.mark.proves(rows=[48])
@asynchronous
async def test_without_a_duration_there_is_no_backoff(three: list[Nsqd], topic: str) -> None:
    events: list[ClientEvent] = []
    async with Consumer(
        topic,
        "ch",
        nsqd=three[0].tcp_address,
        max_in_flight=10,
        max_backoff_duration=0,
        max_attempts=0,
        on_event=events.append,
    ) as consumer:
        await publish(three[0], topic, b"fails")
        for _ in range(10):
            [message] = await take(consumer, 1)
            message.requeue(0)
        await flushed(consumer)
        assert level(consumer) == 0
        assert rdy_counts(three[:1], topic) == [10]
        assert kinds(events) == ["connected"]


@pytest.mark.proves(rows=[48])
@asynchronous
async def test_what_is_requeued_without_backoff_is_neither_a_failure_nor_a_success(
    three: list[Nsqd], topic: str
) -> None:
    events: list[ClientEvent] = []
    async with Consumer(
        topic,
        "ch",
        nsqd=three[0].tcp_address,
        backoff_multiplier=0.05,
        max_attempts=0,
        on_event=events.append,
    ) as consumer:
        await publish(three[0], topic, b"again and again")
        for _ in range(3):
            [message] = await take(consumer, 1)
            message.requeue(0, backoff=False)
        assert level(consumer) == 0
        [message] = await take(consumer, 1)
        message.requeue(0)
        for _ in range(3):  # each of them comes as the test
            [message] = await take(consumer, 1)
            assert level(consumer) == 1
            message.requeue(0, backoff=False)
        [message] = await take(consumer, 1)
        message.finish()
        await flushed(consumer)
        assert level(consumer) == 0
        assert kinds(events) == ["connected", "backoff", "resumed"]


@asynchronous
async def test_the_test_goes_on_to_another_nsqd_when_the_one_has_nothing(
    three: list[Nsqd], topic: str
) -> None:
    async with Consumer(
        topic,
        "ch",
        nsqd=addresses(three),
        backoff_multiplier=0.01,
        low_rdy_idle_timeout=0.2,
    ) as consumer:
        await warm_up(consumer, three[0], topic)
        await eventually(lambda: min(rdy_counts(three, topic)) > 0)
        await publish(three[1], topic, b"fails")
        [message] = await take(consumer, 1)
        message.requeue(0)
        async with asyncio.timeout(PATIENCE):
            message = await anext(consumer)
        assert message.nsqd == three[1].tcp_address
        message.finish()
        await flushed(consumer)
        assert level(consumer) == 0
