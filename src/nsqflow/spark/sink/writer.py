"""The sink: publishes the rows of a DataFrame as messages.

At least once: Spark runs a failed task again from its first row, and what it had published before
is published twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from nsqflow.errors import ConfigError, DiscoveryError
from nsqflow.spark.options import Access, SinkOptions, parse_sink
from nsqflow.spark.sink.encoder import ColumnIndexes, MpubEncoder
from nsqflow.spark.sink.publisher import Publisher

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = (BinaryType, StringType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)

logger = logging.getLogger(__name__)

_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "body": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "delay_ms": _WHOLE,
}
_ALLOWED = "body or value (binary or string), topic (string) or delay_ms (an integer)"


@dataclass(frozen=True, slots=True)
class NsqCommitMessage(WriterCommitMessage):
    """What one task has published."""

    messages: int = 0
    bytes: int = 0
    """Bytes of their bodies."""
    nsqd: Mapping[str, int] = field(default_factory=dict)
    """How many messages each nsqd has acknowledged."""


class NsqWriter(DataSourceArrowWriter):
    """Writes a DataFrame to NSQ."""

    def __init__(
        self, schema: StructType, options: Mapping[str, str], overwrite: bool = False
    ) -> None:
        if overwrite:
            raise ConfigError("mode 'overwrite' is invalid: a topic can only be appended to")
        self._options = parse_sink(options)
        self._columns = find_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> NsqCommitMessage:
        """Publish the rows of one task."""
        return publish_rows(iterator, self._columns, self._options)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream to NSQ."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._options = parse_sink(options)
        self._columns = find_columns(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> NsqCommitMessage:
        """Publish the rows of one task."""
        return publish_rows(iterator, self._columns, self._options)


def find_columns(schema: StructType, topic: str | None) -> ColumnIndexes:
    """Return the indexes of the columns; raise ``ConfigError`` for what can't be written.

    Names are case-insensitive, as everywhere in Spark.
    """
    indexes: dict[str, int] = {}
    for index, column in enumerate(schema.fields):
        name = column.name.lower()
        allowed = _TYPES.get(name)
        if allowed is None or not isinstance(column.dataType, allowed):
            kind = column.dataType.simpleString()
            raise ConfigError(
                f"column {column.name!r} of type {kind} is invalid: must be {_ALLOWED}"
            )
        if name in indexes:
            raise ConfigError(f"there are two columns {column.name!r}")
        indexes[name] = index
    bodies = [indexes[name] for name in ("body", "value") if name in indexes]
    if len(bodies) != 1:
        which = "two columns" if bodies else "no column"
        raise ConfigError(f"{which} with the message: there must be either body or value")
    if topic is None and "topic" not in indexes:
        raise ConfigError("there is neither an option topic nor a column topic: give one of them")
    return ColumnIndexes(bodies[0], indexes.get("topic"), indexes.get("delay_ms"))


def publish_rows(
    batches: Iterable[pa.RecordBatch], columns: ColumnIndexes, options: SinkOptions
) -> NsqCommitMessage:
    """Publish all rows; nsqd has acknowledged every one of them when this returns."""
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    if first is None:  # like most tasks of an idle stream: no nsqd is needed
        return NsqCommitMessage()
    encoder = MpubEncoder(columns, options.topic, options.max_batch_bytes)
    with closing(Publisher(_nsqd(options), options.access)) as publisher:
        for batch in chain([first], full):
            for command in encoder.commands(batch):
                publisher.publish(command)
        publisher.finish()
        return NsqCommitMessage(encoder.rows, encoder.bytes, publisher.acknowledged)


def find_nodes(lookupd: Sequence[str], access: Access) -> list[str]:
    """Return the TCP addresses of all nsqd that these nsqlookupd know; at least one."""
    # Imported here: nothing else in a writing task needs asyncio.
    import asyncio

    from nsqflow.admin import Cluster

    secure = any(address.lower().startswith("https:") for address in lookupd)
    cluster = Cluster(lookupd=lookupd, tls=access.http_context() if secure else None)
    nodes = asyncio.run(cluster.registered_nodes())
    for error in cluster.errors:
        logger.warning("nsqlookupd does not answer: %s", error)
    if not nodes:
        names = ", ".join(server.address for server in cluster.lookupds)
        raise DiscoveryError(f"nsqlookupd at {names}: no nsqd is known there")
    return [node.address for node in nodes]


def _nsqd(options: SinkOptions) -> Sequence[str]:
    return options.servers.nsqd or find_nodes(options.servers.lookupd, options.access)
