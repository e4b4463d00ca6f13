"""Offsets: what Spark's offset log holds for a query.

NSQ has no positions, so an offset is not a position in a topic: it is the number of a batch and its
plan, which says how many messages each partition may pull from where. A batch that runs again
finds the same plan in the log, whatever happened to the servers, and its rows in the spool.

The key of a plan is ``topic|host:port``, an nsqd; of the redesigned NSQ it is ``topic|3``, a
partition, whose leader is looked up when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nsqflow.errors import ConfigError
from nsqflow.spark.spool.layout import partition_folder

VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch; the initial offset is empty."""

    generation: str = ""
    seq: int = 0
    """The batch's number within the generation."""
    total: int = 0
    """Messages planned so far, over all batches."""
    plan: Mapping[str, list[int]] = field(default_factory=dict)
    """For each key, the maximum number of messages of each of its partitions."""

    def next(self, generation: str, plan: Mapping[str, list[int]]) -> Offset:
        """Return the end of the batch after this one."""
        ordered = dict(sorted(plan.items()))
        planned = sum(map(sum, ordered.values()))
        return Offset(self.generation or generation, self.seq + 1, self.total + planned, ordered)

    def encode(self) -> dict[str, Any]:
        """Return the JSON for the log; equal offsets have the same text."""
        return {
            "v": VERSION,
            "gen": self.generation,
            "seq": self.seq,
            "total": self.total,
            "plan": {key: list(budgets) for key, budgets in self.plan.items()},
        }

    @staticmethod
    def decode(data: Mapping[str, Any]) -> Offset:
        """Read what ``encode`` returned; raise ``ConfigError`` for an offset of another source."""
        if data.get("v") != VERSION:
            raise ConfigError(
                f"offset of version {data.get('v')!r}; this nsqflow reads {VERSION}. Is the "
                "checkpoint one of another source, or of a newer nsqflow?"
            )
        try:
            plan = {str(key): [int(n) for n in budgets] for key, budgets in data["plan"].items()}
            return Offset(str(data["gen"]), int(data["seq"]), int(data["total"]), plan)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"offset {data!r:.200} can't be read: {error!r}") from None

    @property
    def planned(self) -> int:
        """The maximum number of messages in the batch."""
        return sum(map(sum, self.plan.values()))

    def partition_ids(self) -> list[PartitionId]:
        """Return the ids of all partitions of the batch."""
        return [
            PartitionId(self.generation, self.seq, key, number)
            for key, budgets in self.plan.items()
            for number in range(len(budgets))
        ]


class PartitionId(NamedTuple):
    """One partition of a batch: what one task pulls from one nsqd, or one partition of NSQ."""

    generation: str
    seq: int
    key: str
    number: int

    @property
    def folder(self) -> str:
        """The folder of its slots in the spool."""
        return partition_folder(self.generation, self.seq, self.key, self.number)


def make_key(topic: str, place: str | int) -> str:
    """Join a topic and the address of an nsqd, or the number of a partition."""
    return f"{topic}|{place}"


def split_key(key: str) -> tuple[str, str]:
    """Return the topic and the rest; the name of a topic cannot contain ``|``."""
    topic, _, place = key.partition("|")
    return topic, place


def partition_of(key: str) -> int | None:
    """Return the partition of a key of the redesigned NSQ; None for one of the classic NSQ."""
    place = split_key(key)[1]
    return int(place) if place.isascii() and place.isdecimal() else None


def describe_place(key: str) -> str:
    """Return where the messages of a key come from, for users."""
    number, place = partition_of(key), split_key(key)[1]
    return place if number is None else f"partition {number}"
