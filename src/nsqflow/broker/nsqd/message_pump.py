"""The message pump: runs in each iteration of the event loop in which something happened.

It delivers messages, passes operations to the store and sets a timer for the engine's next event.
When the store reports a commit, the messages published in it can be delivered and the publishes are
acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nsqflow.broker.engine.engine import Engine
    from nsqflow.broker.nsqd.connection import ClientConnection
    from nsqflow.broker.storage.store import Store


class Clock:
    """Nanoseconds since 1970: the wall clock at creation, then monotonic."""

    def __init__(self) -> None:
        self._base = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        """Return the current time."""
        return self._base + time.monotonic_ns()


_log = logging.getLogger("nsqflow.broker.nsqd")

StoredCallback = Callable[[Exception | None], None]


class DeliveringEngine(Protocol):
    """The engine of either dialect, as its pump needs it."""

    @property
    def next_at(self) -> int | None:
        """The time of the next timer."""

    @property
    def has_work(self) -> bool:
        """Whether ``deliver`` may have something to deliver."""

    def tick(self, now: int) -> None:
        """Run the timers that are due."""

    def deliver(self, now: int) -> list[tuple[Any, Any]]:
        """Put messages in flight; return which subscriber gets which."""


class DeliveryPump:
    """Moves messages from an engine to clients."""

    def __init__(self, engine: DeliveringEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._stopped = False

    def start(self) -> None:
        """Schedule a run in this or the next iteration of the loop."""
        if self._turn is None and not self._stopped:
            self._turn = asyncio.get_running_loop().call_soon(self.run)

    def stop(self) -> None:
        """Stop."""
        self._stopped = True
        for handle in (self._turn, self._timer):
            if handle is not None:
                handle.cancel()
        self._turn = self._timer = None

    def run(self) -> None:
        """Run now."""
        self._turn = None
        now = self._clock.now()
        self._engine.tick(now)
        for subscriber, messages in self._engine.deliver(now):
            client: ClientConnection = subscriber.owner
            client.send(messages)
        self._delivered()
        if self._engine.has_work:
            self.start()
        self._set_timer(now)

    def _delivered(self) -> None:
        """Called after each delivery; for subclasses."""

    def _set_timer(self, now: int) -> None:
        at = self._engine.next_at
        if at is None or (self._timer is not None and self._timer_at <= at):
            return  # a timer that fires too early does no harm
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(at - now, 0) / 10**9
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.run()


class MessagePump(DeliveryPump):
    """Moves messages between engine, clients and store."""

    def __init__(
        self, engine: Engine, clock: Clock, store: Store | None, on_stored: Callable[[], None]
    ) -> None:
        super().__init__(engine, clock)
        self._storing = engine
        self._on_stored = on_stored
        self._store = store
        self._waiting: list[StoredCallback] = []  # called after the next commit

    def when_stored(self, stored: StoredCallback) -> None:
        """Call back when everything passed to the store so far is stored, or has failed."""
        if self._store is None:
            stored(None)
        else:
            self._waiting.append(stored)
            self.start()

    def _delivered(self) -> None:
        if self._store is None:
            return
        waiting, self._waiting = self._waiting, []
        published = self._storing.take_unstored()

        def done(error: Exception | None) -> None:
            if error is None:
                self._on_stored()
                self._storing.stored(published, self._clock.now())
                self.start()
            else:
                self._storing.not_stored(published)
            _answer(waiting, error)

        self._store.commit(done if waiting or published else None, len(waiting))


def _answer(waiting: list[StoredCallback], error: Exception | None) -> None:
    for stored in waiting:
        try:
            stored(error)
        except Exception:  # one client's failure must not affect the others
            _log.exception("failed to respond")
