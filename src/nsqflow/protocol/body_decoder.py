"""Reads the bodies of commands on the server's side; their sizes are checked before they arrive.

Error texts are those of nsqd 1.3.0 (``nsqd/protocol_v2.go``); those of the redesigned nsqd were
measured on 0.3.7-HA.1.13.0. Like nsqd, this checks the announced size of an MPUB against the limits
and then ignores it: the number of messages and their sizes determine where it ends. (Some clients
announce the sum of the bodies.) Unlike nsqd, it also limits the sum of the bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.commands import Command
from nsqflow.protocol.frames import ReceiveBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server accepts from clients; one that exceeds a limit gets an error and is closed."""

    max_msg_size: int = 1024 * 1024
    """Bytes of one message."""
    max_body_size: int = 5 * 1024 * 1024
    """Bytes of a batch of messages, and of the body of IDENTIFY and AUTH."""
    max_rdy_count: int = 2500
    max_req_timeout_ms: int = 60 * 60 * 1000
    """The longest delay of a deferred message."""
    max_line_size: int = 16 * 1024
    """Bytes of a command line: nsqd's read buffer."""


@dataclass(slots=True)
class SingleBody:
    """The body of a command with one message, or with none."""

    name: str
    of_message: bool  # nsqd has different texts and limits for messages
    build: Callable[[bytes], Command]
    redesigned: bool = False

    def read(self, buffer: ReceiveBuffer, limits: Limits) -> Command | None:
        """Return the command once its body is complete, else None."""
        size = buffer.peek_int32()
        if size is None:
            return None
        self._check(size, limits.max_msg_size if self.of_message else limits.max_body_size)
        data = buffer.read(size, skip=4)
        return None if data is None else self.build(data)

    def cut(self, left: int) -> RemoteProtocolError:
        """Return the error for a body that ends after ``left`` bytes."""
        what = "message body" if self.of_message else "body"
        code = "E_BAD_MESSAGE" if self.of_message else "E_BAD_BODY"
        return _unread(f"{self.name} failed to read {what}", left, code)

    def _check(self, size: int, maximum: int) -> None:
        code = "E_BAD_MESSAGE" if self.of_message else "E_BAD_BODY"
        if self.redesigned and size <= 0:
            raise RemoteProtocolError(f"invalid body size {size}", "E_BAD_BODY")
        if self.redesigned and size > maximum:
            raise RemoteProtocolError(f"message too big {size} > {maximum}", code)
        if size <= 0:
            what = "message body" if self.of_message else "body"
            raise RemoteProtocolError(f"{self.name} invalid {what} size {size}", code)
        if size > maximum:
            what = "message" if self.of_message else "body"
            raise RemoteProtocolError(f"{self.name} {what} too big {size} > {maximum}", code)


@dataclass(slots=True)
class BatchBody:
    """A body of several messages, read one by one as they arrive."""

    name: str
    build: Callable[[list[bytes]], Command]
    redesigned: bool = False
    count: int = 0  # messages still to read; 0: the count was not read yet
    total: int = 0  # bytes of the bodies so far
    items: list[bytes] = field(default_factory=list)

    def read(self, buffer: ReceiveBuffer, limits: Limits) -> Command | None:
        """Return the command once its body is complete, else None."""
        if not self.count and not self._begin(buffer, limits.max_body_size):
            return None
        while self.count:
            size = buffer.peek_int32()
            if size is None:
                return None
            self._check_item(size, limits)
            item = buffer.read(size, skip=4)
            if item is None:
                return None
            self.items.append(item)
            self.total += size
            self.count -= 1
        return self.build(self.items)

    def cut(self, left: int) -> RemoteProtocolError:
        """Return the error for a body that ends after ``left`` more bytes."""
        if not self.count:
            what = "body size" if left < 4 else "message count"
            return RemoteProtocolError(f"{self.name} failed to read {what}", "E_BAD_BODY")
        which = f"message({len(self.items)})" if left < 4 else "message"
        return _unread(f"{self.name} failed to read {which} body", left, "E_BAD_MESSAGE")

    def _begin(self, buffer: ReceiveBuffer, maximum: int) -> bool:
        size = buffer.peek_int32()
        if size is None:
            return False
        name = "" if self.redesigned else f"{self.name} "
        if size <= 0:
            raise RemoteProtocolError(f"{name}invalid body size {size}", "E_BAD_BODY")
        if size > maximum:
            raise RemoteProtocolError(f"{name}body too big {size} > {maximum}", "E_BAD_BODY")
        count = buffer.peek_int32(4)
        if count is None:
            return False
        if not 0 < count <= (maximum - 4) // 5:  # each has a size and a body of at least a byte
            raise RemoteProtocolError(f"{self.name} invalid message count {count}", "E_BAD_BODY")
        buffer.take(8)
        self.count = count
        return True

    def _check_item(self, size: int, limits: Limits) -> None:
        if size <= 0:
            text = f"{self.name} invalid message({len(self.items)}) body size {size}"
            raise RemoteProtocolError(text, "E_BAD_MESSAGE")
        if size > limits.max_msg_size:
            text = f"{self.name} message too big {size} > {limits.max_msg_size}"
            raise RemoteProtocolError(text, "E_BAD_MESSAGE")
        if self.total + size > limits.max_body_size:
            text = f"{self.name} body too big {self.total + size} > {limits.max_body_size}"
            raise RemoteProtocolError(text, "E_BAD_BODY")


def _unread(text: str, left: int, code: str) -> RemoteProtocolError:
    # With fewer than four bytes, the size itself could not be read.
    return RemoteProtocolError(f"{text} size" if left < 4 else text, code)
