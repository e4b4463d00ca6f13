"""What a batch read takes from a channel: its plan, which the marker of a named read keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqflow.spark.source.offsets import Offset, partition_of
from nsqflow.spark.source.progress import ReadProgress
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.layout import planned_marker

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from nsqflow.spark.spool.store import ObjectStore


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The plan of a batch read."""

    end: Offset
    """How many messages each partition may pull."""
    https: Mapping[str, str]
    """The HTTP address of each key's nsqd; empty for a partition of the redesigned NSQ."""
    progress: ReadProgress = field(default_factory=ReadProgress)
    """Where each partition of the redesigned NSQ begins: a rerun goes on from there too."""

    def mark(self, store: ObjectStore) -> None:
        """Record in the spool that the read is planned: its tasks check that."""
        end = self.end
        store.write(planned_marker(end.generation, end.seq), json.dumps(end.encode()).encode())

    def encode(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        plan = {"end": self.end.encode(), "http": dict(self.https)}
        return plan | ({"progress": self.progress.encode()} if self.progress.states else {})

    @staticmethod
    def decode(values: Mapping[str, Any]) -> BatchPlan:
        """Read what ``encode`` returned.

        Raises ``ConfigError``, ``ValueError``, ``AttributeError``, ``TypeError`` or ``KeyError``.
        """
        progress = ReadProgress.decode(values.get("progress", {}))
        end = Offset.decode(values["end"])
        for id in end.partition_ids():
            if partition_of(id.key) is not None and id.key not in progress:
                raise ValueError(f"it does not say where {id.key} begins")
        return BatchPlan(end, dict[str, str](values["http"]), progress)

    def partitions(self, mean_sizes: Mapping[str, int]) -> list[InputPartition]:
        """Return the partitions for Spark."""
        return [
            NsqInputPartition(
                id,
                self.end.plan[id.key][id.number],
                mean_size=mean_sizes.get(id.key, 0),
                http=self.https.get(id.key, ""),
                coverage=self.progress.coverage(id.key),
                ordered=self.progress.is_ordered(id.key),
            )
            for id in self.end.partition_ids()
        ]
