"""Rows become commands: what the real nsqd hands out is what went in."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import LocalProtocolError
from nsqflow.protocol import Dpub, Mpub
from nsqflow.protocol.body_decoder import Limits
from nsqflow.protocol.command_decoder import CommandDecoder
from nsqflow.spark.sink import encoder
from nsqflow.spark.sink.columns import ColumnIndexes
from nsqflow.spark.sink.encoder import PackedMpub
from tests.unit.spark.sink.record_batches import BatchEncoder, Row, batch_of

TOPICS = ["a", "b.c", "d_e#ephemeral"]


EVERYTHING = ColumnIndexes(body=1, topic=0, delay_ms=2)


rows = st.lists(
    st.tuples(
        st.binary(min_size=1, max_size=60),
        st.sampled_from([*TOPICS, None]),
        st.sampled_from([None, 0, 1, 1500]),
    ),
    min_size=1,
    max_size=40,
)


def bodies_only(bodies: list[bytes] | list[str] | list[bytes | None], type: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(bodies, type)], names=["body"])


def read_back(commands: Iterable[PackedMpub | Dpub]) -> Iterator[Mpub | Dpub]:
    """The commands as a server reads them."""
    decoder = CommandDecoder(limits=Limits(max_msg_size=2**30, max_body_size=2**30))
    for command in commands:
        decoder.buffer.feed(command.encode())
        read = decoder.next()
        assert isinstance(read, Mpub | Dpub)
        assert decoder.next() is None
        yield read


@given(rows, st.integers(20, 300))
def test_each_row_is_published_once_and_in_its_order(given: list[Row], most: int) -> None:
    encoder = BatchEncoder(EVERYTHING, "default", most)
    commands = [*read_back(encoder.commands(batch_of(given)))]
    for topic in [*TOPICS, "default"]:
        mine = [(body, delay or 0) for body, name, delay in given if (name or "default") == topic]
        at_once = [
            body
            for command in commands
            if isinstance(command, Mpub) and command.topic == topic
            for body in command.bodies
        ]
        later = [
            (command.body, command.delay_ms)
            for command in commands
            if isinstance(command, Dpub) and command.topic == topic
        ]
        assert at_once == [body for body, delay in mine if not delay]
        assert later == [(body, delay) for body, delay in mine if delay]
    assert encoder.checker.rows == len(given)
    assert encoder.checker.bytes == sum(len(body) for body, _, _ in given)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1), st.integers(20, 300))
def test_no_command_is_larger_than_allowed_or_smaller_than_it_could_be(
    bodies: list[bytes], most: int
) -> None:
    encoder = BatchEncoder(ColumnIndexes(0), "t", most)
    commands = [*encoder.commands(bodies_only(bodies, pa.binary()))]
    sizes = [4 + len(command.bodies) for command in commands if isinstance(command, PackedMpub)]
    assert len(sizes) == len(commands)
    read = [command.bodies for command in read_back(commands) if isinstance(command, Mpub)]
    for size, its, after in zip(sizes, read, [*read[1:], None], strict=True):
        assert size <= most or len(its) == 1
        assert after is None or size + 4 + len(after[0]) > most


@pytest.mark.parametrize("type", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
@pytest.mark.parametrize("slice", [(0, 5), (2, 2), (4, 1)])
def test_bodies_are_of_any_kind_and_from_any_part_of_a_batch(
    type: Any, slice: tuple[int, int]
) -> None:
    bodies = ["ä", "bb", "c" * 300, "d", "ee"]
    batch = bodies_only(bodies, type).slice(*slice)
    start, number = slice
    (command,) = read_back(BatchEncoder(ColumnIndexes(0), "t", 10_000).commands(batch))
    assert command == Mpub("t", [body.encode() for body in bodies[start : start + number]])


@pytest.mark.parametrize("type", [pa.string(), pa.large_string()])
def test_topics_are_of_any_kind(type: Any) -> None:
    given: list[Row] = [(b"1", "x", None), (b"2", None, None), (b"3", "x", 5)]
    encoder = BatchEncoder(EVERYTHING, "option", 1000)
    assert [*read_back(encoder.commands(batch_of(given, topic=type)))] == [
        Dpub("x", 5, b"3"),
        Mpub("x", [b"1"]),
        Mpub("option", [b"2"]),
    ]


def test_a_large_batch_is_joined_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "SLICE", 100)
    given: list[Row] = [(b"%d" % n, TOPICS[n % 3], n % 2) for n in range(200)]
    commands = [*read_back(BatchEncoder(EVERYTHING, None, 1000).commands(batch_of(given)))]
    published: Counter[tuple[str, bytes]] = Counter()
    for command in commands:
        bodies = command.bodies if isinstance(command, Mpub) else [command.body]
        published.update((command.topic, body) for body in bodies)
    assert published == Counter((topic, body) for body, topic, _ in given if topic)


def test_the_largest_body_is_known() -> None:
    batch = bodies_only([b"a", b"b" * 77, b"c" * 5], pa.binary())
    (command,) = BatchEncoder(ColumnIndexes(0), "t", 1000).commands(batch)
    assert isinstance(command, PackedMpub)
    assert command.largest() == 77
    assert "bbb" not in repr(command)


# What can't be published


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((None, "a", None), "body is null"),
        ((b"", "a", None), "body is empty"),
        ((b"x", None, None), "topic is null, and there is no option topic"),
        ((b"x", "a b", None), "topic name 'a b' has ' ' at position 1"),
        ((b"x", "", None), "topic name '' is empty"),
        ((b"x", "a", -1), "delay_ms=-1 is invalid: must be 0 to 3600000"),
        ((b"x", "a", 3_600_001), "delay_ms=3600001 is invalid: must be 0 to 3600000"),
    ],
)
def test_a_row_that_cannot_be_published_is_named_before_any_of_its_batch_is_sent(
    row: Any, words: str
) -> None:
    good: Row = (b"good", "a", 3)
    encoder = BatchEncoder(EVERYTHING, None, 100)
    assert len([*encoder.commands(batch_of([good] * 10))]) == 10
    with pytest.raises(LocalProtocolError) as caught:
        next(encoder.commands(batch_of([good, good, row, good, row])))
    assert str(caught.value).startswith("row 12 of its partition (the first is 0): ")
    assert words in str(caught.value)


def test_an_error_about_a_topic_is_bounded_in_length() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        next(BatchEncoder(EVERYTHING, None, 100).commands(batch_of([(b"x", "no topic" * 1000, 0)])))
    assert len(str(caught.value)) < 400


# With the real nsqd


def test_none_of_it_loads_pandas() -> None:
    # Importing it takes seconds, in each worker that Spark starts.
    code = """
import sys
from types import SimpleNamespace
from array import array
import pyarrow as pa
from nsqflow.spark.sink.encoder import MpubEncoder
from nsqflow.spark.sink.rows import RowChecker
import nsqflow.spark.sink.publisher

def column(type, *values):
    data = [value.encode() for value in values]
    places = array("i", [0])
    for value in data:
        places.append(places[-1] + len(value))
    buffers = [None, pa.py_buffer(places), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(type, len(data), buffers)

delays = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(array("q", [0, 7]))])
columns = [column(pa.binary(), "a", "b"), column(pa.string(), "t", "u"), delays]
batch = pa.RecordBatch.from_arrays(columns, names=["body", "topic", "delay_ms"])
columns = SimpleNamespace(body=0, topic=1, delay_ms=2)
commands = [*MpubEncoder(None, 100).commands(RowChecker(columns, None).check(batch))]
print(len(commands), "pandas" in sys.modules, "asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False", "False"]
