"""Publishes the rows of one task: to classic topics, and to those of the redesigned NSQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from nsqflow.spark.options import SinkOptions
from nsqflow.spark.sink.arrays import int_scalar
from nsqflow.spark.sink.columns import REDESIGNED_COLUMNS, ColumnIndexes
from nsqflow.spark.sink.encoder import MpubEncoder
from nsqflow.spark.sink.publisher import Publisher
from nsqflow.spark.sink.rows import CheckedRows, RowChecker
from nsqflow.spark.sink.topics import TargetTopic, TopicDirectory, find_nodes

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.sink.partition_encoder import PartitionEncoder
    from nsqflow.spark.sink.partition_publisher import PartitionPublisher


@dataclass(frozen=True, slots=True)
class NsqCommitMessage(WriterCommitMessage):
    """What one task has published."""

    messages: int = 0
    bytes: int = 0
    """Bytes of their bodies."""
    nsqd: Mapping[str, int] = field(default_factory=dict)
    """How many messages of classic topics each nsqd has acknowledged."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """How many messages each partition has stored, by ``topic/partition``: redesigned NSQ."""


class SinkTask:
    """The publishers of one task, each made when a row needs it."""

    def __init__(
        self, columns: ColumnIndexes, options: SinkOptions, target: TargetTopic | None
    ) -> None:
        self._columns = columns
        self._options = options
        self._checker = RowChecker(columns, options.topic)
        self._encoder = MpubEncoder(options.topic, options.max_batch_bytes)
        self._directory = TopicDirectory(options.servers, options.access, target)
        self._classic: Publisher | None = None
        self._partitioned: PartitionPublisher | None = None
        self._partition_encoders: dict[str, PartitionEncoder] = {}

    def publish(self, batch: pa.RecordBatch) -> None:
        """Publish a batch, which must not be empty; all of its rows are checked before."""
        rows = self._checker.check(batch)
        classic, redesigned = self._by_dialect(rows)
        checked = []
        for topic, some in redesigned:
            encoder = self._encoder_of(topic)
            checked.append((encoder, encoder.check(some)))
        if classic is not None:
            self._refuse_redesigned(classic)
            publisher = self._publisher()
            for command in self._encoder.commands(classic):
                publisher.publish(command)
        for encoder, valid in checked:
            for publication in encoder.batches(valid):
                self._partition_publisher().publish(publication)

    def finish(self) -> NsqCommitMessage:
        """Wait until everything is stored."""
        for publisher in (self._classic, self._partitioned):
            if publisher is not None:
                publisher.finish()
        return NsqCommitMessage(
            self._checker.rows,
            self._checker.bytes,
            {} if self._classic is None else self._classic.acknowledged,
            {} if self._partitioned is None else self._partitioned.acknowledged,
        )

    def close(self) -> None:
        """Close all connections."""
        for publisher in (self._classic, self._partitioned):
            if publisher is not None:
                publisher.close()

    # Private methods

    def _by_dialect(
        self, rows: CheckedRows
    ) -> tuple[CheckedRows | None, list[tuple[TargetTopic, CheckedRows]]]:
        """Return the rows for classic topics, and those for each redesigned one."""
        if not self._directory.may_be_redesigned:
            return rows, []
        if rows.topics is None:
            assert self._options.topic is not None
            topic = self._directory.find(self._options.topic)
            return (rows, []) if topic.meta is None else (None, [(topic, rows)])
        indices = rows.topics.indices
        classic, redesigned = pc.is_valid(indices), []
        for number, name in enumerate(rows.topics.dictionary.to_pylist()):
            topic = self._directory.find(name)
            if topic.meta is not None:
                here = pc.equal(indices, int_scalar(number, indices.type))
                classic = pc.and_not(classic, here)
                redesigned.append((topic, rows.select(here)))
        if not redesigned:
            return rows, []
        return (rows.select(classic) if pc.any(classic).as_py() else None), redesigned

    def _refuse_redesigned(self, rows: CheckedRows) -> None:
        """Raise for a row that has what classic topics don't take."""
        for name in REDESIGNED_COLUMNS:
            column = rows.column(getattr(self._columns, name))
            if column is not None:
                index = pc.is_valid(column).to_pylist().index(True)
                topic = self._options.topic if rows.topics is None else rows.topics[index].as_py()
                raise rows.error_at(
                    index, f"{name} is invalid: topic {topic!r} is one of the classic NSQ"
                )

    def _publisher(self) -> Publisher:
        if self._classic is None:
            servers = self._options.servers
            nsqd: Sequence[str] = servers.nsqd
            nsqd = nsqd or find_nodes(servers.lookupd, self._options.access)
            self._classic = Publisher(nsqd, self._options.access)
        return self._classic

    # What the redesigned NSQ needs is imported when there is such a topic: asyncio, and a producer.

    def _partition_publisher(self) -> PartitionPublisher:
        if self._partitioned is None:
            from nsqflow.spark.sink.partition_publisher import PartitionPublisher

            self._partitioned = PartitionPublisher(self._options)
        return self._partitioned

    def _encoder_of(self, topic: TargetTopic) -> PartitionEncoder:
        if topic.name not in self._partition_encoders:
            from nsqflow.spark.sink.partition_encoder import PartitionEncoder

            encoder = PartitionEncoder(topic, self._columns, self._options)
            self._partition_encoders[topic.name] = encoder
        return self._partition_encoders[topic.name]
