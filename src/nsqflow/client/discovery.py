"""Which nsqlookupd to ask in each round, and what their answers say together.

Every round asks all of them, because each knows only the nsqd that registered with it. No
round waits for one that failed three times in a row. If those were failures of ordinary
rounds, it is asked in fewer and fewer of them. Two kinds of rounds ask all of them, and their
failures don't count for that: early rounds, which come seconds apart, and those in which all
have failed so often, where to skip them would leave none to ask.

When a round is due says ``nsqflow.client.lookup_schedule``. No I/O, clock or randomness here:
``nsqflow.client.poller`` brings them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nsqflow.errors import ConfigError, NsqError
from nsqflow.protocol.lookup import LookupAnswer, Node, TopicMeta

SICK_AFTER = 3
"""Failures in a row from which on an address is not waited for, and may be skipped."""

_MOST_DOUBLINGS = 4  # an address is asked in every 16th ordinary round at least


@dataclass(frozen=True, slots=True)
class Round:
    """Whom to ask now."""

    number: int
    asked: tuple[str, ...]
    awaited: tuple[str, ...]
    """Those of them without which the round is not over."""


@dataclass(frozen=True, slots=True)
class Health:
    """How one nsqlookupd has been doing."""

    failures: int = 0
    """In a row, until now."""
    counted_failures: int = 0
    """Those of them that make ordinary rounds skip it."""
    last_error: NsqError | None = None
    last_success: int | None = None
    """The number of the round; None: never."""

    @property
    def sick(self) -> bool:
        """Whether no round waits for it."""
        return self.failures >= SICK_AFTER


def rounds_between(failures: int) -> int:
    """Return how far apart the ordinary rounds are that ask an address after its failures."""
    doublings = min(max(failures - SICK_AFTER + 1, 0), _MOST_DOUBLINGS)
    return int(2**doublings)


def merge(answers: Iterable[LookupAnswer]) -> LookupAnswer:
    """Unite answers; where two speak of the same thing the first one counts."""
    nodes: dict[str, Node] = {}
    channels: dict[str, None] = {}
    partitions: dict[int, Node] = {}
    meta: TopicMeta | None = None
    for answer in answers:
        for node in answer.producers:
            nodes.setdefault(node.address, node)
        for number, leader in answer.partitions.items():
            partitions.setdefault(number, leader)
        channels |= dict.fromkeys(answer.channels)
        meta = meta or answer.meta
    return LookupAnswer(
        producers=tuple(nodes.values()),
        channels=tuple(channels),
        partitions=partitions,
        meta=meta,
    )


class Discovery:
    """Rounds of questions to nsqlookupd; each question ends as ``succeeded`` or ``failed``."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._health = {address: Health() for address in addresses}
        if not self._health:
            raise ConfigError("no nsqlookupd address; at least one is needed")
        self._number = 0
        self._ordinary = 0  # rounds that were not early
        self._last_asked = dict.fromkeys(self._health, 0)  # the ordinary round
        self._pending: dict[str, bool] = {}  # asked and not heard of: does a failure count
        self._awaited: set[str] = set()  # those of them for which the round waits
        self._gathered: dict[str, LookupAnswer] = {}  # by this round, until it is settled
        self._kept: dict[str, LookupAnswer] = {}  # what counts now
        self._trusted = False
        self._answered = False

    @property
    def settled(self) -> bool:
        """Whether the round waits for nobody any longer."""
        return not self._awaited

    @property
    def answered(self) -> bool:
        """Whether anybody at all has answered since the round began."""
        return self._answered

    def answer(self) -> LookupAnswer:
        """What the last good round said, and those who were late; empty if there was none."""
        return merge(self._kept[address] for address in self._health if address in self._kept)

    def named_by(self) -> dict[str, tuple[str, ...]]:
        """Return for each nsqd of ``answer`` the nsqlookupd that name it."""
        found: dict[str, tuple[str, ...]] = {}
        for lookupd in self._health:
            if lookupd in self._kept:
                for nsqd in dict.fromkeys(node.address for node in self._kept[lookupd].producers):
                    found[nsqd] = (*found.get(nsqd, ()), lookupd)
        return found

    def health(self) -> dict[str, Health]:
        """How each nsqlookupd has been doing, in the order they were named."""
        return dict(self._health)

    def begin_round(self, *, early: bool) -> Round:
        """Start the next round; a question of an earlier one that is still open stays so."""
        self._number += 1
        self._ordinary += not early
        asks_all = early or all(health.sick for health in self._health.values())
        asked = tuple(
            address
            for address in self._health
            if address not in self._pending and (asks_all or self._is_due(address))
        )
        awaited = tuple(address for address in asked if not self._health[address].sick)
        if not early:
            self._last_asked |= dict.fromkeys(asked, self._ordinary)
        self._pending |= dict.fromkeys(asked, not asks_all)
        self._awaited = set(awaited)
        self._gathered = {}
        self._trusted = self._answered = False
        return Round(self._number, asked, awaited)

    def succeeded(self, address: str, answer: LookupAnswer) -> None:
        """Take the answer of one; that it knows no node is an answer, too."""
        before = self._health[address]
        self._health[address] = Health(last_error=before.last_error, last_success=self._number)
        (self._kept if self.settled else self._gathered)[address] = answer
        self._answered = True
        self._trusted = self._trusted or address in self._awaited
        self._end_question(address)

    def failed(self, address: str, error: NsqError) -> None:
        """Note that one could not be asked, or gave no usable answer."""
        before = self._health[address]
        self._health[address] = replace(
            before,
            failures=before.failures + 1,
            counted_failures=before.counted_failures + self._pending.get(address, False),
            last_error=error,
        )
        self._end_question(address)

    def abandon(self) -> None:
        """Forget the questions that are open: nobody will hear how they end."""
        self._pending.clear()
        self._awaited.clear()

    def _is_due(self, address: str) -> bool:
        since = self._ordinary - self._last_asked[address]
        return since >= rounds_between(self._health[address].counted_failures)

    def _end_question(self, address: str) -> None:
        self._pending.pop(address, None)
        if address not in self._awaited:
            return
        self._awaited.discard(address)
        if self.settled:
            # Sick ones that answered in time don't replace what the healthy ones said before.
            self._kept = self._gathered if self._trusted else self._kept | self._gathered
