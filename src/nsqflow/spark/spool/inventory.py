"""What a spool holds: its generations, whose they are, and what was read and never committed.

Nothing here writes to the spool. What is damaged, or is not of a spool, is named and does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nsqflow.errors import ConfigError
from nsqflow.spark.source.offsets import split_key
from nsqflow.spark.spool.generation import (
    BATCH_PREFIX,
    MAX_READ_AGE,
    NAMED_PREFIX,
    GenerationKind,
    GenerationMarker,
)
from nsqflow.spark.spool.layout import (
    LEASES,
    PLANNED,
    batch_folder,
    batch_number,
    committed_marker,
    generation_marker,
    heartbeat_name,
    lease_name,
    parse_partition,
    planned_marker,
)
from nsqflow.spark.spool.lease import LeaseRecord
from nsqflow.spark.spool.owners import GenerationState, SpoolOwners
from nsqflow.spark.spool.store import PROBE_PREFIX, ObjectStore

_DIGITS = 8  # of a generation's name that are shown


class SpooledPartition(NamedTuple):
    """A partition of a batch that has objects in the spool."""

    key: str
    folder: str
    """Relative to the spool."""

    @property
    def topic(self) -> str:
        """The topic of its rows."""
        return split_key(self.key)[0]


Batches = Mapping[int, tuple[SpooledPartition, ...]]
"""The partitions of each batch, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationListing:
    """The objects of a generation, by their names; pure."""

    is_generation: bool = False
    """Whether some of them are of a generation."""
    batches: Batches = field(default_factory=dict)
    """The batches in the spool."""
    unmarked: frozenset[int] = frozenset()
    """Those without their marker: they are being removed, or it was lost."""
    size: int = 0
    foreign: tuple[str, ...] = ()
    """What is not of a generation."""

    @staticmethod
    def of(generation: str, sizes: Mapping[str, int]) -> GenerationListing:
        """Return what the relative paths of the objects mean."""
        planned, foreign = set[int](), list[str]()
        partitions: dict[int, set[SpooledPartition]] = {}
        for path in sizes:
            match path.split("/"):
                case [("_gen" | "_committed" | "_refused")] | ["unfin", _, _]:
                    pass
                case ["batches", folder, *rest] if (seq := batch_number(folder)) is not None:
                    if rest == [PLANNED]:
                        planned.add(seq)
                    elif len(rest) > 1 and (parsed := parse_partition(rest[0])) is not None:
                        name = f"{batch_folder(generation, seq)}/{rest[0]}"
                        partitions.setdefault(seq, set()).add(SpooledPartition(parsed[0], name))
                case _:
                    foreign.append(path)
        return GenerationListing(
            is_generation=len(foreign) < len(sizes),
            batches={
                seq: tuple(sorted(partitions.get(seq, ())))
                for seq in sorted(planned.union(partitions))
            },
            unmarked=frozenset(partitions.keys() - planned),
            size=sum(sizes.values()),
            foreign=tuple(foreign),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A generation: the life of one checkpoint, or a batch read."""

    name: str
    kind: GenerationKind
    state: GenerationState = GenerationState.UNKNOWN
    is_current: bool = False
    """The spool belongs to this stream."""
    owner: LeaseRecord | None = None
    """Its newest lease; only streams have some."""
    marker: GenerationMarker = field(default_factory=lambda: GenerationMarker(channel=""))
    batches: Batches = field(default_factory=dict)
    committed: int | None = None
    """The last batch of a stream that is known to be committed."""
    uncommitted: int | None = None
    """Rows of a stream that were read and are not known to be committed."""
    size: int = 0
    age: float | None = None
    """Seconds since it was used, by the store's clock."""
    problems: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """Return the name with fewer digits; that of a named read is never cut."""
        if self.kind is GenerationKind.NAMED_READ:
            return self.name
        prefix = BATCH_PREFIX if self.kind is GenerationKind.BATCH_READ else ""
        return self.name[: len(prefix) + _DIGITS]

    @property
    def read_id(self) -> str:
        """Return the name of a named read."""
        return self.name.removeprefix(NAMED_PREFIX)

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics it reads; without a marker, those that the spool has rows of."""
        if self.marker.topics or self.marker.pattern:
            return self.marker.topics
        partitions = (each for batch in self.batches.values() for each in batch)
        return tuple(sorted({each.topic for each in partitions}))

    def batches_after(self, committed: int | None) -> Batches:
        """Return the batches after the last committed one."""
        return {seq: each for seq, each in self.batches.items() if seq > (committed or 0)}

    def reads(self, topic: str, channel: str) -> bool:
        """Return whether its query reads a topic by this channel."""
        marker = self.marker
        named = topic in marker.topics or re.fullmatch(marker.pattern, topic) is not None
        return named and channel == marker.channel


class FormerTopic(NamedTuple):
    """A topic that no query reads any more: its channel keeps filling until it is deleted."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolInventory:
    """All that a spool holds."""

    generations: tuple[Generation, ...] = ()
    probes: tuple[str, ...] = ()
    """Folders of checks of the location, which run now or were interrupted."""
    foreign: tuple[str, ...] = ()
    """What is not of a spool."""
    has_leases: bool = False

    @property
    def is_spool(self) -> bool:
        """Return whether a query or a read has ever used the location."""
        return bool(self.generations) or self.has_leases

    def find(self, name: str) -> list[Generation]:
        """Return the generation with this name, or all whose names begin with it."""
        exact = [each for each in self.generations if each.name == name]
        return exact or [each for each in self.generations if each.name.startswith(name)]

    def former_topics(self) -> list[FormerTopic]:
        """Return the topics that a query read before, and that none of this spool reads now."""
        live = [each for each in self.generations if each.state is not GenerationState.ABANDONED]
        found = {
            FormerTopic(topic, each.marker.channel)
            for each in live
            for topic in each.marker.former_topics
        }
        return sorted(former for former in found if not any(each.reads(*former) for each in live))


def read_inventory(store: ObjectStore) -> SpoolInventory:
    """Return what a spool holds; objects that are not of a spool are only named."""
    names = store.names("")
    kinds = {name: kind for name in names if (kind := GenerationKind.of(name)) is not None}
    streams = [name for name, kind in kinds.items() if kind is GenerationKind.STREAM]
    owners = SpoolOwners.read(store, streams)
    reader = _GenerationReader(store, owners)
    found = {name: reader.read(name, kind) for name, kind in kinds.items()}
    generations = [generation for generation in found.values() if generation is not None]
    if owners.newcomer is not None:
        generations.append(_newcomer(owners.newcomer))
    probes = [name for name in names if name.startswith(PROBE_PREFIX)]
    known = {LEASES, *probes, *(generation.name for generation in generations)}
    return SpoolInventory(
        generations=tuple(generations),
        probes=tuple(probes),
        foreign=tuple(name for name in names if name not in known),
        has_leases=LEASES in names,
    )


class _GenerationReader:
    """Reads generations of one spool."""

    def __init__(self, store: ObjectStore, owners: SpoolOwners) -> None:
        self._store = store
        self._owners = owners

    def read(self, name: str, kind: GenerationKind) -> Generation | None:
        """Return a generation; None if what has its name is not one."""
        try:
            listing = GenerationListing.of(name, self._store.sizes(name))
            if not listing.is_generation:
                return None
            return self._read(Generation(name=name, kind=kind), listing)
        except ConfigError as error:  # it belongs to another user of a shared folder
            return Generation(name=name, kind=kind, problems=(str(error),))

    def _read(self, generation: Generation, listing: GenerationListing) -> Generation:
        name, is_stream = generation.name, generation.kind is GenerationKind.STREAM
        problems = [f"{name}/{path} is not of the spool" for path in listing.foreign]
        age = self._age(name, listing.batches)
        if is_stream:
            state = self._owners.state(self._store, name, age)
        else:
            state = self._state_of_read(generation)
        marker = self._marker(name, problems)
        committed = self._committed(name, problems) if is_stream else None
        # Only committed batches are removed, and a batch read as a whole.
        lost = {seq for seq in listing.unmarked if committed is not None and seq > committed}
        problems += [f"{batch_folder(name, seq)} has lost its marker" for seq in sorted(lost)]
        removed = listing.unmarked - lost
        generation = replace(
            generation,
            state=state,
            is_current=name == self._owners.current,
            owner=self._owners.newest.get(name),
            marker=marker,
            batches={seq: each for seq, each in listing.batches.items() if seq not in removed},
            committed=committed,
            size=listing.size,
            age=age,
            problems=tuple(problems),
        )
        return replace(generation, uncommitted=self._count(generation)) if is_stream else generation

    def _state_of_read(self, generation: Generation) -> GenerationState:
        if generation.kind is GenerationKind.NAMED_READ:
            return GenerationState.KEPT
        age = self._store.age(generation_marker(generation.name))
        # Without its marker, its removal was interrupted.
        orphaned = age is None or age > MAX_READ_AGE
        return GenerationState.ORPHANED if orphaned else GenerationState.KEPT

    def _age(self, name: str, batches: Batches) -> float | None:
        """Return the age of the newest marker: a query that is only idle leaves none."""
        markers = [generation_marker(name), committed_marker(name)]
        if batches:
            markers.append(planned_marker(name, max(batches)))
        if (owner := self._owners.newest.get(name)) is not None:
            markers += [lease_name(owner.number), heartbeat_name(owner.number)]
        ages = (self._store.age(marker) for marker in markers)
        return min((age for age in ages if age is not None), default=None)

    def _marker(self, name: str, problems: list[str]) -> GenerationMarker:
        path = generation_marker(name)
        try:
            marker = GenerationMarker.decode(self._load(path))
            return replace(
                marker,
                topics=tuple(map(str, marker.topics)),
                former_topics=tuple(map(str, marker.former_topics)),
            )
        except FileNotFoundError:
            problems.append(f"{path} is missing")
        except ValueError as error:
            problems.append(f"{path} is damaged: {error}")
        return GenerationMarker(channel="")

    def _committed(self, name: str, problems: list[str]) -> int | None:
        path = committed_marker(name)
        try:
            return int(self._load(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            problems.append(f"{path} is damaged: {error}")
            return None

    def _load(self, name: str) -> bytes:
        """Return an object; raise ``ValueError`` if its storage has lost the content."""
        try:
            return bytes(self._store.read(name))
        except OSError as error:
            if error.errno not in self._store.unreadable:
                raise
            raise ValueError(f"it can't be read: {error.strerror}") from None

    def _count(self, generation: Generation) -> int:
        """Return how many rows are not known to be committed, by the footers of the slots."""
        partitions = [
            partition
            for each in generation.batches_after(generation.committed).values()
            for partition in each
        ]
        if not partitions:
            return 0
        # Imported late: pyarrow is only needed where there are slots to read.
        from nsqflow.spark.spool.slots import Slots

        return sum(
            Slots(self._store, partition.folder).totals()[0].rows for partition in partitions
        )


def _newcomer(owner: LeaseRecord) -> Generation:
    """Return the generation of a running query that has planned nothing yet."""
    return Generation(
        name=owner.generation,
        kind=GenerationKind.STREAM,
        state=GenerationState.RUNNING,
        is_current=True,
        owner=owner,
        marker=GenerationMarker(channel=owner.channel, topics=owner.topics),
        uncommitted=0,
    )
