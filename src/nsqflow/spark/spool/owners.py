"""Whose the streams of a spool are, by its leases; without waiting for a heartbeat."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from nsqflow.spark.spool.layout import LEASES, lease_name, lease_numbers
from nsqflow.spark.spool.lease import LeaseRecord, lease_state
from nsqflow.spark.spool.store import ObjectStore


class GenerationState(Enum):
    """What is known of a generation's query or read."""

    RUNNING = "running"
    STOPPED = "stopped"
    UNKNOWN = "unknown"
    """It may run elsewhere, or with an earlier release."""
    ABANDONED = "abandoned"
    """A query with another checkpoint has taken the spool since."""
    KEPT = "kept"
    """A read whose rows stay: with a name until it is released, else for a day."""
    ORPHANED = "orphaned"
    """A read without a name that is older than a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOwners:
    """The owners of a spool, now and before."""

    newest: Mapping[str, LeaseRecord] = field(default_factory=dict)
    """The newest lease of each generation."""
    current: str | None = None
    """The generation to which the spool belongs."""
    is_certain: bool = True
    """Whether no later lease is damaged."""
    newcomer: LeaseRecord | None = None
    """A running query that has nothing in the spool yet."""
    first: int | None = None
    """The oldest lease, if those before it were removed."""

    @staticmethod
    def read(store: ObjectStore, generations: Collection[str]) -> SpoolOwners:
        """Read the leases, from the newest one on, until all ``generations`` have theirs.

        A query that failed before it planned a batch has nothing in the spool, and its checkpoint
        has nothing of it either: its lease does not count.
        """
        numbers = lease_numbers(store.names(LEASES))
        wanted = set(generations)
        newest: dict[str, LeaseRecord] = {}
        current, newcomer, is_certain = None, None, True
        for record in _records(store, reversed(numbers)):
            if not record.generation:
                is_certain = is_certain and current is not None
            elif record.generation in wanted:
                newest.setdefault(record.generation, record)
                current = current or record.generation
            elif record.number == numbers[-1]:
                running = _state(store, record) is GenerationState.RUNNING
                newcomer = record if running else None
            if newest.keys() == wanted:
                break
        return SpoolOwners(
            newest=newest,
            current=current,
            is_certain=is_certain,
            newcomer=newcomer,
            first=numbers[0] if numbers and numbers[0] > 1 else None,
        )

    def state(self, store: ObjectStore, generation: str, age: float | None) -> GenerationState:
        """Return the state of a stream that was last used ``age`` seconds ago."""
        record = self.newest.get(generation)
        if not self.is_certain:
            return GenerationState.UNKNOWN
        if record is None:
            return self._state_without_lease(store, age)
        return _state(store, record) if generation == self.current else GenerationState.ABANDONED

    def _state_without_lease(self, store: ObjectStore, age: float | None) -> GenerationState:
        """Return ``UNKNOWN``, unless others have taken the spool again and again since."""
        if self.current is None or self.first is None or age is None:
            return GenerationState.UNKNOWN
        since = store.age(lease_name(self.first))
        if since is None or since > age:
            return GenerationState.UNKNOWN
        return GenerationState.ABANDONED


def _records(store: ObjectStore, numbers: Iterator[int]) -> Iterator[LeaseRecord]:
    for number in numbers:
        try:
            yield LeaseRecord.decode(number, bytes(store.read(lease_name(number))))
        except FileNotFoundError:  # it has just been removed
            continue


def _state(store: ObjectStore, record: LeaseRecord) -> GenerationState:
    return GenerationState(lease_state(store, record))
