"""What waits in one channel on one nsqd."""

from __future__ import annotations

from dataclasses import dataclass

from nsqflow.spark.offsets import make_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The counts of a topic and of the query's channel of it, as one nsqd has them."""

    topic: str
    nsqd: str
    """``host:port``, where a task connects to."""
    depth: int = 0
    """Messages that wait in the channel."""
    topic_depth: int = 0
    """Messages that have not reached the topic's channels yet."""
    in_flight: int = 0
    deferred: int = 0
    requeues: int = 0
    timeouts: int = 0
    started: float = 0.0
    """When its nsqd did, in seconds since the epoch."""
    channel_count: int = 0
    """All that the channel ever had, since then."""
    message_count: int = 0
    """All that the topic ever had, since then."""
    message_bytes: int = 0
    """The bytes of their bodies."""
    paused: bool = False
    topic_paused: bool = False
    exists: bool = True
    """The channel was there already; if it was not, it has been created."""

    @property
    def key(self) -> str:
        """What it is planned by: topic and nsqd."""
        return make_key(self.topic, self.nsqd)

    @property
    def available(self) -> int:
        """How many messages a task would get now, as far as nsqd can tell."""
        if self.paused:
            return 0
        return self.depth + (0 if self.topic_paused else self.topic_depth)

    def is_anew(self, before: Backlog) -> bool:
        """Tell whether the channel was deleted since, and created again: it begins to count anew.

        So it does when nsqd starts, but then it keeps what it had.
        """
        return self.started == before.started and self.channel_count < before.channel_count

    @property
    def mean_size(self) -> int:
        """Bytes of a body, rounded up; 0 if nsqd has had none since it started."""
        return -(-self.message_bytes // self.message_count) if self.message_count else 0
