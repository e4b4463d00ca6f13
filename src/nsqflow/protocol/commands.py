r"""Commands: what a client sends.

    NAME param param\n
    | size: int32 | body |     IDENTIFY, AUTH and what publishes, see ``publish``

Each is a frozen dataclass: the client encodes it, the server's decoder returns an equal
one. A line ends right behind its last parameter: the redesigned server takes a trailing
space for one more parameter and then silently ignores the partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import index
from struct import Struct
from typing import ClassVar

from nsqflow.errors import LocalProtocolError
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.messages import ID_SIZE, Layout
from nsqflow.protocol.names import check_channel, check_topic

MAGIC_V2 = b"  V2"

_INT32 = Struct(">i")
MAX_INT32 = 2**31 - 1
MAX_MILLISECONDS = (2**63 - 1) // 10**6  # nsqd counts nanoseconds, and lets them overflow


class Subscription(Enum):
    """The ways to subscribe; all but the first are the redesigned NSQ's."""

    PLAIN = "SUB"
    ORDERED = "SUB_ORDERED"  # the published guide's SUB_ORDER exists on no server
    ADVANCED = "SUB_ADVANCED"


@dataclass(frozen=True, slots=True)
class Command:
    """What all commands share."""

    name: ClassVar[str]
    """The word on the wire; the one of ``Sub`` depends on its kind."""
    answered: ClassVar[bool] = False
    """The server answers it also when all is well."""
    only: ClassVar[Dialect | None] = None
    """The one dialect that has it, whatever its values."""

    @property
    def dialect(self) -> Dialect | None:
        """The one dialect that has this command with these values; None: both have."""
        partition: int | None = getattr(self, "partition", None)
        return self.only if partition is None else Dialect.REDESIGNED

    def encode(self) -> bytes:
        """Return the bytes; raise ``LocalProtocolError`` or ``ConfigError`` for bad values."""
        return f"{self.name}\n".encode()


@dataclass(frozen=True, slots=True)
class Identify(Command):
    """Who the client is and which features it asks for: JSON, see ``identify``."""

    name = "IDENTIFY"
    answered = True
    body: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        return with_body(b"IDENTIFY\n", self.body)


@dataclass(frozen=True, slots=True)
class Auth(Command):
    """The secret, for a server that asks for one."""

    name = "AUTH"
    answered = True
    secret: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the bytes."""
        return with_body(b"AUTH\n", self.secret)


_START = re.compile(r"(?:msgcount|timestamp|virtual_queue|special):-?[0-9]+")


def is_valid_start(start: str) -> bool:
    """Tell whether ``start`` is a place where SUB_ADVANCED can begin."""
    return _START.fullmatch(start) is not None


@dataclass(frozen=True, slots=True)
class Sub(Command):
    """Subscribe to a channel, once in a connection's life."""

    name = "SUB"
    answered = True
    topic: str
    channel: str
    partition: int | None = None
    kind: Subscription = Subscription.PLAIN
    start: str | None = None
    """Where a new channel begins (SUB_ADVANCED): ``msgcount:N``, ``timestamp:SECONDS``,
    ``virtual_queue:N`` or ``special:-1``. The server then ignores the partition."""

    @property
    def dialect(self) -> Dialect | None:
        """The one dialect that has this command with these values; None: both have."""
        if self.kind is Subscription.PLAIN and self.partition is None:
            return None
        return Dialect.REDESIGNED

    def encode(self) -> bytes:
        """Return the bytes."""
        words = [self.kind.value, check_topic(self.topic), check_channel(self.channel)]
        if self.partition is not None:
            words.append(partition_word(self.partition))
        if self.start is not None:
            words.append(self._check_start(self.start))
        return " ".join(words).encode() + b"\n"

    def layout(self, extend_support: bool | None) -> Layout:
        """Tell how its messages are laid out, given what IDENTIFY said of extended ones."""
        return Layout(bool(extend_support), self.kind is not Subscription.PLAIN)

    def _check_start(self, start: str) -> str:
        if self.kind is not Subscription.ADVANCED or self.partition is None:
            raise LocalProtocolError("start needs SUB_ADVANCED and a partition")
        if not is_valid_start(start):
            raise LocalProtocolError(
                f"start {start!r}; allowed are msgcount:N, timestamp:SECONDS, "
                "virtual_queue:N and special:-1"
            )
        return start


@dataclass(frozen=True, slots=True)
class Rdy(Command):
    """How many messages may be in flight to this connection at a time."""

    name = "RDY"
    count: int

    def encode(self) -> bytes:
        """Return the bytes."""
        if self.count < 0:
            raise LocalProtocolError(f"RDY {self.count}; it takes 0 or more")
        return b"RDY %d\n" % index(self.count)


@dataclass(frozen=True, slots=True)
class Fin(Command):
    """A message is done with."""

    name = "FIN"
    id: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        return encode_fins((self.id,))


@dataclass(frozen=True, slots=True)
class Fins(Command):
    """Several messages are done with: a row of FIN, as a server may read it in one go."""

    name = "FIN"
    ids: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return the bytes."""
        return encode_fins(self.ids)


@dataclass(frozen=True, slots=True)
class Req(Command):
    """A message shall come again, no earlier than after a delay."""

    name = "REQ"
    id: bytes
    delay_ms: int = 0

    def encode(self) -> bytes:
        """Return the bytes."""
        return encode_reqs((self.id,), self.delay_ms)


@dataclass(frozen=True, slots=True)
class Touch(Command):
    """A message needs more time: its timeout begins anew."""

    name = "TOUCH"
    id: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        return encode_touches((self.id,))


@dataclass(frozen=True, slots=True)
class Cls(Command):
    """Send no more messages; answered with CLOSE_WAIT."""

    name = "CLS"
    answered = True


@dataclass(frozen=True, slots=True)
class Nop(Command):
    """Nothing: the answer to a heartbeat."""

    name = "NOP"


# Many at once: what a consumer sends for each message is built by one join.


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

    ``last_first`` has the last of them finished first. That is less work for nsqd where they
    are many: it keeps messages in flight as a heap with the oldest on top.
    """
    count, rest = divmod(len(ids), ID_SIZE)
    if rest:
        raise LocalProtocolError(f"{len(ids)} bytes of ids; each has {ID_SIZE}")
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
        # The server answers any other length by closing the connection.
        raise LocalProtocolError(f"message id {bad!r} of {len(bad)} bytes; it has {ID_SIZE}")
    return head + (tail + head).join(ids) + tail


def with_body(line: bytes, *pieces: bytes) -> bytes:
    """Put a command together in one copy: its line, the size of its body, its body."""
    size = sum(map(len, pieces))
    if not 1 <= size <= MAX_INT32:
        raise LocalProtocolError(f"body of {size} bytes; 1 to {MAX_INT32} are allowed")
    return whole(b"".join((line, _INT32.pack(size), *pieces)), len(line) + 4 + size)


def whole(data: bytes, size: int) -> bytes:
    """Return ``data``; raise if its pieces were other than their ``len()`` said.

    As that of a memoryview of anything but bytes: the server would lose its place.
    """
    if len(data) != size:
        raise LocalProtocolError(f"bodies of {len(data)} bytes that claim {size}; are they bytes?")
    return data


def partition_word(partition: int) -> str:
    """Write a partition's number."""
    # The redesigned server takes -1 for "any on this node"; leaving it out says the same.
    if not 0 <= partition <= MAX_INT32:
        raise LocalProtocolError(f"partition {partition}; it is 0 to {MAX_INT32}, or None for any")
    return str(index(partition))


def milliseconds(what: str, value: int) -> str:
    """Write a delay."""
    if not 0 <= value <= MAX_MILLISECONDS:
        raise LocalProtocolError(f"{what} of {value} ms; 0 to {MAX_MILLISECONDS} are allowed")
    return str(index(value))
