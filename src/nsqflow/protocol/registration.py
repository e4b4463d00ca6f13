r"""The ``  V1`` protocol: how an nsqd registers its topics with nsqlookupd.

    "  V1"                                        once
    IDENTIFY\n | size: int32 | JSON |             its addresses
    REGISTER topic [channel]\n                    it has this
    UNREGISTER topic [channel]\n                  it no longer has this
    PING\n                                        it is alive; nsqd sends it every 15 seconds

Each is answered by ``| size: int32 | data |``, without a frame type: OK, or for IDENTIFY
nsqlookupd's addresses as JSON, or an error that begins with its code.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from struct import Struct
from typing import ClassVar

from nsqflow.errors import LocalProtocolError, RemoteProtocolError, ServerError
from nsqflow.protocol.frames import ReceiveBuffer
from nsqflow.protocol.identify import decode_object, encode_json, read_fields
from nsqflow.protocol.names import check_channel, check_topic, is_valid_name
from nsqflow.protocol.session import Session

MAGIC_V1 = b"  V1"
MAX_LINE_SIZE = 4096  # nsqlookupd itself has no limit
MAX_BODY_SIZE = 1024 * 1024

_INT32 = Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The addresses of an nsqd, or in the reply those of an nsqlookupd."""

    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    hostname: str = ""

    @staticmethod
    def decode(data: bytes) -> Peer:
        """Decode the JSON of IDENTIFY or of its reply; missing values are empty or 0."""
        values = decode_object(data, "IDENTIFY")
        return Peer(**read_fields(Peer, values, "IDENTIFY"))


@dataclass(frozen=True, slots=True)
class PeerIdentify:
    """The addresses of the nsqd."""

    name: ClassVar[str] = "IDENTIFY"
    peer: Peer

    def encode(self) -> bytes:
        """Return the bytes."""
        body = encode_json(asdict(self.peer))
        return b"IDENTIFY\n" + _INT32.pack(len(body)) + body


@dataclass(frozen=True, slots=True)
class Register:
    """The nsqd has this topic, or this channel of it."""

    name: ClassVar[str] = "REGISTER"
    topic: str
    channel: str = ""

    def encode(self) -> bytes:
        """Return the bytes."""
        words = [self.name, check_topic(self.topic)]
        if self.channel:
            words.append(check_channel(self.channel))
        return " ".join(words).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Unregister(Register):
    """The nsqd no longer has this topic, or this channel of it."""

    name: ClassVar[str] = "UNREGISTER"


@dataclass(frozen=True, slots=True)
class Ping:
    """The nsqd is alive."""

    name: ClassVar[str] = "PING"

    def encode(self) -> bytes:
        """Return the bytes."""
        return b"PING\n"


PeerCommand = PeerIdentify | Register | Unregister | Ping


@dataclass(frozen=True, slots=True)
class PeerReply:
    """The answer to the oldest unanswered command."""

    command: str
    peer: Peer | None = None
    """nsqlookupd's addresses, in the reply to IDENTIFY; None if it replied OK."""
    error: ServerError | None = None
    """Why the command was refused; nsqlookupd then closes the connection."""


class PeerSession(Session[PeerReply]):
    """nsqd's side: commands in, answers out."""

    def __init__(self) -> None:
        super().__init__(ReceiveBuffer())
        self._unanswered: deque[str] = deque()
        self._out.append(MAGIC_V1)

    # Public methods

    def send(self, command: PeerCommand) -> None:
        """Queue a command."""
        if self._stopped:
            raise LocalProtocolError(f"cannot {command.name}: {self._last}")
        self._out.append(command.encode())
        self._unanswered.append(command.name)

    # Private methods

    def _parse(self, events: list[PeerReply]) -> None:
        while (data := _read_sized(self._buffer)) is not None:
            if not self._unanswered:
                raise RemoteProtocolError(f"answer {data[:100]!r} without a command")
            events.append(_reply(self._unanswered.popleft(), data))

    def _end(self, error: RemoteProtocolError | ServerError) -> None:
        self._out.clear()


class LookupSession(Session[PeerCommand]):
    """nsqlookupd's side: commands out, answers in."""

    def __init__(self) -> None:
        super().__init__(ReceiveBuffer())
        self._greeted = False
        self._identified = False
        self._in_identify = False  # its line was read, its body was not

    # Public methods

    def send_response(self, data: bytes = b"OK") -> None:
        """Queue an answer."""
        self._out.append(_INT32.pack(len(data)) + data)

    def send_peer(self, peer: Peer) -> None:
        """Queue the answer to IDENTIFY: this nsqlookupd's own addresses."""
        self.send_response(encode_json(asdict(peer)))

    # Private methods

    def _parse(self, events: list[PeerCommand]) -> None:
        while (command := self._next()) is not None:
            events.append(command)

    def _end(self, error: RemoteProtocolError | ServerError) -> None:
        if error.code:
            text = f"{error.code} {error.text}" if error.text else error.code
            self.send_response(text.encode("utf-8", "replace"))

    def _check_end(self) -> None:
        if self._in_identify:
            what = "body size" if len(self._buffer) < 4 else "body"
            raise RemoteProtocolError(f"IDENTIFY failed to read {what}", "E_BAD_BODY")

    def _next(self) -> PeerCommand | None:
        self._greeted = self._greeted or self._read_magic(MAGIC_V1)
        if not self._greeted or not self._buffer.ready():
            return None
        if self._in_identify:
            return self._identify()
        line = self._buffer.read_line(MAX_LINE_SIZE)
        if line is None:
            return None
        return self._read(line.decode("utf-8", "backslashreplace").strip().split(" "))

    def _read(self, params: list[str]) -> PeerCommand | None:
        name = params[0]
        if name == "PING":
            return Ping()
        if name == "IDENTIFY":
            if self._identified:
                raise RemoteProtocolError("cannot IDENTIFY again", "E_INVALID")
            self._in_identify = True
            return self._next()
        if name not in ("REGISTER", "UNREGISTER"):
            raise RemoteProtocolError(f"invalid command {name}", "E_INVALID")
        if not self._identified:
            raise RemoteProtocolError("client must IDENTIFY", "E_INVALID")
        topic, channel = _topic_channel(params)
        return Register(topic, channel) if name == "REGISTER" else Unregister(topic, channel)

    def _identify(self) -> PeerIdentify | None:
        data = _read_sized(self._buffer, "E_BAD_BODY")
        if data is None:
            return None
        try:
            peer = Peer.decode(data)
        except RemoteProtocolError:
            text = "IDENTIFY failed to decode JSON body"
            raise RemoteProtocolError(text, "E_BAD_BODY") from None
        if not (peer.broadcast_address and peer.tcp_port and peer.http_port and peer.version):
            raise RemoteProtocolError("IDENTIFY missing fields", "E_BAD_BODY")
        self._in_identify, self._identified = False, True
        return PeerIdentify(peer)


def _reply(command: str, data: bytes) -> PeerReply:
    if data.startswith(b"E_"):
        return PeerReply(command, error=ServerError.from_frame(data))
    if data == b"OK":
        return PeerReply(command)
    if command != PeerIdentify.name:
        raise RemoteProtocolError(f"answer {data[:100]!r} to {command}; expected OK")
    return PeerReply(command, peer=Peer.decode(data))


def _read_sized(buffer: ReceiveBuffer, code: str = "") -> bytes | None:
    """Consume a size and that many bytes; None until they have arrived."""
    size = buffer.peek_int32() if buffer.ready() else None
    if size is None:
        return None
    if not 0 <= size <= MAX_BODY_SIZE:
        raise RemoteProtocolError(f"body of {size} bytes: must be 0 to {MAX_BODY_SIZE}", code)
    return buffer.read(size, skip=4)


def _topic_channel(params: list[str]) -> tuple[str, str]:
    name = params[0]
    if len(params) < 2:
        raise RemoteProtocolError(f"{name} insufficient number of params", "E_INVALID")
    topic = params[1]
    channel = params[2] if len(params) > 2 else ""
    if not is_valid_name(topic):
        raise RemoteProtocolError(f"{name} topic name '{topic}' is not valid", "E_BAD_TOPIC")
    if channel and not is_valid_name(channel):
        raise RemoteProtocolError(f"{name} channel name '{channel}' is not valid", "E_BAD_CHANNEL")
    return topic, channel
