"""The connections that a server has: counted, bounded, and ended together."""

from __future__ import annotations

import logging
from typing import Protocol


class Guest(Protocol):
    """A connection."""

    def abort(self) -> None:
        """End it now."""

    async def ended(self) -> None:
        """Wait until nothing of it is left."""


class Guests:
    """All connections of one server, ``most`` of them at a time."""

    def __init__(self, name: str, most: int, logger: logging.Logger) -> None:
        self._name = name
        self._most = most
        self._logger = logger
        self._guests: set[Guest] = set()
        self._refusing = False  # and it was said
        self._closed = False

    def __len__(self) -> int:
        return len(self._guests)

    def admit(self, guest: Guest) -> bool:
        """Take one in, if there is room."""
        if self._closed:
            return False
        if len(self._guests) < self._most:
            self._guests.add(guest)
            return True
        if not self._refusing:
            self._logger.warning(
                "%s: there are %d connections; refusing more", self._name, self._most
            )
        self._refusing = True
        return False

    def dismiss(self, guest: Guest) -> None:
        """Forget one that was taken in, and of which nothing is left."""
        self._guests.remove(guest)
        self._refusing = False

    async def close(self) -> None:
        """Admit no more and end all; return when nothing is left of them."""
        self._closed = True
        guests = [*self._guests]
        for guest in guests:
            guest.abort()
        for guest in guests:
            await guest.ended()
