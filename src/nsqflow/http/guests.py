"""The connections that a server has: counted, bounded, and ended together.

When there are too many, those make room that keep nobody waiting but themselves: connections
cost nothing, and whoever opens many and says nothing shall not lock out the others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from nsqflow.protocol.lookup import join_address


class Guest(asyncio.Protocol):
    """A connection, from its beginning until nothing of it is left."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._client = ""  # its address
        self._admitted = False
        self._timer: asyncio.TimerHandle | None = None
        self._gone = self._loop.create_future()

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()

    async def ended(self) -> None:
        """Wait until nothing of it is left."""
        await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if there is room."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._client = address_of(transport)
        self._admitted = self._guests.admit(self)
        if self._admitted:
            self._begin()
        else:
            self._transport.abort()

    # What kinds of connections have in common, and what each does in its own way

    def _begin(self) -> None:
        raise NotImplementedError

    def _allow(self, seconds: float) -> None:
        """Give the client so long for what comes next."""
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self._give_up, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, seconds: float) -> None:
        self._transport.abort()

    def _vanish(self, _: object = None) -> None:
        """Say that nothing of it is left."""
        if not self._gone.done():
            self._gone.set_result(None)
            self._guests.dismiss(self)


class Guests:
    """All connections of one server, ``most`` of them at a time."""

    def __init__(self, name: str, most: int, logger: logging.Logger) -> None:
        self._name = name
        self._most = most
        self._logger = logger
        self._guests: set[Guest] = set()
        self._idle: dict[Guest, None] = {}  # those that may be ended, in this order
        self._warnings: set[str] = set()  # given since there was much room
        self._closed = False

    def __len__(self) -> int:
        return len(self._guests)

    def admit(self, guest: Guest) -> bool:
        """Take one in, which is idle; there is room if another that is so can be ended."""
        if self._closed:
            return False
        if len(self._guests) >= self._most:
            if not self._idle:
                self._warn("refusing more")
                return False
            self._warn("ending the idle ones to let others in")
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.abort()
        self._guests.add(guest)
        self._idle[guest] = None
        return True

    def protect(self, guest: Guest) -> None:
        """Don't end this one to make room."""
        self._idle.pop(guest, None)

    def expose(self, guest: Guest) -> None:
        """Count it among the idle ones, as the one that became so last."""
        self._idle.pop(guest, None)
        self._idle[guest] = None

    def dismiss(self, guest: Guest) -> None:
        """Forget one of which nothing is left."""
        self._guests.discard(guest)
        self._idle.pop(guest, None)
        if len(self._guests) <= self._most // 2:
            self._warnings.clear()

    async def close(self) -> None:
        """Admit no more and end all; return when nothing is left of them."""
        self._closed = True
        guests = [*self._guests]
        for guest in guests:
            guest.abort()
        for guest in guests:
            await guest.ended()

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.add(text)
            self._logger.warning("%s: there are %d connections; %s", self._name, self._most, text)


def address_of(transport: asyncio.BaseTransport) -> str:
    """Where the client of a connection is; "@" for a unix socket, as Go writes it."""
    peer = transport.get_extra_info("peername")
    return join_address(peer[0], peer[1]) if isinstance(peer, tuple) else "@"
