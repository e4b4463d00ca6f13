"""What became of the messages that were to be published: counted, and named where it went wrong."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from nsqflow.cli.screen import count, emit, note

PUBLISHED, REFUSED, UNCERTAIN = "published", "refused", "uncertain"


class Account:
    """The counts; ``unit`` is what a message was read from: a line, or an argument."""

    def __init__(self, topic: str, unit: str) -> None:
        self.topic = topic
        self.unit = unit
        self.begun = False
        """There is an nsqd, and reading has begun."""
        self.empty = 0
        """Lines that were left out, because nsqd takes no empty message."""
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()

    @property
    def published(self) -> int:
        """Messages that nsqd has stored."""
        return self._counts[PUBLISHED]

    @property
    def failed(self) -> bool:
        """Not all of them are certainly stored."""
        return self.published < self._counts.total()

    def add(self, numbers: Sequence[int], fates: Sequence[str], why: str = "") -> None:
        """Take in what became of some messages; name those that may be missing."""
        self._counts.update(fates)
        for fate, group in groupby(zip(fates, numbers, strict=True), lambda pair: pair[0]):
            if fate != PUBLISHED:
                some = [number for _, number in group]
                note(f"{fate}: {self._span(some[0], some[-1])}: {why}")

    def line(self) -> str:
        """Say how it is going."""
        rate = self.published / max(time.monotonic() - self._began, 0.001)
        return f"published {count(self.published, 'message')}, {rate:,.0f}/s"

    def tell(self, *, json: bool) -> None:
        """Print the counts."""
        counts = {fate: self._counts[fate] for fate in (PUBLISHED, REFUSED, UNCERTAIN)}
        if json:
            emit({"topic": self.topic, **counts, "empty": self.empty})
            return
        words = [f"published {count(counts[PUBLISHED], 'message')} to {self.topic}"]
        words += [f"{counts[fate]:,} {fate}" for fate in (REFUSED, UNCERTAIN) if counts[fate]]
        words += [f"{count(self.empty, 'empty line')} left out"] if self.empty else []
        print("; ".join(words))

    def _span(self, first: int, last: int) -> str:
        return f"{self.unit} {first}" if first == last else f"{self.unit}s {first} to {last}"
