"""The store: takes down what the engine does, and keeps it in a database of its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
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
from nsqflow.broker.storage.writer import Done, Outcome, Unit, Writer

logger = logging.getLogger(__name__)

_RETRY = 1.0  # seconds until what is owed is tried again
_INTERRUPT = 0.01  # seconds between two tries to end what the thread is doing


class Store(Journal):
    """The journal of an engine, on disk.

    What is taken down is gathered until ``commit``. While the thread waits for the disk more
    such units come together, and the next transaction takes all of them.

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
        self._units: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()  # None: the end
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

    def commit(self, done: Done | None = None) -> None:
        """Store what was taken down since the last call, as a whole.

        ``done(None)`` says that it is safe; ``done(error)`` that its new messages are not. All
        else that it says is tried again until it succeeds.
        """
        unit, self._gathered = self._gathered, Unit([])
        if self._abandoned:
            return
        if self._files is None or self._closing:
            raise StorageError(f"the store in {self._path} is not open")
        if unit.changes or done is not None:
            if self._thread is None:
                self._begin(*self._files)
            unit.done = done
            self._units.put(unit)

    async def close(self) -> None:
        """Store what is left, and end the thread; call it in the loop of the commits."""
        if self._files is None:
            self._closing = True
            return
        if not self._closing:
            self.commit()
            self._closing = True
            self._units.put(None)
        if self._thread is None:
            self._end(*self._files)
        else:
            await self._ended.wait()
            self._thread.join()
        self._files = None

    def abandon(self) -> None:
        """End as a crash would: what is not stored by now is dropped, and nobody is told."""
        self._abandoned = True
        if self._files is None:
            return
        lock, database = self._files
        if self._thread is None:
            self._end(lock, database)
        else:
            self._units.put(None)
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
        self._gather(Finish(place, tuple(ids)))

    def requeue(self, place: int, id: bytes, attempts: int, due: int) -> None:
        """Note that a message comes again, and from when on."""
        self._gather(Requeue(place, id, attempts, due))

    def spread(self, source: int, targets: Sequence[int]) -> None:
        """Make every message of a topic one of each of these channels, and no more the topic's."""
        self._gather(Spread(source, tuple(targets)))

    def load(self, place: int, after: bytes, limit: int) -> None:
        """Ask for the next messages of a place that were never put off, by id."""
        self._gather(Load(place, after, limit))

    def _gather(self, change: Change) -> None:
        self._gathered.changes.append(change)

    # In the loop

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
            units, ending = self._next(patient=not writer.owes)
            outcomes = writer.write(units)
            if outcomes:
                _call(loop, self._settle, outcomes)
        self._end(lock, database)
        _call(loop, self._ended.set)

    def _next(self, *, patient: bool) -> tuple[list[Unit], bool]:
        """Wait for units, and return all there are; and whether they are the last."""
        units: list[Unit] = []
        try:
            unit = self._units.get(timeout=None if patient else _RETRY)
            while unit is not None:
                units.append(unit)
                unit = self._units.get_nowait()
        except queue.Empty:
            return units, False
        return units, True

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
