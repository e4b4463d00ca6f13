"""Writes commit requests, each of which succeeds or fails as a whole.

All requests that wait share a transaction. If it fails, it is split in halves until the request at
fault is alone, so that the others succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nsqflow.broker.engine.journal import Operation
from nsqflow.broker.storage.database import Database, Page
from nsqflow.broker.storage.operations import RetryLog

DoneCallback = Callable[[Exception | None], None]


@dataclass(slots=True)
class CommitRequest:
    """Operations to commit, and a callback for the result."""

    operations: list[Operation]
    done: DoneCallback | None = None
    waiters: int = 0
    """The number of publishers that wait for it."""


@dataclass(slots=True)
class CommitResult:
    """The result of some requests, and the pages that were read with them."""

    requests: Sequence[CommitRequest]
    pages: list[Page] = field(default_factory=list)
    error: Exception | None = None


class GroupCommitWriter:
    """Writes requests in order.

    If a request fails, its new messages are not stored and its callback gets the error. Its other
    operations hold: messages were finished, topics created, deleted or emptied, and pages are still
    expected. These go to the retry log; nothing else is written before they are.
    """

    def __init__(self, database: Database, stopped: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self._stopped = stopped  # then no transaction is started
        self._retry_log = RetryLog()

    @property
    def has_retries(self) -> bool:
        """Whether there are operations to retry, even without new requests."""
        return bool(self._retry_log)

    def write(self, requests: Sequence[CommitRequest]) -> list[CommitResult]:
        """Write the retry log, then the requests."""
        if self._stopped():
            return []
        try:
            retried = self._retry()
        except Exception as error:
            # Nothing can be written, so these requests fail as well.
            failed = self._fail(requests, error)
            return [*self._read_safe_loads(), *failed]
        return [*retried, *self._write_new(requests)] if requests else retried

    def _retry(self) -> list[CommitResult]:
        if not self._retry_log:
            return []
        pages = self._database.write(self._retry_log.operations())
        self._retry_log.clear()
        return [CommitResult((), pages)]

    def _write_new(self, requests: Sequence[CommitRequest]) -> list[CommitResult]:
        operations = [operation for request in requests for operation in request.operations]
        try:
            pages = self._database.write(operations) if operations else []
        except Exception as error:
            if len(requests) > 1:
                half = len(requests) // 2
                return [*self.write(requests[:half]), *self.write(requests[half:])]
            failed = self._fail(requests, error)
            # Without the operation at fault, the rest may succeed.
            return [*self.write([]), *failed]
        return [CommitResult(requests, pages)]

    def _fail(self, requests: Sequence[CommitRequest], error: Exception) -> list[CommitResult]:
        for request in requests:
            self._retry_log.add(request.operations)
        return [CommitResult(requests, error=error)] if requests else []

    def _read_safe_loads(self) -> list[CommitResult]:
        """Read pages of the retry log although nothing can be written."""
        loads = self._retry_log.safe_loads()
        try:
            pages = self._database.write(loads) if loads else []
        except Exception:
            return []
        self._retry_log.remove(loads)
        return [CommitResult((), pages)] if pages else []
