"""Several nsqd and nsqlookupd that come and go, each always on the same addresses."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from nsqflow import admin
from nsqflow.errors import NsqError
from tests.fixtures.servers import Server, start_nsqd, start_nsqlookupd

_PAUSE = 0.02  # seconds for a client's goroutine in nsqd to see that the channel is paused
_TRIES = 3  # to start a server: another process may have its port for a moment


def find_port() -> int:
    """A port that is free, and that no outgoing connection is given.

    A server that is down for a while could not come back to one of those: the system might
    have lent it to a client meanwhile, even to one that connected to itself.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


class Member:
    """One server that can be ended and started again."""

    def __init__(self, name: str, start: Callable[[Sequence[str]], Server]) -> None:
        self.name = name
        self.life = 0
        """How often it was started."""
        self.tcp_address = f"127.0.0.1:{find_port()}"
        self.http_address = f"127.0.0.1:{find_port()}"
        self._launch = start
        self._server: Server | None = None
        self._retired = False
        self._lock = threading.Lock()

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.life += 1
        await asyncio.to_thread(self._start)

    async def end(self, *, crash: bool) -> None:
        """Stop it as its operator would, or with kill -9."""
        await asyncio.to_thread(self._end, crash)

    def retire(self) -> None:
        """End it for good, even if it is only being started."""
        with self._lock:
            self._retired = True
            if self._server is not None:
                self._server.kill()

    def _start(self) -> None:
        addresses = [f"-tcp-address={self.tcp_address}", f"-http-address={self.http_address}"]
        with self._lock:
            for left in reversed(range(_TRIES)):
                if self._retired:
                    return
                try:
                    self._server = self._launch(addresses)
                    return
                except AssertionError:
                    if not left:
                        raise

    def _end(self, crash: bool) -> None:
        with self._lock:
            assert self._server is not None
            if crash:
                self._server.kill()
                return
            # With all saved, nsqd and nsqlookupd wait for their connections to end, and one that
            # they accepted at the last moment they forget to close: then stop() kills them.
            with suppress(subprocess.TimeoutExpired):
                self._server.stop()


class Cluster:
    """All servers of a campaign, with one topic that has one channel everywhere."""

    def __init__(self, folder: Path, topic: str, channel: str, nsqds: int, lookupds: int) -> None:
        self.topic = topic
        self.channel = channel
        self.lookupds = [
            Member(f"nsqlookupd {i}", lambda options: start_nsqlookupd(options=options))
            for i in range(lookupds)
        ]
        self.nsqds = [self._nsqd(folder / f"nsqd{i}", i) for i in range(nsqds)]

    async def start(self, member: Member) -> None:
        """Start one; an nsqd has the channel from then on, so that nothing is kept from it."""
        await member.start()
        if member in self.nsqds:
            async with admin.Nsqd(member.http_address) as nsqd:
                await nsqd.create_topic(self.topic)
                await nsqd.create_channel(self.topic, self.channel)
                await nsqd.unpause_channel(self.topic, self.channel)

    async def end(self, member: Member, *, crash: bool) -> None:
        """Stop one, or kill it.

        Stopped while it hands out messages, nsqd 1.3.0 loses one now and then, about once in 400
        times: what goes out to a client after the queue was saved is neither there nor in flight.
        So that this is not taken for our loss, it hands out nothing when it is stopped.
        """
        if member in self.nsqds and not crash:
            async with admin.Nsqd(member.http_address) as nsqd:
                await nsqd.pause_channel(self.topic, self.channel)
            await asyncio.sleep(_PAUSE)
        await member.end(crash=crash)

    async def register(self) -> None:
        """Make every nsqd that is up look after its nsqlookupd.

        By itself it notices only every 15 s that one was restarted: at the next PING, and at
        the one after that it registers again. Each topic that comes or goes is reported at once.
        """
        for member in self.nsqds:
            with suppress(NsqError):
                async with admin.Nsqd(member.http_address) as nsqd:
                    await nsqd.create_topic("nudge#ephemeral")
                    await nsqd.delete_topic("nudge#ephemeral")

    async def unanswered(self) -> int:
        """How many messages all nsqd together hold, wherever they are."""
        total = 0
        for member in self.nsqds:
            async with admin.Nsqd(member.http_address) as nsqd:
                for topic in (await nsqd.stats(self.topic, include_clients=False)).topics:
                    total += topic.depth
                    for c in topic.channels:
                        total += c.depth + c.in_flight_count + c.deferred_count
        return total

    async def __aenter__(self) -> Self:
        try:
            for member in [*self.lookupds, *self.nsqds]:
                await self.start(member)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in [*self.lookupds, *self.nsqds]:
            await asyncio.to_thread(member.retire)

    def _nsqd(self, folder: Path, number: int) -> Member:
        folder.mkdir()
        options = [
            *(f"-lookupd-tcp-address={member.tcp_address}" for member in self.lookupds),
            "-mem-queue-size=50",  # so that its disk has a part in it, too
            # Killed before the first sync (2500 messages or 2 s), nsqd 1.3.0 writes over its old
            # file in its next life, can't read that, and loses what it took meanwhile.
            "-sync-every=1",
        ]
        return Member(f"nsqd {number}", lambda own: start_nsqd(folder, options=[*options, *own]))
