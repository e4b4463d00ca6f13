"""Operations that wait to be written: merged into few, and kept for a retry if they fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nsqflow.broker.engine.journal import (
    FanOut,
    Finish,
    Load,
    MessageOperation,
    Operation,
    Pause,
    Put,
    QueueOperation,
    Requeue,
    Row,
)


class MergedOperations:
    """A series of puts, finishes and requeues, merged into as few rows as possible.

    They are written in this order: put, finish, requeue. So a message that is put may be finished
    or requeued in the same series, but not the other way round.
    """

    def __init__(self) -> None:
        self.put: list[Row] = []
        self.finished: dict[int, list[bytes]] = {}
        self.requeued: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.last_id = b""

    def clear(self) -> None:
        """Start another series; the last id stays."""
        self.put.clear()
        self.finished.clear()
        self.requeued.clear()

    def add(self, operation: MessageOperation) -> None:
        """Add the next operation."""
        if isinstance(operation, Put):
            self._put(operation)
        elif isinstance(operation, Finish):
            self._finish(operation)
        else:
            self._requeue(operation)

    def _put(self, operation: Put) -> None:
        self.put += operation.rows
        self.last_id = max(self.last_id, operation.rows[-1][1])

    def _finish(self, operation: Finish) -> None:
        self.finished.setdefault(operation.queue_id, []).extend(operation.ids)
        if self.requeued:
            for id in operation.ids:
                self.requeued.pop((operation.queue_id, id), None)

    def _requeue(self, operation: Requeue) -> None:
        self.requeued[operation.queue_id, operation.id] = operation.attempts, operation.due


class RetryLog:
    """Operations that failed to commit, all but new messages; retried before any new write.

    A disk can be full for long: repeated operations on a message are merged.
    """

    def __init__(self) -> None:
        self._queue_operations: list[QueueOperation | Load] = []
        self._message_operations = MergedOperations()

    def __bool__(self) -> bool:
        merged = self._message_operations
        return bool(self._queue_operations or merged.finished or merged.requeued)

    def add(self, operations: Iterable[Operation]) -> None:
        """Add the operations of a failed commit."""
        for operation in operations:
            if isinstance(operation, Finish | Requeue):
                self._message_operations.add(operation)
            elif not isinstance(operation, Put):  # not stored, and so never finished or requeued
                self._queue_operations.append(operation)

    def operations(self) -> list[Operation]:
        """Return all operations in an order in which they can be written."""
        # Those on messages may come last: only topics are fanned out, only messages of channels are
        # finished or requeued, and pages contain none of these, as they were loaded before.
        merged = self._message_operations
        return [
            *self._queue_operations,
            *(Finish(queue_id, ids) for queue_id, ids in merged.finished.items()),
            *(Requeue(*key, *values) for key, values in merged.requeued.items()),
        ]

    def clear(self) -> None:
        """Remove everything: the operations are written."""
        self._queue_operations.clear()
        self._message_operations.clear()

    def safe_loads(self) -> list[Load]:
        """Return the loads that can be executed now, as no pending operation affects them."""
        changing: set[int] = set()
        for each in self._queue_operations:
            if not isinstance(each, Load | Pause):
                changing.add(each.queue_id)
            if isinstance(each, FanOut):
                changing.update(each.targets)
        return [
            e for e in self._queue_operations if isinstance(e, Load) and e.queue_id not in changing
        ]

    def remove(self, loads: Sequence[Load]) -> None:
        """Remove these loads."""
        self._queue_operations = [each for each in self._queue_operations if each not in loads]
