"""What was received becomes rows: the same messages, in the same order, without pandas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.protocol import Columns, Layout, Message, MessageBatch, encode_messages
from nsqflow.protocol.frames import FrameDecoder, MessageRun
from nsqflow.spark.source.rows import RowConverter, pick, stored_batch
from nsqflow.spark.spool.slot_format import STORED, packed_ids

messages = st.builds(
    Message,
    timestamp=st.integers(0, 2**63 - 1),
    attempts=st.integers(0, 2**16 - 1),
    id=st.binary(min_size=16, max_size=16),
    body=st.binary(max_size=40),
)


def read(data: bytes, cuts: Sequence[int]) -> Iterator[Columns]:
    """Columns as they come of reads that the network cut here."""
    decoder = FrameDecoder()
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        decoder.buffer.feed(data[start:end])
        while run := decoder.next():
            assert isinstance(run, MessageRun)
            yield MessageBatch(*run).columns()


def columns_of(number: int) -> Columns:
    sent = [Message(1_000 * n, n, b"%016x" % n, b"body %d" % n) for n in range(number)]
    (columns,) = read(encode_messages(sent), [])
    return columns


def as_messages(batch: pa.RecordBatch) -> list[Message]:
    return [
        Message(row["timestamp_ns"], row["attempts"], row["id"], row["body"])
        for row in batch.to_pylist()
    ]


@given(st.lists(messages, max_size=30), st.data())
def test_the_batch_holds_what_was_sent(sent: list[Message], data: st.DataObject) -> None:
    frames = encode_messages(sent)
    cuts = data.draw(st.lists(st.integers(0, len(frames)), max_size=5).map(sorted))
    batch = stored_batch([*read(frames, cuts)])
    batch.validate(full=True)
    assert batch.schema == STORED
    assert as_messages(batch) == sent
    assert packed_ids(batch) == b"".join(message.id for message in sent)


def test_bodies_are_read_from_messages_with_more_parts() -> None:
    layout = Layout(extended=True, positioned=True)
    sent = [
        Message(1, 1, b"a" * 16, b"first", ext_version=4, ext=b'{"a":1}', offset=1, size=2),
        Message(2, 1, b"b" * 16, b"second", ext_version=0, offset=3, size=4),
    ]
    decoder = FrameDecoder()
    decoder.min_message_size = layout.min_size
    decoder.positioned = layout.positioned and not layout.extended
    decoder.buffer.feed(encode_messages(sent, layout))
    run = decoder.next()
    assert isinstance(run, MessageRun)
    batch = stored_batch([MessageBatch(*run, layout).columns()])
    assert batch.column("body").to_pylist() == [b"first", b"second"]


def test_batches_of_different_sizes_share_nothing_they_should_not() -> None:
    batches = [stored_batch([columns_of(number)]) for number in (3, 50, 1, 20)]
    for batch, number in zip(batches, (3, 50, 1, 20), strict=True):
        assert packed_ids(batch) == b"".join(b"%016x" % n for n in range(number))


def test_ids_are_found_in_a_slice_and_in_what_was_written_and_read_again() -> None:
    batch = stored_batch([columns_of(10)])
    expected = b"".join(b"%016x" % n for n in range(4, 9))
    part = batch.slice(4, 5)
    assert packed_ids(part) == expected
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, STORED) as writer:
        writer.write_batch(part)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        assert packed_ids(reader.read_next_batch()) == expected


def test_rows_are_picked_by_their_indexes() -> None:
    batch = pick(stored_batch([columns_of(10)]), [7, 0, 3])
    assert batch.schema == STORED
    assert packed_ids(batch) == b"%016x%016x%016x" % (7, 0, 3)
    assert batch.column("body").to_pylist() == [b"body 7", b"body 0", b"body 3"]
    assert pick(batch, []).num_rows == 0


def test_spark_gets_each_column_by_its_name() -> None:
    outward = RowConverter("orders|127.0.0.1:4150", "ö", metadata=True, positions=False)
    sent = Message(1_700_000_000_123_456_789, 3, b"0123456789abcdef", b"body")
    [rows] = outward.convert(stored_batch([*read(encode_messages([sent]), [])]))
    rows.validate(full=True)
    assert rows.to_pylist() == [
        {
            "body": b"body",
            "id": b"0123456789abcdef",
            "attempts": 3,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
            "timestamp_ns": 1_700_000_000_123_456_789,
            "topic": "orders",
            "channel": "ö",
            "nsqd": "127.0.0.1:4150",
        }
    ]


def test_constants_are_as_long_as_each_batch() -> None:
    outward = RowConverter("t|nsqd:1", "c", metadata=True, positions=False)
    for number in (2, 0, 30, 7, 31):
        [rows] = outward.convert(stored_batch([columns_of(number)] if number else []))
        rows.validate(full=True)
        assert rows.schema == outward.schema
        assert rows.column("topic").to_pylist() == ["t"] * number
        assert rows.column("nsqd").to_pylist() == ["nsqd:1"] * number


def test_without_metadata_there_is_the_body_alone() -> None:
    outward = RowConverter("t|nsqd:1", "c", metadata=False, positions=False)
    [rows] = outward.convert(stored_batch([columns_of(3)]))
    assert rows.schema == outward.schema
    assert rows.to_pydict() == {"body": [b"body 0", b"body 1", b"body 2"]}


@pytest.mark.parametrize("include_metadata", [True, False])
def test_the_schema_is_the_arrow_form_of_sparks(include_metadata: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    declared = StructType().add("body", BinaryType())
    if include_metadata:
        declared = declared.add("id", BinaryType()).add("attempts", IntegerType())
        declared = declared.add("timestamp", TimestampType()).add("timestamp_ns", LongType())
        for name in ("topic", "channel", "nsqd"):
            declared = declared.add(name, StringType())
    outward = RowConverter("t|nsqd:1", "c", metadata=include_metadata, positions=False)
    assert outward.schema == to_arrow_schema(declared, timezone="UTC")


def test_none_of_it_loads_pandas() -> None:
    # Importing it takes seconds, in each worker that Spark starts.
    code = """
import sys
from nsqflow.protocol import Message, MessageBatch, encode_messages
from nsqflow.protocol.frames import FrameDecoder
from nsqflow.spark.source.rows import RowConverter, pick, stored_batch
from nsqflow.spark.spool.slot_format import packed_ids
decoder = FrameDecoder()
decoder.buffer.feed(encode_messages([Message(1, 1, bytes(16), b"body")] * 3))
columns = MessageBatch(*decoder.next()).columns()
stored = pick(stored_batch([columns, columns]), [0, 3])
packed_ids(stored)
stored_batch([])
next(RowConverter("t|n", "c", metadata=True, positions=False).convert(stored))
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
