"""A subscribed client as a channel sees it, and what a channel is given by its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from nsqflow.broker.redesigned.engine.headers import Filter

SLOW_DOWN = 5  # failed answers and timeouts from which on RDY counts less
_MAX_ERRORS = 4 * SLOW_DOWN  # above RDY


class InFlight(NamedTuple):
    """A delivery that is in flight; messages that were delivered together share one."""

    attempts: int
    delivered: int
    deadline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings:
    """What nsqd's options say about delivery. Times are in nanoseconds."""

    max_msg_timeout: int = 900 * 10**9
    max_req_timeout: int = 3 * 24 * 3600 * 10**9
    req_to_end_threshold: int = 900 * 10**9
    """A longer delay takes a message out of memory and of the log's order."""
    max_confirm_win: int = 500
    """How many stretches of finished messages may lie after the cursor."""
    random_percent: Callable[[], int] = lambda: 0
    """Returns a number from 0 to 99, for the sample rate."""
    shuffle: Callable[[list[Any]], None] = lambda messages: None
    """Changes the order of the messages that a client had in flight when it disconnected."""


class PartitionSubscriber:
    """A subscription: RDY, message timeout, messages in flight."""

    __slots__ = (
        *("blocked", "client_id", "closing", "errors", "filter", "finish_count", "in_flight"),
        *("message_count", "msg_timeout", "owner", "positioned", "rdy", "requeue_count"),
        *("sample_rate", "tag", "timeout_count", "timer_set"),
    )

    def __init__(
        self,
        owner: Any,
        msg_timeout: int,
        *,
        client_id: int = 0,
        sample_rate: int = 0,
        positioned: bool = False,
        tag: str = "",
        filter: Filter | None = None,
    ) -> None:
        self.owner = owner
        """Opaque reference to the client connection; unused by the engine."""
        self.client_id = client_id
        self.msg_timeout = msg_timeout
        self.sample_rate = sample_rate
        """Percentage of the messages that is delivered, the others are finished; 0 delivers all."""
        self.positioned = positioned
        """Messages are sent with their offset and size."""
        self.tag = tag
        """The tag of the messages that it gets; empty: those that no other client asks for."""
        self.filter = filter
        self.rdy = 0
        self.closing = False
        """The client has sent CLS: it gets no more messages."""
        self.blocked = False
        """The client does not read: it gets no messages until it does."""
        # By index, ordered by deadline but for messages that were touched up to their maximum.
        self.in_flight: dict[int, InFlight] = {}
        self.timer_set = False  # for the first message in flight
        self.errors = 0
        """Failed answers and timeouts, which successful answers make up for."""
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.timeout_count = 0

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight."""
        return len(self.in_flight)

    @property
    def capacity(self) -> int:
        """The number of further messages that it accepts."""
        if self.closing or self.blocked:
            return 0
        rdy = self.rdy
        if self.errors > SLOW_DOWN and rdy > 1:
            rdy = max(rdy - self.errors + SLOW_DOWN, 1)
        return max(rdy - len(self.in_flight), 0)

    @property
    def picky(self) -> bool:
        """Whether it does not take every message."""
        return bool(self.tag or self.filter or self.sample_rate)

    def failed(self) -> None:
        """Count a failed answer or a timeout."""
        self.errors = min(self.errors + 1, self.rdy + _MAX_ERRORS)

    def finished(self, count: int) -> None:
        """Count finished messages; each makes up for two errors, and for more if they are few."""
        self.finish_count += count
        for _ in range(count):
            if not self.errors:
                break
            errors = self.errors - 2
            if 0 < errors < self.rdy:
                errors -= (self.rdy - errors) // 4
            self.errors = max(errors, 0)
