"""How many messages each partition of a batch may pull.

    available messages -> RetryBackoff, AvailableNowTarget, MinMessagesGate -> divide -> split

Pure: no I/O, and time is an argument, in seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from nsqflow.spark.source.offsets import make_key

K = TypeVar("K", bound=Hashable)

MIN_WAIT = 0.5
MAX_WAIT = 30.0

UNCOUNTED = 3  # messages that nsqd may not count, as they are on their way from topic to channel


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelBacklog:
    """The counters of a topic and of the query's channel of it, on one nsqd or in one partition."""

    topic: str
    nsqd: str
    """``host:port``, which tasks connect to; that of a partition is its leader now."""
    partition: int | None = None
    """The partition, in the redesigned NSQ."""
    depth: int = 0
    """Messages that wait in the channel."""
    topic_depth: int = 0
    """Messages that have not reached the topic's channels yet."""
    in_flight: int = 0
    deferred: int = 0
    requeues: int = 0
    timeouts: int = 0
    started: float = 0.0
    """When the nsqd started, in seconds since the epoch."""
    channel_count: int = 0
    """All messages of the channel since then."""
    message_count: int = 0
    """All messages of the topic since then."""
    message_bytes: int = 0
    """The bytes of their bodies."""
    start: int = 0
    """Of a partition: the offset of the oldest byte that is kept."""
    end: int = 0
    """The offset of the next message."""
    cursor: int = 0
    """The offset before which the channel has finished everything."""
    delayed: int = 0
    """Messages that nsqd holds on disk for more than 15 minutes; nothing else counts them."""
    due: int = 0
    """1 if the delay of one of them is over."""
    paused: bool = False
    topic_paused: bool = False
    exists: bool = True
    """The channel existed; if it did not, it has been created."""

    @property
    def key(self) -> str:
        """Topic and nsqd, or topic and partition, as a key of plans."""
        return make_key(self.topic, self.nsqd if self.partition is None else self.partition)

    @property
    def available(self) -> int:
        """The number of messages that a task could pull now, by nsqd's counters."""
        if self.paused:
            return 0
        if self.partition is not None:  # where the depth counts whatever is not finished
            return max(0, self.depth - self.in_flight - self.deferred) + self.due
        return self.depth + (0 if self.topic_paused else self.topic_depth)

    @property
    def held_back(self) -> int:
        """The number of messages that no task gets as long as the channel or topic is paused."""
        if self.partition is not None:
            return self.depth if self.paused else 0
        return self.depth + self.topic_depth - self.available

    def was_recreated(self, before: ChannelBacklog) -> bool:
        """Return whether the channel was deleted and created again since ``before``.

        Its counters start again then. They do so too when nsqd restarts, but it keeps its messages.
        """
        return self.started == before.started and self.channel_count < before.channel_count

    @property
    def mean_size(self) -> int:
        """Bytes of a body, rounded up; 0 if nsqd has had no message since it started."""
        return -(-self.message_bytes // self.message_count) if self.message_count else 0


def divide(backlog: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Divide ``limit`` messages among the keys, in proportion to their backlogs.

    No key gets more than it has, and each key with a backlog gets at least one message if the limit
    allows. Keys that get nothing are left out, the others are sorted.
    """
    waiting = {key: count for key, count in sorted(backlog.items()) if count > 0}
    if limit is None or limit >= sum(waiting.values()):
        return waiting
    shares = _apportion(waiting, limit)
    if limit >= len(waiting):
        minimum: dict[str, int] = {}
        while none := [key for key, share in shares.items() if share == 0]:
            minimum |= dict.fromkeys(none, 1)
            rest = {key: count for key, count in waiting.items() if key not in minimum}
            shares = _apportion(rest, limit - len(minimum))
        shares |= minimum
    return {key: shares[key] for key in waiting if shares[key] > 0}


def split(budget: int, parts: int, max_each: int | None) -> list[int]:
    """Split a budget into ``parts`` pieces, or more if one would be above ``max_each``.

    The pieces differ by at most one, and none is empty: a small budget has fewer of them.
    """
    if max_each is not None:
        parts = max(parts, -(-budget // max_each))
    parts = min(parts, budget)
    size, larger = divmod(budget, parts) if parts > 0 else (0, 0)
    return [size + (index < larger) for index in range(parts)]


def limit_by_bytes(
    available: Mapping[str, int], mean_sizes: Mapping[str, int], max_bytes: int
) -> int | None:
    """Return how many of the messages fit into ``max_bytes``, by their mean sizes.

    At least one, so that a large message does not block the query. None if there is no limit,
    because the messages have fewer bytes or no size is known.
    """
    known = {key: count for key, count in available.items() if mean_sizes.get(key) and count > 0}
    expected = sum(count * mean_sizes[key] for key, count in known.items())
    # Messages of unknown size are assumed to be as large as the others.
    total, measured = sum(available.values()), sum(known.values())
    if expected * total <= max_bytes * measured:
        return None
    return max(1, max_bytes * measured // expected)


def share_bytes(max_bytes: int, plan: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Divide ``max_bytes`` among the partitions of a plan, in proportion to their messages.

    Each gets at least one byte, even where the sum exceeds ``max_bytes``: a partition takes its
    first message whatever its size, so that every partition makes progress.
    """
    pieces = {
        (key, index): count
        for key, counts in sorted(plan.items())
        for index, count in enumerate(counts)
    }
    shares = _apportion(pieces, max(max_bytes - len(pieces), 0))
    return {
        key: [shares[key, index] + 1 for index in range(len(plan[key]))] for key in sorted(plan)
    }


class RetryBackoff:
    """Keys that are not tried for a while, because they returned nothing the last time.

    Other consumers took their messages, or the messages are deferred: without it the query would
    plan one empty batch after another. The wait doubles each time; a success ends it.
    """

    def __init__(self, min_wait: float = MIN_WAIT, max_wait: float = MAX_WAIT) -> None:
        self._min_wait = min_wait
        self._max_wait = max_wait
        self._waits: dict[str, tuple[float, float]] = {}  # seconds, and until when

    def allowed(self, key: str, now: float) -> bool:
        """Return whether to try a key."""
        wait = self._waits.get(key)
        return wait is None or now >= wait[1]

    def record(self, key: str, planned: int, received: int, now: float) -> None:
        """Record the result of a plan."""
        if received > 0:
            self.succeeded(key)
        elif planned > 0:
            self.failed(key, now)

    def failed(self, key: str, now: float) -> None:
        """Back off from a key, for twice as long as the last time."""
        last, _ = self._waits.get(key, (0.0, 0.0))
        wait = min(max(last * 2, self._min_wait), self._max_wait)
        self._waits[key] = wait, now + wait

    def succeeded(self, key: str) -> None:
        """Forget the failures of a key."""
        self._waits.pop(key, None)

    def next(self, now: float) -> float | None:
        """Return the seconds until the next waiting key is allowed; None if none waits."""
        return min((until - now for _, until in self._waits.values() if until > now), default=None)

    def keep(self, keys: Iterable[str]) -> None:
        """Forget all other keys."""
        kept = set(keys)
        self._waits = {key: wait for key, wait in self._waits.items() if key in kept}


class AvailableNowTarget:
    """How many messages a run with ``availableNow`` reads: as many as there were at its start.

    By number, as classic NSQ has no positions: a later message may be read instead of an earlier
    one. Messages in flight count, because they come back unless their consumer finishes them.
    """

    def __init__(self, backlogs: Iterable[ChannelBacklog], available: Mapping[str, int]) -> None:
        """``available`` has the number of messages of each key that can be pulled now."""
        self._left = {
            backlog.key: available.get(backlog.key, 0)
            + (0 if backlog.paused else backlog.in_flight)
            + _uncounted(backlog)
            for backlog in backlogs
        }

    def remaining(self) -> dict[str, int]:
        """Return the remaining messages of the keys that are not done."""
        return {key: left for key, left in sorted(self._left.items()) if left > 0}

    def limit(self, available: Mapping[str, int]) -> dict[str, int]:
        """Limit the available messages to the remaining ones."""
        return {
            key: min(available[key], left)
            for key, left in self.remaining().items()
            if available.get(key, 0) > 0
        }

    def record(self, key: str, received: int) -> None:
        """Record messages of a key; they may be more than were planned."""
        self._left[key] = max(self._left.get(key, 0) - received, 0)

    def give_up(self, key: str) -> None:
        """Expect no more from a key: other consumers took the rest, or its nsqd is gone."""
        self._left[key] = 0


class MinMessagesGate:
    """Delays small batches: ``minMessagesPerTrigger`` and ``maxTriggerDelay``.

    The delay counts from the previous batch, as it does with Kafka, so that the first batch and
    those after a long pause start at once.
    """

    def __init__(self, min_messages: int | None, max_delay: float) -> None:
        self._min_messages = min_messages
        self._max_delay = max_delay
        self._last_batch_at: float | None = None

    def should_wait(self, available: int, now: float) -> bool:
        """Return whether ``available`` messages are too few for a batch now."""
        if self._min_messages is None or self._last_batch_at is None:
            return False
        return available < self._min_messages and now < self._last_batch_at + self._max_delay

    def triggered(self, now: float) -> None:
        """Record that a batch was started."""
        self._last_batch_at = now


def _uncounted(backlog: ChannelBacklog) -> int:
    """Return the maximum number of messages on their way from the topic to the channel."""
    return UNCOUNTED if backlog.topic_depth and not (backlog.paused or backlog.topic_paused) else 0


def _apportion(weights: Mapping[K, int], total: int) -> dict[K, int]:
    """Divide a total in proportion to weights, the rest by largest remainders.

    Of equal remainders the earlier wins, and no key gets more than its weight unless all do.
    """
    whole = sum(weights.values())
    if not whole:
        return dict.fromkeys(weights, 0)
    shares = {key: total * weight // whole for key, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda key: -(total * weights[key] % whole))
    for key in by_remainder[: total - sum(shares.values())]:
        shares[key] += 1
    return shares
