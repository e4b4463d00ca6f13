"""The sink: rows of a DataFrame become messages.

At least once: a task that fails is run again by Spark from its first row, and what it had
published until then is there twice.
"""

from __future__ import annotations

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

from nsqflow.errors import ConfigError
from nsqflow.spark.mpub import Encoder, Places
from nsqflow.spark.options import SinkOptions, parse_sink
from nsqflow.spark.publisher import Publisher

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = (BinaryType, StringType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)

_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "body": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "delay_ms": _WHOLE,
}
_ALLOWED = (
    "body or value (binary or string), topic (string) and delay_ms (a whole number) are allowed"
)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task has written."""

    messages: int = 0
    bytes: int = 0
    """Of their bodies."""
    nsqd: Mapping[str, int] = field(default_factory=dict)
    """How many messages each nsqd has acknowledged."""


class NsqWriter(DataSourceArrowWriter):
    """Writes a DataFrame to NSQ."""

    def __init__(
        self, schema: StructType, options: Mapping[str, str], overwrite: bool = False
    ) -> None:
        if overwrite:
            raise ConfigError("mode 'overwrite'; a topic can only be added to, by mode 'append'")
        self._options = parse_sink(options)
        self._places = find_places(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one task."""
        return publish_rows(iterator, self._places, self._options)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream to NSQ."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._options = parse_sink(options)
        self._places = find_places(schema, self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one task."""
        return publish_rows(iterator, self._places, self._options)


def find_places(schema: StructType, topic: str | None) -> Places:
    """Find the columns; raise ``ConfigError`` for what can't be written.

    Names count without regard to case, as everywhere in Spark.
    """
    places: dict[str, int] = {}
    for place, column in enumerate(schema.fields):
        name = column.name.lower()
        allowed = _TYPES.get(name)
        if allowed is None or not isinstance(column.dataType, allowed):
            kind = column.dataType.simpleString()
            raise ConfigError(f"column {column.name!r} of type {kind}; {_ALLOWED}")
        if name in places:
            raise ConfigError(f"column {column.name!r} is there twice")
        places[name] = place
    bodies = [places[name] for name in ("body", "value") if name in places]
    if len(bodies) != 1:
        which = "both" if bodies else "neither"
        raise ConfigError(f"{which} of the columns body and value; give one of the two")
    if topic is None and "topic" not in places:
        raise ConfigError("neither an option topic nor a column topic; give one of the two")
    return Places(bodies[0], places.get("topic"), places.get("delay_ms"))


def publish_rows(
    batches: Iterable[pa.RecordBatch], places: Places, options: SinkOptions
) -> Written:
    """Publish all rows; nsqd has acknowledged every one of them when this returns."""
    full = (batch for batch in batches if batch.num_rows)
    first = next(full, None)
    if first is None:  # as most tasks of a quiet stream: they need no nsqd
        return Written()
    encoder = Encoder(places, options.topic, options.max_batch_bytes)
    with closing(Publisher(_nsqd(options), options.access)) as publisher:
        for batch in chain([first], full):
            for command in encoder.commands(batch):
                publisher.publish(command)
        publisher.finish()
        return Written(encoder.rows, encoder.bytes, publisher.acknowledged)


def _nsqd(options: SinkOptions) -> Sequence[str]:
    if options.servers.nsqd:
        return options.servers.nsqd
    from nsqflow.spark.nodes import find_nodes  # brings asyncio, which nothing else here needs

    return find_nodes(options.servers.lookupd, options.access)
