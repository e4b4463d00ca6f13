"""Messages, which are in frames of type 2, and their answers.

    | timestamp: int64 ns | attempts: uint16 | id: 16 bytes |    always
    | version: uint8 [| length: uint16 | headers |]              redesigned, extended topics
    | offset: uint64 | size: uint32 |                            redesigned, ordered, advanced
    | body |

The frame does not say which of the middle parts are present: that depends on the subscription, so
the reader must know its ``Layout``. With version 0 there is no length and there are no headers. In
the redesigned dialect the id is two numbers, internal id and trace id; in both dialects the
protocol treats it as 16 raw bytes, which may include newlines and spaces.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import index
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from nsqflow.errors import LocalProtocolError, RemoteProtocolError
from nsqflow.protocol.columns import Columns, gather, numbers
from nsqflow.protocol.frames import FRAME_HEADER, FRAME_HEADER_SIZE, FrameType

ID_SIZE = 16
JSON_HEADERS = 4  # the version of an extended block whose content is a JSON object

_HEADER = Struct(">qH16s")
_PLAIN_FRAME = Struct(">iiqH16s")
_POSITION = Struct(">QI")
_ID = Struct(">QQ")
_EXT_LENGTH = Struct(">H")
_RECEIPT = Struct(">2sQQQI")
_COUNTER_BITS = 50  # of an internal id; those above are the partition
_HEADER_SIZE = _HEADER.size  # 26
_EXT = FRAME_HEADER_SIZE + _HEADER_SIZE  # where a frame's optional parts begin
_POSITION_SIZE = _POSITION.size  # 12

M = TypeVar("M")
MAX_MILLISECONDS = (2**63 - 1) // 10**6  # nsqd converts to nanoseconds, which may overflow


class Layout(NamedTuple):
    """Which optional parts a subscription's messages have."""

    extended: bool = False
    """A version byte, and headers unless it is 0."""
    positioned: bool = False
    """The message's offset and size in nsqd's disk queue."""

    @property
    def min_size(self) -> int:
        """The size of the shortest possible message, one with an empty body."""
        return _HEADER_SIZE + self.extended + _POSITION_SIZE * self.positioned


PLAIN = Layout()


@dataclass(slots=True)
class Message:
    """One message as received.

    (Not frozen: setting the fields of a frozen dataclass would double the time of decoding.)
    """

    timestamp: int
    """When nsqd received it, in nanoseconds since 1970."""
    attempts: int
    """The number of deliveries, including this one."""
    id: bytes
    """16 raw bytes."""
    body: bytes = field(repr=False)
    ext_version: int | None = None
    """The kind of ``ext``; 0: a message of an extended topic without headers."""
    ext: bytes | None = field(default=None, repr=False)
    """The extended block; JSON if ``ext_version`` is ``JSON_HEADERS``."""
    offset: int | None = None
    """Its offset in nsqd's disk queue."""
    size: int | None = None
    """Its size there, in bytes."""

    @property
    def internal_id(self) -> int:
        """The redesigned NSQ's id: ascending within a partition."""
        return int.from_bytes(self.id[:8], "big")

    @property
    def trace_id(self) -> int:
        """The redesigned NSQ's trace id; 0 if the message is not traced."""
        return int.from_bytes(self.id[8:], "big")


class Receipt(NamedTuple):
    """The answer to PUB_TRACE: where the message was stored."""

    internal_id: int
    trace_id: int
    offset: int
    size: int

    @property
    def partition(self) -> int:
        """Its partition, with which the internal id begins."""
        return self.internal_id >> _COUNTER_BITS

    def encode(self) -> bytes:
        """Return the 30 bytes that nsqd answers with."""
        try:
            return _RECEIPT.pack(b"OK", *self)
        except struct_error as error:
            raise LocalProtocolError(f"{self}: {error}") from None

    @staticmethod
    def decode(data: bytes) -> Receipt:
        """Read the 30 bytes that nsqd answers with."""
        if len(data) != _RECEIPT.size or not data.startswith(b"OK"):
            raise RemoteProtocolError(
                f"receipt of {len(data)} bytes, {data[:32]!r}; expected OK and 28 bytes"
            )
        return Receipt(*_RECEIPT.unpack(data)[1:])


def read_header(header: bytes) -> tuple[int, int, bytes]:
    """Return timestamp, attempts and id from the 26-byte header of a message."""
    timestamp, attempts, id = _HEADER.unpack(header)
    return timestamp, attempts, id


def message_id(internal_id: int, trace_id: int) -> bytes:
    """Join the two halves of a redesigned NSQ's message id."""
    try:
        return _ID.pack(internal_id, trace_id)
    except struct_error:
        raise LocalProtocolError(
            f"message id of {internal_id} and {trace_id}: must be 0 to {2**64 - 1}"
        ) from None


class MessageLike(Protocol):
    """The fields that any class of messages has."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


def encode_plain_messages(messages: Iterable[MessageLike]) -> bytes:
    """Encode frames of type 2 in the plain layout; raise ``struct.error`` for values out of range.

    For a broker, whose own ids have the right length.
    """
    parts: list[bytes] = []
    add, pack = parts.append, _PLAIN_FRAME.pack
    for message in messages:
        body = message.body
        add(pack(30 + len(body), 2, message.timestamp, message.attempts, message.id))
        add(body)
    return b"".join(parts)


def encode_messages(messages: Iterable[Message], layout: Layout = PLAIN) -> bytes:
    """Encode frames of type 2, as a server pushes them."""
    parts: list[bytes] = []
    pack, frame = _HEADER.pack, FRAME_HEADER.pack
    for message in messages:
        if len(message.id) != ID_SIZE:  # struct would truncate or pad it
            raise LocalProtocolError(
                f"message id {message.id!r} of {len(message.id)} bytes: must have {ID_SIZE}"
            )
        try:
            header = pack(message.timestamp, message.attempts, message.id)
            middle = _encode_middle(message, layout)
        except (struct_error, ValueError) as error:
            raise _misfit(message, error) from None
        size = 4 + _HEADER_SIZE + len(middle) + len(message.body)
        parts += (frame(size, FrameType.MESSAGE), header, middle, message.body)
    return b"".join(parts)


def _encode_middle(message: Message, layout: Layout) -> bytes:
    middle = b""
    if layout.extended:
        version, ext = message.ext_version or 0, message.ext or b""
        middle = bytes((version,)) + (_EXT_LENGTH.pack(len(ext)) + ext if version else b"")
    if layout.positioned:
        middle += _POSITION.pack(message.offset or 0, message.size or 0)
    return middle


def _misfit(message: Message, error: Exception) -> LocalProtocolError:
    return LocalProtocolError(
        f"message {message.id!r}: {error}; timestamp {message.timestamp}, attempts "
        f"{message.attempts}, ext_version {message.ext_version}, ext of "
        f"{len(message.ext or b'')} bytes, offset {message.offset}, size {message.size}"
    )


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """All messages that arrived consecutively; an event of ``ClientSession``.

    It only has their positions: use ``messages()``, or ``columns()`` to handle many at once. It
    keeps the received bytes in memory; messages do not.
    """

    data: bytes = field(repr=False)
    bounds: list[int] = field(repr=False)
    """Where each message's frame begins in ``data``, and finally where the last one ends."""
    headers: list[bytes] = field(repr=False)
    """The header of each message: 26 bytes, or 38 with the position that follows it."""
    layout: Layout = PLAIN

    def __post_init__(self) -> None:
        # For a layout of fixed size, FrameDecoder.min_message_size has ensured this.
        if self.layout.extended:
            self._check_ext()

    def __len__(self) -> int:
        return len(self.headers)

    @overload
    def messages(self) -> list[Message]: ...

    @overload
    def messages(self, factory: Callable[..., M]) -> list[M]: ...

    def messages(self, factory: Callable[..., Any] = Message) -> list[Any]:
        """Return an object for each message.

        ``factory`` is called with the values of ``Message``'s fields, in their order; only with the
        first four if the layout has no others.
        """
        data = self.data
        places, values = pairwise(self.bounds), map(_HEADER.unpack_from, self.headers)
        if self.layout == PLAIN:
            return [
                factory(timestamp, attempts, id, data[start + 34 : end])
                for (start, end), (timestamp, attempts, id) in zip(places, values, strict=True)
            ]
        return [
            factory(*header, data[body:end], *self._middle(start, body))
            for (start, end), header, body in zip(places, values, self._bodies(), strict=True)
        ]

    def build(self, factory: Callable[[bytes, bytes], M]) -> list[M]:
        """Return ``factory(header, body)`` for each message of a plain layout.

        For classes that parse the header only when it is needed.
        """
        data = self.data
        pairs = zip(pairwise(self.bounds), self.headers, strict=True)
        return [factory(header, data[start + 34 : end]) for (start, end), header in pairs]

    def build_extended(self, factory: Callable[..., M]) -> list[M]:
        """Return ``factory(header, body, ext_version, ext, offset, size)`` for each message.

        What the layout does not have is None.
        """
        data = self.data
        triples = zip(pairwise(self.bounds), self.headers, self._bodies(), strict=True)
        return [
            factory(header[:_HEADER_SIZE], data[body:end], *self._middle(start, body))
            for (start, end), header, body in triples
        ]

    @property
    def most_attempts(self) -> int:
        """The highest ``attempts`` among them, without parsing each."""
        headers, width = b"".join(self.headers), self._header_size
        if not any(headers[8::width]):  # the upper of two bytes
            return max(headers[9::width])
        return max(numbers("H", headers, width, 8))

    def columns(self) -> Columns:
        """Return the messages as columns, without an object for each."""
        data, bounds = self.data, self.bounds
        headers, width = b"".join(self.headers), self._header_size
        offsets = sizes = exts = ext_versions = None
        if width > _HEADER_SIZE:
            offsets = numbers("Q", headers, width, 26)
            sizes = numbers("I", headers, width, 34)
        elif self.layout.positioned:
            positions = b"".join([data[body - 12 : body] for body in self._bodies()])
            offsets = numbers("Q", positions, 12, 0)
            sizes = numbers("I", positions, 12, 8)
        if self.layout.extended:
            places = zip(bounds[:-1], self._bodies(), strict=True)
            exts = [self._middle(start, body)[1] for start, body in places]
            ext_versions = bytes([data[start + _EXT] for start in bounds[:-1]])
        return Columns(
            data=data,
            bounds=array("i", bounds),
            body_offset=FRAME_HEADER_SIZE + self.layout.min_size,
            timestamps=numbers("q", headers, width, 0),
            attempts=numbers("H", headers, width, 8),
            ids=gather(headers, width, 10, 16),
            offsets=offsets,
            sizes=sizes,
            exts=exts,
            ext_versions=ext_versions,
        )

    def _bodies(self) -> list[int]:
        """Return where each body begins in ``data``."""
        size = FRAME_HEADER_SIZE + self.layout.min_size
        starts = self.bounds[:-1]
        if not self.layout.extended:
            return [start + size for start in starts]
        return [start + size + self._ext_size(start) for start in starts]

    @property
    def _header_size(self) -> int:
        return len(self.headers[0]) if self.headers else _HEADER_SIZE

    def _ext_size(self, start: int) -> int:
        version = self.data[start + _EXT]
        if not version:
            return 0
        size: int = _EXT_LENGTH.unpack_from(self.data, start + _EXT + 1)[0]
        return 2 + size

    def _check_ext(self) -> None:
        size = FRAME_HEADER_SIZE + self.layout.min_size
        for start, end in pairwise(self.bounds):
            left = end - start - size
            if self.data[start + _EXT] and (left < 2 or left < self._ext_size(start)):
                raise RemoteProtocolError(
                    f"message of {end - start - FRAME_HEADER_SIZE} bytes ends within its "
                    "extended headers"
                )

    def _middle(self, start: int, body: int) -> tuple[Any, ...]:
        """Return ext_version, ext, offset and size of one message."""
        version = ext = offset = size = None
        ext_end = body
        if self.layout.positioned:
            ext_end = body - _POSITION_SIZE
            offset, size = _POSITION.unpack_from(self.data, ext_end)
        if self.layout.extended:
            version = self.data[start + _EXT]
            ext = self.data[start + _EXT + 3 : ext_end] if version else None
        return version, ext, offset, size


# Answers to many messages, each built by one join


def encode_fins(ids: Iterable[bytes]) -> bytes:
    """Encode a FIN for each id, in one piece."""
    return _answers(b"FIN ", ids, b"\n")


def encode_reqs(ids: Iterable[bytes], delay_ms: int = 0) -> bytes:
    """Encode a REQ for each id, all with the same delay, in one piece."""
    return _answers(b"REQ ", ids, f" {milliseconds('delay', delay_ms)}\n".encode())


def encode_touches(ids: Iterable[bytes]) -> bytes:
    """Encode a TOUCH for each id, in one piece."""
    return _answers(b"TOUCH ", ids, b"\n")


def encode_packed_fins(ids: bytes, *, last_first: bool = False) -> bytes:
    """Encode a FIN for each 16 bytes of ``ids``, as ``Columns.ids`` has them.

    With ``last_first`` the last one is finished first. For many messages that is less work for
    nsqd, which keeps messages in flight in a heap with the oldest on top.
    """
    count, rest = divmod(len(ids), ID_SIZE)
    if rest:
        raise LocalProtocolError(f"{len(ids)} bytes of ids: each must have {ID_SIZE}")
    block = bytearray(b"FIN 0123456789abcdef\n" * count)
    order = -1 if last_first else 1
    for i in range(ID_SIZE):
        block[4 + i :: 21] = ids[i::ID_SIZE][::order]
    return bytes(block)


def _answers(head: bytes, ids: Iterable[bytes], tail: bytes) -> bytes:
    ids = ids if isinstance(ids, list | tuple) else list(ids)
    if not ids:
        return b""
    if set(map(len, ids)) != {ID_SIZE}:
        bad = next(id for id in ids if len(id) != ID_SIZE)
        # The server closes the connection if the length is different.
        raise LocalProtocolError(f"message id {bad!r} of {len(bad)} bytes: must have {ID_SIZE}")
    return head + (tail + head).join(ids) + tail


def milliseconds(what: str, value: int) -> str:
    """Return a delay as a parameter."""
    if not 0 <= value <= MAX_MILLISECONDS:
        raise LocalProtocolError(f"{what} of {value} ms: must be 0 to {MAX_MILLISECONDS}")
    return str(index(value))
