"""What the tests of the spool share: messages by number, as they come from nsqd and as rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsqflow.protocol import Message, MessageBatch, encode_messages
from nsqflow.protocol.frames import FrameDecoder, MessageRun
from nsqflow.spark.source.pull import Chunk
from nsqflow.spark.source.rows import stored_batch
from nsqflow.spark.spool.layout import PLANNED
from nsqflow.spark.spool.slot_format import PartitionTotals, SlotFooter, packed_ids
from nsqflow.spark.spool.slots import Slots

if TYPE_CHECKING:
    import pyarrow as pa


def message(number: int, attempts: int = 1, size: int = 10) -> Message:
    """A message whose id and body say its number."""
    return Message(1_000 * number, attempts, b"%016d" % number, b"%0*d" % (size, number))


def chunk_of(messages: Iterable[Message]) -> Chunk:
    """What a pull gives when these have arrived."""
    chunk = Chunk(started_at=0.0)
    decoder = FrameDecoder()
    decoder.buffer.feed(encode_messages([*messages]))
    while run := decoder.next():
        assert isinstance(run, MessageRun)
        chunk.add(MessageBatch(*run))
    return chunk


def rows_of(numbers: Iterable[int]) -> pa.RecordBatch:
    """Messages as a slot holds them."""
    return stored_batch(chunk_of(map(message, numbers)).columns)


def ids_of(numbers: Iterable[int]) -> bytes:
    """The packed ids of messages."""
    return b"".join(b"%016d" % number for number in numbers)


def numbers_of(rows: pa.RecordBatch | None) -> list[int]:
    """Which messages these rows are."""
    ids = b"" if rows is None else packed_ids(rows)
    return [int(ids[at : at + 16]) for at in range(0, len(ids), 16)]


def write_slot(slots: Slots, number: int, numbers: Iterable[int], *, last: bool = True) -> None:
    """Have a slot in the spool that some task wrote and perhaps did not finish."""
    rows = rows_of(numbers)
    batch, _, _ = slots._folder.rpartition("/")
    slots._store.write(f"{batch}/{PLANNED}", b"{}")
    footer = SlotFooter(
        writer=f"writer-{number}", last=last, totals=PartitionTotals(rows=len(rows))
    )
    assert slots.create(number, rows, footer) is not None
