"""Which nsqlookupd to query in each round of polling, and the merged answer.

Each nsqlookupd knows only the nsqd that registered with it, so every round queries all of
them: those that the user configured and, in the redesigned NSQ, those that they list as members
of their cluster. While members disagree about the leaders of partitions, the leading
nsqlookupd's answer counts.

No round waits for one that failed three times in a row; if it failed in regular rounds, it is
queried in fewer and fewer of them. Two kinds of rounds query all, and failures in them do not
count for that: early rounds, which come seconds apart, and rounds in which all nsqlookupd are
failing, as skipping them would leave none.

``nsqflow.client.lookup_schedule`` decides when a round is due. No I/O, clock or randomness
here: ``nsqflow.client.lookup_poller`` adds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nsqflow.errors import NsqError
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.lookup import LookupAnswer, LookupdNode, Node, TopicMeta

FAILING_AFTER = 3
"""Consecutive failures after which an nsqlookupd is not waited for, and may be skipped."""

_MAX_LOOKUPDS = 64  # members of a cluster are not polled beyond this number
_MAX_DOUBLINGS = 4  # an address is queried at least in every 16th regular round


@dataclass(frozen=True, slots=True)
class LookupRound:
    """The nsqlookupd to query in one round."""

    asked: tuple[str, ...]
    awaited: tuple[str, ...]
    """Those that the round waits for."""


@dataclass(frozen=True, slots=True)
class LookupdHealth:
    """Failures and successes of one nsqlookupd."""

    failures: int = 0
    """Consecutive failures."""
    counted_failures: int = 0
    """Those that make regular rounds skip it."""
    last_error: NsqError | None = None

    @property
    def failing(self) -> bool:
        """Whether rounds do not wait for it."""
        return self.failures >= FAILING_AFTER


def rounds_between(failures: int) -> int:
    """Return after how many regular rounds an address is queried again, given its failures."""
    doublings = min(max(failures - FAILING_AFTER + 1, 0), _MAX_DOUBLINGS)
    return int(2**doublings)


def merge(answers: Iterable[LookupAnswer]) -> LookupAnswer:
    """Merge answers; of two that name the same thing, the first counts."""
    nodes: dict[str, Node] = {}
    channels: dict[str, None] = {}
    partitions: dict[int, Node] = {}
    meta: TopicMeta | None = None
    lacks_channel = False
    for answer in answers:
        for node in answer.producers:
            nodes.setdefault(node.address, node)
        for number, leader in answer.partitions.items():
            partitions.setdefault(number, leader)
        channels |= dict.fromkeys(answer.channels)
        meta = meta or answer.meta
        lacks_channel = lacks_channel or answer.lacks_channel
    return LookupAnswer(
        producers=tuple(nodes.values()),
        channels=tuple(channels),
        partitions=partitions,
        meta=meta,
        lacks_channel=lacks_channel,
    )


class Discovery:
    """Rounds of queries to nsqlookupd; each query ends as ``succeeded`` or ``failed``."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._health = {address: LookupdHealth() for address in addresses}
        self._configured = tuple(self._health)
        self._members: set[str] = set()  # listed in this round
        self._leading = ""  # the nsqlookupd that leads the cluster
        self._clustered = False  # the nsqlookupd are those of the redesigned NSQ
        self._dialect: Dialect | None = None  # None: not known yet
        self._regular = 0  # rounds that were not early
        self._last_asked = dict.fromkeys(self._health, 0)  # the regular round
        self._pending: dict[str, bool] = {}  # queries under way, and whether a failure counts
        self._awaited: set[str] = set()  # those that the round waits for
        self._gathered: dict[str, LookupAnswer] = {}  # answers of this round, until it is settled
        self._kept: dict[str, LookupAnswer] = {}  # the answers that count now
        self._trusted = False
        self.answered = False  # by any nsqlookupd since the round began

    @property
    def awaited(self) -> set[str]:
        """The nsqlookupd that the round still waits for."""
        return self._awaited

    @property
    def settled(self) -> bool:
        """Whether the round waits for no more answers."""
        return not self._awaited

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the topic's nsqd, if known; a redesigned topic never becomes classic."""
        return self._dialect

    @property
    def has_leaders(self) -> bool:
        """Whether the topic's partitions have leaders, or may have: it is not a classic topic."""
        return self._dialect is Dialect.REDESIGNED or (self._clustered and self._dialect is None)

    @property
    def unsettled(self) -> bool:
        """Whether answers about a redesigned topic disagree, or name too few leaders.

        After a crash they name none for some 20 seconds, so an empty answer is unsettled too.
        """
        if not self.has_leaders:
            return False
        answer = self.answer()
        wanted = 1 if answer.meta is None else max(1, answer.meta.partition_num)
        return len(answer.partitions) < wanted or len(self._leaders()) > 1

    def answer(self) -> LookupAnswer:
        """Return the merged answer of the last good round and of late answers; empty before."""
        kept = self._kept
        order = sorted(filter(kept.__contains__, self._health), key=self._leading.__ne__)
        merged = merge(kept[address] for address in order)
        if self._leading in kept and len(self._leaders()) > 1:
            return replace(merged, partitions=kept[self._leading].partitions)
        return merged

    def named_by(self) -> dict[str, tuple[str, ...]]:
        """Return for each nsqd of ``answer`` the nsqlookupd that name it."""
        found: dict[str, tuple[str, ...]] = {}
        for lookupd in self._health:
            if lookupd in self._kept:
                for nsqd in dict.fromkeys(node.address for node in self._kept[lookupd].producers):
                    found[nsqd] = (*found.get(nsqd, ()), lookupd)
        return found

    def health(self) -> dict[str, LookupdHealth]:
        """Return the health of each nsqlookupd, in the order given."""
        return dict(self._health)

    def listed(self, members: Iterable[LookupdNode]) -> tuple[str, ...]:
        """Record a list of the cluster's nsqlookupd; return those to query in this round too."""
        members = tuple(members)
        self._clustered = True
        self._members.update(member.address for member in members)
        self._leading = next((each.address for each in members if each.leader), self._leading)
        unknown = (each.address for each in members if each.address not in self._health)
        new = tuple(dict.fromkeys(unknown))[: max(0, _MAX_LOOKUPDS - len(self._health))]
        for address in new:
            self._health[address] = LookupdHealth()
            self._last_asked[address] = self._regular
            self._pending[address] = True
            self._awaited.add(address)
        return new

    def begin_round(self, *, early: bool) -> LookupRound:
        """Start the next round; queries of earlier rounds may still be open."""
        self._forget_former_members()
        self._regular += not early
        asks_all = early or all(health.failing for health in self._health.values())
        asked = tuple(
            address
            for address in self._health
            if address not in self._pending and (asks_all or self._is_due(address))
        )
        awaited = tuple(address for address in asked if not self._health[address].failing)
        if not early:
            self._last_asked |= dict.fromkeys(asked, self._regular)
        self._pending |= dict.fromkeys(asked, not asks_all)
        self._awaited = set(awaited)
        self._gathered = {}
        self._trusted = self.answered = False
        return LookupRound(asked, awaited)

    def succeeded(self, address: str, answer: LookupAnswer) -> None:
        """Record the answer of one nsqlookupd, even if it names no node."""
        before = self._health[address]
        self._health[address] = LookupdHealth(last_error=before.last_error)
        (self._kept if self.settled else self._gathered)[address] = answer
        # Others describe no topic; the list of members may be late, or fail.
        self._clustered = self._clustered or answer.meta is not None
        if self._dialect is not Dialect.REDESIGNED:
            self._dialect = answer.dialect or self._dialect
        self.answered = True
        self._trusted = self._trusted or address in self._awaited
        self._end_query(address)

    def failed(self, address: str, error: NsqError) -> None:
        """Record that one nsqlookupd could not be queried, or gave no usable answer."""
        before = self._health[address]
        self._health[address] = replace(
            before,
            failures=before.failures + 1,
            counted_failures=before.counted_failures + self._pending.get(address, False),
            last_error=error,
        )
        self._end_query(address)

    def abandon(self) -> None:
        """Forget the open queries: their results are not reported."""
        self._pending.clear()
        self._awaited.clear()

    def _leaders(self) -> set[frozenset[tuple[int, str]]]:
        """Return the distinct answers about which nsqd leads which partition."""
        return {
            frozenset((number, node.address) for number, node in answer.partitions.items())
            for answer in self._kept.values()
        }

    def _forget_former_members(self) -> None:
        """Forget nsqlookupd that the cluster no longer lists, unless the user configured them."""
        if self._members:
            for address in (
                self._health.keys() - self._members - {*self._configured, *self._pending}
            ):
                del self._health[address], self._last_asked[address]
                self._kept.pop(address, None)
        self._members.clear()

    def _is_due(self, address: str) -> bool:
        since = self._regular - self._last_asked[address]
        return since >= rounds_between(self._health[address].counted_failures)

    def _end_query(self, address: str) -> None:
        self._pending.pop(address, None)
        if address not in self._awaited:
            return
        self._awaited.discard(address)
        if self.settled:
            # Answers of failing ones alone do not replace what the healthy ones said before.
            self._kept = self._gathered if self._trusted else self._kept | self._gathered
