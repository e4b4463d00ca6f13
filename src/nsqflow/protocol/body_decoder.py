"""The bodies of commands, as a server reads them: bounded before they arrive.

The words are those of nsqd 1.3.0 (``nsqd/protocol_v2.go``). As there, the size announced for all
messages of an MPUB is checked against its limits and then ignored: their count and their own
sizes say where it ends. (Some clients announce the sum of the bodies.) In one thing this is
stricter: the bodies may not exceed that limit together, where nsqd has no bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.buffer import ReceiveBuffer
from nsqflow.protocol.commands import Command
from nsqflow.protocol.limits import Limits


@dataclass(slots=True)
class SingleBody:
    """A body of one piece."""

    name: str
    of_message: bool  # nsqd words and bounds the body of a message differently
    build: Callable[[bytes], Command]

    def read(self, buffer: ReceiveBuffer, limits: Limits) -> Command | None:
        """Return the command, once all of it is here."""
        size = buffer.peek_int32()
        if size is None:
            return None
        self._check(size, limits.max_msg_size if self.of_message else limits.max_body_size)
        data = buffer.read(size, skip=4)
        return None if data is None else self.build(data)

    def cut(self, left: int) -> RemoteProtocolError:
        """Return what to say if all that came of it are so many bytes."""
        what = "message body" if self.of_message else "body"
        code = "E_BAD_MESSAGE" if self.of_message else "E_BAD_BODY"
        return _unread(f"{self.name} failed to read {what}", left, code)

    def _check(self, size: int, most: int) -> None:
        code = "E_BAD_MESSAGE" if self.of_message else "E_BAD_BODY"
        if size <= 0:
            what = "message body" if self.of_message else "body"
            raise RemoteProtocolError(f"{self.name} invalid {what} size {size}", code)
        if size > most:
            what = "message" if self.of_message else "body"
            raise RemoteProtocolError(f"{self.name} {what} too big {size} > {most}", code)


@dataclass(slots=True)
class BatchBody:
    """A body of several messages, read one by one as they arrive."""

    name: str
    build: Callable[[list[bytes]], Command]
    count: int = 0  # messages still to come; 0: it is not read yet
    total: int = 0  # bytes of the bodies so far
    items: list[bytes] = field(default_factory=list)

    def read(self, buffer: ReceiveBuffer, limits: Limits) -> Command | None:
        """Return the command, once all of it is here."""
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
        """Return what to say if all that came of the rest are so many bytes."""
        if not self.count:
            what = "body size" if left < 4 else "message count"
            return RemoteProtocolError(f"{self.name} failed to read {what}", "E_BAD_BODY")
        which = f"message({len(self.items)})" if left < 4 else "message"
        return _unread(f"{self.name} failed to read {which} body", left, "E_BAD_MESSAGE")

    def _begin(self, buffer: ReceiveBuffer, most: int) -> bool:
        size = buffer.peek_int32()
        if size is None:
            return False
        if size <= 0:
            raise RemoteProtocolError(f"{self.name} invalid body size {size}", "E_BAD_BODY")
        if size > most:
            raise RemoteProtocolError(f"{self.name} body too big {size} > {most}", "E_BAD_BODY")
        count = buffer.peek_int32(4)
        if count is None:
            return False
        if not 0 < count <= (most - 4) // 5:  # each takes four bytes of size and one of body
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
    # Without its first four bytes it is the size that could not be read.
    return RemoteProtocolError(f"{text} size" if left < 4 else text, code)
