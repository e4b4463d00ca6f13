"""The store: the journal of an engine, written to a database by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nsqflow.broker.engine.journal import Finish, Journal, Operation, Requeue
from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.storage.commit_queue import CommitQueue
from nsqflow.broker.storage.database import Database, StoredState
from nsqflow.broker.storage.writer import (
    CommitRequest,
    CommitResult,
    DoneCallback,
    GroupCommitWriter,
)
from nsqflow.errors import StorageError

logger = logging.getLogger(__name__)

_RETRY = 1.0  # seconds between retries of failed operations
_LINGER = 0.02  # seconds for which a FIN or REQ waits to be committed with others
_MAX_LINGERING = 1000  # operations
_INTERRUPT = 0.01  # seconds between two attempts to interrupt the thread


class Store(Journal):
    """The journal of an engine, on disk.

    Operations are collected until ``commit``. While the thread waits for the disk, more commit
    requests arrive, and the next transaction contains all of them. A FIN or REQ is committed with
    the next request of another kind, or after a short time: nothing waits for it, and a transaction
    of its own would delay the next publish by a whole sync.

    ``on_page(queue_id, messages)`` answers each ``load`` once, after the result of every commit
    whose messages it may contain; a page of large or many messages is shorter than requested.
    ``on_failure(error)`` is called whenever something could not be stored. These, and the callbacks
    passed to ``commit``, are called in the event loop, in the order of the commits.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_page: Callable[[int, list[QueuedMessage]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._path = path
        self._on_page = on_page
        self._on_failure = on_failure
        self._gathered = CommitRequest([])
        self._urgent = False  # the collected operations must be committed soon
        self._linger_timer: asyncio.TimerHandle | None = None
        self._commits = CommitQueue()
        self.database: Database | None = None
        """The database, from ``open`` to the end; after the first commit the thread uses it."""
        self._thread: threading.Thread | None = None
        self._closing = False
        self._abandoned = False
        self._ended = asyncio.Event()

    def open(self) -> StoredState:
        """Open or create the database and return its contents; blocks.

        Raises ``ConfigError`` if the path is unusable or in use, and ``StorageError`` if its
        contents can't be read.
        """
        database = Database(self._path)
        try:
            contents = database.contents()
            # This may run in a thread whose result is no longer awaited.
            if self._closing or self._abandoned:
                raise StorageError(f"the store in {self._path} was closed while it was opened")
        except BaseException:
            database.abandon()
            raise
        self.database = database
        return contents

    def commit(self, done: DoneCallback | None, waiters: int) -> None:
        """Commit the operations since the last call, all or none.

        ``done(None)`` reports success, ``done(error)`` that new messages are not stored. All other
        operations are retried until they succeed. ``waiters`` is the number of publishers that
        wait.
        """
        if self._abandoned:
            self._gathered.operations.clear()
            return
        if self.database is None or self._closing:
            raise StorageError(f"the store in {self._path} is not open")
        operations = self._gathered.operations
        if done is not None or self._urgent or len(operations) > _MAX_LINGERING:
            self._commit(done, waiters)
        elif operations and self._linger_timer is None:
            self._linger_timer = asyncio.get_running_loop().call_later(_LINGER, self._commit)

    async def close(self) -> None:
        """Commit what is left and end the thread; call it in the loop of the commits."""
        if self.database is None:
            self._closing = True
            return
        if not self._closing:
            self._commit()
            self._closing = True
            self._commits.end()
        if self._thread is None:
            self.database.close()
        else:
            await self._ended.wait()
            self._thread.join()
        self.database = None

    def abandon(self) -> None:
        """End as a crash would: drop what is not stored and call no callbacks."""
        self._abandoned = True
        self._stop_lingering()
        if self.database is None:
            return
        if self._thread is None:
            self.database.abandon()
        else:
            self._commits.end()
            while self._thread.is_alive():
                self.database.interrupt()
                self._thread.join(_INTERRUPT)
        self.database = None

    def record(self, operation: Operation) -> None:
        """Add an operation to the next commit."""
        self._urgent = self._urgent or not isinstance(operation, Finish | Requeue)
        self._gathered.operations.append(operation)

    # In the event loop

    def _commit(self, done: DoneCallback | None = None, waiters: int = 0) -> None:
        self._stop_lingering()
        request, self._gathered = self._gathered, CommitRequest([])
        self._urgent = False
        if self.database is not None and (request.operations or done is not None):
            if self._thread is None:
                self._start_thread(self.database)
            request.done = done
            request.waiters = waiters if done is not None else 0
            self._commits.put(request)

    def _stop_lingering(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    def _start_thread(self, database: Database) -> None:
        loop = asyncio.get_running_loop()
        # A daemon thread: a store that is not closed must not keep the interpreter from exiting.
        self._thread = threading.Thread(
            target=self._run, args=(loop, database), name="nsqflow-store", daemon=True
        )
        self._thread.start()

    def _report(self, results: Sequence[CommitResult]) -> None:
        # A full disk fails all requests: that is reported once.
        error = next((result.error for result in results if result.error is not None), None)
        if error is not None:
            self._notify(self._on_failure, error)
        for result in results:
            for request in result.requests:
                if request.done is not None:
                    self._notify(request.done, result.error)
            for page in result.pages:
                self._notify(self._on_page, *page)

    def _notify(self, listener: Callable[..., None], *arguments: object) -> None:
        if self._abandoned:
            return
        try:
            listener(*arguments)
        except Exception:
            logger.exception("%r raised; other callbacks are still called", listener)

    # In the thread

    def _run(self, loop: asyncio.AbstractEventLoop, database: Database) -> None:
        writer = GroupCommitWriter(database, lambda: self._abandoned)
        ending = False
        while not ending:
            requests, ending = self._commits.take(_RETRY if writer.has_retries else None)
            began = time.monotonic()
            results = writer.write(requests)
            answered = sum([request.waiters for request in requests])
            self._commits.written(answered, time.monotonic() - began)
            if results:
                _call(loop, self._report, results)
        database.abandon() if self._abandoned else database.close()
        _call(loop, self._ended.set)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(function, *args)
