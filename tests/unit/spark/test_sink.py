"""The writers without a Spark: what they refuse, what they publish, and whom they publish to."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
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

from nsqflow.errors import ConfigError, DiscoveryError, LocalProtocolError
from nsqflow.spark.access import Access
from nsqflow.spark.mpub import Places
from nsqflow.spark.nodes import find_nodes
from nsqflow.spark.sink import NsqStreamWriter, NsqWriter, Written, find_places
from tests.fixtures.servers import Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd

BODY = StructType().add("body", BinaryType())

numbers = count(1)


@pytest.fixture
def topic() -> str:
    return f"sink_unit_{next(numbers)}"


def schema(**columns: DataType) -> StructType:
    made = StructType()
    for name, type in columns.items():
        made.add(name, type)
    return made


def batch(*bodies: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])


def depth(nsqd: Nsqd, topic: str) -> int:
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])
    return sum(each["depth"] for each in stats["topics"] or [])


# The columns


@pytest.mark.parametrize("type", [BinaryType(), StringType()])
@pytest.mark.parametrize("name", ["body", "value", "Body"])
def test_the_body_is_found_by_either_name(name: str, type: DataType) -> None:
    assert find_places(schema(**{name: type}), "t") == Places(body=0)


@pytest.mark.parametrize("type", [ByteType(), ShortType(), IntegerType(), LongType()])
def test_columns_are_found_wherever_they_stand(type: DataType) -> None:
    columns = schema(DELAY_MS=type, topic=StringType(), value=StringType())
    assert find_places(columns, None) == Places(body=2, topic=1, delay_ms=0)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (schema(), "neither of the columns body and value"),
        (schema(topic=StringType()), "neither of the columns body and value"),
        (schema(body=BinaryType(), value=BinaryType()), "both of the columns body and value"),
        (schema(body=BinaryType(), BODY=BinaryType()), "column 'BODY' is there twice"),
        (schema(body=IntegerType()), "column 'body' of type int; body or value .* are allowed"),
        (schema(body=BinaryType(), topic=BinaryType()), "column 'topic' of type binary; "),
        (schema(body=BinaryType(), delay_ms=DoubleType()), "column 'delay_ms' of type double; "),
        (schema(body=BinaryType(), key=StringType()), "column 'key' of type string; "),
    ],
)
def test_what_can_not_be_written_is_refused(columns: StructType, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_places(columns, "t")


def test_without_any_topic_there_is_nowhere_to_write_to() -> None:
    with pytest.raises(ConfigError, match="neither an option topic nor a column topic"):
        find_places(BODY, None)


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


def test_a_topic_is_not_written_over() -> None:
    options = {"nsqd": "127.0.0.1:4150", "topic": "t"}
    with pytest.raises(ConfigError, match=r"mode 'overwrite'; .* by mode 'append'"):
        NsqWriter(BODY, options, overwrite=True)


# The rows


@pytest.mark.parametrize("kind", [NsqWriter, NsqStreamWriter])
def test_a_writer_that_was_pickled_publishes_and_tells_what(
    nsqd: Nsqd, topic: str, kind: type[NsqWriter | NsqStreamWriter]
) -> None:
    options = CaseInsensitiveDict({"nsqd": nsqd.tcp_address, "topic": topic})
    writer = pickle.loads(cloudpickle.dumps(kind(BODY, options)))  # type: ignore[no-untyped-call]
    written = writer.write(iter([batch(b"a", b"bb"), batch(), batch(b"ccc")]))
    assert written == Written(messages=3, bytes=6, nsqd={nsqd.tcp_address: 3})
    assert pickle.loads(pickle.dumps(written)) == written
    assert depth(nsqd, topic) == 3


def test_a_task_without_rows_asks_nobody() -> None:
    writer = NsqWriter(BODY, {"lookupd": "127.0.0.1:1", "topic": "t"})
    assert writer.write(iter([batch(), batch()])) == Written()


def test_a_bad_row_fails_its_task_and_nothing_of_its_batch_is_published(
    nsqd: Nsqd, topic: str
) -> None:
    writer = NsqWriter(BODY, {"nsqd": nsqd.tcp_address, "topic": topic})
    with pytest.raises(LocalProtocolError, match=r"row 2 of its partition .*: body is null"):
        writer.write(iter([batch(b"a", b"b", None)]))
    assert depth(nsqd, topic) == 0


def test_max_batch_bytes_bounds_what_goes_out_at_once(
    tmp_path_factory: pytest.TempPathFactory, topic: str
) -> None:
    options = ["-max-body-size=3000", "-max-msg-size=1500"]
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), options=options) as small:
        given = {"nsqd": small.tcp_address, "topic": topic, "maxBatchBytes": "3000"}
        rows = batch(*[b"%04d" % n * 100 for n in range(50)])
        assert NsqWriter(BODY, given).write(iter([rows])).messages == 50
        assert depth(small, topic) == 50


# Whom they publish to


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Nsqd], Nsqlookupd]]:
    with ExitStack() as stack:
        lookupd = stack.enter_context(start_nsqlookupd())
        folders = [tmp_path_factory.mktemp("nsqd") for _ in range(2)]
        nsqds = [stack.enter_context(start_nsqd(each, lookupd=[lookupd])) for each in folders]
        yield nsqds, lookupd


def test_all_nsqd_that_nsqlookupd_knows_get_their_part(
    found: tuple[list[Nsqd], Nsqlookupd], topic: str
) -> None:
    nsqds, lookupd = found
    options = {"lookupd": lookupd.http_address, "topic": topic, "maxBatchBytes": "1k"}
    rows = batch(*[b"%04d" % n * 100 for n in range(20)])
    written = NsqWriter(BODY, options).write(iter([rows]))
    assert written.nsqd == {nsqd.tcp_address: 10 for nsqd in nsqds}
    assert [depth(nsqd, topic) for nsqd in nsqds] == [10, 10]


def test_one_nsqlookupd_that_answers_is_enough(
    found: tuple[list[Nsqd], Nsqlookupd], caplog: pytest.LogCaptureFixture
) -> None:
    nsqds, lookupd = found
    with caplog.at_level(logging.WARNING, "nsqflow.spark"):
        nodes = find_nodes(("127.0.0.1:1", lookupd.http_address), Access())
    assert nodes == sorted(nsqd.tcp_address for nsqd in nsqds)
    assert "127.0.0.1:1: " in caplog.text


def test_no_nsqlookupd_that_answers_is_an_error() -> None:
    with pytest.raises(DiscoveryError, match=r"^no nsqlookupd can be asked: 127\.0\.0\.1:1: "):
        find_nodes(("http://user:swordfish@127.0.0.1:1",), Access())
    with pytest.raises(DiscoveryError) as caught:
        find_nodes(("http://user:swordfish@127.0.0.1:1",), Access())
    assert "swordfish" not in str(caught.value)


def test_an_nsqlookupd_that_knows_nobody_is_an_error() -> None:
    with (
        start_nsqlookupd() as lonely,
        pytest.raises(DiscoveryError, match=f"{lonely.http_address}: no nsqd is known there"),
    ):
        find_nodes((lonely.http_address,), Access())
