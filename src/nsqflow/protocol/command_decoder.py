"""Decodes commands on the server's side: from bytes to ``Command`` objects.

An invalid command raises a ``RemoteProtocolError`` with the code and text of nsqd 1.3.0
(``nsqd/protocol_v2.go``), as early as nsqd does: a body that is too large is refused when its size
is read, not when all of it has arrived.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol import commands, publish
from nsqflow.protocol.body_decoder import BatchBody, Limits, SingleBody
from nsqflow.protocol.commands import MAX_INT32, Command, SubscribeMode, is_valid_start
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.frames import ReceiveBuffer
from nsqflow.protocol.messages import ID_SIZE
from nsqflow.protocol.names import is_valid_name

_ANSWERS = (b"FIN ", b"REQ ", b"TOUCH ")

# Consecutive FINs. A classic id contains no space or newline, a redesigned one may contain any
# byte.
_FIN_SIZE = len(b"FIN ") + ID_SIZE + 1
_CLASSIC_FINS = re.compile(rb"(?:FIN [^ \n]{15}[^ \r\n]\n)+")
_REDESIGNED_FINS = re.compile(rb"(?:FIN [\s\S]{16}\n)+")

_GO_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 256))}
_GO_ESCAPES |= {7: r"\a", 8: r"\b", 9: r"\t", 10: r"\n", 11: r"\v", 12: r"\f", 13: r"\r"}
_GO_ESCAPES |= {ord('"'): r"\"", ord("\\"): r"\\"}


class CommandDecoder:
    """Turns received bytes into commands, however the network has split them."""

    def __init__(
        self,
        dialect: Dialect = Dialect.CLASSIC,
        limits: Limits | None = None,
        admit: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.buffer = ReceiveBuffer()
        self._redesigned = dialect is Dialect.REDESIGNED
        self._limits = limits or Limits()
        # Called with a command's name as soon as that is read: False skips the command.
        self._admit = admit
        self._body: SingleBody | BatchBody | None = None  # expected after the line that was read
        self._readers: dict[bytes, Callable[[list[bytes]], Command | None]] = {
            b"IDENTIFY": self._identify,
            b"AUTH": self._auth,
            b"SUB": self._sub,
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"RDY": self._rdy,
            b"FIN": lambda params: commands.Fin(_id(params)),
            b"REQ": self._req,
            b"TOUCH": lambda params: commands.Touch(_id(params)),
            b"CLS": lambda params: commands.Cls(),
            b"NOP": lambda params: commands.Nop(),
        }
        if self._redesigned:
            self._readers |= {
                b"SUB_ORDERED": self._sub,
                b"SUB_ADVANCED": self._sub,
                b"PUB_TRACE": self._pub_trace,
                b"MPUB_TRACE": self._mpub_trace,
                b"PUB_EXT": self._pub_ext,
                b"MPUB_EXT": self._mpub_ext,
            }
        else:
            self._readers[b"DPUB"] = self._dpub

    def next(self) -> Command | None:
        """Return the next complete command."""
        command = None
        while command is None and self.buffer.ready():
            if self._body is None:
                params = self._line()
                command = self._read(params) if params else None
            else:
                command = self._body.read(self.buffer, self._limits)
                self._body = self._body if command is None else None
        return command

    def next_fins(self) -> commands.Fins | None:
        """Return all complete FINs that come next, if there are any."""
        buffer = self.buffer
        if self._body is not None or not buffer.ready():
            return None
        row = (_REDESIGNED_FINS if self._redesigned else _CLASSIC_FINS).match(
            buffer.data, buffer.pos
        )
        if row is None:
            return None
        self._admit("FIN")
        data, start, buffer.pos = buffer.data, buffer.pos + 4, row.end()
        return commands.Fins(
            tuple([data[at : at + ID_SIZE] for at in range(start, buffer.pos, _FIN_SIZE)])
        )

    def check_end(self) -> None:
        """Raise if the connection ended in the middle of a body."""
        if self._body is not None:
            raise self._body.cut(len(self.buffer))

    # Command lines

    def _line(self) -> list[bytes] | None:
        buffer = self.buffer
        skip = self._id_end(buffer.data, buffer.pos) if self._redesigned else 0
        # nsqd closes the connection after a line that is too long, without an error.
        line = buffer.read_line(self._limits.max_line_size, skip)
        if line is None:
            return None
        if not skip:
            return line.removesuffix(b"\r").split(b" ")
        return [*line[:skip].split(b" ", 1), *line[skip:].removesuffix(b"\r").split(b" ")[1:]]

    @staticmethod
    def _id_end(data: bytes, pos: int) -> int:
        # A redesigned id is binary: it may contain newlines and spaces.
        for word in _ANSWERS:
            if data.startswith(word, pos):
                return len(word) + ID_SIZE
        return 0

    def _read(self, params: list[bytes]) -> Command | None:
        name = params[0].decode("utf-8", "backslashreplace")
        if not self._admit(name):
            return None
        reader = self._readers.get(params[0])
        if reader is None:
            word = str([list(param) for param in params]).replace(",", "")
            text = f"invalid command {word if self._redesigned else name}"
            raise RemoteProtocolError(text, "E_INVALID")
        return reader(params)

    def _rdy(self, params: list[bytes]) -> Command:
        maximum = self._limits.max_rdy_count
        count = 1
        if len(params) > 1:
            count = _number(params[1], "RDY could not parse count")
        if count > maximum:
            raise RemoteProtocolError(f"RDY count {count} out of range 0-{maximum}", "E_INVALID")
        return commands.Rdy(count)

    def _req(self, params: list[bytes]) -> Command:
        if len(params) < 3:
            raise RemoteProtocolError("REQ insufficient number of params", "E_INVALID")
        return commands.Req(_id(params), _number(params[2], "REQ could not parse timeout"))

    def _sub(self, params: list[bytes]) -> Command:
        if len(params) < 3:
            raise _too_few("SUB")
        topic = self._name(params[1], "E_BAD_TOPIC", "SUB topic name")
        channel = self._name(params[2], "E_BAD_CHANNEL", "SUB channel name")
        if not self._redesigned:
            return commands.Sub(topic, channel)
        kind = SubscribeMode(params[0].decode())
        if kind is SubscribeMode.ADVANCED and len(params) > 4 and params[4]:
            start = params[4].decode("utf-8", "backslashreplace")
            if not is_valid_start(start):
                raise RemoteProtocolError(f"invalid consume offset:{start}", "E_INVALID")
            # The server ignores the partition here, so an invalid one is not an error.
            return commands.Sub(topic, channel, _int32(params[3]), kind, start)
        return commands.Sub(topic, channel, self._partition(params, 3), kind)

    def _partition(self, params: list[bytes], at: int) -> int | None:
        # With more parameters, the server silently uses the node's default partition.
        if not self._redesigned or len(params) != at + 1:
            return None
        text = params[at]
        partition = _int32(text.removeprefix(b"-"))
        if partition is None:
            reason = f"strconv.Atoi: parsing {_quoted(text)}: invalid syntax"
            raise RemoteProtocolError(f"topic partition is not valid: {reason}", "E_BAD_PARTITION")
        if not text.startswith(b"-"):
            return partition
        if partition > 1:
            raise RemoteProtocolError("", "E_TOPIC_NOT_EXIST")
        return None if partition else 0  # -1: any partition of this node

    def _topic(self, params: list[bytes]) -> str:
        if len(params) < 2:
            raise _too_few("" if self._redesigned else params[0].decode())
        if self._redesigned and not is_valid_name(params[1].decode("utf-8", "replace")):
            raise RemoteProtocolError("", "E_TOPIC_NOT_EXIST")
        name = params[0].decode()
        # nsqd repeats the code for MPUB; for clients only the first word counts.
        twice = "E_BAD_TOPIC " if name == "MPUB" else ""
        return self._name(params[1], "E_BAD_TOPIC", f"{twice}{name} topic name")

    @staticmethod
    def _name(raw: bytes, code: str, what: str) -> str:
        name = raw.decode("utf-8", "replace")
        if not is_valid_name(name):
            raise RemoteProtocolError(f"{what} {_quoted(raw)} is not valid", code)
        return name

    # Commands with a body: these set how it is read

    def _identify(self, params: list[bytes]) -> None:
        self._body = SingleBody("IDENTIFY", False, commands.Identify)

    def _auth(self, params: list[bytes]) -> None:
        if len(params) != 1:
            raise RemoteProtocolError("AUTH invalid number of parameters", "E_INVALID")
        self._body = SingleBody("AUTH", False, commands.Auth)

    def _pub(self, params: list[bytes]) -> None:
        topic, partition = self._topic(params), self._partition(params, 2)
        self._body = self._message("PUB", lambda body: publish.Pub(topic, body, partition))

    def _mpub(self, params: list[bytes]) -> None:
        topic, partition = self._topic(params), self._partition(params, 2)
        self._body = self._batch(lambda items: publish.Mpub(topic, items, partition))

    def _dpub(self, params: list[bytes]) -> None:
        if len(params) < 3:
            raise _too_few("DPUB")
        topic = self._topic(params)
        delay = _number(params[2], "DPUB could not parse timeout")
        maximum = self._limits.max_req_timeout_ms
        if delay > maximum:
            raise RemoteProtocolError(f"DPUB timeout {delay} out of range 0-{maximum}", "E_INVALID")
        self._body = self._message("DPUB", lambda body: publish.Dpub(topic, delay, body))

    def _pub_trace(self, params: list[bytes]) -> None:
        topic, partition = self._topic(params), self._partition(params, 2)
        self._body = self._message(
            "PUB_TRACE", lambda data: publish.PubTrace(topic, *_split_trace(data), partition)
        )

    def _mpub_trace(self, params: list[bytes]) -> None:
        topic, partition = self._topic(params), self._partition(params, 2)
        self._body = self._batch(
            lambda items: publish.MpubTrace(
                topic, [_split_trace(*item) for item in zip(items, count())], partition
            )
        )

    def _pub_ext(self, params: list[bytes]) -> None:
        topic, partition = self._topic(params), self._partition(params, 2)
        # Headers that are not JSON, or empty, are an error that does not close the connection; the
        # broker sends it.
        self._body = self._message(
            "PUB_EXT", lambda data: publish.PubExt(topic, *_split_ext(data), partition)
        )

    def _mpub_ext(self, params: list[bytes]) -> None:
        topic, partition = self._topic(params), self._partition(params, 2)
        self._body = self._batch(
            lambda items: publish.MpubExt(topic, [*map(_split_ext, items)], partition)
        )

    def _message(self, name: str, build: Callable[[bytes], Command]) -> SingleBody:
        return SingleBody(name, True, build, self._redesigned)

    def _batch(self, build: Callable[[list[bytes]], Command]) -> BatchBody:
        return BatchBody("MPUB", build, self._redesigned)


def _id(params: list[bytes]) -> bytes:
    if len(params) < 2:
        text = f"{params[0].decode()} insufficient number of params"
        raise RemoteProtocolError(text, "E_INVALID")
    if len(params[1]) != ID_SIZE:
        raise RemoteProtocolError("invalid message ID", "E_INVALID")
    return params[1]


def _too_few(name: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{name} insufficient number of parameters".lstrip(), "E_INVALID")


def _number(text: bytes, complaint: str) -> int:
    # nsqd reads an empty number as 0, and lets long ones overflow.
    if not text:
        return 0
    if not text.isdigit() or len(text) > 19:
        raise RemoteProtocolError(
            f"{complaint} {text.decode('utf-8', 'backslashreplace')}", "E_INVALID"
        )
    return int(text)


def _int32(text: bytes) -> int | None:
    number = int(text) if text.isdigit() and len(text) <= 10 else MAX_INT32 + 1
    return number if number <= MAX_INT32 else None


def _split_trace(data: bytes, number: int | None = None) -> tuple[int, bytes]:
    size = len(data)
    if size <= 8 and number is None:
        raise RemoteProtocolError(f"invalid body size {size} with trace id enabled", "E_BAD_BODY")
    if size <= 8:
        raise RemoteProtocolError(
            f"MPUB invalid message({number}) body size {size} for tracing", "E_BAD_MESSAGE"
        )
    return int.from_bytes(data[:8], "big"), data[8:]


def _split_ext(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:2], "big")
    if len(data) <= 2 + length:
        raise RemoteProtocolError(
            f"invalid body size {len(data)} in ext json header content length", "E_BAD_BODY"
        )
    return data[2 : 2 + length], data[2 + length :]


def _quoted(raw: bytes) -> str:
    """Quote a name as Go's %q does, except for bytes outside ASCII."""
    return '"' + raw.decode("latin-1").translate(_GO_ESCAPES) + '"'
