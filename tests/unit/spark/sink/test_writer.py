"""The writers without Spark: what they refuse, what they publish, and where."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    StructType,
)

from nsqflow.errors import ConfigError, DiscoveryError
from nsqflow.spark.server_options import Access
from nsqflow.spark.sink.task import NsqCommitMessage
from nsqflow.spark.sink.topics import find_nodes
from nsqflow.spark.sink.writer import NsqStreamWriter, NsqWriter

BODY = StructType().add("body", BinaryType())


def batch(*bodies: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])


# What is refused


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
def test_both_writers_check_columns_and_options_at_once(
    writer: type[NsqWriter | NsqStreamWriter],
) -> None:
    options = {"nsqd": "127.0.0.1:4150", "topic": "t"}
    writer(BODY, options)
    with pytest.raises(ConfigError, match="column 'x'"):
        writer(StructType().add("x", BinaryType()), options)
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
