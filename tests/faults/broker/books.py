"""The books of a run in which nsqd is killed: what it has acknowledged, and what came of it.

Messages are numbered, and a number says all of its message's body.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable

from nsqflow.errors import NsqError, PublishUncertain

OVERTAKING = 0.05  # seconds: what was said on one connection may be heard later than on another
_PADDING = b"." * 100


def body_of(number: int) -> bytes:
    return b"%d:" % number + _PADDING


def number_of(body: bytes) -> int:
    """The number of a message; it fails if the message is not what was published."""
    number = int(body.partition(b":")[0])
    assert body == body_of(number), f"a message came out changed: {body!r}"
    return number


class Books:
    """What was published to a topic, with which outcome."""

    def __init__(self) -> None:
        self.count = 0
        """Numbers that were given out."""
        self.acknowledged: dict[int, float] = {}
        """And when the publish was begun."""
        self.refused: set[int] = set()
        self.uncertain: set[int] = set()

    def open(self, count: int) -> range:
        """Give out the numbers of messages that are to be published now."""
        self.count += count
        return range(self.count - count, self.count)

    def accept(self, numbers: Iterable[int], begun: float) -> None:
        """Note that they were acknowledged."""
        self.acknowledged |= dict.fromkeys(numbers, begun)

    def fail(self, numbers: range, error: NsqError, begun: float) -> None:
        """Note what an error says of them."""
        if error.ranges is None:
            (self.uncertain if isinstance(error, PublishUncertain) else self.refused).update(
                numbers
            )
            return
        for part in error.ranges.accepted:
            self.accept(numbers[part.start : part.stop], begun)
        for part in error.ranges.refused:
            self.refused.update(numbers[part.start : part.stop])
        for part in error.ranges.uncertain:
            self.uncertain.update(numbers[part.start : part.stop])


class Reading:
    """What one channel has given out, and what of it was finished."""

    def __init__(self) -> None:
        self.deliveries: Counter[int] = Counter()
        self.finished: set[int] = set()
        self.settled: set[int] = set()
        """Finished for good: nsqd has stored other things since."""
        self.returned: Counter[int] = Counter()
        """Those that came again all the same."""
        self._born = 0.0  # when nsqd was there again
        self._fresh: dict[int, float] = {}  # what was finished since, and when

    def deliver(self, number: int) -> None:
        """Note that a message has come."""
        self.deliveries[number] += 1
        if number in self.settled:
            self.returned[number] += 1

    def finish(self, number: int, received: float) -> None:
        """Note that a message was finished; an nsqd that is dead by now can't hear it."""
        self.finished.add(number)
        if received > self._born:
            self._fresh[number] = time.monotonic()

    def die(self, books: Books) -> None:
        """Take for settled what was finished before the last acknowledged publish began."""
        last = max(books.acknowledged.values(), default=0.0) - OVERTAKING
        self.settled.update(number for number, at in self._fresh.items() if at < last)
        self._fresh.clear()
        self._born = math.inf

    def rise(self) -> None:
        """Know that nsqd is there again."""
        self._born = time.monotonic()
