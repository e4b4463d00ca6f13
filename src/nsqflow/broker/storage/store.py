"""The store: takes down what the engine does, and keeps it in a database of its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.journal import Journal
from nsqflow.broker.storage.changes import (
    Change,
    Clear,
    Create,
    Drop,
    Finish,
    Load,
    Pause,
    Put,
    Requeue,
    Spread,
)
from nsqflow.broker.storage.database import Contents, Database
from nsqflow.broker.storage.lock import Lock
from nsqflow.broker.storage.schema import StorageError
from nsqflow.broker.storage.unit_queue import UnitQueue
from nsqflow.broker.storage.writer import Done, Outcome, Unit, Writer

logger = logging.getLogger(__name__)

_RETRY = 1.0  # seconds until what is owed is tried again
_LINGER = 0.02  # seconds for which what is finished or requeued waits for other changes
_MAX_LINGERING = 1000  # changes of these
_INTERRUPT = 0.01  # seconds between two tries to end what the thread is doing


class Store(Journal):
    """The journal of an engine, on disk.

    What is taken down is gathered until ``commit``. While the thread waits for the disk more
    such units come together, and the next transaction takes all of them. What is finished or
    requeued is waited for by no one: it goes along with the next unit of another kind, or after
    a short time, as a transaction of its own would hold up the next publish for a whole sync.

    ``on_page(place, entries)`` answers each ``load`` once, with fewer than were asked for if
    they are large or many, and after the outcome of every unit whose messages it may have;
    ``on_failure(error)`` hears whenever something could not be stored. These, and what is given
    to ``commit``, are called in the event loop, in the order of the commits.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_page: Callable[[int, list[Entry]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._path = path
        self._on_page = on_page
        self._on_failure = on_failure
        self._gathered = Unit([])
        self._urgent = False  # what is gathered must not linger
        self._linger: asyncio.TimerHandle | None = None
        self._units = UnitQueue()
        self._files: tuple[Lock, Database] | None = None  # from open to the end
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._ended = asyncio.Event()

    def open(self) -> Contents:
        """Open the database, or make one, and return what is in it; blocks.

        Raises ``ConfigError`` if the path is no good, or in use, and ``StorageError`` if what is
        there can't be read.
        """
        with contextlib.ExitStack() as undo:
            lock = Lock(self._path)
            undo.callback(lock.release)
            database = Database(self._path)
            undo.callback(database.abandon)
            contents = database.contents()
            # This may be a thread whose outcome nobody waits for any more.
            if self._closing or self._abandoned:
                raise StorageError(f"the store in {self._path} was closed while it was opened")
            self._files = lock, database
            undo.pop_all()
        return contents

    def commit(self, done: Done | None, waiting: int) -> None:
        """Store what was taken down since the last call, as a whole.

        ``done(None)`` says that it is safe; ``done(error)`` that its new messages are not. All
        else that it says is tried again until it succeeds. ``waiting`` is the number of those
        that wait for it.
        """
        if self._abandoned:
            self._gathered.changes.clear()
            return
        if self._files is None or self._closing:
            raise StorageError(f"the store in {self._path} is not open")
        changes = self._gathered.changes
        if done is not None or self._urgent or len(changes) > _MAX_LINGERING:
            self._commit(done, waiting)
        elif changes and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(_LINGER, self._commit)

    async def close(self) -> None:
        """Store what is left, and end the thread; call it in the loop of the commits."""
        if self._files is None:
            self._closing = True
            return
        if not self._closing:
            self._commit()
            self._closing = True
            self._units.end()
        if self._thread is None:
            self._end(*self._files)
        else:
            await self._ended.wait()
            self._thread.join()
        self._files = None

    def abandon(self) -> None:
        """End as a crash would: what is not stored by now is dropped, and nobody is told."""
        self._abandoned = True
        self._stop_lingering()
        if self._files is None:
            return
        lock, database = self._files
        if self._thread is None:
            self._end(lock, database)
        else:
            self._units.end()
            while self._thread.is_alive():
                database.interrupt()
                self._thread.join(_INTERRUPT)
        self._files = None

    # The journal

    def create(self, place: int, topic: str, channel: str | None) -> None:
        """Begin a topic, or a channel."""
        self._gather(Create(place, topic, channel))

    def drop(self, place: int) -> None:
        """Forget a place with all its messages."""
        self._gather(Drop(place))

    def pause(self, place: int, paused: bool) -> None:
        """Pause a place, or let it go on."""
        self._gather(Pause(place, paused))

    def clear(self, place: int) -> None:
        """Forget the messages of a place."""
        self._gather(Clear(place))

    def put(self, place: int, entries: Sequence[Entry]) -> None:
        """Keep messages as they are now."""
        rows = [(place, e.id, e.timestamp, e.attempts, e.due, e.body) for e in entries]
        self._gather(Put(place, rows))

    def finish(self, place: int, ids: Sequence[bytes]) -> None:
        """Forget messages that are done with."""
        self._gathered.changes.append(Finish(place, tuple(ids)))

    def requeue(self, place: int, id: bytes, attempts: int, due: int) -> None:
        """Note that a message comes again, and from when on."""
        self._gathered.changes.append(Requeue(place, id, attempts, due))

    def spread(self, source: int, targets: Sequence[int]) -> None:
        """Make every message of a topic one of each of these channels, and no more the topic's."""
        self._gather(Spread(source, tuple(targets)))

    def load(self, place: int, after: bytes, limit: int) -> None:
        """Ask for the next messages of a place that were never put off, by id."""
        self._gather(Load(place, after, limit))

    def _gather(self, change: Change) -> None:
        self._urgent = True
        self._gathered.changes.append(change)

    # In the loop

    def _commit(self, done: Done | None = None, waiting: int = 0) -> None:
        self._stop_lingering()
        unit, self._gathered = self._gathered, Unit([])
        self._urgent = False
        if self._files is not None and (unit.changes or done is not None):
            if self._thread is None:
                self._begin(*self._files)
            unit.done = done
            unit.waiting = waiting if done is not None else 0
            self._units.put(unit)

    def _stop_lingering(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _begin(self, lock: Lock, database: Database) -> None:
        loop = asyncio.get_running_loop()
        # A daemon: who forgets to close it shall not find that the interpreter never exits.
        self._thread = threading.Thread(
            target=self._run, args=(loop, lock, database), name="nsqflow-store", daemon=True
        )
        self._thread.start()

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        # A full disk fails all that wait: that is one piece of news.
        error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
        if error is not None:
            self._tell(self._on_failure, error)
        for outcome in outcomes:
            for unit in outcome.units:
                if unit.done is not None:
                    self._tell(unit.done, outcome.error)
            for page in outcome.pages:
                self._tell(self._on_page, *page)

    def _tell(self, listener: Callable[..., None], *news: object) -> None:
        if self._abandoned:
            return
        try:
            listener(*news)
        except Exception:
            logger.exception("%r raised; the others are told", listener)

    # In the thread

    def _run(self, loop: asyncio.AbstractEventLoop, lock: Lock, database: Database) -> None:
        writer = Writer(database, lambda: self._abandoned)
        ending = False
        while not ending:
            units, ending = self._units.take(_RETRY if writer.owes else None)
            began = time.monotonic()
            outcomes = writer.write(units)
            answered = sum([unit.waiting for unit in units])
            self._units.written(answered, time.monotonic() - began)
            if outcomes:
                _call(loop, self._settle, outcomes)
        self._end(lock, database)
        _call(loop, self._ended.set)

    def _end(self, lock: Lock, database: Database) -> None:
        try:
            if self._abandoned:
                database.abandon()
            else:
                database.close()
        finally:
            lock.release()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to hear it
        loop.call_soon_threadsafe(function, *args)
