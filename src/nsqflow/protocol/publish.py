r"""Commands that publish.

    PUB topic [partition]\n         | size: int32 | body |
    DPUB topic milliseconds\n       | size: int32 | body |
    PUB_TRACE topic [partition]\n   | size: int32 | trace id: uint64 | body |
    PUB_EXT topic [partition]\n     | size: int32 | length: uint16 | headers | body |
    MPUB topic [partition]\n        | size: int32 | count: int32 | (size: int32 | body)* |

MPUB_TRACE and MPUB_EXT are MPUB with such bodies. Only the classic NSQ has DPUB; only the
redesigned one has partitions, _TRACE and _EXT.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from struct import Struct

from nsqflow.errors import LocalProtocolError
from nsqflow.protocol.commands import MAX_INT32, Command, partition_word
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.messages import milliseconds
from nsqflow.protocol.names import check_topic

_INT32 = Struct(">i")
_UINT64 = Struct(">Q")
_UINT16 = Struct(">H")


@dataclass(frozen=True, slots=True)
class Publish(Command):
    """Base class of the publishing commands: a topic and, if redesigned, a partition."""

    answered = True
    topic: str

    @property
    def dialect(self) -> Dialect | None:
        """The only dialect that has this command with these values; None: both do."""
        return self.only if getattr(self, "partition", None) is None else Dialect.REDESIGNED

    def _line(self) -> bytes:
        return _encode_line(self.name, self.topic, getattr(self, "partition", None))


@dataclass(frozen=True, slots=True)
class Pub(Publish):
    """Publish one message."""

    name = "PUB"
    body: bytes = field(repr=False)
    partition: int | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        _check_body(self.body)
        return _with_body(self._line(), self.body)


@dataclass(frozen=True, slots=True)
class Mpub(Publish):
    """Publish several messages: all of them or none."""

    name = "MPUB"
    bodies: Sequence[bytes] = field(repr=False)
    partition: int | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        _check_bodies(self.bodies)
        return _with_many(self._line(), self.bodies)


@dataclass(frozen=True, slots=True)
class Dpub(Publish):
    """Publish one message that is delivered after a delay (classic)."""

    name = "DPUB"
    only = Dialect.CLASSIC
    delay_ms: int
    body: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the bytes."""
        _check_body(self.body)
        delay = milliseconds("delay", self.delay_ms)
        return _with_body(f"DPUB {check_topic(self.topic)} {delay}\n".encode(), self.body)


@dataclass(frozen=True, slots=True)
class PubTrace(Publish):
    """Publish one message with a trace id; answered with a ``Receipt``."""

    name = "PUB_TRACE"
    only = Dialect.REDESIGNED
    trace_id: int
    body: bytes = field(repr=False)
    partition: int | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        _check_body(self.body)
        line = self._line()
        return _with_body(line, _trace(self.trace_id), self.body)


@dataclass(frozen=True, slots=True)
class MpubTrace(Publish):
    """Publish several messages, each with its trace id; answered with one ``Receipt``."""

    name = "MPUB_TRACE"
    only = Dialect.REDESIGNED
    messages: Sequence[tuple[int, bytes]] = field(repr=False)
    """Pairs of trace id and body."""
    partition: int | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        _check_bodies([body for _, body in self.messages])
        items = [_trace(trace_id) + body for trace_id, body in self.messages]
        return _with_many(self._line(), items)


@dataclass(frozen=True, slots=True)
class PubExt(Publish):
    """Publish one message with headers, a JSON object; answered with OK or a ``Receipt``."""

    name = "PUB_EXT"
    only = Dialect.REDESIGNED
    headers: bytes = field(repr=False)
    body: bytes = field(repr=False)
    partition: int | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        if not self.headers:
            raise LocalProtocolError("PUB_EXT without headers; an empty set of them is b'{}'")
        _check_body(self.body)
        return _with_body(self._line(), _ext(self.headers), self.body)


@dataclass(frozen=True, slots=True)
class MpubExt(Publish):
    """Publish several messages, each with its headers (which may be empty here)."""

    name = "MPUB_EXT"
    only = Dialect.REDESIGNED
    messages: Sequence[tuple[bytes, bytes]] = field(repr=False)
    """Pairs of headers and body."""
    partition: int | None = None

    def encode(self) -> bytes:
        """Return the bytes."""
        _check_bodies([body for _, body in self.messages])
        items = [_ext(headers) + body for headers, body in self.messages]
        return _with_many(self._line(), items)


@lru_cache(maxsize=1024, typed=True)
def _encode_line(name: str, topic: str, partition: int | None) -> bytes:
    words = (name, check_topic(topic), *([] if partition is None else [partition_word(partition)]))
    return " ".join(words).encode() + b"\n"


def _check_body(body: bytes) -> None:
    if not body:
        raise LocalProtocolError("empty message body: nsqd rejects empty messages")


class Bodies(list[bytes]):
    """The bodies of a batch, with their sizes computed once: a batch is checked several times."""

    __slots__ = ("alike", "sizes", "total")

    def __init__(self, bodies: Iterable[bytes]) -> None:
        super().__init__(bodies)
        self.sizes = [*map(len, self)]
        self.alike = bool(self) and self.sizes.count(self.sizes[0]) == len(self)
        self.total = len(self) * self.sizes[0] if self.alike else sum(self.sizes)

    @property
    def smallest(self) -> int:
        """The size of the smallest body; there must be at least one."""
        return self.sizes[0] if self.alike else min(self.sizes)

    @property
    def largest(self) -> int:
        """The size of the largest body; there must be at least one."""
        return self.sizes[0] if self.alike else max(self.sizes)


def _check_bodies(bodies: Sequence[bytes]) -> None:
    if not bodies:
        raise LocalProtocolError("no messages to publish")
    if isinstance(bodies, Bodies) and bodies.smallest:
        return
    if not all(bodies):
        raise LocalProtocolError(f"empty message body at index {[*map(bool, bodies)].index(False)}")


def _with_many(line: bytes, items: Sequence[bytes]) -> bytes:
    items = items if isinstance(items, Bodies) else Bodies(items)
    sizes = items.sizes
    size = 4 + 4 * len(items) + items.total
    if size > MAX_INT32:
        raise LocalProtocolError(f"batch of {size} bytes: must be at most {MAX_INT32}")
    pack = _INT32.pack
    head = line + pack(size) + pack(len(items))
    if items.alike:  # one join for all
        prefix = pack(sizes[0])
        data = prefix.join((head, *items))
    else:
        pieces = [head] * (1 + 2 * len(items))
        pieces[1::2] = map(pack, sizes)
        pieces[2::2] = items
        data = b"".join(pieces)
    return _whole(data, len(line) + 4 + size)


def _with_body(line: bytes, *pieces: bytes) -> bytes:
    """Return a command, built with one copy: its line, the size of its body, its body."""
    size = sum(map(len, pieces))
    if not 1 <= size <= MAX_INT32:
        raise LocalProtocolError(f"body of {size} bytes: must be 1 to {MAX_INT32}")
    return _whole(b"".join((line, _INT32.pack(size), *pieces)), len(line) + 4 + size)


def _whole(data: bytes, size: int) -> bytes:
    """Return ``data``; raise if its size is not ``size``.

    The ``len()`` of a memoryview of other items than bytes is not its size; the server would lose
    track.
    """
    if len(data) != size:
        raise LocalProtocolError(f"bodies of {len(data)} bytes that claim {size}; are they bytes?")
    return data


def _ext(headers: bytes) -> bytes:
    if len(headers) > 0xFFFF:
        raise LocalProtocolError(f"headers of {len(headers)} bytes: must be at most {0xFFFF}")
    return _UINT16.pack(len(headers)) + headers


def _trace(trace_id: int) -> bytes:
    if not 0 <= trace_id < 2**64:
        raise LocalProtocolError(f"trace id {trace_id}: must be 0 to {2**64 - 1}")
    return _UINT64.pack(index(trace_id))
