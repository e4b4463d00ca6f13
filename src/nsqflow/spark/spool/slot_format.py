"""The bytes of slots and of the markers beside them; nothing here accesses a store.

A slot holds rows of a partition and a footer that describes them:

    rows (an Arrow record batch) | footer (JSON) | length and CRC of the footer | magic

The footer has the size of the rows, their CRC and the slot's name, so a slot that was truncated,
altered or moved to another name is detected before any of its rows is used. Slots of the first
version, ``nsqslot1``, have neither CRC nor name.

Markers are JSON with a CRC, so that an altered marker cannot name slots that never existed. Markers
of earlier releases have no CRC and are accepted as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from nsqflow.errors import SpoolError
from nsqflow.spark.spool.coverage import RangeSet, join_ids, join_offsets

STORED = pa.schema(
    [
        ("body", pa.binary()),
        ("id", pa.binary()),
        ("attempts", pa.int32()),
        ("timestamp_ns", pa.int64()),
    ]
)
"""The columns of a slot."""

STORED_POSITIONS = pa.schema(
    [*STORED, ("offset", pa.int64()), ("size", pa.int32()), ("ext", pa.binary())]
)
"""The columns of a slot of the redesigned NSQ; ``ext`` is the JSON of the headers."""

TAIL = 4096  # bytes at the end of a slot that nearly always contain the footer

_ID_SIZE = 16
_TRAILER = Struct(">II8s")  # the footer's length and CRC, and the magic
_MAGIC = b"nsqslot2"
_OLD_TRAILER = Struct(">I8s")
_OLD_MAGIC = b"nsqslot1"
_CRC = "crc"


class DamagedSlotError(SpoolError):
    """A slot is not what was written: it was truncated or altered, or is something else."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name} is damaged: {why}")
        self.why = why


_RANGES = ("ids", "offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTotals:
    """Counters of a partition."""

    rows: int = 0
    bytes: int = 0
    """Bytes of its slots in the spool."""
    bodies: int = 0
    """Bytes of all message bodies."""
    duplicates: int = 0
    """Messages that were delivered again and dropped."""
    requeued: int = 0
    """Messages requeued because another task was faster, or because they were too many."""
    dead_lettered: int = 0
    lost: int = 0
    """Messages in lost slots that ``failOnDataLoss=false`` skipped."""
    oldest: int = 0
    """The lowest timestamp of its rows, in nanoseconds; 0 if unknown."""
    newest: int = 0
    """The highest."""
    ids: RangeSet = field(default_factory=RangeSet)
    """The internal ids of its rows, if it is one of the redesigned NSQ."""
    offsets: RangeSet = field(default_factory=RangeSet)
    """The bytes of the partition that its rows take up there."""

    def __add__(self, other: PartitionTotals) -> PartitionTotals:
        return PartitionTotals(
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            bodies=self.bodies + other.bodies,
            duplicates=self.duplicates + other.duplicates,
            requeued=self.requeued + other.requeued,
            dead_lettered=self.dead_lettered + other.dead_lettered,
            lost=self.lost + other.lost,
            oldest=min(filter(None, (self.oldest, other.oldest)), default=0),
            newest=max(self.newest, other.newest),
            ids=join_ids(self.ids, other.ids),
            offsets=join_offsets(self.offsets, other.offsets),
        )

    def encode(self) -> dict[str, Any]:
        """Return the totals for JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in _RANGES:
            values[name] = values[name].encode()
            if not values[name]:
                del values[name]
        return values

    @staticmethod
    def decode(values: Mapping[str, Any]) -> PartitionTotals:
        """Read what ``encode`` returned; raise ``ValueError``, ``TypeError`` or ``KeyError``."""
        ranges = {name: RangeSet.of(values[name]) for name in _RANGES if name in values}
        return PartitionTotals(**{**values, **ranges})

    def counters(self) -> dict[str, int]:
        """Return the totals by the names that users see."""
        return {
            "rows": self.rows,
            "pulled": self.rows + self.duplicates + self.dead_lettered,
            "duplicates": self.duplicates,
            "requeued": self.requeued,
            "dead_lettered": self.dead_lettered,
            "spool_bytes": self.bytes,
            "lost": self.lost,
        }


class SlotParts(NamedTuple):
    """The sizes of a slot's parts."""

    rows: int
    """Bytes of the rows."""
    footer: int
    """Bytes of footer and trailer."""
    crc: int | None
    """CRC of the rows; None in a slot of the first version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFooter:
    """The description at the end of a slot."""

    writer: str
    last: bool = False
    totals: PartitionTotals = field(default_factory=PartitionTotals)
    """The partition's totals, up to and including this slot."""
    lost: bool = False
    """The slot replaces a lost one: it has no rows, and its totals only count the lost rows."""
    leader: str = ""
    """The nsqd that led the partition of the redesigned NSQ; empty for one of the classic NSQ."""

    def encode(self, name: str, size: int, crc: int) -> bytes:
        """Return the footer of the slot ``name`` whose rows have this size and CRC."""
        values = {
            "writer": self.writer,
            "last": self.last,
            "totals": self.totals.encode(),
            "lost": self.lost,
            "leader": self.leader,
        }
        data = json.dumps(values | {"name": name, "size": size, "crc": crc}).encode()
        return data + _TRAILER.pack(len(data), crc32(data), _MAGIC)

    @staticmethod
    def decode(tail: bytes, where: str) -> tuple[SlotFooter, SlotParts]:
        """Read the footer from the last bytes of the slot named ``where``."""
        try:
            data, trailer = _footer_bytes(tail)
            values = json.loads(data)
            parts = SlotParts(int(values.pop("size")), len(data) + trailer, values.pop("crc", None))
            if (name := values.pop("name", where)) != where:
                raise DamagedSlotError(where, f"it is a copy of {name}")
            totals = PartitionTotals.decode(values["totals"])
            return SlotFooter(**values | {"totals": totals}), parts
        except (ValueError, TypeError, KeyError, AttributeError, struct_error) as error:
            raise DamagedSlotError(where, f"not a slot of the spool: {error}") from None


def footer_size(tail: bytes) -> int:
    """Return how many bytes at the end of a slot contain the footer; 0 if that is unknown."""
    if tail.endswith(_MAGIC) and len(tail) >= _TRAILER.size:
        return int(_TRAILER.unpack(tail[-_TRAILER.size :])[0]) + _TRAILER.size
    return 0


def _footer_bytes(tail: bytes) -> tuple[bytes, int]:
    """Return the footer and the size of its trailer, of either version."""
    magic = tail[-len(_MAGIC) :]
    if magic == _MAGIC:
        length, crc, _ = _TRAILER.unpack(tail[-_TRAILER.size :])
        data = tail[-_TRAILER.size - length : -_TRAILER.size]
        if crc32(data) != crc:
            raise ValueError("its footer was altered")
        return data, _TRAILER.size
    if magic == _OLD_MAGIC:
        length, _ = _OLD_TRAILER.unpack(tail[-_OLD_TRAILER.size :])
        return tail[-_OLD_TRAILER.size - length : -_OLD_TRAILER.size], _OLD_TRAILER.size
    raise ValueError(f"it ends with {magic!r}: it was truncated or altered")


class Slot(NamedTuple):
    """The content of a slot."""

    footer: SlotFooter
    rows: pa.RecordBatch | None
    """None if the slot has none, as the last one may."""

    @property
    def rows_before(self) -> int:
        """The number of rows in the slots before this one."""
        return self.footer.totals.rows - (0 if self.rows is None else len(self.rows))


def encode_slot(
    name: str, rows: pa.RecordBatch | None, footer: SlotFooter
) -> tuple[list[pa.Buffer | bytes], SlotFooter]:
    """Return the pieces of a slot, and its footer with the size added to the totals."""
    data = [] if rows is None else [rows.serialize()]
    size = sum(part.size for part in data)
    footer = replace(footer, totals=footer.totals + PartitionTotals(bytes=size))
    return [*data, footer.encode(name, size, crc32(data[0]) if data else 0)], footer


def decode_slot(content: bytes, name: str) -> Slot:
    """Read a slot; raise ``DamagedSlotError``."""
    data = pa.py_buffer(content)
    size = max(TAIL, footer_size(bytes(data[max(0, data.size - TAIL) :])))
    footer, parts = SlotFooter.decode(bytes(data[max(0, data.size - size) :]), name)
    if data.size != parts.rows + parts.footer:
        raise DamagedSlotError(name, f"it has {data.size} bytes, not {sum(parts[:2])}")
    schema = STORED_POSITIONS if footer.leader else STORED
    return Slot(footer, _decode_rows(data[: parts.rows], parts.crc, name, schema))


def _decode_rows(
    data: pa.Buffer, crc: int | None, name: str, schema: pa.Schema
) -> pa.RecordBatch | None:
    if crc is not None and crc32(data) != crc:
        raise DamagedSlotError(name, "its rows were altered")
    if not data.size:
        return None
    try:
        rows = pa.ipc.read_record_batch(data, schema)
        if crc is None:
            rows.validate(full=True)  # altered offsets would point anywhere
    except (pa.ArrowException, OSError) as error:
        raise DamagedSlotError(name, f"its rows can't be read: {error}") from None
    return rows


def packed_ids(stored: pa.RecordBatch) -> bytes:
    """Return the ids of stored rows, 16 bytes each, without separators."""
    column = stored.column("id")
    _, offsets, data = column.buffers()
    if not len(column):
        return b""
    start = memoryview(offsets).cast("i")[column.offset]
    return bytes(memoryview(data)[start : start + _ID_SIZE * len(column)])


def encode_marker(values: Mapping[str, Any]) -> bytes:
    """Return values as JSON with a CRC."""
    return json.dumps({**values, _CRC: _checksum(values)}).encode()


def decode_marker(data: bytes) -> dict[str, Any]:
    """Read what ``encode_marker`` returned; raise ``ValueError`` if it was altered."""
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError("it is not a marker")
    crc = values.pop(_CRC, None)
    if crc is not None and crc != _checksum(values):
        raise ValueError("it was altered")
    return values


def _checksum(values: Mapping[str, Any]) -> int:
    return crc32(json.dumps(values).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCountMarker:
    """The marker beside a partition's folder."""

    slots: int
    """How many slots the partition has at least."""
    ended: bool = False
    """It has no more than these."""
    rows: int | None = None
    """How many rows they have together; None if unknown."""

    def encode(self, writer: str) -> bytes:
        """Return the marker with the id of its writer."""
        return encode_marker(asdict(self) | {"writer": writer})

    @staticmethod
    def decode(data: bytes) -> SlotCountMarker:
        """Read a marker; a damaged one still proves that there was a slot."""
        try:
            values = decode_marker(data)
            rows = values["rows"]
            return SlotCountMarker(
                slots=int(values["slots"]),
                ended=bool(values["ended"]),
                rows=None if rows is None else int(rows),
            )
        except (ValueError, TypeError, KeyError):
            return SlotCountMarker(slots=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSlotMarker:
    """The marker of a lost slot that the query continues without."""

    rows: int = 0
    """Rows lost with it and the slots before it; 0 if unknown."""
    ended: bool = False
    """No slot comes after it."""

    def encode(self, writer: str) -> bytes:
        """Return the marker with the id of its writer."""
        return encode_marker(asdict(self) | {"writer": writer})

    @staticmethod
    def decode(data: bytes) -> LostSlotMarker:
        """Read a marker; a damaged one still proves that the slot was given up."""
        try:
            values = decode_marker(data)
            return LostSlotMarker(rows=int(values["rows"] or 0), ended=bool(values["ended"]))
        except (ValueError, TypeError, KeyError):
            return LostSlotMarker()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinConfirmation:
    """The marker of a writer whose FINs nsqd has all processed."""

    slots: list[int]
    """The slots it wrote."""
    failed: bytes = b""
    """Ids in them whose FIN nsqd rejected, and which it will deliver again."""
    settled: bytes = b""
    """Ids of duplicates that are finished now and can't be delivered again."""
    requeued: int = 0
    """Messages requeued after its last slot, or without having written any."""

    def encode(self) -> bytes:
        """Return the marker."""
        values = asdict(self) | {"failed": self.failed.hex(), "settled": self.settled.hex()}
        return encode_marker(values)

    @staticmethod
    def decode(data: bytes) -> FinConfirmation:
        """Read a marker; raise ``ValueError``, ``TypeError`` or ``KeyError`` if damaged."""
        values = decode_marker(data)
        ids = {name: bytes.fromhex(values[name]) for name in ("failed", "settled")}
        return FinConfirmation(**values | ids)
