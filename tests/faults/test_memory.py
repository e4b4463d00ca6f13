"""Memory does not grow: not with messages, not with failures, not with connections."""

import asyncio
import gc
import logging
from collections import Counter
from pathlib import Path

import pytest

from nsqflow import ClientEvent, Consumer, Message, Producer
from nsqflow.client.options import ClientOptions
from tests.faults.load import Figures, measure_nsqd
from tests.fixtures.loops import asynchronous
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import Nsqd


@pytest.fixture(autouse=True)
def no_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Let nothing be logged: pytest keeps every record, and with it what that speaks of."""
    caplog.set_level(logging.CRITICAL + 1, "nsqflow")


def census() -> Counter[type]:
    """Count all objects there are, by their type."""
    gc.collect()
    return Counter(map(type, gc.get_objects()))


def growth(before: Counter[type], after: Counter[type], allowed: int) -> dict[str, int]:
    """Return the types that have more than ``allowed`` objects more."""
    more = {kind: after[kind] - before[kind] for kind in after}
    return {
        f"{kind.__module__}.{kind.__qualname__}": count
        for kind, count in more.items()
        if count > allowed
    }


def test_census_finds_what_was_kept() -> None:
    before = census()
    kept = [Figures(0, 0, 0, 0, 0, 0) for _ in range(100)]
    assert growth(before, census(), allowed=99) == {"tests.faults.load.Figures": 100}
    kept.clear()
    assert growth(before, census(), allowed=99) == {}


@pytest.mark.proves(wishes=[31])
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_messages_leave_no_memory_behind(nsqd: Nsqd) -> None:
    # The million is ./dev chaos; what grows with each message shows with fewer, too.
    figures = measure_nsqd(300_000, nsqd.tcp_address)
    assert not figures.grows, figures
    assert figures.tasks == 0


@pytest.mark.proves(wishes=[10, 31])
@asynchronous
async def test_connections_lost_a_thousand_times_leave_nothing_behind(nsqd: Nsqd) -> None:
    connected = asyncio.Semaphore(0)

    def hear(event: ClientEvent) -> None:
        if event.kind == "connected":
            connected.release()

    async def lose(times: int) -> None:
        for _ in range(times):
            # That of the producer and that of the consumer.
            await connected.acquire()
            await connected.acquire()
            await producer.publish("lost_often", b"x")
            proxy.cut()

    async with Proxy(nsqd.tcp_address) as proxy:
        haste = ClientOptions(reconnect_delay=0.001, max_reconnect_delay=0.001, on_event=hear)
        producer = Producer(proxy.address, **haste)
        consumer = Consumer("lost_often", "out#ephemeral", nsqd=proxy.address, **haste)
        async with producer, consumer:
            await lose(100)
            before, tasks = census(), len(asyncio.all_tasks())
            await lose(1000)
            assert growth(before, census(), allowed=100) == {}
            assert len(asyncio.all_tasks()) <= tasks + 10
        # After the last cut each may have dialled once more before it was closed.
        assert 2200 <= proxy.connections <= 2202


@pytest.mark.proves(wishes=[31])
@asynchronous
async def test_messages_that_fail_again_and_again_leave_nothing_behind(nsqd: Nsqd) -> None:
    failures = 0
    enough = asyncio.Event()

    async def fail(message: Message) -> None:
        nonlocal failures
        failures += 1
        if failures % 20_000 == 0:
            enough.set()
        raise ValueError(failures)

    consumer = Consumer(
        "never_good",
        "out#ephemeral",
        nsqd=nsqd.tcp_address,
        max_in_flight=100,
        max_attempts=0,
        default_requeue_delay=0,
        max_backoff_duration=0,
    )
    async with Producer(nsqd.tcp_address) as producer, consumer:
        running = asyncio.create_task(consumer.run(fail, signals=False))
        await producer.publish_many("never_good", [b"x"] * 200)
        # Whatever is kept of failures, all of it that may be kept is there by now.
        await enough.wait()
        before, tasks = census(), len(asyncio.all_tasks())
        enough.clear()
        await enough.wait()
        assert growth(before, census(), allowed=1000) == {}
        assert len(asyncio.all_tasks()) == tasks
        await consumer.close()
        await running
