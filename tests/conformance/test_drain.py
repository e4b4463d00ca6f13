"""Closing a consumer: nothing is lost, nothing left in in_flight_at, and it always ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest

import nsqflow.protocol as nsq
from nsqflow import Consumer, DrainResult, Message, Producer
from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.signals import handle_signals_in_loop
from tests.conformance.server_side import (
    WARM_UP,
    bodies_from,
    channel_stats,
    publish,
    take,
    topic_of,
    warm_up,
)
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.scripted import CLOSE, HANG, RESET, Connection, Deed, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, ROOT, Nsqd

PROMPT: Any = {"output_buffer_timeout": 0.025}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def in_flight_at(nsqd: Nsqd, topic: str) -> int:
    """Return how many messages nsqd counts as in flight."""
    count: int = channel_stats(nsqd, topic)["in_flight_count"]
    return count


def sends(*messages: nsq.Message) -> Callable[[Connection, nsq.Rdy], None]:
    """A reaction: send these, whatever RDY says."""
    return lambda connection, _: connection.send_messages(messages)


def message(number: int, attempts: int = 1) -> nsq.Message:
    return nsq.Message(1, attempts, b"%016d" % number, b"%d" % number)


# --- what becomes of the messages


@pytest.mark.proves(rows=[58], defects=[3], wishes=[5])
@asynchronous
async def test_messages_that_were_not_handed_out_go_to_another_consumer_at_once(
    nsqd: Nsqd, topic: str
) -> None:
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    async with consumer:
        await warm_up(consumer, nsqd, topic)
        await publish(nsqd, topic, *numbers(5))
        await eventually(lambda: consumer.stats().queued == 5)
        assert in_flight_at(nsqd, topic) == 5
        assert await consumer.close() == DrainResult(handled=WARM_UP, requeued=5)
    assert in_flight_at(nsqd, topic) == 0
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as other:
        # Long before the timeout of a minute, after which they would come anyway.
        messages = await take(other, 5)
        assert sorted(each.body for each in messages) == numbers(5)
        assert {each.attempts for each in messages} == {2}
        for each in messages:
            each.finish()


@pytest.mark.proves(rows=[58], wishes=[5])
@asynchronous
async def test_outstanding_messages_are_waited_for_and_finished(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *numbers(5))
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    async with consumer:
        first, second = await take(consumer, 2)
        await eventually(lambda: consumer.stats().queued == 3)
        closing = asyncio.create_task(consumer.close())
        await eventually(lambda: in_flight_at(nsqd, topic) == 2)
        assert not closing.done()
        first.finish()
        second.requeue(0)
        assert await asyncio.wait_for(closing, PATIENCE) == DrainResult(handled=1, requeued=4)
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["in_flight_count"], stats["clients"]) == (4, 0, [])
    assert consumer.stats().outstanding == 0


@pytest.mark.proves(defects=[7, 10])
@asynchronous
async def test_closing_sends_cls_before_it_closes_and_does_not_reconnect() -> None:
    # A scripted nsqd, to see what is sent: a CLS that is not whole is none to it.
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [sends(message(1), message(2))])
        consumer = Consumer("t", "ch", nsqd=peer.address, reconnect_delay=0.01)
        async with consumer:
            [first] = await take(consumer, 1)
            closing = asyncio.create_task(consumer.close())
            await peer.received(nsq.Cls)
            first.finish()
            await asyncio.wait_for(closing, PATIENCE)
        await peer.connections[0].ended()
        after = peer.commands[peer.commands.index(nsq.Cls()) + 1 :]
        assert nsq.Fin(first.id) in after
        assert nsq.Req(message(2).id, 0) in peer.commands
        await asyncio.sleep(0.2)  # many times the delay after which it would come back
        assert len(peer.connections) == 1


@pytest.mark.proves(defects=[7])
@asynchronous
async def test_a_producer_can_be_closed_and_does_not_come_back(nsqd: Nsqd, topic: str) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        producer = Producer(proxy.address, reconnect_delay=0.01)
        await producer.publish(topic, b"x")
        await producer.close()
        await eventually(lambda: proxy.open_connections == 0)
        await asyncio.sleep(0.2)
        assert proxy.connections == 1


@asynchronous
async def test_a_message_that_arrives_after_closing_is_requeued() -> None:
    # A real nsqd may send one that was on its way when CLS came; this one surely does.
    def one_more(connection: Connection, _: nsq.Cls) -> None:
        connection.send_messages([message(2), message(3, attempts=9)])
        connection.send_response(b"CLOSE_WAIT")

    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [sends(message(1))])
        peer.on(nsq.Cls, one_more)
        async with Consumer("t", "ch", nsqd=peer.address) as consumer:
            [first] = await take(consumer, 1)
            closing = asyncio.create_task(consumer.close())
            await peer.received(nsq.Req)
            first.finish()
            assert await asyncio.wait_for(closing, PATIENCE) == DrainResult(handled=1, requeued=2)
        requeued = [command.id for command in peer.commands if isinstance(command, nsq.Req)]
        assert requeued == [message(2).id, message(3).id]


@asynchronous
async def test_messages_that_wait_to_be_given_up_are_requeued_too() -> None:
    # They wait because max_in_flight is outstanding: no real nsqd would send them then.
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [sends(message(1))])
        consumer = Consumer("t", "ch", nsqd=peer.address, max_in_flight=1)
        async with consumer:
            [first] = await take(consumer, 1)
            peer.connections[0].send_messages([message(n, attempts=9) for n in (2, 3)])
            await eventually(lambda: consumer.stats().counts.received == 3)
            closing = asyncio.create_task(consumer.close())
            await peer.received(nsq.Cls)
            first.finish()
            assert await asyncio.wait_for(closing, 10) == DrainResult(handled=1, requeued=2)
        assert consumer.stats().counts.gave_up == 0


# --- when hands don't open


@pytest.mark.proves(wishes=[5])
@asynchronous
async def test_handlers_that_hang_are_cancelled_and_their_messages_requeued(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[bytes] = []
    cancelled: list[bytes] = []

    async def hang(message: Message) -> None:
        begun.append(message.body)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(message.body)
            raise

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    await warm_up(consumer, nsqd, topic)
    await publish(nsqd, topic, *numbers(6))
    running = asyncio.create_task(consumer.run(hang, 2, signals=False))
    await eventually(lambda: len(begun) == 2 and consumer.stats().queued == 4)
    drained = await asyncio.wait_for(consumer.close(0.1), PATIENCE)
    assert drained == DrainResult(handled=WARM_UP, requeued=4, abandoned=2)
    assert await asyncio.wait_for(running, PATIENCE) == drained
    assert sorted(cancelled) == sorted(begun)
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["in_flight_count"]) == (6, 0)
    assert "2 messages not answered in time" in caplog.text


@pytest.mark.proves(wishes=[5, 11])
@asynchronous
async def test_a_thread_that_blocks_forever_does_not_delay_the_end(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def block(message: Message) -> None:
        threads.append(threading.current_thread())
        begun.set()
        go_on.wait(PATIENCE)

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    await warm_up(consumer, nsqd, topic)
    await publish(nsqd, topic, *numbers(5))
    running = asyncio.create_task(consumer.run(block, signals=False))
    await asyncio.to_thread(begun.wait, PATIENCE)
    await eventually(lambda: consumer.stats().queued == 4)
    assert consumer.stats().outstanding == 1
    drained = await asyncio.wait_for(consumer.close(0.1), PATIENCE)
    assert drained == DrainResult(handled=WARM_UP, requeued=4, abandoned=1)
    assert await asyncio.wait_for(running, PATIENCE) == drained
    assert in_flight_at(nsqd, topic) == 0
    assert "1 messages not answered in time" in caplog.text
    assert "1 threads are still in the handler" in caplog.text
    assert len(threads) == 1
    go_on.set()
    threads[0].join(PATIENCE)


@asynchronous
async def test_an_answer_after_the_end_raises(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"x")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:
        [message] = await take(consumer, 1)
        assert await consumer.close(0) == DrainResult(abandoned=1)
        with pytest.raises(LocalProtocolError, match=r"close\(\)"):
            message.finish()
        async with message:  # and this one does not mind
            pass


@asynchronous
async def test_close_logs_what_it_waits_for(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await publish(nsqd, topic, b"x")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:
        [message] = await take(consumer, 1)
        closing = asyncio.create_task(consumer.close())
        await eventually(lambda: "waiting for 1 unanswered message, 30 s at most" in caplog.text)
        assert "WARNING" in caplog.text, "it is seen without configuring anything"
        message.finish()
        await closing
    assert "closed: DrainResult(handled=1, requeued=0, abandoned=0)" in caplog.text


@asynchronous
async def test_answers_from_threads_in_the_moment_of_the_end_are_counted_once(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, *numbers(1000))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads get into each other's way
    try:
        for _ in range(10):
            consumer = Consumer(
                topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=1000, max_attempts=0, **PROMPT
            )
            async with consumer:
                thread = threading.Thread(target=requeue, args=[await take(consumer, 1000)])
                with at_the_warning(thread.start):
                    await consumer.close(0)
                thread.join()
                counts = consumer.stats().counts
                assert counts.requeued == counts.received >= 1000
                assert consumer.stats().outstanding == 0
            stats = channel_stats(nsqd, topic)
            assert (stats["depth"], stats["in_flight_count"]) == (1000, 0)
    finally:
        sys.setswitchinterval(interval)


@contextlib.contextmanager
def at_the_warning(act: Callable[[], None]) -> Iterator[None]:
    """Call something just before close() requeues messages that user code holds."""

    class CallsOnWarning(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "not answered in time" in record.getMessage():
                act()

    handler, logger = CallsOnWarning(logging.WARNING), logging.getLogger("nsqflow")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def requeue(messages: list[Message]) -> None:
    for message in reversed(messages):
        with contextlib.suppress(LocalProtocolError):  # close() was first
            message.requeue(0, backoff=False)


# --- how often and when it is closed


@pytest.mark.proves(wishes=[5])
@asynchronous
async def test_closing_again_and_at_the_same_time_is_the_same_end(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"x")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:
        [message] = await take(consumer, 1)
        closings = [asyncio.create_task(consumer.close()) for _ in range(3)]
        impatient = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        impatient.cancel()  # and the others don't mind
        message.finish()
        assert await asyncio.gather(*closings) == [DrainResult(handled=1)] * 3
        assert impatient.cancelled()
        assert await consumer.close() == DrainResult(handled=1)
    assert in_flight_at(nsqd, topic) == 0


@asynchronous
async def test_a_consumer_that_never_began_can_be_closed() -> None:
    consumer = Consumer("t", "ch", nsqd="127.0.0.1:1")
    assert await consumer.close() == DrainResult()
    assert [message async for message in consumer] == []
    assert [batch async for batch in consumer.batches()] == []
    assert await consumer.run(lambda message: None, signals=False) == DrainResult()


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), "5", True])
def test_an_invalid_drain_timeout_is_refused(timeout: float) -> None:
    @asynchronous
    async def close() -> None:
        consumer = Consumer("t", "ch", nsqd="127.0.0.1:1")
        with pytest.raises(ConfigError, match="drain_timeout="):
            await consumer.close(timeout)

    close()


@pytest.mark.proves(wishes=[11])
@asynchronous
async def test_iterating_ends_when_the_consumer_is_closed(nsqd: Nsqd, topic: str) -> None:
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)

    async def iterate() -> list[Message]:
        return [message async for message in consumer]

    async def gather() -> list[Any]:
        return [batch async for batch in consumer.batches()]

    tasks = [asyncio.create_task(work()) for work in (iterate, iterate, gather)]
    await eventually(lambda: any(c.connected for c in consumer.stats().connections))
    await consumer.close()
    assert await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE) == [[], [], []]


@pytest.mark.proves(wishes=[11])
@asynchronous
async def test_a_consumer_whose_server_is_not_there_can_be_closed() -> None:
    consumer = Consumer("t", "ch", nsqd="127.0.0.1:1", reconnect_delay=60)
    async with consumer:
        task = asyncio.create_task(anext(consumer))
        await eventually(lambda: consumer.stats().connections[0].failures == 1)
        assert await asyncio.wait_for(consumer.close(), PATIENCE) == DrainResult()
        with pytest.raises(StopAsyncIteration):
            await task


@pytest.mark.proves(wishes=[11])
@asynchronous
async def test_a_consumer_that_ended_by_an_error_can_be_closed(nsqd: Nsqd, topic: str) -> None:
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, msg_timeout=10_000)
    with pytest.raises(ConfigError):
        await anext(consumer)
    assert await asyncio.wait_for(consumer.close(), PATIENCE) == DrainResult()


@pytest.mark.proves(wishes=[11])
@asynchronous
async def test_a_connection_that_is_still_being_made_can_be_closed() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, HANG)
        async with Consumer("t", "ch", nsqd=peer.address):
            await peer.received(nsq.Identify)
        await peer.connections[0].ended()


@pytest.mark.proves(wishes=[5, 11])
@pytest.mark.parametrize("behaviour", [CLOSE, RESET, HANG])
def test_a_server_that_leaves_or_says_nothing_does_not_hold_up_the_end(behaviour: Deed) -> None:
    # What real servers do only when they die, which they don't at the right moment.
    @asynchronous
    async def close() -> None:
        async with ScriptedNsqd() as peer:
            peer.on(nsq.Rdy, [sends(message(1), message(2))])
            peer.on(nsq.Cls, behaviour)
            async with Consumer("t", "ch", nsqd=peer.address, reconnect_delay=0.01) as consumer:
                [first] = await take(consumer, 1)
                closing = asyncio.create_task(consumer.close())
                await peer.received(nsq.Cls)
                if behaviour is not HANG:
                    await peer.connections[0].ended()
                    await eventually(lambda: not consumer.stats().connections[0].connected)
                assert not closing.done()
                first.finish()
                drained = await asyncio.wait_for(closing, 10)
                assert drained.abandoned == 0
                assert consumer.stats().outstanding == 0
            assert len(peer.connections) == 1

    close()


@asynchronous
async def test_outstanding_messages_of_a_lost_connection_are_waited_for_too(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, b"x")
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Consumer(topic, "ch", nsqd=proxy.address, **PROMPT) as consumer,
    ):
        [message] = await take(consumer, 1)
        proxy.refuse()
        proxy.reset()
        await eventually(lambda: not any(c.connected for c in consumer.stats().connections))
        closing = asyncio.create_task(consumer.close())
        await asyncio.wait([closing], timeout=0.1)
        assert not closing.done()
        message.finish()
        assert await asyncio.wait_for(closing, PATIENCE) == DrainResult()
        assert consumer.stats().counts.orphaned == 1


@asynchronous
async def test_closing_while_a_handler_runs_lets_it_end(nsqd: Nsqd, topic: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended: list[bytes] = []

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()
        ended.append(message.body)

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    await warm_up(consumer, nsqd, topic)
    await publish(nsqd, topic, *numbers(3))
    running = asyncio.create_task(consumer.run(handle, signals=False))
    await begun.wait()
    await eventually(lambda: consumer.stats().queued == 2)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    go_on.set()
    assert await closing == await running == DrainResult(handled=WARM_UP + 1, requeued=2)
    assert len(ended) == 1
    assert in_flight_at(nsqd, topic) == 0


@asynchronous
async def test_a_cancelled_run_requeues_its_messages(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *numbers(3))
    begun = asyncio.Event()

    async def hang(message: Message) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    running = asyncio.create_task(consumer.run(hang, signals=False))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, PATIENCE)
    assert in_flight_at(nsqd, topic) == 0
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as other:
        assert await bodies_from(other, 3) == numbers(3)


@asynchronous
async def test_a_batch_that_was_being_gathered_is_not_waited_for(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *numbers(3))
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:
        gathering = asyncio.ensure_future(anext(consumer.batches(100, 3600)))
        await eventually(lambda: consumer.stats().queued == 3)
        gathering.cancel()
        await asyncio.wait([gathering])
        drained = await asyncio.wait_for(consumer.close(), PATIENCE)
        assert drained.abandoned == 0
    assert in_flight_at(nsqd, topic) == 0


# --- signals


class Program:
    """A program that consumes, in a process of its own."""

    SOURCE = """
        import asyncio, logging, signal, sys, threading, time
        import nsqflow

        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        ADDRESS, TOPIC, OTHER = sys.argv[1:]
        OPTIONS = dict(nsqd=ADDRESS, output_buffer_timeout=0.025)

        def say(*words):
            print(*words, flush=True)

        async def slow(message):
            say("begun", message.body.decode())
            await asyncio.sleep(0.5)
            say("ended", message.body.decode())

        async def hang(message):
            say("begun", message.body.decode())
            await asyncio.sleep(3600)

        def block(message):
            say("begun", message.body.decode())
            threading.Event().wait(3600)

        def mine(*_):
            say("mine")

    """

    def __init__(self, nsqd: Nsqd, topic: str, other: str, main: str) -> None:
        source = textwrap.dedent(self.SOURCE) + textwrap.dedent(main)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", source, nsqd.tcp_address, topic, other],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.log: list[str] = []
        self._read = 0  # lines that were returned
        self._news = threading.Condition()
        self._threads = [
            threading.Thread(target=self._collect, args=arguments)
            for arguments in ((self.process.stdout, self.lines), (self.process.stderr, self.log))
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()

    def read(self, count: int) -> list[str]:
        """Return the next lines of what it says."""
        self._await(lambda: len(self.lines) >= self._read + count)
        lines = self.lines[self._read : self._read + count]
        self._read += count
        return lines

    def await_log(self, text: str) -> None:
        """Wait until it has logged this."""
        self._await(lambda: any(text in line for line in self.log))

    def end(self) -> tuple[list[str], str]:
        """Wait for its end; return all that it said, and its log."""
        self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join()
        log = "\n".join(self.log)
        assert self.process.returncode == 0, log
        return self.lines, log

    def _collect(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    lines.append(line.rstrip("\n"))
                    self._news.notify_all()

    def _await(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, PATIENCE), (self.lines, self.log)


RUN = """
    async def main():
        consumer = nsqflow.Consumer(TOPIC, "ch", **OPTIONS)
        say(await consumer.run({handler}, {concurrency}))

    asyncio.run(main())
"""


@pytest.mark.proves(rows=[58], wishes=[5])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_without_loss(nsqd: Nsqd, topic: str, number: signal.Signals) -> None:
    asynchronous(publish)(nsqd, topic, *numbers(10))
    with Program(nsqd, topic, "-", RUN.format(handler="slow", concurrency=2)) as program:
        program.read(2)
        program.process.send_signal(number)
        lines, log = program.end()
    ended = [line for line in lines if line.startswith("ended")]
    assert len(ended) == 2
    # What is given back depends on whether it had come; that nothing is lost shows below.
    assert re.fullmatch(r"DrainResult\(handled=2, requeued=[0-8], abandoned=0\)", lines[-1])
    assert f"{number.name}, closing" in log
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["in_flight_count"]) == (8, 0)


def test_a_signal_that_is_delivered_twice_is_one_request(nsqd: Nsqd, topic: str) -> None:
    asynchronous(publish)(nsqd, topic, *numbers(10))
    with Program(nsqd, topic, "-", RUN.format(handler="slow", concurrency=2)) as program:
        program.read(2)
        # As `timeout` does it: to the process, and then to its group.
        program.process.send_signal(signal.SIGTERM)
        program.await_log("SIGTERM, closing")
        program.process.send_signal(signal.SIGTERM)
        lines, log = program.end()
    assert "while closing" not in log
    assert re.fullmatch(r"DrainResult\(handled=2, requeued=[0-8], abandoned=0\)", lines[-1])


@pytest.mark.parametrize("handler", ["hang", "block"])
def test_a_second_signal_ends_it_at_once(nsqd: Nsqd, topic: str, handler: str) -> None:
    asynchronous(publish)(nsqd, topic, *numbers(3))
    with Program(nsqd, topic, "-", RUN.format(handler=handler, concurrency=1)) as program:
        program.read(1)
        program.process.send_signal(signal.SIGTERM)
        # Not before it has taken the first: two that wait are one.
        program.await_log("SIGTERM, closing")
        # Another one: the same would be taken for the first, delivered twice.
        program.process.send_signal(signal.SIGINT)
        _, log = program.end()  # it waits 20 s for that; without the second signal it takes 30
    assert "SIGINT while closing, ending at once" in log
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["in_flight_count"]) == (3, 0)


RUNS = {
    "run": 'nsqflow.Consumer(TOPIC, "ch", **OPTIONS).run({}, drain_timeout=0.1)',
    "nsqflow.run": 'nsqflow.run({{(TOPIC, "ch"): {}}}, drain_timeout=0.1, **OPTIONS)',
}


@pytest.mark.parametrize("handler", ["hang", "block"])
@pytest.mark.parametrize("way", RUNS)
def test_a_run_waits_for_its_handlers_for_its_drain_timeout(
    nsqd: Nsqd, topic: str, way: str, handler: str
) -> None:
    asynchronous(publish)(nsqd, topic, *numbers(3))
    main = f"""
        async def main():
            say(await {RUNS[way].format(handler)})

        asyncio.run(main())
    """
    with Program(nsqd, topic, "-", main) as program:
        program.read(1)
        program.process.send_signal(signal.SIGTERM)
        lines, _ = program.end()  # it waits 20 s for that; the default would take 30
    assert "abandoned=1" in lines[-1]
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["in_flight_count"]) == (3, 0)


@asynchronous
async def test_what_a_close_returns_is_about_the_whole_run(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *numbers(10))
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body in (b"7", b"8"):
            message.requeue(3600, backoff=False)
        elif message.body == b"9":
            begun.set()
            await asyncio.get_running_loop().create_future()

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)
    running = asyncio.create_task(consumer.run(handle, signals=False, drain_timeout=0.1))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    await eventually(lambda: consumer.stats().counts.finished == 7)
    assert await consumer.close(0.1) == DrainResult(handled=7, requeued=2, abandoned=1)
    assert await running == DrainResult(handled=7, requeued=2, abandoned=1)


@pytest.mark.proves(wishes=[5])
def test_several_consumers_drain_together_on_a_signal(nsqd: Nsqd, topic: str) -> None:
    other = f"{topic[-50:]}_other"
    main = """
        async def main():
            drained = await nsqflow.run({(TOPIC, "ch"): slow, (OTHER, "ch"): slow}, **OPTIONS)
            for (topic, channel), each in drained.items():
                say(topic, channel, each)

        asyncio.run(main())
    """
    for each in (topic, other):
        asynchronous(publish)(nsqd, each, *numbers(3))
    with Program(nsqd, topic, other, main) as program:
        program.read(2)
        program.process.send_signal(signal.SIGTERM)
        lines, _ = program.end()
    # What is given back depends on whether it had come: the first of each has, the rest may not.
    for each, line in zip((topic, other), lines[-2:], strict=True):
        assert re.fullmatch(
            rf"{each} ch DrainResult\(handled=1, requeued=[0-2], abandoned=0\)", line
        )
    for each in (topic, other):
        stats = channel_stats(nsqd, each)
        assert (stats["depth"], stats["in_flight_count"]) == (2, 0)


def test_the_handlers_from_before_are_back_after_the_run(nsqd: Nsqd, topic: str) -> None:
    main = """
        async def main():
            signal.signal(signal.SIGTERM, mine)
            before = signal.getsignal(signal.SIGINT)
            consumer = nsqflow.Consumer(TOPIC, "ch", **OPTIONS)
            await consumer.run(slow)
            say(signal.getsignal(signal.SIGTERM) is mine)
            say(signal.getsignal(signal.SIGINT) is before)
            signal.raise_signal(signal.SIGTERM)

        asyncio.run(main())
    """
    asynchronous(publish)(nsqd, topic, b"0")
    with Program(nsqd, topic, "-", main) as program:
        program.read(1)
        program.process.send_signal(signal.SIGTERM)
        lines, _ = program.end()
    assert lines == ["begun 0", "ended 0", "True", "True", "mine"]


@asynchronous
async def test_the_loop_s_own_handlers_are_back_too() -> None:
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGTERM)
    mine: list[str] = []
    stops: list[signal.Signals] = []
    loop.add_signal_handler(signal.SIGTERM, mine.append, "mine")
    try:
        with handle_signals_in_loop(stops.append):
            signal.raise_signal(signal.SIGTERM)
            await eventually(lambda: bool(stops))
        assert mine == []
        signal.raise_signal(signal.SIGTERM)
        await eventually(lambda: mine == ["mine"])
        assert stops == [signal.SIGTERM]
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("where", ["another thread", "the main thread, not wanted"])
def test_signals_are_left_alone(nsqd: Nsqd, topic: str, where: str) -> None:
    asynchronous(publish)(nsqd, topic, b"x")
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    seen: list[list[Any]] = []

    async def main() -> None:
        consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT)

        async def look(message: Message) -> None:
            seen.append([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)])
            message.finish()
            await consumer.close()

        await consumer.run(look, signals=where == "another thread")

    if where == "another thread":
        thread = threading.Thread(target=asyncio.run, args=[main()])
        thread.start()
        thread.join(PATIENCE)
        assert seen == [before]
    else:
        asyncio.run(main())
        # asyncio.run has its own SIGINT while it runs.
        assert seen[0][1] == before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
