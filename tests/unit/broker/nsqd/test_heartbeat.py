"""Heartbeats, and the timers of a connection."""

from __future__ import annotations

import asyncio

from nsqflow.broker.nsqd.heartbeat import Heartbeat
from nsqflow.broker.nsqd.timers import Timers
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE

INTERVAL = 0.02


class Beating:
    """A heartbeat, how often it has beaten and whether it missed the client."""

    def __init__(self) -> None:
        self.alive = True
        self.beats = 0
        self.missed = asyncio.Event()
        self.timers = Timers()
        self.heartbeat = Heartbeat(self.timers, self._beat, self.missed.set)
        self._news = asyncio.Event()

    def _beat(self) -> None:
        self.beats += 1
        self._news.set()
        if self.alive:
            self.heartbeat.heard()

    async def next(self) -> None:
        """Wait for the next one."""
        self._news.clear()
        async with asyncio.timeout(PATIENCE):
            await self._news.wait()


@asynchronous
async def test_it_beats_until_nothing_is_heard_for_two_intervals() -> None:
    beating = Beating()
    beating.heartbeat.start(INTERVAL)
    for _ in range(5):
        await beating.next()
    assert not beating.missed.is_set()
    beating.alive = False
    async with asyncio.timeout(PATIENCE):
        await beating.missed.wait()
    beating.timers.cancel_all()


@asynchronous
async def test_nothing_is_expected_of_whom_we_do_not_listen_to() -> None:
    beating = Beating()
    beating.alive = False
    beating.heartbeat.start(INTERVAL)
    beating.heartbeat.excuse(True)
    for _ in range(5):
        await beating.next()
    assert not beating.missed.is_set()
    beating.heartbeat.excuse(False)
    async with asyncio.timeout(PATIENCE):
        await beating.missed.wait()
    beating.timers.cancel_all()


@asynchronous
async def test_whom_we_listen_to_again_has_its_full_time() -> None:
    beating = Beating()
    beating.alive = False
    beating.heartbeat.start(0.1)
    beating.heartbeat.excuse(True)
    for _ in range(3):
        await beating.next()
    beating.heartbeat.excuse(False)
    await beating.next()
    assert not beating.missed.is_set()
    beating.timers.cancel_all()


@asynchronous
async def test_it_can_be_turned_off() -> None:
    beating, clock = Beating(), Beating()
    beating.heartbeat.start(INTERVAL)
    beating.heartbeat.start(0)
    clock.heartbeat.start(INTERVAL)
    for _ in range(5):
        await clock.next()
    assert beating.beats == 0
    assert not beating.missed.is_set()
    clock.timers.cancel_all()


@asynchronous
async def test_a_timer_replaces_the_one_of_the_same_name() -> None:
    done: list[str] = []
    end = asyncio.Event()
    timers = Timers()
    timers.set("a", 0, lambda: done.append("first"))
    timers.set("a", 0, lambda: done.append("second"))
    timers.set("b", 0, lambda: done.append("other"))
    timers.set("end", 0.01, end.set)
    await end.wait()
    assert sorted(done) == ["other", "second"]


@asynchronous
async def test_what_is_cancelled_is_not_done() -> None:
    done: list[str] = []
    end = asyncio.Event()
    timers, others = Timers(), Timers()
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
