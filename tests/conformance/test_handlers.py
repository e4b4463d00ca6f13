"""Handlers: in the loop and on threads, one or many, blocking or not; and several consumers."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import nsqflow
import nsqflow.protocol as nsq
from nsqflow import Batch, ClientEvent, Consumer, Message
from nsqflow.client.consumer.workers import Handler
from nsqflow.errors import ConfigError
from tests.conformance.server_side import channel_stats, kinds, publish, topic_of
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Nsqd

PROMPT: Any = {"output_buffer_timeout": 0.025}
ONCE_MORE: Any = {**PROMPT, "default_requeue_delay": 0, "max_backoff_duration": 0}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class Running:
    """A consumer that runs a handler while the block does, and is drained after it."""

    def __init__(
        self, consumer: Consumer, handler: Handler, concurrency: int = 1, **options: Any
    ) -> None:
        self.consumer = consumer
        self._work = consumer.run(handler, concurrency, signals=False, **options)

    async def __aenter__(self) -> Running:
        self.task = asyncio.create_task(self._work)
        return self

    async def __aexit__(self, *_: object) -> None:
        async with asyncio.timeout(PATIENCE):
            drained = await self.consumer.close()
            assert await self.task == drained

    async def finished(self, count: int) -> None:
        await eventually(lambda: self.consumer.stats().counts.finished >= count)


# --- which handlers there are


def plain(log: list[Message], message: Message) -> None:
    log.append(message)


async def coroutine(log: list[Message], message: Message) -> None:
    await asyncio.sleep(0)
    log.append(message)


class Recorder:
    def __init__(self, log: list[Message]) -> None:
        self.log = log

    def keep(self, message: Message) -> None:
        self.log.append(message)

    async def keep_later(self, message: Message) -> None:
        await coroutine(self.log, message)

    async def __call__(self, message: Message) -> None:
        await coroutine(self.log, message)


HANDLERS: dict[str, Callable[[list[Message]], Handler]] = {
    "plain function": lambda log: lambda message: log.append(message),
    "partial of a plain function": lambda log: functools.partial(plain, log),
    "partial of a coroutine function": lambda log: functools.partial(coroutine, log),
    "method": lambda log: Recorder(log).keep,
    "async method": lambda log: Recorder(log).keep_later,
    "object with an async call": Recorder,
}


@pytest.mark.proves(rows=[9, 33])
@pytest.mark.parametrize("kind", HANDLERS)
def test_a_handler_is_anything_that_takes_a_message(nsqd: Nsqd, topic: str, kind: str) -> None:
    @asynchronous
    async def handle() -> None:
        await publish(nsqd, topic, *numbers(10))
        log: list[Message] = []
        consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
        async with Running(consumer, HANDLERS[kind](log)) as running:
            await running.finished(10)
        assert sorted(message.body for message in log) == numbers(10)
        stats = channel_stats(nsqd, topic)
        assert (stats["depth"], stats["in_flight_count"], stats["requeue_count"]) == (0, 0, 0)

    handle()


@pytest.mark.proves(rows=[33])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_a_handler_raises_on_is_delivered_again_and_the_rest_is_finished(
    nsqd: Nsqd, topic: str, kind: str, concurrency: int
) -> None:
    seen: list[tuple[bytes, int]] = []

    def fail(message: Message) -> None:
        seen.append((message.body, message.attempts))
        if message.attempts < 3 and int(message.body) % 2:
            raise ValueError("not yet")

    async def fail_later(message: Message) -> None:
        fail(message)

    @asynchronous
    async def handle() -> None:
        await publish(nsqd, topic, *numbers(6))
        consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **ONCE_MORE)
        handler = fail if kind == "plain" else fail_later
        async with Running(consumer, handler, concurrency) as running:
            await running.finished(6)
            counts = consumer.stats().counts
            assert (counts.failed, counts.requeued, counts.finished) == (6, 6, 6)
            assert (counts.received, counts.refused, counts.gave_up) == (12, 0, 0)

    handle()
    assert Counter(body for body, _ in seen) == {
        b"%d" % number: 3 if number % 2 else 1 for number in range(6)
    }


@asynchronous
async def test_a_handler_may_answer_later(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *numbers(3))
    kept: list[Message] = []

    async def keep(message: Message) -> None:
        kept.append(message)

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    async with Running(consumer, keep, auto_answer=False) as running:
        await eventually(lambda: len(kept) == 3)
        assert channel_stats(nsqd, topic)["in_flight_count"] == 3
        for message in kept:
            message.finish()
        await running.finished(3)


@asynchronous
async def test_an_async_handler_runs_as_often_at_a_time_as_asked_for(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, *numbers(12))
    together = asyncio.Barrier(3)
    most = now = 0

    async def meet(message: Message) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await together.wait()
        now -= 1

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    async with Running(consumer, meet, 3) as running:
        await running.finished(12)
    assert most == 3


@asynchronous
async def test_one_at_a_time_is_one_at_a_time(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *numbers(20))
    now = 0

    async def alone(message: Message) -> None:
        nonlocal now
        assert now == 0
        now += 1
        await asyncio.sleep(0)
        now -= 1

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    async with Running(consumer, alone) as running:
        await running.finished(20)
        assert consumer.stats().counts.failed == 0


@asynchronous
async def test_a_handler_that_is_cancelled_from_within_does_not_end_the_run_silently(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, b"x")

    async def await_a_cancelled_task(message: Message) -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        task.cancel()
        await task

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    running = asyncio.create_task(consumer.run(await_a_cancelled_task, 2, signals=False))
    await asyncio.wait([running], timeout=PATIENCE)
    assert running.cancelled()
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["in_flight_count"]) == (1, 0)


@pytest.mark.parametrize("handler", [None, 7, "charge"])
def test_what_cannot_be_called_is_refused(handler: Any) -> None:
    @asynchronous
    async def run() -> None:
        with pytest.raises(ConfigError, match="handler="):
            await Consumer("t", "ch", nsqd="127.0.0.1:1").run(handler)

    run()


# --- threads


@pytest.mark.proves(wishes=[7])
@asynchronous
async def test_a_plain_handler_runs_on_the_same_few_threads(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *numbers(300))
    together = threading.Barrier(3)
    names: Counter[str] = Counter()

    def meet(message: Message) -> None:
        names[threading.current_thread().name] += 1
        together.wait(PATIENCE)

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    async with Running(consumer, meet, 3) as running:
        await running.finished(300)
    assert names == dict.fromkeys((f"nsqflow worker {number}" for number in range(3)), 100)


@asynchronous
async def test_answers_of_threads_reach_the_loop_many_at_a_time(
    nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(nsqd, topic, *numbers(2000))
    loop = asyncio.get_running_loop()
    wake_up = loop.call_soon_threadsafe
    calls = 0

    def count(*args: Any, **options: Any) -> asyncio.Handle:
        nonlocal calls
        calls += 1
        return wake_up(*args, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=1000, **PROMPT)
    async with Running(consumer, lambda message: None) as running:
        await running.finished(2000)
    assert calls < 500


@pytest.mark.proves(wishes=[7])
@asynchronous
async def test_a_blocking_handler_holds_up_neither_heartbeats_nor_answers(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, *numbers(5))
    events: list[ClientEvent] = []
    go_on = threading.Event()

    def block(message: Message) -> None:
        if message.body == b"0":
            go_on.wait(PATIENCE)

    consumer = Consumer(
        topic, "ch", nsqd=nsqd.tcp_address, heartbeat_interval=1, on_event=events.append, **PROMPT
    )
    async with Running(consumer, block, 2) as running:
        await running.finished(4)
        await eventually(lambda: answered(nsqd, topic) == (1, 4))
        # nsqd closes a connection after two intervals without a word.
        await asyncio.sleep(2.5)
        assert kinds(events) == ["connected"]
        go_on.set()
        await running.finished(5)
    assert channel_stats(nsqd, topic)["timeout_count"] == 0


def answered(nsqd: Nsqd, topic: str) -> tuple[int, int]:
    """The messages in flight and those finished, as nsqd counts them."""
    stats = channel_stats(nsqd, topic)
    return stats["in_flight_count"], stats["clients"][0]["finish_count"]


class Busy:
    """Uses the loop's time and never gives it back by itself; looks at nsqd meanwhile."""

    def __init__(self, nsqd: Nsqd, topic: str) -> None:
        self.finished: list[int] = []
        self._nsqd = nsqd
        self._topic = topic

    def handle(self) -> None:
        time.sleep(0.1)
        [client] = channel_stats(self._nsqd, self._topic)["clients"]
        self.finished.append(client["finish_count"])

    async def run(self, consumer: Consumer) -> None:
        async def handle(message: Message) -> None:
            self.handle()

        async with Running(consumer, handle) as running:
            await running.finished(30)

    async def iterate(self, consumer: Consumer) -> None:
        async with consumer:
            async for message in consumer:
                self.handle()
                message.finish()
                if len(self.finished) == 30:
                    break


@pytest.mark.proves(wishes=[7])
@pytest.mark.parametrize("way", ["run", "iterate"])
def test_a_reader_that_never_waits_lets_the_loop_run(nsqd: Nsqd, topic: str, way: str) -> None:
    busy = Busy(nsqd, topic)
    events: list[ClientEvent] = []

    @asynchronous
    async def consume() -> None:
        await publish(nsqd, topic, *numbers(30))
        consumer = Consumer(
            topic,
            "ch",
            nsqd=nsqd.tcp_address,
            heartbeat_interval=1,
            on_event=events.append,
            **PROMPT,
        )
        async with asyncio.timeout(PATIENCE):
            await getattr(busy, way)(consumer)

    consume()
    # Three seconds of work: without a turn the connection would be lost, and all be done twice.
    assert len(busy.finished) == 30
    assert kinds(events).count("connected") == 1
    assert all(done >= number - 4 for number, done in enumerate(busy.finished))


# --- never more than max_in_flight


class Outstanding:
    """Counts what handlers have at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def take(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def give(self) -> None:
        with self._lock:
            self.now -= 1

    async def work(self, message: Message) -> None:
        self.take()
        await asyncio.sleep(0.001)
        self.give()

    def block(self, message: Message) -> None:
        self.take()
        time.sleep(0.001)
        self.give()


@pytest.mark.parametrize("max_in_flight", [1, 3, 10])
@pytest.mark.parametrize("kind", ["work", "block"])
def test_handlers_never_have_more_than_max_in_flight(
    nsqd: Nsqd, topic: str, kind: str, max_in_flight: int
) -> None:
    outstanding = Outstanding()

    @asynchronous
    async def handle() -> None:
        await publish(nsqd, topic, *numbers(100))
        consumer = Consumer(
            topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=max_in_flight, **PROMPT
        )
        async with Running(consumer, getattr(outstanding, kind), 20) as running:
            await running.finished(100)

    handle()
    assert outstanding.most <= max_in_flight
    if kind == "work":
        assert outstanding.most == max_in_flight


def ignoring_rdy(count: int) -> Callable[[Connection, nsq.Rdy], None]:
    """A reaction: send ``count`` messages, whatever RDY says."""

    def send(connection: Connection, _: nsq.Rdy) -> None:
        connection.send_messages(
            nsq.Message(1, 1, b"%016d" % number, b"%d" % number) for number in range(count)
        )

    return send


@pytest.mark.parametrize("max_in_flight", [1, 3, 10])
@pytest.mark.parametrize("kind", ["work", "block"])
def test_a_server_that_ignores_rdy_does_not_exceed_max_in_flight(
    kind: str, max_in_flight: int
) -> None:
    # What no real nsqd does.
    outstanding = Outstanding()

    @asynchronous
    async def handle() -> None:
        async with ScriptedNsqd() as peer:
            peer.on(nsq.Rdy, [ignoring_rdy(100)])
            consumer = Consumer("t", "ch", nsqd=peer.address, max_in_flight=max_in_flight)
            async with Running(consumer, getattr(outstanding, kind), 20) as running:
                await running.finished(100)
                assert consumer.stats().counts.received == 100

    handle()
    assert outstanding.most <= max_in_flight


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_a_reader_that_does_not_answer_gets_no_more(max_in_flight: int) -> None:
    @asynchronous
    async def consume() -> None:
        async with ScriptedNsqd() as peer:
            peer.on(nsq.Rdy, [ignoring_rdy(10)])
            consumer = Consumer("t", "ch", nsqd=peer.address, max_in_flight=max_in_flight)
            async with consumer:
                held = [await anext(consumer) for _ in range(max_in_flight)]
                await eventually(lambda: consumer.stats().queued == 10 - max_in_flight)
                more = asyncio.create_task(anext(consumer))
                await asyncio.sleep(0.05)  # it may give the loop a turn before it stands in line
                batch: asyncio.Future[Batch] = asyncio.ensure_future(anext(consumer.batches(5)))
                await asyncio.sleep(0.1)
                assert not more.done()
                held.pop().finish()
                held.append(await asyncio.wait_for(more, PATIENCE))
                assert not batch.done()
                for message in held:
                    message.finish()
                (await asyncio.wait_for(batch, PATIENCE)).finish()

    consume()


# --- several consumers


@asynchronous
async def test_several_channels_run_together_until_one_fails_and_all_are_drained(
    nsqd: Nsqd, topic: str
) -> None:
    other = f"{topic[-50:]}_other"
    await publish(nsqd, topic, *numbers(5))
    await publish(nsqd, other, *numbers(3), b"the end")
    seen: list[bytes] = []
    begun = asyncio.Event()

    class Stop(BaseException):
        """No failure of a message."""

    async def charge(message: Message) -> None:
        begun.set()
        await asyncio.sleep(0.1)
        seen.append(message.body)

    async def greet(message: Message) -> None:
        await begun.wait()
        if message.body == b"the end":
            raise Stop

    with pytest.raises(Stop):
        async with asyncio.timeout(PATIENCE):
            await nsqflow.run(
                {(topic, "ch"): charge, (other, "ch"): greet},
                nsqd=nsqd.tcp_address,
                signals=False,
                **PROMPT,
            )
    first, second = channel_stats(nsqd, topic), channel_stats(nsqd, other)
    assert first["in_flight_count"] == second["in_flight_count"] == 0
    assert first["depth"] == 5 - len(seen)  # outstanding messages were waited for
    assert 1 <= len(seen) < 5
    assert second["depth"] >= 1


@asynchronous
async def test_errors_of_several_consumers_are_one_error_to_the_caller(
    nsqd: Nsqd, topic: str
) -> None:
    async def handle(message: Message) -> None: ...

    with pytest.raises(ConfigError, match="E_BAD_BODY IDENTIFY msg timeout"):
        async with asyncio.timeout(PATIENCE):
            await nsqflow.run(
                {(topic, "one"): handle, (topic, "two"): lambda message: None},
                nsqd=nsqd.tcp_address,
                signals=False,
                concurrency=3,
                msg_timeout=10_000,
            )


@asynchronous
async def test_several_cancelled_consumers_requeue_their_messages(nsqd: Nsqd, topic: str) -> None:
    assert nsqd.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
    for channel in ("ch", "other"):
        assert nsqd.ask(f"/channel/create?topic={topic}&channel={channel}", "POST")[0] == 200
    await publish(nsqd, topic, *numbers(4))
    begun: list[Message] = []

    async def hang(message: Message) -> None:
        begun.append(message)
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(
        nsqflow.run(
            {(topic, "ch"): hang, (topic, "other"): hang},
            nsqd=nsqd.tcp_address,
            signals=False,
            **PROMPT,
        )
    )
    await eventually(lambda: len(begun) == 2)
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE)
    assert task.cancelled()
    for channel in ("ch", "other"):
        stats = channel_stats(nsqd, topic, channel)
        assert (stats["depth"], stats["in_flight_count"]) == (4, 0)


def test_to_run_nothing_is_refused() -> None:
    @asynchronous
    async def run() -> None:
        with pytest.raises(ConfigError, match=r"^handlers="):
            await nsqflow.run({}, nsqd="127.0.0.1:1")

    run()
