"""The account of a run in which nsqd is killed: published and delivered messages.

Messages are numbered, and the number determines the body.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable

from nsqflow.errors import NsqError, PublishUncertain

OVERTAKING = 0.05  # seconds: nsqd may read one connection later than another
_PADDING = b"." * 100


def body_of(number: int) -> bytes:
    return b"%d:" % number + _PADDING


def number_of(body: bytes) -> int:
    """Return the number of a message; fail if the body is not what was published."""
    number = int(body.partition(b":")[0])
    assert body == body_of(number), f"a message was changed: {body!r}"
    return number


class PublishLedger:
    """The messages published to a topic, with their results."""

    def __init__(self) -> None:
        self.count = 0
        """The number of messages so far."""
        self.acknowledged: dict[int, float] = {}
        """By number, with the start time of the publish."""
        self.refused: set[int] = set()
        self.uncertain: set[int] = set()

    def open(self, count: int) -> range:
        """Return the numbers of the next messages to publish."""
        self.count += count
        return range(self.count - count, self.count)

    def accept(self, numbers: Iterable[int], started: float) -> None:
        """Record that messages were acknowledged."""
        self.acknowledged |= dict.fromkeys(numbers, started)

    def fail(self, numbers: range, error: NsqError, started: float) -> None:
        """Record the result of a publish that raised."""
        if error.ranges is None:
            (self.uncertain if isinstance(error, PublishUncertain) else self.refused).update(
                numbers
            )
            return
        for part in error.ranges.accepted:
            self.accept(numbers[part.start : part.stop], started)
        for part in error.ranges.refused:
            self.refused.update(numbers[part.start : part.stop])
        for part in error.ranges.uncertain:
            self.uncertain.update(numbers[part.start : part.stop])


class DeliveryLedger:
    """The messages delivered by one channel, and those of them that were finished."""

    def __init__(self) -> None:
        self.deliveries: Counter[int] = Counter()
        self.finished: set[int] = set()
        self.settled: set[int] = set()
        """Finished and stored: nsqd has stored later publishes."""
        self.returned: Counter[int] = Counter()
        """Settled messages that were delivered again."""
        self._started = 0.0  # the last start of nsqd
        self._unsettled: dict[int, float] = {}  # finished since the start, and when

    def deliver(self, number: int) -> None:
        """Record the delivery of a message."""
        self.deliveries[number] += 1
        if number in self.settled:
            self.returned[number] += 1

    def finish(self, number: int, received: float) -> None:
        """Record that a message was finished; a FIN to an nsqd that was killed does not count."""
        self.finished.add(number)
        if received > self._started:
            self._unsettled[number] = time.monotonic()

    def killed(self, ledger: PublishLedger) -> None:
        """Count messages finished before the last acknowledged publish as settled."""
        last = max(ledger.acknowledged.values(), default=0.0) - OVERTAKING
        self.settled.update(number for number, at in self._unsettled.items() if at < last)
        self._unsettled.clear()
        self._started = math.inf

    def restarted(self) -> None:
        """Record that nsqd runs again."""
        self._started = time.monotonic()
