"""The ledger of a campaign: the result of each message, and their sum.

Messages are numbered, and the number of a message determines its body, so one that arrives
changed, or was never published, is noticed.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from tests.faults.cluster import Member


class Result(Enum):
    """What the producer said of a message."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "certainly not stored"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True)
class Holder:
    """The life of an nsqd in which it acknowledged a message."""

    member: Member
    life: int

    @property
    def ended(self) -> bool:
        """It was ended, and started again since."""
        return self.member.life > self.life


def body_of(number: int) -> bytes:
    """The body of a message: mostly small, one in fifty too large for one read of a socket."""
    size = 70_000 if number % 50 == 49 else number * 7919 % 300
    return b"%d:" % number + bytes([97 + number % 26]) * size


class Ledger:
    """What was published, with which outcome, and what was consumed."""

    def __init__(self) -> None:
        self.results: dict[int, Result] = {}
        self.consumed: Counter[int] = Counter()
        self.garbled = 0
        self.published = 0
        self._holders: dict[int, Holder] = {}
        self._lock = threading.Lock()  # some readers work on threads

    def open(self, count: int = 1) -> range:
        """Return the numbers of messages that are to be published now."""
        self.published += count
        return range(self.published - count, self.published)

    def record(self, numbers: range, result: Result, member: Member | None = None) -> None:
        """Note the outcome of messages; ``member`` if they could go to that nsqd only."""
        self.results |= dict.fromkeys(numbers, result)
        if member is not None and result is Result.ACKNOWLEDGED:
            self._holders |= dict.fromkeys(numbers, Holder(member, member.life))

    def consume(self, body: bytes) -> None:
        """Note that a message was handled to its end."""
        with self._lock:
            number = self._read(body)
            if number is not None:
                self.consumed[number] += 1

    def _read(self, body: bytes) -> int | None:
        digits = body.partition(b":")[0]
        number = int(digits) if digits.isdigit() else -1
        if 0 <= number < self.published and body == body_of(number):
            return number
        self.garbled += 1
        return None

    def missing(self) -> tuple[list[int], list[int]]:
        """Acknowledged and never consumed: those to be found, and those that died with an nsqd."""
        lost: list[int] = []
        died: list[int] = []
        for number, result in self.results.items():
            if result is Result.ACKNOWLEDGED and not self.consumed[number]:
                holder = self._holders.get(number)
                (died if holder is not None and holder.ended else lost).append(number)
        return lost, died

    def ghosts(self) -> list[int]:
        """Consumed, though said to be certainly not stored."""
        return [n for n in self.consumed if self.results.get(n) is Result.REFUSED]


@dataclass
class Account:
    """The sum of a campaign; ``faults`` is empty if nsqflow kept its promises."""

    title: str
    ledger: Ledger
    ends: Counter[str] = field(default_factory=Counter)
    outstanding: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each consumer: the highest number of outstanding messages, and the limit."""
    closing: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Of each client: the seconds its close() took, and the most allowed."""
    other_faults: list[str] = field(default_factory=list)
    """What else went wrong, as text."""

    def faults(self) -> list[str]:
        """What broke a promise, as text."""
        lost, _ = self.ledger.missing()
        ghosts = self.ledger.ghosts()
        unbooked = self.ledger.published - len(self.ledger.results)
        counts = {
            f"lost: acknowledged and never consumed {_some(lost)}": len(lost),
            f"consumed though certainly not stored {_some(ghosts)}": len(ghosts),
            "came out changed or from nowhere": self.ledger.garbled,
            "published without any outcome": unbooked,
            "nothing was consumed": not self.ledger.consumed,
        }
        faults = [f"{count} {what}" for what, count in counts.items() if count]
        for name, (most, allowed) in self.outstanding.items():
            if most > allowed:
                faults.append(f"{name} had {most} outstanding; {allowed} are allowed")
        for name, (seconds, bound) in self.closing.items():
            if seconds > bound:
                faults.append(f"{name} took {seconds:.1f} s to close; {bound:g} are allowed")
        return faults + self.other_faults

    def __str__(self) -> str:
        ledger = self.ledger
        results = Counter(ledger.results.values())
        lost, died = ledger.missing()
        uncertain = [n for n, result in ledger.results.items() if result is Result.UNCERTAIN]
        found = sum(1 for n in uncertain if ledger.consumed[n])
        ghosts = len(ledger.ghosts())
        ends = ", ".join(f"{name} {count} times" for name, count in sorted(self.ends.items()))
        slowest = max((seconds for seconds, _ in self.closing.values()), default=0.0)
        lines = [
            f"{self.title}; ended and started again: {ends}",
            f"  published             {ledger.published:9,}",
            f"  acknowledged          {results[Result.ACKNOWLEDGED]:9,}",
            f"  certainly not stored  {results[Result.REFUSED]:9,}  (consumed: {ghosts})",
            f"  uncertain             {len(uncertain):9,}  (consumed: {found})",
            f"  consumed              {len(ledger.consumed):9,}",
            f"  more than once        {ledger.consumed.total() - len(ledger.consumed):9,}",
            f"  died with an nsqd     {len(died):9,}  (acknowledged, not consumed, nsqd killed)",
            f"  lost                  {len(lost):9,}",
            "  most outstanding         "
            + ", ".join(f"{name} {m} of {most}" for name, (m, most) in self.outstanding.items()),
            f"  slowest close()       {slowest:9.2f} s",
        ]
        return "\n".join([*lines, *(f"  FAULT {fault}" for fault in self.faults())])


def _some(numbers: list[int]) -> str:
    return f"{numbers[:5]}{'...' if len(numbers) > 5 else ''}" if numbers else ""
