"""Slots: the rows of one share, in numbered pieces that are written once.

A slot's name belongs to whoever creates it first; all others read what that one wrote. So
every reader of a share sees the same rows in the same order, whatever dies and however many
tasks read it at once.

    rows (an Arrow record batch) | footer (JSON) | length of the footer | magic

The last slot says in its footer that it is the last; it may be without rows. Beside the slots
each writer leaves, once nsqd has confirmed its FINs, an object that says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

import pyarrow as pa

from nsqflow.errors import NsqError
from nsqflow.spark.rows import STORED, packed_ids
from nsqflow.spark.store import Store

_TRAILER = Struct(">I8s")
_MAGIC = b"nsqslot1"
_TAIL = 4096  # bytes in which a footer lies, always
_FIN = "fin-"


class SpoolError(NsqError):
    """The spool holds something that nsqflow did not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a share has come to."""

    rows: int = 0
    bytes: int = 0
    """Of the slots in the spool."""
    bodies: int = 0
    """Bytes of all bodies."""
    duplicates: int = 0
    """Messages that were delivered again and dropped."""
    requeued: int = 0
    """Messages that went back because another task was faster, or there were too many."""
    dead_lettered: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            bodies=self.bodies + other.bodies,
            duplicates=self.duplicates + other.duplicates,
            requeued=self.requeued + other.requeued,
            dead_lettered=self.dead_lettered + other.dead_lettered,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """What a slot says of itself."""

    writer: str
    last: bool = False
    totals: Totals = field(default_factory=Totals)
    """Of the share, up to this slot and with it."""

    def encode(self, size: int) -> bytes:
        """Return the footer of a slot whose rows take ``size`` bytes."""
        data = json.dumps(asdict(self) | {"size": size}).encode()
        return data + _TRAILER.pack(len(data), _MAGIC)

    @staticmethod
    def decode(tail: bytes, where: str) -> tuple[Footer, int]:
        """Read the footer in the last bytes of a slot; return it and the size of the rows."""
        try:
            length, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
            if magic != _MAGIC:
                raise ValueError(f"it ends with {magic!r}")
            values = json.loads(tail[-_TRAILER.size - length : -_TRAILER.size])
            size = int(values.pop("size"))
            return Footer(**values | {"totals": Totals(**values["totals"])}), size
        except (ValueError, TypeError, KeyError, struct_error) as error:
            raise SpoolError(f"{where} is not a slot of the spool: {error}") from None


class Slot(NamedTuple):
    """What was read of one slot."""

    footer: Footer
    rows: pa.RecordBatch | None
    """None where the last slot has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """A writer's last word: every FIN it sent was dealt with."""

    slots: list[int]
    """Those it wrote."""
    failed: bytes = b""
    """Ids in them that nsqd did not take a FIN for, and will deliver again."""
    settled: bytes = b""
    """Ids of duplicates that are finished now: they can't come again."""
    requeued: int = 0
    """What it sent back after its last slot, or without having written any."""

    def encode(self) -> bytes:
        """Return it as JSON."""
        values = asdict(self) | {"failed": self.failed.hex(), "settled": self.settled.hex()}
        return json.dumps(values).encode()

    @staticmethod
    def decode(data: bytes) -> Confirmation:
        """Read it."""
        values: dict[str, Any] = json.loads(data)
        ids = {name: bytes.fromhex(values[name]) for name in ("failed", "settled")}
        return Confirmation(**values | ids)


class Slots:
    """The slots of one share."""

    def __init__(self, store: Store, folder: str, mark: str = "") -> None:
        self._store = store
        self._folder = folder
        self._mark = mark  # the object that says that the batch is in the spool still

    def read(self, number: int) -> Slot | None:
        """Return a slot, or None if nobody has written it yet."""
        name = self._name(number)
        try:
            data = pa.py_buffer(self._store.read(name))
        except FileNotFoundError:
            return None
        footer, size = Footer.decode(bytes(data[max(0, data.size - _TAIL) :]), name)
        rows = pa.ipc.read_record_batch(data[:size], STORED) if size else None
        return Slot(footer, rows)

    def create(self, number: int, rows: pa.RecordBatch | None, footer: Footer) -> Footer | None:
        """Write a slot unless it is there already; return its footer with the size counted in.

        Raises ``SpoolError`` if the batch has left the spool: then nobody would read it.
        """
        data = [] if rows is None else [rows.serialize()]
        size = sum(part.size for part in data)
        footer = Footer(
            writer=footer.writer, last=footer.last, totals=footer.totals + Totals(bytes=size)
        )
        created = self._store.create(self._name(number), [*data, footer.encode(size)])
        if created and self._mark and self._store.age(self._mark) is None:
            # Looked at after the creation: as long as the mark is there, so are all the slots
            # that others wrote, and one of those would have been in the way.
            self._store.remove(self._name(number))
            raise self._left()
        return footer if created else None

    def check(self) -> None:
        """Raise ``SpoolError`` if the batch is not in the spool, before anything is pulled."""
        if self._mark and self._store.age(self._mark) is None:
            raise self._left()

    def confirm(self, writer: str, confirmation: Confirmation) -> None:
        """Say that all FINs of a writer were dealt with."""
        self._store.write(f"{self._folder}/{_FIN}{writer}", confirmation.encode())

    def totals(self) -> tuple[Totals, bool]:
        """Return what the share has come to, and whether that is all."""
        names = self._store.names(self._folder)
        numbers = slot_numbers(names)
        totals, last = Totals(), False
        if numbers:
            name = self._name(numbers[-1])
            try:
                footer, _ = Footer.decode(self._store.read_tail(name, _TAIL), name)
            except FileNotFoundError:  # it is being removed
                return Totals(), False
            totals, last = footer.totals, footer.last
        requeued = sum(each.requeued for each in self.confirmations(names))
        return totals + Totals(requeued=requeued), last

    def confirmations(self, names: Iterable[str]) -> Iterator[Confirmation]:
        """Read the confirmations among the folder's names."""
        for name in names:
            if name.startswith(_FIN):
                try:
                    yield Confirmation.decode(bytes(self._store.read(f"{self._folder}/{name}")))
                except FileNotFoundError:  # the folder is being removed
                    continue

    def unconfirmed(self) -> tuple[bytes, bytes]:
        """Return ids that may be delivered again, and ids that no longer can."""
        names = self._store.names(self._folder)
        doubtful = set(slot_numbers(names))
        parts: list[bytes] = []
        settled: list[bytes] = []
        for confirmation in self.confirmations(names):
            doubtful.difference_update(confirmation.slots)
            parts.append(confirmation.failed)
            settled.append(confirmation.settled)
        parts += [self.ids(number) for number in sorted(doubtful)]
        return b"".join(parts), b"".join(settled)

    def ids(self, number: int) -> bytes:
        """Return the ids in a slot, 16 bytes each."""
        slot = self.read(number)
        return packed_ids(slot.rows) if slot is not None and slot.rows is not None else b""

    def _left(self) -> SpoolError:
        return SpoolError(
            f"{self._folder} is not in the spool: this task comes too late, and harms nothing; or "
            f"spoolLocation {self._store.location!r} is not the same storage here as for the driver"
        )

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:06d}"


def slot_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the slots among a folder's names, in order."""
    return sorted(int(name) for name in names if name.isdecimal())
