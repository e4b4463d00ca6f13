"""How far the demo has come, in numbers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqflow.cli.demo.site import Site, Sum

if TYPE_CHECKING:
    from nsqflow.pipelines.running import Batch

_LONG = 5.0  # seconds that a rate is taken over
_SAMPLE = 0.5  # seconds between two values of the curve


class Progress:
    """What was published, what each query has read of it, and how fast."""

    def __init__(self, site: Site, sinks: Sequence[str]) -> None:
        self.site = site
        self.sinks = sinks
        self.batches: dict[str, list[Batch]] = {name: [] for name in sinks}
        self.read = dict.fromkeys(sinks, 0)
        self._marks: deque[tuple[float, int, dict[str, int]]] = deque()
        self.curve: list[float] = []

    def add(self, batch: Batch) -> None:
        """Take note of a batch."""
        self.batches[batch.sink].append(batch)
        self.read[batch.sink] += batch.messages

    def is_done(self) -> bool:
        """Whether all that was published has been through every sink."""
        return self.site.is_over and all(n >= self.site.published for n in self.read.values())

    def is_settled(self) -> bool:
        """Whether NSQ has nothing left, and the sums that came back know of every view."""
        summed = sum(one.views for one in self.site.sums.values())
        return not self.site.left and summed >= self.site.visits.good

    @property
    def passed(self) -> float:
        """Seconds since the first visitor came, up to when the last one went."""
        site = self.site
        return min(site.seconds, time.time() - site.begun) if site.begun else 0.0

    def mark(self, now: float) -> None:
        """Remember how things are, for the rates."""
        if self._marks and now - self._marks[-1][0] < _SAMPLE:
            return
        if self._marks:
            before, published, _ = self._marks[-1]
            self.curve.append((self.site.published - published) / (now - before))
        self._marks.append((now, self.site.published, dict(self.read)))
        while now - self._marks[0][0] > _LONG:
            self._marks.popleft()

    def rate(self, sink: str | None = None) -> float:
        """Messages per second, published or read by a sink."""
        if len(self._marks) < 2:
            return 0.0
        (start, published, read), (end, published_now, read_now) = self._marks[0], self._marks[-1]
        done = published_now - published if sink is None else read_now[sink] - read[sink]
        return done / (end - start)

    def waiting(self, sink: str) -> int:
        """How many messages are left for a sink."""
        return max(0, self.site.published - self.read[sink])

    def slowest(self) -> list[Sum]:
        """The pages that take longest, in the last window that is known."""
        sums = self.site.sums.values()
        last = max((one.since for one in sums), default="")
        pages = [one for one in sums if one.since == last]
        return sorted(pages, key=lambda one: -one.p95)
