"""The messages that wait in a topic or channel, in order.

What does not fit into memory is *spilled*: only the journal has it, and it is loaded page by page.
Once a message is spilled, all later ones are too, so that the order holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqflow.broker.engine.journal import NOT_PERSISTED, Load, Operation, Pause
from nsqflow.broker.engine.message import MESSAGE_OVERHEAD, QueuedMessage
from nsqflow.protocol.names import is_ephemeral

if TYPE_CHECKING:
    from nsqflow.broker.engine.engine import Engine


@dataclass(slots=True)
class MemoryBudget:
    """Bytes of messages that an engine holds, and the limit."""

    limit: int
    used: int = 0

    @property
    def full(self) -> bool:
        """Whether no more messages should be taken into memory."""
        return self.used >= self.limit


class MemoryQueue:
    """The messages of one topic or channel that wait for delivery."""

    def __init__(
        self,
        queue_id: int,
        record: Callable[[Operation], None],
        memory: MemoryBudget,
        capacity: int | None,
        spilled: int = 0,
    ) -> None:
        self.queue_id = queue_id
        self.ready: deque[QueuedMessage] = deque()
        """The messages in memory, the next one first."""
        self.spilled = spilled
        """The number of messages that only the journal has."""
        self._record = record
        self._memory = memory
        self._capacity = capacity  # None: unbounded, nothing is spilled or dropped
        self._last_loaded = b""  # up to this id, messages are or were in memory
        self._loading = False
        self._spilled_at_request = 0  # the value of `spilled` when the page was requested
        self._stale_pages = 0  # requested before clear(): to be ignored

    def __len__(self) -> int:
        return len(self.ready) + self.spilled

    def put(self, messages: Sequence[QueuedMessage]) -> None:
        """Add new messages that are not deferred, in the order of their ids."""
        kept = self._fitting(messages)
        self.ready.extend(kept)
        self._memory.used += MESSAGE_OVERHEAD * len(kept) + sum(
            [len(message.body) for message in kept]
        )
        if kept:
            self._last_loaded = kept[-1].id
        if self.queue_id != NOT_PERSISTED:  # else ephemeral: dropped, as nsqd does
            self.spilled += len(messages) - len(kept)

    def put_deferred(self, message: QueuedMessage) -> None:
        """Add a message that was deferred; those are always in memory."""
        self.ready.append(message)
        self._memory.used += message.size

    def put_back(self, message: QueuedMessage) -> None:
        """Return a message to the queue that is counted in memory already."""
        self.ready.append(message)

    def clear(self) -> None:
        """Drop all messages."""
        self._memory.used -= sum(message.size for message in self.ready)
        self.ready.clear()
        self.spilled = 0
        self._stale_pages += self._loading
        self._loading = False

    def add_spilled(self, count: int) -> None:
        """Count messages that the journal has after all messages of this queue."""
        self.spilled += count

    def request_page(self) -> None:
        """Request spilled messages from the journal if there is space for them."""
        if not self.spilled or self._loading or self._capacity is None:
            return
        free = self._capacity - len(self.ready)
        if 2 * free < self._capacity or (self._memory.full and self.ready):
            return
        self._loading = True
        self._spilled_at_request = self.spilled
        self._record(Load(self.queue_id, self._last_loaded, free))

    def page_loaded(self, messages: Sequence[QueuedMessage]) -> None:
        """Add the requested page."""
        if self._stale_pages:
            self._stale_pages -= 1
            return
        self._loading = False
        self.ready.extend(messages)
        self._memory.used += sum(message.size for message in messages)
        # An empty page means that nothing was left at the time of the request.
        self.spilled -= min(len(messages), self.spilled) if messages else self._spilled_at_request
        if messages:
            self._last_loaded = messages[-1].id

    def _fitting(self, messages: Sequence[QueuedMessage]) -> Sequence[QueuedMessage]:
        if self._capacity is None:
            return messages
        if self.spilled or self._memory.full:
            return ()
        return messages[: max(self._capacity - len(self.ready), 0)]


class NamedQueue:
    """Base class of ``Topic`` and ``Channel``: a name, a queue and its id in the journal."""

    def __init__(self, engine: Engine, name: str, queue_id: int, spilled: int) -> None:
        self.name = name
        self.paused = False
        self.message_count = 0
        self._engine = engine
        self._queue = engine.new_queue(queue_id, self.ephemeral, spilled)

    @property
    def queue_id(self) -> int:
        """Identifies the queue in the journal."""
        return self._queue.queue_id

    @property
    def ephemeral(self) -> bool:
        """Deleted when unused: a channel with its last client, a topic with its last channel."""
        return is_ephemeral(self.name)

    @property
    def depth(self) -> int:
        """The number of messages that wait for a subscriber, or in a topic for a channel."""
        return len(self._queue)

    @property
    def backend_depth(self) -> int:
        """The number of those that are not in memory."""
        return self._queue.spilled

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        self._engine.record(Pause(self.queue_id, paused))
