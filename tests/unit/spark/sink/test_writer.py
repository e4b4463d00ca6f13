"""The writers without Spark: what they refuse, what they publish, and where."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from nsqflow.errors import ConfigError, DiscoveryError
from nsqflow.spark.options import Access
from nsqflow.spark.sink.encoder import ColumnIndexes
from nsqflow.spark.sink.writer import (
    NsqCommitMessage,
    NsqStreamWriter,
    NsqWriter,
    find_columns,
    find_nodes,
)

BODY = StructType().add("body", BinaryType())


def schema(**columns: DataType) -> StructType:
    made = StructType()
    for name, type in columns.items():
        made.add(name, type)
    return made


def batch(*bodies: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])


# The columns


@pytest.mark.parametrize("type", [BinaryType(), StringType()])
@pytest.mark.parametrize("name", ["body", "value", "Body"])
def test_the_body_is_found_by_either_name(name: str, type: DataType) -> None:
    assert find_columns(schema(**{name: type}), "t") == ColumnIndexes(body=0)


@pytest.mark.parametrize("type", [ByteType(), ShortType(), IntegerType(), LongType()])
def test_columns_are_found_in_any_order(type: DataType) -> None:
    columns = schema(DELAY_MS=type, topic=StringType(), value=StringType())
    assert find_columns(columns, None) == ColumnIndexes(body=2, topic=1, delay_ms=0)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (schema(), "no column with the message"),
        (schema(topic=StringType()), "no column with the message"),
        (schema(body=BinaryType(), value=BinaryType()), "two columns with the message"),
        (schema(body=BinaryType(), BODY=BinaryType()), "there are two columns 'BODY'"),
        (schema(body=IntegerType()), "column 'body' of type int is invalid: must be body or value"),
        (schema(body=BinaryType(), topic=BinaryType()), "column 'topic' of type binary is invalid"),
        (
            schema(body=BinaryType(), delay_ms=DoubleType()),
            "column 'delay_ms' of type double",
        ),
        (schema(body=BinaryType(), key=StringType()), "column 'key' of type string is invalid"),
    ],
)
def test_invalid_columns_are_refused(columns: StructType, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_columns(columns, "t")


def test_without_any_topic_there_is_nowhere_to_write_to() -> None:
    with pytest.raises(ConfigError, match="neither an option topic nor a column topic"):
        find_columns(BODY, None)


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
def test_both_writers_check_columns_and_options_at_once(
    writer: type[NsqWriter | NsqStreamWriter],
) -> None:
    options = {"nsqd": "127.0.0.1:4150", "topic": "t"}
    writer(BODY, options)
    with pytest.raises(ConfigError, match="column 'x'"):
        writer(schema(x=BinaryType()), options)
    with pytest.raises(ConfigError, match="maxBatchBytes"):
        writer(BODY, options | {"maxBatchBytes": "none"})


def test_a_topic_cannot_be_overwritten() -> None:
    options = {"nsqd": "127.0.0.1:4150", "topic": "t"}
    with pytest.raises(ConfigError, match="mode 'overwrite' is invalid"):
        NsqWriter(BODY, options, overwrite=True)


# The rows


def test_a_task_without_rows_connects_to_no_server() -> None:
    writer = NsqWriter(BODY, {"lookupd": "127.0.0.1:1", "topic": "t"})
    assert writer.write(iter([batch(), batch()])) == NsqCommitMessage()


# Where they publish


def test_no_nsqlookupd_that_answers_is_an_error() -> None:
    with pytest.raises(DiscoveryError, match=r"^no server is reachable: 127\.0\.0\.1:1: "):
        find_nodes(("http://user:swordfish@127.0.0.1:1",), Access())
    with pytest.raises(DiscoveryError) as caught:
        find_nodes(("http://user:swordfish@127.0.0.1:1",), Access())
    assert "swordfish" not in str(caught.value)
