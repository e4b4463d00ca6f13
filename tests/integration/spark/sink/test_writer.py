"""The writers without Spark: what they refuse, what they publish, and where."""

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
    StructType,
)

from nsqflow.errors import DiscoveryError, LocalProtocolError
from nsqflow.spark.server_options import Access
from nsqflow.spark.sink.task import NsqCommitMessage
from nsqflow.spark.sink.topics import find_nodes
from nsqflow.spark.sink.writer import NsqStreamWriter, NsqWriter
from tests.fixtures.servers import Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd

BODY = StructType().add("body", BinaryType())


numbers = count(1)


@pytest.fixture
def topic() -> str:
    return f"sink_unit_{next(numbers)}"


def batch(*bodies: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(bodies, pa.binary())], names=["body"])


def depth(nsqd: Nsqd, topic: str) -> int:
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])
    return sum(each["depth"] for each in stats["topics"] or [])


# The rows


@pytest.mark.parametrize("kind", [NsqWriter, NsqStreamWriter])
def test_a_pickled_writer_publishes_and_returns_counts(
    nsqd: Nsqd, topic: str, kind: type[NsqWriter | NsqStreamWriter]
) -> None:
    options = CaseInsensitiveDict({"nsqd": nsqd.tcp_address, "topic": topic})
    writer = pickle.loads(cloudpickle.dumps(kind(BODY, options)))  # type: ignore[no-untyped-call]
    written = writer.write(iter([batch(b"a", b"bb"), batch(), batch(b"ccc")]))
    assert written == NsqCommitMessage(messages=3, bytes=6, nsqd={nsqd.tcp_address: 3})
    assert pickle.loads(pickle.dumps(written)) == written
    assert depth(nsqd, topic) == 3


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


# Where they publish


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


def test_an_nsqlookupd_without_nsqd_is_an_error() -> None:
    with (
        start_nsqlookupd() as lonely,
        pytest.raises(DiscoveryError, match=f"{lonely.http_address}: no nsqd is known there"),
    ):
        find_nodes((lonely.http_address,), Access())
