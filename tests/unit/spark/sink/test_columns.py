"""Which columns a DataFrame may have, and what topics of each NSQ take of them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from nsqflow.errors import ConfigError
from nsqflow.protocol import TopicMeta
from nsqflow.spark.options import parse_sink
from nsqflow.spark.sink.columns import ColumnIndexes, check_columns, find_columns
from nsqflow.spark.sink.topics import TargetTopic

BODY = StructType().add("body", BinaryType())
TEXT_MAP = MapType(StringType(), StringType())
NUMBERS = [ByteType(), ShortType(), IntegerType(), LongType()]

BY_LOOKUPD = {"lookupd": "127.0.0.1:4161", "topic": "orders"}
BY_NSQD = {"nsqd": "127.0.0.1:4150", "topic": "orders"}


def schema(**columns: DataType) -> StructType:
    made = StructType()
    for name, type in columns.items():
        made.add(name, type)
    return made


def redesigned(*, ordered: bool = False, extended: bool = False) -> TargetTopic:
    meta = TopicMeta(partition_num=4, replica=1, ordered=ordered, extend_support=extended)
    return TargetTopic("orders", meta)


# Which there are


@pytest.mark.parametrize("type", [BinaryType(), StringType()])
@pytest.mark.parametrize("name", ["body", "value", "Body"])
def test_the_body_is_found_by_either_name(name: str, type: DataType) -> None:
    assert find_columns(schema(**{name: type}), "t") == ColumnIndexes(body=0)


@pytest.mark.parametrize("type", NUMBERS)
def test_columns_are_found_in_any_order(type: DataType) -> None:
    columns = schema(DELAY_MS=type, topic=StringType(), value=StringType())
    assert find_columns(columns, None) == ColumnIndexes(body=2, topic=1, delay_ms=0)


@pytest.mark.parametrize("key", [BinaryType(), StringType()])
@pytest.mark.parametrize("trace_id", [*NUMBERS, DecimalType(20, 0), DecimalType(10, 0)])
def test_the_columns_of_the_redesigned_nsq_are_found(key: DataType, trace_id: DataType) -> None:
    columns = schema(
        Key=key, value=StringType(), partition=IntegerType(), headers=TEXT_MAP, tag=StringType(),
        trace_id=trace_id,
    )  # fmt: skip
    assert find_columns(columns, "t") == ColumnIndexes(
        body=1, key=0, partition=2, headers=3, tag=4, trace_id=5
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (schema(), "no column with the message"),
        (schema(topic=StringType()), "no column with the message"),
        (schema(body=BinaryType(), value=BinaryType()), "two columns with the message"),
        (schema(body=BinaryType(), BODY=BinaryType()), "there are two columns 'BODY'"),
        (schema(body=IntegerType()), "column 'body' of type int is invalid: must be body or value"),
        (schema(body=BinaryType(), topic=BinaryType()), "column 'topic' of type binary is invalid"),
        (schema(body=BinaryType(), delay_ms=DoubleType()), "column 'delay_ms' of type double"),
        (schema(body=BinaryType(), id=StringType()), "column 'id' of type string is invalid"),
        (schema(body=BinaryType(), key=LongType()), "column 'key' of type bigint is invalid"),
        (schema(body=BinaryType(), partition=StringType()), "column 'partition' of type string"),
        (schema(body=BinaryType(), tag=BinaryType()), "column 'tag' of type binary"),
        (
            schema(body=BinaryType(), headers=MapType(StringType(), LongType())),
            "column 'headers' of type map<string,bigint>",
        ),
        (
            schema(body=BinaryType(), trace_id=DecimalType(20, 2)),
            r"column 'trace_id' of type decimal\(20,2\)",
        ),
    ],
)
def test_invalid_columns_are_refused(columns: StructType, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_columns(columns, "t")


def test_without_any_topic_there_is_nowhere_to_write_to() -> None:
    with pytest.raises(ConfigError, match="neither an option topic nor a column topic"):
        find_columns(BODY, None)


# What a topic takes


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        (ColumnIndexes(0, delay_ms=1), TargetTopic("orders")),
        (ColumnIndexes(0, key=1, partition=2, trace_id=3), redesigned()),
        (ColumnIndexes(0, headers=1, tag=2), redesigned(extended=True)),
        (ColumnIndexes(0, key=1), redesigned(ordered=True)),
        (ColumnIndexes(0, partition=1), redesigned(ordered=True)),
        # Which topics there are is not known yet.
        (ColumnIndexes(0, key=1, delay_ms=2, headers=3), None),
        (ColumnIndexes(0, topic=1, key=2, delay_ms=3, headers=4), redesigned()),
        (ColumnIndexes(0, topic=1, key=2), TargetTopic("orders")),
    ],
)
def test_columns_that_the_topic_takes_are_accepted(
    columns: ColumnIndexes, topic: TargetTopic | None
) -> None:
    check_columns(columns, parse_sink(BY_LOOKUPD), topic)


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        (
            ColumnIndexes(0, key=1),
            TargetTopic("orders"),
            "column 'key' is invalid: topic 'orders' is one of the classic NSQ",
        ),
        (
            ColumnIndexes(0, delay_ms=1),
            redesigned(),
            "column 'delay_ms' is invalid: topic 'orders' is one of the redesigned NSQ, which "
            "delays no publish: requeue it with a delay",
        ),
        (
            ColumnIndexes(0, headers=1),
            redesigned(),
            "column 'headers' is invalid: topic 'orders' was created without extend=true",
        ),
        (
            ColumnIndexes(0, tag=1),
            redesigned(),
            "column 'tag' is invalid: topic 'orders' was created without extend=true",
        ),
        (
            ColumnIndexes(0),
            redesigned(ordered=True),
            "topic 'orders' is ordered: there must be a column key or partition",
        ),
    ],
)
def test_columns_that_the_topic_does_not_take_are_refused(
    columns: ColumnIndexes, topic: TargetTopic, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_columns(columns, parse_sink(BY_LOOKUPD), topic)
    assert str(caught.value) == words


@pytest.mark.parametrize("name", ["key", "partition", "headers", "tag", "trace_id"])
def test_nsqd_that_are_named_take_no_columns_of_the_redesigned_nsq(name: str) -> None:
    columns = ColumnIndexes(0, topic=1, **{name: 2})
    with pytest.raises(ConfigError) as caught:
        check_columns(columns, parse_sink(BY_NSQD), TargetTopic("orders"))
    assert str(caught.value) == (
        f"column {name!r} is invalid: it is for topics of the redesigned NSQ: give lookupd"
    )


def test_a_partitioner_needs_keys() -> None:
    options = parse_sink(BY_LOOKUPD | {"partitioner": "java"})
    with pytest.raises(ConfigError, match="partitioner='java' is invalid without a column key"):
        check_columns(ColumnIndexes(0, partition=1), options, redesigned())
    check_columns(ColumnIndexes(0, key=1), options, redesigned())
