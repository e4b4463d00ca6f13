"""Reads the rows that a query has read from NSQ and never committed.

nsqd does not deliver them again, or a query with the same checkpoint would drop them. Without
that checkpoint, the spool is the only place where they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqflow.errors import ConfigError
from nsqflow.spark.source.offsets import Offset, partition_of, split_key
from nsqflow.spark.spool.dedup import ID_SIZE
from nsqflow.spark.spool.inventory import Generation, SpooledPartition
from nsqflow.spark.spool.layout import slot_name
from nsqflow.spark.spool.slot_format import DamagedSlotError, Slot
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa


class SpooledMessage(NamedTuple):
    """A message in the spool, as a consumer would get it."""

    topic: str
    channel: str
    nsqd: str
    id: bytes
    timestamp: int
    attempts: int
    body: bytes
    partition: int | None = None
    """From here on, what a message of the redesigned NSQ has beside."""
    offset: int | None = None
    size: int | None = None
    headers: dict[str, Any] | None = None
    tag: str | None = None

    @property
    def internal_id(self) -> int | None:
        """The number that nsqd gave it."""
        return None if self.partition is None else int.from_bytes(self.id[:8], "big")

    @property
    def trace_id(self) -> int | None:
        """The id that it is traced by; 0 if it is not traced."""
        return None if self.partition is None else int.from_bytes(self.id[8:], "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredSlot:
    """The rows of a slot, or what keeps them from being read."""

    generation: str
    batch: int
    key: str
    channel: str
    rows: pa.RecordBatch | None = None
    leader: str = ""
    """The nsqd that the rows came from, if they are of the redesigned NSQ."""
    unfinished: int = 0
    """Rows whose FIN nsqd has not confirmed: it may deliver these messages again."""
    problem: str = ""

    @property
    def topic(self) -> str:
        """The topic of the rows."""
        return split_key(self.key)[0]

    def messages(self) -> Iterator[SpooledMessage]:
        """Yield the rows as messages, with their bodies unpacked."""
        topic, nsqd = split_key(self.key)
        partition = partition_of(self.key)
        if partition is None:
            for row in self._values("id", "timestamp_ns", "attempts", "body"):
                yield SpooledMessage(topic, self.channel, nsqd, *row)
            return
        # Imported late: it loads the client.
        from nsqflow.spark.source.headers import headers_and_tag, unpack_body

        names = ("id", "timestamp_ns", "attempts", "body", "offset", "size", "ext")
        for id, timestamp, attempts, body, offset, size, ext in self._values(*names):
            about = (topic, self.channel, self.leader, id, timestamp, attempts)
            place = (partition, offset, size)
            yield SpooledMessage(*about, unpack_body(body, ext), *place, *headers_and_tag(ext))

    def _values(self, *names: str) -> Iterator[tuple[Any, ...]]:
        columns = [] if self.rows is None else [self.rows.column(name) for name in names]
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


def read_uncommitted(
    store: ObjectStore,
    generation: Generation,
    committed: int | None = None,
    topic: str | None = None,
) -> Iterator[RecoveredSlot]:
    """Yield the slots after the last committed batch; a slot that can't be read has no rows.

    ``committed`` is that batch, where more than the spool is known; ``topic`` leaves out others.
    """
    if committed is None:
        committed = generation.committed
    for seq, partitions in generation.batches_after(committed).items():
        for partition in partitions:
            if topic in (None, partition.topic):
                slot = RecoveredSlot(
                    generation=generation.name,
                    batch=seq,
                    key=partition.key,
                    channel=generation.marker.channel,
                )
                yield from _read_partition(store, partition, slot)


def _read_partition(
    store: ObjectStore, partition: SpooledPartition, about: RecoveredSlot
) -> Iterator[RecoveredSlot]:
    slots = Slots(store, partition.folder)
    inventory = slots.inventory()
    refused = sum(
        len(each.failed) // ID_SIZE for each in slots.confirmations(store.names(partition.folder))
    )
    expected = 0
    for number in sorted(inventory.present | inventory.lost):
        if number > expected:
            yield replace(about, problem=_describe_gap(store, partition, expected, number))
        expected = number + 1
        where = f"{store.location}/{slot_name(partition.folder, number)}"
        try:
            slot = slots.read(number)
        except DamagedSlotError as error:
            yield replace(about, problem=f"{where} is damaged: {error.why}")
            continue
        if slot is None:
            yield replace(about, problem=f"{where} is missing")
        elif slot.footer.lost:
            yield replace(about, problem=_describe_loss(where, slot))
        elif slot.rows is not None:
            confirmed = number in inventory.confirmed
            unfinished = min(refused, len(slot.rows)) if confirmed else len(slot.rows)
            refused -= unfinished if confirmed else 0
            yield replace(about, rows=slot.rows, leader=slot.footer.leader, unfinished=unfinished)
    if inventory.count > expected:
        yield replace(about, problem=_describe_gap(store, partition, expected, inventory.count))


def _describe_gap(store: ObjectStore, partition: SpooledPartition, first: int, end: int) -> str:
    where = f"{store.location}/{slot_name(partition.folder, first)}"
    return f"{where} is missing" if end == first + 1 else f"{where} to {end - 1:06d} are missing"


def _describe_loss(where: str, slot: Slot) -> str:
    rows = slot.footer.totals.lost
    return f"{where} was lost before, with {rows or 'an unknown number of'} rows"


def committed_batches(checkpoint: Path) -> dict[str, int]:
    """Return the last batch of each generation that Spark has committed, by its checkpoint.

    Raises ``ConfigError`` if the folder is not the checkpoint of a query on NSQ.
    """
    offsets, commits = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    if not offsets:
        raise _invalid(checkpoint, "it has no offsets; must be the checkpointLocation of a query")
    planned = _read_offsets(checkpoint, offsets[-1])
    if not planned:
        raise _invalid(checkpoint, "no source of its query is NSQ")
    committed = _read_offsets(checkpoint, commits[-1]) if commits else {}
    return {generation: committed.get(generation, 0) for generation in planned}


def _numbers(folder: Path) -> list[int]:
    """Return the batches that a log of Spark has, in order; other files are its checksums."""
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _read_offsets(checkpoint: Path, batch: int) -> dict[str, int]:
    """Return the batch of each generation in an entry of the offset log.

    The entry has the log's version, a line about the query, and a line for each source: its
    offset, with a name before it in version 2. Other sources have offsets of other kinds.
    """
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise _invalid(checkpoint, f"batch {batch} is committed, and {path} is missing") from None
    except UnicodeDecodeError:
        raise _invalid(checkpoint, f"{path} is damaged") from None
    found = (_parse_offset(line) for line in lines[2:])
    return {offset.generation: offset.seq for offset in found if offset is not None}


def _parse_offset(line: str) -> Offset | None:
    try:
        values: Mapping[str, Any] = json.loads(line[line.index("{") :])
    except ValueError:
        return None
    if not {"v", "gen", "plan"} <= values.keys():
        return None
    offset = Offset.decode(values)
    return offset if offset.generation else None


def _invalid(checkpoint: Path, why: str) -> ConfigError:
    return ConfigError(f"checkpoint {str(checkpoint)!r} is invalid: {why}")
