"""Heartbeats, and the timers of a connection."""

from __future__ import annotations

import asyncio

from nsqflow.broker.nsqd.output import ConnectionTimers, HeartbeatTimer
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE

INTERVAL = 0.1  # seconds; a busy machine may interrupt the loop for as long


class RecordedTimer:
    """A heartbeat timer that counts heartbeats and records the timeout."""

    def __init__(self) -> None:
        self.responsive = True
        self.beats = 0
        self.timed_out = asyncio.Event()
        self.timers = ConnectionTimers()
        self.heartbeat = HeartbeatTimer(self.timers, self._send_heartbeat, self.timed_out.set)
        self._event = asyncio.Event()

    def _send_heartbeat(self) -> None:
        self.beats += 1
        self._event.set()
        if self.responsive:
            self.heartbeat.reset()

    async def next(self) -> None:
        """Wait for the next heartbeat."""
        self._event.clear()
        async with asyncio.timeout(PATIENCE):
            await self._event.wait()


@asynchronous
async def test_a_client_that_is_silent_for_two_intervals_times_out() -> None:
    recorded = RecordedTimer()
    recorded.heartbeat.start(INTERVAL)
    for _ in range(3):
        await recorded.next()
    assert not recorded.timed_out.is_set()
    recorded.responsive = False
    async with asyncio.timeout(PATIENCE):
        await recorded.timed_out.wait()
    recorded.timers.cancel_all()


@asynchronous
async def test_a_suspended_read_timeout_does_not_expire() -> None:
    recorded = RecordedTimer()
    recorded.responsive = False
    recorded.heartbeat.start(INTERVAL)
    recorded.heartbeat.suspend(True)
    for _ in range(3):
        await recorded.next()
    assert not recorded.timed_out.is_set()
    recorded.heartbeat.suspend(False)
    async with asyncio.timeout(PATIENCE):
        await recorded.timed_out.wait()
    recorded.timers.cancel_all()


@asynchronous
async def test_a_resumed_read_timeout_starts_again() -> None:
    recorded = RecordedTimer()
    recorded.responsive = False
    recorded.heartbeat.start(INTERVAL)
    recorded.heartbeat.suspend(True)
    for _ in range(3):
        await recorded.next()
    resumed_at = asyncio.get_running_loop().time()
    recorded.heartbeat.suspend(False)
    async with asyncio.timeout(PATIENCE):
        await recorded.timed_out.wait()
    assert asyncio.get_running_loop().time() - resumed_at >= 2 * INTERVAL
    recorded.timers.cancel_all()


@asynchronous
async def test_an_interval_of_0_stops_heartbeats_and_timeout() -> None:
    recorded, clock = RecordedTimer(), RecordedTimer()
    recorded.heartbeat.start(INTERVAL)
    recorded.heartbeat.start(0)
    clock.heartbeat.start(INTERVAL)
    for _ in range(3):
        await clock.next()
    assert recorded.beats == 0
    assert not recorded.timed_out.is_set()
    clock.timers.cancel_all()


@asynchronous
async def test_a_timer_replaces_the_one_of_the_same_name() -> None:
    done: list[str] = []
    end = asyncio.Event()
    timers = ConnectionTimers()
    timers.set("a", 0, lambda: done.append("first"))
    timers.set("a", 0, lambda: done.append("second"))
    timers.set("b", 0, lambda: done.append("other"))
    timers.set("end", 0.01, end.set)
    await end.wait()
    assert sorted(done) == ["other", "second"]


@asynchronous
async def test_a_cancelled_timer_does_not_run() -> None:
    done: list[str] = []
    end = asyncio.Event()
    timers, others = ConnectionTimers(), ConnectionTimers()
    timers.cancel("none")
    timers.set("a", 0, lambda: done.append("a"))
    timers.set("b", 0, lambda: done.append("b"))
    timers.cancel("a")
    others.set("c", 0, lambda: done.append("c"))
    others.set("d", 0, lambda: done.append("d"))
    others.cancel_all()
    timers.set("end", 0.01, end.set)
    await end.wait()
    assert done == ["b"]
