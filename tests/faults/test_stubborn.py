"""Handlers that ignore their cancellation, servers that do half of what they should."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

import pytest

import nsqflow.protocol as nsq
from nsqflow import ConfigError, Consumer, Message, Producer, PublishUncertain, RemoteProtocolError
from tests.conformance.server_side import reading
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import HANG, ScriptedLookupd, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd


def message(number: int, attempts: int = 1) -> nsq.Message:
    return nsq.Message(1, attempts, b"%016d" % number, b"%d" % number)


@asynchronous
async def test_a_handler_that_ignores_its_cancelling_does_not_keep_the_run_alive() -> None:
    seen: list[bytes] = []

    async def stubborn(message: Message) -> None:
        seen.append(message.body)
        with contextlib.suppress(asyncio.CancelledError):  # as a broad except does, by mistake
            await asyncio.sleep(PATIENCE)

    async with ScriptedNsqd() as peer:
        consumer = Consumer("t", "ch", nsqd=peer.address)
        running = asyncio.create_task(consumer.run(stubborn, signals=False))
        connection = await peer.connected()
        await peer.received(nsq.Rdy)
        connection.send_messages([message(1), message(2)])
        await eventually(lambda: bool(seen))
        running.cancel()
        await asyncio.wait([running], timeout=PATIENCE / 2)
        assert running.done()
        assert seen == [b"1"]


@asynchronous
async def test_an_nsqd_that_reads_and_does_not_answer_is_skipped() -> None:
    async with ScriptedNsqd() as good, ScriptedNsqd() as bad:
        bad.on(nsq.Publish, HANG)
        async with Producer([good.address, bad.address]) as producer:
            await good.connected()
            await bad.connected()
            uncertain = 0
            for _ in range(12):
                try:
                    await producer.publish("t", b"x", timeout=0.3)
                except PublishUncertain:
                    uncertain += 1
            assert uncertain == 1


@asynchronous
async def test_a_block_that_raises_requeues_its_messages_at_once() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [lambda connection, _: connection.send_messages([message(1)])])
        began = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            async with Consumer("t", "ch", nsqd=peer.address) as consumer:
                await anext(consumer)
                raise ZeroDivisionError
        assert time.monotonic() - began < PATIENCE / 2
        assert await peer.received(nsq.Req) == nsq.Req(b"%016d" % 1, 0)


@asynchronous
async def test_an_nsqd_that_is_never_reached_does_not_make_nsqlookupd_be_asked_more_often() -> None:
    nowhere = b'{"channels":[],"producers":[{"broadcast_address":"127.0.0.1","tcp_port":1}]}'
    async with ScriptedLookupd({"/lookup": (200, nowhere)}) as lookupd:
        events: list[str] = []
        consumer = Consumer(
            "t", "ch", lookupd=lookupd.address, on_event=lambda event: events.append(event.kind)
        )
        async with consumer:
            await eventually(lambda: "connect_failed" in events)
            await asyncio.sleep(1.5)  # an early round would come after a second
            assert sum(r.path.startswith("/lookup?") for r in lookupd.requests) == 1


@asynchronous
async def test_dead_letters_are_not_published_through_an_nsqd_that_is_gone(tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"x")
        consumer = Consumer(
            "t",
            "ch",
            nsqd=nsqd.tcp_address,
            max_attempts=1,
            default_requeue_delay=0,
            max_backoff_duration=0,
            dead_letter="dead",
        )
        async with consumer:
            (await anext(consumer)).requeue(0)
            async with reading(consumer):
                await eventually(lambda: consumer.stats().counts.finished == 1)
            assert consumer._coordinator is not None
            dead_letters = consumer._coordinator.dead_letters
            assert list(dead_letters._producers) == [nsqd.tcp_address]
            nsqd.stop()
            await eventually(lambda: not dead_letters._producers)


@asynchronous
async def test_a_consumer_explains_itself_when_it_is_closed(nsqd: Nsqd) -> None:
    async with Consumer("explained", "ch", nsqd=nsqd.tcp_address) as consumer:
        pass
    assert "closed" in await asyncio.to_thread(consumer.explain)


@asynchronous
async def test_a_batch_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [lambda c, _: c.send_messages([message(i) for i in range(5)])])
        async with Consumer("t", "ch", nsqd=peer.address) as consumer:
            async for batch in consumer.batches(5):
                async with batch:
                    raise ValueError("the database is down")
                break
        errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert len(errors) == 1
        assert errors[0].endswith("and 4 others of its batch")
        assert consumer.stats().counts.failed == 5


@asynchronous
async def test_threads_leave_alone_what_a_lost_connection_had_brought() -> None:
    seen: list[bytes] = []
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(message: Message) -> None:
        seen.append(message.body)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(PATIENCE)

    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [lambda c, _: c.send_messages([message(i) for i in range(5)])])
        consumer = Consumer("t", "ch", nsqd=peer.address)
        running = asyncio.create_task(consumer.run(slow, signals=False))
        await eventually(lambda: bool(seen))
        await peer.stop()
        await eventually(
            lambda: consumer._coordinator is not None and not consumer._coordinator.subscriptions
        )
        assert (consumer.stats().outstanding, consumer.stats().queued) == (1, 0)
        go_on.set()
        await eventually(lambda: consumer.stats().outstanding == 0)
        await consumer.close()
        await running
    assert seen == [b"0"]
    assert consumer.stats().counts.orphaned == 1


@asynchronous
async def test_a_server_that_allows_no_messages_is_refused_and_let_go() -> None:
    async with ScriptedNsqd(reply=nsq.IdentifyReply(max_rdy_count=0)) as peer:
        errors: list[BaseException | None] = []
        consumer = Consumer(
            "t",
            "ch",
            nsqd=peer.address,
            on_event=lambda event: errors.append(event.error),
            reconnect_delay=0.05,
            max_reconnect_delay=0.05,
        )
        async with consumer:
            await eventually(lambda: len(errors) >= 3)
        assert isinstance(errors[0], RemoteProtocolError)
        for connection in peer.connections:
            await connection.ended(PATIENCE)


def test_invalid_headers_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="lookupd_headers 'X-Secret'") as caught:
        Consumer("t", "ch", lookupd="127.0.0.1:4161", lookupd_headers={"X-Secret": "a\r\nb"})
    assert "a\r" not in str(caught.value)
