"""Rows become batches of a producer: grouped by partition, in their order, with their headers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.producer.partitioner import java_partition, murmur3_partition
from nsqflow.client.producer.publish_batch import PublishBatch, TopicPartition
from nsqflow.errors import LocalProtocolError
from nsqflow.protocol import TopicMeta
from nsqflow.spark.options import parse_sink
from nsqflow.spark.sink import partition_encoder as module
from nsqflow.spark.sink.columns import ColumnIndexes
from nsqflow.spark.sink.partition_encoder import PartitionEncoder
from nsqflow.spark.sink.rows import RowChecker
from nsqflow.spark.sink.topics import TargetTopic

TYPES = {
    "body": pa.binary(),
    "key": pa.binary(),
    "partition": pa.int32(),
    "headers": pa.map_(pa.string(), pa.string()),
    "tag": pa.string(),
    "trace_id": pa.decimal128(20, 0),
    "delay_ms": pa.int64(),
}


class Encoder:
    """An encoder for batches of columns; the topic is ``orders``."""

    def __init__(
        self,
        *names: str,
        partitions: int = 4,
        ordered: bool = False,
        extended: bool = False,
        **options: str,
    ) -> None:
        meta = TopicMeta(partition_num=partitions, ordered=ordered, extend_support=extended)
        columns = ColumnIndexes(**{name: index for index, name in enumerate(names)})
        given = {"lookupd": "127.0.0.1:4161", "topic": "orders"} | options
        self._names = names
        self._checker = RowChecker(columns, "orders")
        self._encoder = PartitionEncoder(TargetTopic("orders", meta), columns, parse_sink(given))

    def batches(self, *rows: Any, **types: Any) -> list[PublishBatch]:
        """The batches of rows, which are tuples of the columns or, with one column, its values."""
        values = zip(*(row if isinstance(row, tuple) else (row,) for row in rows), strict=True)
        arrays = [
            pa.array(column, (TYPES | types)[name])
            for name, column in zip(self._names, values, strict=True)
        ]
        checked = self._checker.check(pa.RecordBatch.from_arrays(arrays, names=[*self._names]))
        return [*self._encoder.batches(self._encoder.check(checked))]

    def refusal(self, *rows: Any, **types: Any) -> str:
        """Why rows are refused."""
        with pytest.raises(LocalProtocolError) as caught:
            self.batches(*rows, **types)
        return str(caught.value)


def by_partition(batches: Iterable[PublishBatch]) -> dict[int | None, list[bytes]]:
    """The bodies of each partition, in the order in which they are sent; None: any."""
    found: dict[int | None, list[bytes]] = {}
    for batch in batches:
        to = batch.destination
        number = to.partition if isinstance(to, TopicPartition) else None
        found.setdefault(number, []).extend(batch.bodies)
    return found


# Partitions


@pytest.mark.parametrize(
    ("option", "partition_of"), [("murmur3", murmur3_partition), ("java", java_partition)]
)
@given(
    keys=st.lists(st.none() | st.text(min_size=1, max_size=9), min_size=1, max_size=50),
    slice_size=st.sampled_from([30, 10**6]),
)
def test_each_row_goes_to_the_partition_of_its_key_in_order(
    option: str,
    partition_of: Callable[[bytes, int], int],
    keys: list[str | None],
    slice_size: int,
) -> None:
    rows = [(b"%d" % n, None if key is None else key.encode()) for n, key in enumerate(keys)]
    expected: dict[int | None, list[bytes]] = {}
    for body, key in rows:
        number = None if key is None else partition_of(key, 4)
        expected.setdefault(number, []).append(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE", slice_size)
        batches = Encoder("body", "key", partitioner=option).batches(*rows)
    assert by_partition(batches) == expected


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_keys_are_of_any_kind(type: Any) -> None:
    key = "ä" if type in (pa.string(), pa.large_string()) else "ä".encode()
    (batch,) = Encoder("body", "key").batches((b"x", key), key=type)
    assert batch.destination == TopicPartition("orders", murmur3_partition("ä".encode(), 4))


def test_a_partition_that_is_given_is_used() -> None:
    batches = Encoder("body", "partition").batches((b"a", 3), (b"b", None), (b"c", 0), (b"d", 3))
    assert by_partition(batches) == {3: [b"a", b"d"], None: [b"b"], 0: [b"c"]}


def test_rows_may_have_either_key_or_partition() -> None:
    batches = Encoder("body", "key", "partition").batches(
        (b"a", b"k", None), (b"b", None, 0), (b"c", None, None)
    )
    assert murmur3_partition(b"k", 4) == 1
    assert by_partition(batches) == {1: [b"a"], 0: [b"b"], None: [b"c"]}


def test_without_keys_rows_go_to_any_partition() -> None:
    (batch,) = Encoder("body").batches(b"a", b"b")
    assert batch.destination == "orders"
    assert batch.bodies == [b"a", b"b"]


def test_batches_are_as_large_as_allowed() -> None:
    # With the count, and the size before each message.
    for size, count in [(1036, 3), (1037, 2)]:
        rows = [(b"x" * size, 1)] * 3 + [(b"y" * 5000, 1)]
        batches = Encoder("body", "partition", maxBatchBytes=str(4 + 3 * 1040)).batches(*rows)
        assert len(batches[0].bodies) == count
        assert batches[-1].bodies == [b"y" * 5000]


# Headers and trace ids


def test_headers_tag_and_trace_id_are_one_json_object() -> None:
    encoder = Encoder("body", "headers", "tag", "trace_id", extended=True)
    (batch,) = encoder.batches(
        (b"a", [("x", "1"), ("y", "ä")], "t", Decimal(7)),
        (b"b", None, None, None),
        (b"c", None, None, Decimal(2**64 - 1)),
        (b"d", [], None, None),
        (b"e", None, "u", None),
    )
    assert batch.traces is None
    assert batch.headers is not None
    assert [json.loads(each) if each else None for each in batch.headers] == [
        {"x": "1", "y": "ä", "##client_dispatch_tag": "t", "##trace_id": "7"},
        None,
        {"##trace_id": str(2**64 - 1)},
        {},
        {"##client_dispatch_tag": "u"},
    ]


def test_rows_without_headers_are_sent_without_them() -> None:
    encoder = Encoder("body", "headers", "partition", extended=True)
    first, second = encoder.batches((b"a", None, 0), (b"b", [("x", "1")], 1))
    assert (first.bodies, first.headers) == ([b"a"], None)
    assert (second.bodies, second.headers) == ([b"b"], [b'{"x":"1"}'])


@pytest.mark.parametrize("type", [pa.int8(), pa.int64(), pa.decimal128(20, 0)])
def test_trace_ids_alone_need_no_headers(type: Any) -> None:
    (batch,) = Encoder("body", "trace_id").batches(
        (b"a", 5), (b"b", None), (b"c", 7), trace_id=type
    )
    assert batch.headers is None
    assert batch.traces == [5, 0, 7]


def test_headers_count_for_the_size_of_a_batch() -> None:
    encoder = Encoder("body", "headers", extended=True, maxBatchBytes="2000")
    batches = encoder.batches(*[(b"x", [("name", "v" * 900)])] * 4)
    assert [len(batch.bodies) for batch in batches] == [2, 2]


# What the topic can't take


@pytest.mark.parametrize(
    ("names", "good", "bad", "words"),
    [
        (
            ["partition"],
            (b"x", 0),
            (b"x", 7),
            "partition=7 is invalid for topic 'orders': must be 0 to 3",
        ),
        (
            ["partition"],
            (b"x", 0),
            (b"x", -1),
            "partition=-1 is invalid for topic 'orders': must be 0 to 3",
        ),
        (["key"], (b"x", b"k"), (b"x", b""), "key is empty (topic 'orders')"),
        (
            ["key", "partition"],
            (b"x", b"k", None),
            (b"x", b"k", 1),
            "key and partition are both set: one of them must be null",
        ),
        (
            ["trace_id"],
            (b"x", Decimal(1)),
            (b"x", Decimal(2**64)),
            f"trace_id={2**64} is invalid: must be 0 to {2**64 - 1}",
        ),
        (
            ["headers"],
            (b"x", None),
            (b"x", [("a", "b")]),
            "headers is invalid: topic 'orders' was created without extend=true",
        ),
        (
            ["tag"],
            (b"x", None),
            (b"x", "t"),
            "tag is invalid: topic 'orders' was created without extend=true",
        ),
        (
            ["delay_ms"],
            (b"x", 0),
            (b"x", 5),
            "delay_ms=5 is invalid: topic 'orders' is one of the redesigned NSQ, which delays no "
            "publish: requeue it with a delay",
        ),
    ],
)
def test_a_row_that_the_topic_does_not_take_is_named(
    names: list[str], good: Any, bad: Any, words: str
) -> None:
    encoder = Encoder("body", *names)
    assert encoder.batches(good, good)
    error = encoder.refusal(good, bad, good, bad)
    assert error == f"row 3 of its partition (the first is 0): {words}"


@pytest.mark.parametrize(
    ("names", "good", "bad"),
    [
        (["key"], (b"x", b"k"), (b"x", None)),
        (["partition"], (b"x", 1), (b"x", None)),
        (["key", "partition"], (b"x", b"k", None), (b"x", None, None)),
    ],
)
def test_each_row_for_an_ordered_topic_has_a_partition(
    names: list[str], good: Any, bad: Any
) -> None:
    encoder = Encoder("body", *names, ordered=True)
    words = "topic 'orders' is ordered, and neither key nor partition is set"
    assert encoder.refusal(good, good, bad).endswith(
        f"row 2 of its partition (the first is 0): {words}"
    )
    assert encoder.refusal(bad).endswith(words)


def test_headers_that_nsqd_does_not_take_are_named() -> None:
    good = (b"x", [("a", "b")], "t")
    for bad, words in [
        (
            (b"x", [("##trace_id", "1")], None),
            "header '##trace_id' is invalid: the name is reserved",
        ),
        ((b"x", [("a", "b" * 70_000)], None), "headers of 70008 bytes as JSON are invalid"),
        ((b"x", None, "t" * 101), "tag='ttt"),
        ((b"x", None, ""), "tag='' is invalid: must have 1 to 100 bytes"),
    ]:
        encoder = Encoder("body", "headers", "tag", extended=True)
        error = encoder.refusal(good, bad)
        assert error.startswith("row 1 of its partition (the first is 0): ")
        assert words in error
        assert error.endswith("(topic 'orders')")


def test_a_key_that_is_no_text_is_refused_by_the_java_partitioner() -> None:
    error = Encoder("body", "key", partitioner="java").refusal((b"x", b"\xff"))
    assert "key=b'\\xff' is invalid: must be UTF-8 text for partitioner='java'" in error
    assert "row 0 of its partition" in error


def test_none_of_it_loads_pandas() -> None:
    # Importing it takes seconds, in each worker that Spark starts.
    code = """
import sys
from array import array
import pyarrow as pa
from nsqflow.protocol import TopicMeta
from nsqflow.spark.options import parse_sink
from nsqflow.spark.sink.columns import ColumnIndexes
from nsqflow.spark.sink.partition_encoder import PartitionEncoder
from nsqflow.spark.sink.partition_publisher import PartitionPublisher
from nsqflow.spark.sink.rows import RowChecker
from nsqflow.spark.sink.topics import TargetTopic

def column(*values):
    data = [value.encode() for value in values]
    places = array("i", [0])
    for value in data:
        places.append(places[-1] + len(value))
    buffers = [None, pa.py_buffer(places), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.string(), len(data), buffers)

names, digits = column("a", "b"), column("0", "1")
ends = pa.Array.from_buffers(pa.int32(), 3, [None, pa.py_buffer(array("i", [0, 1, 2]))])
maps = pa.MapArray.from_arrays(ends, names, names)
options = parse_sink({"lookupd": "127.0.0.1:4161", "topic": "t"})
target = TargetTopic("t", TopicMeta(partition_num=2, extend_support=True))
places = ["key", "partition"]
for place in places:
    columns = ColumnIndexes(0, **{place: 1}, headers=2, tag=3, trace_id=4)
    where = digits.cast(pa.int32()) if place == "partition" else names
    traces = digits.cast(pa.decimal128(20, 0))
    batch = pa.RecordBatch.from_arrays([names, where, maps, names, traces], names=list("abcde"))
    encoder = PartitionEncoder(target, columns, options)
    batches = [*encoder.batches(encoder.check(RowChecker(columns, "t").check(batch)))]
print(len(batches), "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
