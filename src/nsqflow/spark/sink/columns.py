"""The columns of a DataFrame that is written: which there are, and what a topic can take.

Some are for one NSQ only: ``delay_ms`` for classic topics, those in ``REDESIGNED_COLUMNS`` for
topics with partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from nsqflow.errors import ConfigError
from nsqflow.spark.options import SinkOptions
from nsqflow.spark.sink.topics import TargetTopic

REDESIGNED_COLUMNS = ("key", "partition", "headers", "tag", "trace_id")
"""What only topics of the redesigned NSQ take."""

HEADER_COLUMNS = ("headers", "tag")
"""What only those of them take that were created with headers."""
CAN_NOT_DELAY = "is one of the redesigned NSQ, which delays no publish: requeue it with a delay"
HAS_NO_HEADERS = "was created without extend=true"

_ALLOWED = (
    "body or value (binary or string), topic (string), delay_ms (an integer), key (binary or "
    "string), partition (an integer), headers (map<string,string>), tag (string) or trace_id (an "
    "integer or decimal(20,0))"
)


class ColumnIndexes(NamedTuple):
    """The indexes of the columns in a batch."""

    body: int
    topic: int | None = None
    delay_ms: int | None = None
    key: int | None = None
    partition: int | None = None
    headers: int | None = None
    tag: int | None = None
    trace_id: int | None = None


def _one_of(*types: type[DataType]) -> Callable[[DataType], bool]:
    return lambda given: isinstance(given, types)


def _is_text_map(given: DataType) -> bool:
    if not isinstance(given, MapType):
        return False
    return isinstance(given.keyType, StringType) and isinstance(given.valueType, StringType)


def _is_trace_id(given: DataType) -> bool:
    return _is_integer(given) or (isinstance(given, DecimalType) and given.scale == 0)


_is_bytes = _one_of(BinaryType, StringType)
_is_integer = _one_of(ByteType, ShortType, IntegerType, LongType)
_is_string = _one_of(StringType)

_TYPES: dict[str, Callable[[DataType], bool]] = {
    "body": _is_bytes,
    "value": _is_bytes,
    "topic": _is_string,
    "delay_ms": _is_integer,
    "key": _is_bytes,
    "partition": _is_integer,
    "headers": _is_text_map,
    "tag": _is_string,
    "trace_id": _is_trace_id,
}


def find_columns(schema: StructType, topic: str | None) -> ColumnIndexes:
    """Return the indexes of the columns; raise ``ConfigError`` for what can't be written.

    Names are case-insensitive, as everywhere in Spark.
    """
    indexes: dict[str, int] = {}
    for index, column in enumerate(schema.fields):
        name = column.name.lower()
        is_allowed = _TYPES.get(name)
        if is_allowed is None or not is_allowed(column.dataType):
            kind = column.dataType.simpleString()
            raise ConfigError(
                f"column {column.name!r} of type {kind} is invalid: must be {_ALLOWED}"
            )
        if name in indexes:
            raise ConfigError(f"there are two columns {column.name!r}")
        indexes[name] = index
    bodies = [indexes.pop(name) for name in ("body", "value") if name in indexes]
    if len(bodies) != 1:
        which = "two columns" if bodies else "no column"
        raise ConfigError(f"{which} with the message: there must be either body or value")
    if topic is None and "topic" not in indexes:
        raise ConfigError("there is neither an option topic nor a column topic: give one of them")
    return ColumnIndexes(bodies[0], **indexes)


def check_columns(columns: ColumnIndexes, options: SinkOptions, topic: TargetTopic | None) -> None:
    """Raise ``ConfigError`` for columns and options that no row can be written with.

    ``topic`` is that of the option, if it is known. With a column ``topic``, rows may go to topics
    of both kinds: what they have is checked row by row, in the tasks.
    """
    if options.partitioner is not None and columns.key is None:
        raise ConfigError(
            f"partitioner={options.partitioner!r} is invalid without a column key, whose partition "
            "it finds"
        )
    if options.servers.nsqd:
        _refuse(columns, REDESIGNED_COLUMNS, "it is for topics of the redesigned NSQ: give lookupd")
    if topic is None or columns.topic is not None:
        return
    if topic.meta is None:
        _refuse(columns, REDESIGNED_COLUMNS, f"topic {topic.name!r} is one of the classic NSQ")
        return
    _refuse(columns, ("delay_ms",), f"topic {topic.name!r} {CAN_NOT_DELAY}")
    if not topic.meta.extend_support:
        _refuse(columns, HEADER_COLUMNS, f"topic {topic.name!r} {HAS_NO_HEADERS}")
    if topic.meta.ordered and columns.key is None and columns.partition is None:
        raise ConfigError(
            f"topic {topic.name!r} is ordered: there must be a column key or partition"
        )


def _refuse(columns: ColumnIndexes, names: Iterable[str], reason: str) -> None:
    for name in names:
        if getattr(columns, name) is not None:
            raise ConfigError(f"column {name!r} is invalid: {reason}")
