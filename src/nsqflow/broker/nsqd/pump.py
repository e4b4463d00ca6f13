"""The heart of nsqd: once in each turn of the loop in which something happened.

It delivers what can be delivered, hands what is to be stored to the store, and sets the one
timer for what the engine will have to do next. When the store reports a commit, the engine may
deliver what was published in it, and the publishes are answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.nsqd.clock import Clock

if TYPE_CHECKING:
    from nsqflow.broker.engine.publication import Publication
    from nsqflow.broker.nsqd.client import Client
    from nsqflow.broker.storage.store import Store

_log = logging.getLogger("nsqflow.broker.nsqd")

Stored = Callable[[Exception | None], None]


class Pump:
    """Moves what is in the engine, when it is told that there may be something to move."""

    def __init__(
        self, engine: Engine, clock: Clock, store: Store | None, on_stored: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._on_stored = on_stored
        self._clock = clock
        self._store = store
        self._waiting: list[Stored] = []  # for what was told to the store since the last turn
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._stopped = False

    def start(self) -> None:
        """Have a turn, in this turn of the loop or the next."""
        if self._turn is None and not self._stopped:
            self._turn = asyncio.get_running_loop().call_soon(self.run)

    def when_stored(self, stored: Stored) -> None:
        """Call back when all that was told to the store by now is stored, or has failed."""
        if self._store is None:
            stored(None)
        else:
            self._waiting.append(stored)
            self.start()

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped = True
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._turn = self._timer = None

    def run(self) -> None:
        """Have a turn now."""
        self._turn = None
        now = self._clock.now()
        self._engine.tick(now)
        for subscriber, entries in self._engine.deliver(now):
            client: Client = subscriber.owner
            client.send(entries)
        if self._store is not None:
            self._commit(self._store)
        if self._engine.restless:
            self.start()
        self._set_timer(now)

    def _commit(self, store: Store) -> None:
        waiting, self._waiting = self._waiting, []
        published = self._engine.take_unstored()

        def done(error: Exception | None) -> None:
            try:
                self._settle(published, error)
            finally:  # a defect there must not leave clients without their answers
                _answer(waiting, error)

        store.commit(done if waiting or published else None, len(waiting))

    def _settle(self, published: list[Publication], error: Exception | None) -> None:
        if error is not None:
            self._engine.refused(published)
            return
        try:
            self._on_stored()
            self._engine.stored(published, self._clock.now())
        finally:
            self.start()

    def _set_timer(self, now: int) -> None:
        at = self._engine.next_at
        if at is None or (self._timer is not None and self._timer_at <= at):
            return  # a timer that comes too early does no harm
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(at - now, 0) / 10**9
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.run()


def _answer(waiting: list[Stored], error: Exception | None) -> None:
    for stored in waiting:
        try:
            stored(error)
        except Exception:  # of one client: the others must have their answers
            _log.exception("failed to answer")
