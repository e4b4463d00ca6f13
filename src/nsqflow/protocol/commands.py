r"""Commands: what a client sends.

    NAME param param\n
    | size: int32 | body |     IDENTIFY, AUTH, and those in ``publish``

Each is a frozen dataclass that the client encodes and the server's decoder returns. A line has no
trailing space: the redesigned server would read it as one more parameter, and silently ignore the
partition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from operator import index
from struct import Struct
from typing import ClassVar

from nsqflow.errors import LocalProtocolError
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.messages import Layout, encode_fins, encode_reqs, encode_touches
from nsqflow.protocol.names import check_channel, check_topic

MAGIC_V2 = b"  V2"

_INT32 = Struct(">i")
MAX_INT32 = 2**31 - 1


class SubscribeMode(Enum):
    """The ways to subscribe; only the redesigned NSQ has more than the first."""

    PLAIN = "SUB"
    ORDERED = "SUB_ORDERED"  # the published guide's SUB_ORDER exists on no server
    ADVANCED = "SUB_ADVANCED"


@dataclass(frozen=True, slots=True)
class Command:
    """Base class of all commands."""

    name: ClassVar[str]
    """Its name on the wire; that of ``Sub`` depends on its mode."""
    answered: ClassVar[bool] = False
    """Whether the server answers it on success too."""
    only: ClassVar[Dialect | None] = None
    """The only dialect that has it, for any values."""

    @property
    def dialect(self) -> Dialect | None:
        """The only dialect that has this command with these values; None: both do."""
        return self.only

    def encode(self) -> bytes:
        """Return the bytes; raise ``LocalProtocolError`` or ``ConfigError`` for invalid values."""
        return f"{self.name}\n".encode()


@dataclass(frozen=True, slots=True)
class Identify(Command):
    """The client's identity and the features it requests, as JSON (see ``identify``)."""

    name = "IDENTIFY"
    answered = True
    body: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        return b"IDENTIFY\n" + with_size(self.body)


@dataclass(frozen=True, slots=True)
class Auth(Command):
    """The secret, for a server that requires one."""

    name = "AUTH"
    answered = True
    secret: bytes = field(repr=False)

    def encode(self) -> bytes:
        """Return the bytes."""
        return b"AUTH\n" + with_size(self.secret)


_START = re.compile(r"(?:msgcount|timestamp|virtual_queue|special):-?[0-9]+")


def is_valid_start(start: str) -> bool:
    """Return whether SUB_ADVANCED can begin at ``start``."""
    return _START.fullmatch(start) is not None


@dataclass(frozen=True, slots=True)
class Sub(Command):
    """Subscribe to a channel; allowed once per connection."""

    name = "SUB"
    answered = True
    topic: str
    channel: str
    partition: int | None = None
    kind: SubscribeMode = SubscribeMode.PLAIN
    start: str | None = None
    """Where a new channel begins (SUB_ADVANCED): ``msgcount:N``, ``timestamp:SECONDS``,
    ``virtual_queue:N`` or ``special:-1``. The server then ignores the partition."""

    @property
    def dialect(self) -> Dialect | None:
        """The only dialect that has this command with these values; None: both do."""
        if self.kind is SubscribeMode.PLAIN and self.partition is None:
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
        """Return the layout of its messages, by the extension that IDENTIFY has granted."""
        return Layout(bool(extend_support), self.kind is not SubscribeMode.PLAIN)

    def _check_start(self, start: str) -> str:
        if self.kind is not SubscribeMode.ADVANCED or self.partition is None:
            raise LocalProtocolError("start needs SUB_ADVANCED and a partition")
        if not is_valid_start(start):
            raise LocalProtocolError(
                f"start {start!r} is invalid: must be msgcount:N, timestamp:SECONDS, "
                "virtual_queue:N or special:-1"
            )
        return start


@dataclass(frozen=True, slots=True)
class Rdy(Command):
    """The number of messages that may be in flight to this connection."""

    name = "RDY"
    count: int

    def encode(self) -> bytes:
        """Return the bytes."""
        if self.count < 0:
            raise LocalProtocolError(f"RDY {self.count}: must be >= 0")
        return b"RDY %d\n" % index(self.count)


@dataclass(frozen=True, slots=True)
class Fin(Command):
    """Finish a message."""

    name = "FIN"
    id: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        return encode_fins((self.id,))


@dataclass(frozen=True, slots=True)
class Fins(Command):
    """Finish several messages: consecutive FINs that a server has read together."""

    name = "FIN"
    ids: tuple[bytes, ...]

    def encode(self) -> bytes:
        """Return the bytes."""
        return encode_fins(self.ids)


@dataclass(frozen=True, slots=True)
class Req(Command):
    """Requeue a message, after a delay."""

    name = "REQ"
    id: bytes
    delay_ms: int = 0

    def encode(self) -> bytes:
        """Return the bytes."""
        return encode_reqs((self.id,), self.delay_ms)


@dataclass(frozen=True, slots=True)
class Touch(Command):
    """Restart the timeout of a message."""

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
    """The answer to a heartbeat."""

    name = "NOP"


def with_size(body: bytes) -> bytes:
    """Return a body with its size before it."""
    if not 1 <= len(body) <= MAX_INT32:
        raise LocalProtocolError(f"body of {len(body)} bytes: must be 1 to {MAX_INT32}")
    return _INT32.pack(len(body)) + body


def partition_word(partition: int) -> str:
    """Return a partition's number as a parameter."""
    # To the redesigned server, -1 means any partition of the node, and so does a missing number.
    if not 0 <= partition <= MAX_INT32:
        raise LocalProtocolError(f"partition {partition}: must be 0 to {MAX_INT32}, or None")
    return str(index(partition))
