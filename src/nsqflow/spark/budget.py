"""Who may pull how many messages: the numbers behind a plan.

    look -> available -> Patience, Target, Hold -> divide -> split -> the plan of a batch

Pure: no I/O, and time is an argument, in seconds of whichever clock the caller has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from nsqflow.spark.backlog import Backlog

K = TypeVar("K", bound=Hashable)

LEAST_WAIT = 0.5
MOST_WAIT = 30.0

IN_HAND = 3  # messages that nsqd counts neither in a topic nor in its channel: one at each step


def divide(backlog: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Share ``limit`` messages out, in proportion to what each key has.

    Nobody gets more than it has, and each that has something gets one at least if the limit
    goes so far. Keys that get nothing are left out, the others are sorted.
    """
    waiting = {key: count for key, count in sorted(backlog.items()) if count > 0}
    if limit is None or limit >= sum(waiting.values()):
        return waiting
    shares = _apportion(waiting, limit)
    if limit >= len(waiting):
        poor: dict[str, int] = {}
        while none := [key for key, share in shares.items() if share == 0]:
            poor |= dict.fromkeys(none, 1)
            rest = {key: count for key, count in waiting.items() if key not in poor}
            shares = _apportion(rest, limit - len(poor))
        shares |= poor
    return {key: shares[key] for key in waiting if shares[key] > 0}


def split(budget: int, parts: int, most: int | None) -> list[int]:
    """Cut a budget into ``parts`` pieces, or more if one would be above ``most``.

    The pieces differ by one at most, and none is empty: a small budget has fewer of them.
    """
    if most is not None:
        parts = max(parts, -(-budget // most))
    parts = min(parts, budget)
    size, larger = divmod(budget, parts) if parts > 0 else (0, 0)
    return [size + (index < larger) for index in range(parts)]


def limit_by_bytes(
    available: Mapping[str, int], mean_sizes: Mapping[str, int], max_bytes: int
) -> int | None:
    """Say how many of the messages have ``max_bytes`` together, by their mean sizes.

    One at least, so that a large message does not stop everything. None: no limit comes of it,
    because they are fewer bytes, or because no size is known.
    """
    known = {key: count for key, count in available.items() if mean_sizes.get(key) and count > 0}
    expected = sum(count * mean_sizes[key] for key, count in known.items())
    # Those of unknown size are taken to be as large as the others.
    total, measured = sum(available.values()), sum(known.values())
    if expected * total <= max_bytes * measured:
        return None
    return max(1, max_bytes * measured // expected)


def share_bytes(max_bytes: int, plan: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Share ``max_bytes`` out over the pieces of a plan, in proportion to their messages.

    Each gets one at least, even where that makes more of them: a piece takes its first message
    whatever its size, so that none is without hope.
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


class Patience:
    """Which keys are let be for a while, because they brought nothing when they were tried.

    Somebody else took their messages, or they are held back: without it the query would plan
    one empty batch after the other. The wait doubles each time; a success ends it.
    """

    def __init__(self, least: float = LEAST_WAIT, most: float = MOST_WAIT) -> None:
        self._least = least
        self._most = most
        self._waits: dict[str, tuple[float, float]] = {}  # how long, and until when

    def allowed(self, key: str, now: float) -> bool:
        """Whether to try this one."""
        wait = self._waits.get(key)
        return wait is None or now >= wait[1]

    def brought(self, key: str, planned: int, got: int, now: float) -> None:
        """Note what came of a plan."""
        if got > 0:
            self.succeeded(key)
        elif planned > 0:
            self.failed(key, now)

    def failed(self, key: str, now: float) -> None:
        """Let a key be, for twice as long as the last time."""
        last, _ = self._waits.get(key, (0.0, 0.0))
        wait = min(max(last * 2, self._least), self._most)
        self._waits[key] = wait, now + wait

    def succeeded(self, key: str) -> None:
        """Forget that a key ever failed."""
        self._waits.pop(key, None)

    def next(self, now: float) -> float | None:
        """Seconds until the next of those that wait is allowed; None if none waits."""
        return min((until - now for _, until in self._waits.values() if until > now), default=None)

    def keep(self, keys: Iterable[str]) -> None:
        """Forget all others: they are gone."""
        kept = set(keys)
        self._waits = {key: wait for key, wait in self._waits.items() if key in kept}


class Target:
    """What a run with ``availableNow`` is to bring: as many messages as there were at its start.

    By number, as NSQ has no positions: a later message may come in an earlier one's place.
    Those in flight count, because they come back unless their consumer finishes them.
    """

    def __init__(self, backlogs: Iterable[Backlog]) -> None:
        self._left = {
            backlog.key: backlog.available
            + (0 if backlog.paused else backlog.in_flight)
            + _hidden(backlog)
            for backlog in backlogs
        }

    def remaining(self) -> dict[str, int]:
        """How many are still to come, of those that are not done."""
        return {key: left for key, left in sorted(self._left.items()) if left > 0}

    def bound(self, available: Mapping[str, int]) -> dict[str, int]:
        """Cut what is available down to what is still to come."""
        return {
            key: min(available[key], left)
            for key, left in self.remaining().items()
            if available.get(key, 0) > 0
        }

    def brought(self, key: str, got: int) -> None:
        """Note how many have come; more than planned may be."""
        self._left[key] = max(self._left.get(key, 0) - got, 0)

    def give_up(self, key: str) -> None:
        """Expect nothing more of a key: others have taken the rest, or its nsqd is gone."""
        self._left[key] = 0


class Hold:
    """Whether few messages wait for more: ``minMessagesPerTrigger`` and ``maxTriggerDelay``.

    The delay counts from one batch to the next, as it does with Kafka, so that the first one
    and those after a long silence go at once.
    """

    def __init__(self, least: int | None, most_delay: float) -> None:
        self._least = least
        self._most_delay = most_delay
        self._triggered: float | None = None

    def holds(self, available: int, now: float) -> bool:
        """Whether to make no batch of so many now."""
        if self._least is None or self._triggered is None:
            return False
        return available < self._least and now < self._triggered + self._most_delay

    def triggered(self, now: float) -> None:
        """Note that a batch was made."""
        self._triggered = now


def _hidden(backlog: Backlog) -> int:
    """How many messages nsqd has in hand at most, on their way from the topic to the channel."""
    return IN_HAND if backlog.topic_depth and not (backlog.paused or backlog.topic_paused) else 0


def _apportion(weights: Mapping[K, int], total: int) -> dict[K, int]:
    """Share a total out in proportion; what is left over goes to the largest remainders.

    Of equal ones the earlier comes first, and none gets more than its weight unless all do.
    """
    whole = sum(weights.values())
    if not whole:
        return dict.fromkeys(weights, 0)
    shares = {key: total * weight // whole for key, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda key: -(total * weights[key] % whole))
    for key in by_remainder[: total - sum(shares.values())]:
        shares[key] += 1
    return shares
