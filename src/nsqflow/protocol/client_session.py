"""The client's side of a connection, without I/O.

    IDENTIFYING ─> [TLS] ─> [COMPRESSING] ─> CONNECTED ─> SUBSCRIBING ─> SUBSCRIBED ─> CLOSING
         └────────────┴────────────┴─────────────┴─────────────┴─────────────┴───────────┴─> FAILED

TLS and compression are used only if both sides want them; each ends with an OK. The session answers
heartbeats itself, in every state.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from enum import Enum
from itertools import pairwise

from nsqflow.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.protocol import events as ev
from nsqflow.protocol.commands import (
    MAGIC_V2,
    Auth,
    Cls,
    Command,
    Fin,
    Identify,
    Nop,
    Rdy,
    Req,
    Sub,
    SubscribeMode,
    Touch,
)
from nsqflow.protocol.dialect import MESSAGE_ERRORS, Dialect
from nsqflow.protocol.frames import (
    CLOSE_WAIT,
    DEFAULT_MAX_FRAME_SIZE,
    HEARTBEAT,
    OK,
    Frame,
    FrameDecoder,
    FrameType,
    MessageRun,
)
from nsqflow.protocol.identify import AuthReply, IdentifyReply, IdentifyRequest
from nsqflow.protocol.messages import (
    PLAIN,
    MessageBatch,
    Receipt,
    encode_fins,
    encode_packed_fins,
    encode_reqs,
    encode_touches,
)
from nsqflow.protocol.publish import MpubTrace, PubExt, Publish, PubTrace
from nsqflow.protocol.session import Session


class ClientState(Enum):
    """The state of a client's connection."""

    IDENTIFYING = "identifying"
    TLS = "tls"
    COMPRESSING = "compressing"
    CONNECTED = "connected"
    SUBSCRIBING = "subscribing"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    FAILED = "failed"


_NEGOTIATING = (ClientState.IDENTIFYING, ClientState.TLS, ClientState.COMPRESSING)

# The states in which servers accept a command; those not listed, in any state once connected.
_ALLOWED_STATES: dict[type[Command], tuple[ClientState, ...]] = {
    Identify: (),  # sent by the session itself
    Auth: (ClientState.CONNECTED,),
    Sub: (ClientState.CONNECTED,),
    Rdy: (ClientState.SUBSCRIBED, ClientState.CLOSING),
    Fin: (ClientState.SUBSCRIBED, ClientState.CLOSING),
    Req: (ClientState.SUBSCRIBED, ClientState.CLOSING),
    Touch: (ClientState.SUBSCRIBED, ClientState.CLOSING),
    Cls: (ClientState.SUBSCRIBED,),
}

_NOP = Nop().encode()
_PUBLISHED = ev.Published()  # one object for all publishes without a receipt

_TRACED = (PubTrace, MpubTrace)  # always answered with a receipt

_DECIMAL_ID = re.compile(r"\[((?:\d{1,3} ){15}\d{1,3})\]")


class ClientSession(Session[ev.Event]):
    """Speaks NSQ to a server: commands in, events out."""

    def __init__(
        self,
        identify: IdentifyRequest | None = None,
        *,
        dialect: Dialect = Dialect.CLASSIC,
        max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
    ) -> None:
        self._frames = FrameDecoder(max_frame_size)
        super().__init__(self._frames.buffer)
        self.dialect = dialect
        self.state = ClientState.IDENTIFYING
        self.reply = IdentifyReply()  # what the server has granted
        self._identify = identify or IdentifyRequest()
        self._layout = PLAIN
        self._unanswered: deque[type[Command]] = deque()
        self._out += (MAGIC_V2, Identify(self._identify.encode(dialect)).encode())

    # Public methods

    @property
    def unanswered(self) -> int:
        """The number of commands without an answer, not counting IDENTIFY."""
        return len(self._unanswered)

    def send(self, command: Command) -> None:
        """Queue a command; raise ``LocalProtocolError`` if the server would refuse it."""
        self._check(command)
        self._out.append(command.encode())
        if command.answered:
            self._unanswered.append(type(command))
        if isinstance(command, Sub):
            self._begin_subscription(command)
        elif isinstance(command, Cls):
            self.state = ClientState.CLOSING

    def finish(self, ids: Iterable[bytes]) -> None:
        """Queue a FIN for each message id."""
        self._check_state(Fin)
        self._out.append(encode_fins(ids))

    def finish_packed(self, ids: bytes, *, last_first: bool = False) -> None:
        """Queue a FIN for each 16 bytes of ``ids``; see ``encode_packed_fins``."""
        self._check_state(Fin)
        self._out.append(encode_packed_fins(ids, last_first=last_first))

    def requeue(self, ids: Iterable[bytes], delay_ms: int = 0) -> None:
        """Queue a REQ for each message id."""
        self._check_state(Req)
        self._out.append(encode_reqs(ids, delay_ms))

    def touch(self, ids: Iterable[bytes]) -> None:
        """Queue a TOUCH for each message id."""
        self._check_state(Touch)
        self._out.append(encode_touches(ids))

    # Private methods: sending

    def _check(self, command: Command) -> None:
        self._check_state(type(command))
        if command.dialect not in (None, self.dialect):
            raise LocalProtocolError(f"the {self.dialect.value} NSQ does not have {command!r}")
        if isinstance(command, Publish):
            return
        if isinstance(command, Rdy) and command.count > self.reply.max_rdy_count:
            limit = self.reply.max_rdy_count
            raise LocalProtocolError(f"RDY {command.count}: must be 0 to {limit}")
        if isinstance(command, Auth) and not self.reply.auth_required:
            raise LocalProtocolError("AUTH is not allowed: the server did not request it")
        if isinstance(command, Sub):
            self._check_subscription(command)

    def _check_state(self, command: type[Command]) -> None:
        if self.state in _NEGOTIATING or self.state is ClientState.FAILED:
            raise LocalProtocolError(f"cannot {command.name} while {self.state.value}")
        if self.state not in _ALLOWED_STATES.get(command, (self.state,)):
            raise LocalProtocolError(f"cannot {command.name} while {self.state.value}")

    def _check_subscription(self, sub: Sub) -> None:
        if self._identify.heartbeat_interval == -1:
            raise LocalProtocolError("cannot SUB with heartbeats disabled")
        if sub.kind is SubscribeMode.ORDERED and self._identify.sample_rate:
            raise LocalProtocolError("cannot SUB_ORDERED with a sample rate")

    def _begin_subscription(self, sub: Sub) -> None:
        self.state = ClientState.SUBSCRIBING
        self._layout = sub.layout(self._identify.extend_support)
        self._frames.min_message_size = self._layout.min_size
        self._frames.positioned = self._layout.positioned and not self._layout.extended

    # Private methods: receiving

    def _parse(self, events: list[ev.Event]) -> None:
        while self._reading and (item := self._frames.next()) is not None:
            if not isinstance(item, Frame):
                self._messages(item, events)
            elif item.type is FrameType.RESPONSE:
                self._response(item.data, events)
            else:
                self._error_frame(item.data, events)

    def _end(self, error: RemoteProtocolError | ServerError) -> None:
        # Nothing that is queued may be sent any more, especially not in clear text.
        self.state = ClientState.FAILED
        self._out.clear()
        self._wire.clear()

    def _messages(self, run: MessageRun, events: list[ev.Event]) -> None:
        if self.state not in (ClientState.SUBSCRIBED, ClientState.CLOSING):
            raise RemoteProtocolError(f"message while {self.state.value}")
        try:
            events.append(MessageBatch(*run, self._layout))
        except RemoteProtocolError:
            # Return the messages before the malformed one, as if they had arrived alone.
            places = zip(pairwise(run.bounds), run.headers, strict=True)
            for bounds, header in places:  # pragma: no branch (it ends by raising)
                events.append(MessageBatch(run.data, [*bounds], [header], self._layout))

    def _response(self, data: bytes, events: list[ev.Event]) -> None:
        if data == HEARTBEAT:
            self._out.append(_NOP)
            events.append(ev.Heartbeat())
        elif self.state is ClientState.IDENTIFYING:
            self._identified(IdentifyReply.decode(data), events)
        elif self.state in _NEGOTIATING:
            self._upgraded(data, events)
        else:
            self._answered(data, events)

    def _identified(self, reply: IdentifyReply, events: list[ev.Event]) -> None:
        asked = self._identify
        if asked.tls_v1 and not reply.tls_v1:
            self._out.clear()  # not even the answer to a heartbeat
            raise TlsNotGrantedError("TLS was requested and the server did not grant it")
        if unasked := reply.unasked(asked):
            raise RemoteProtocolError(f"{unasked} was granted but not requested")
        self.reply = reply
        if reply.tls_v1:
            self.state = ClientState.TLS
            self._forget_heartbeats()
            events.append(ev.StartTls(self._await_tls()))
        else:
            self._begin_compression(events)

    def _upgraded(self, data: bytes, events: list[ev.Event]) -> None:
        if data != OK:
            raise RemoteProtocolError(
                f"answer {data[:100]!r} while {self.state.value}; expected OK"
            )
        if self.state is ClientState.TLS:
            events.append(ev.TlsStarted())
            self._begin_compression(events)
        else:
            events.append(ev.CompressionStarted("snappy" if self.reply.snappy else "deflate"))
            self._connected(events)

    def _begin_compression(self, events: list[ev.Event]) -> None:
        asked = {"snappy": self._identify.snappy, "deflate": self._identify.deflate}
        for method in asked:
            if getattr(self.reply, method):
                self.state = ClientState.COMPRESSING
                self._forget_heartbeats()
                self._compress(method, self.reply.deflate_level)
                return
            if asked[method]:
                events.append(ev.CompressionRefused(method))
        self._connected(events)

    def _forget_heartbeats(self) -> None:
        # The server has started the upgrade: an answer to an earlier heartbeat would arrive in the
        # middle of it. The upgrade itself is a sign of life.
        self._out = [piece for piece in self._out if piece is not _NOP]

    def _connected(self, events: list[ev.Event]) -> None:
        self.state = ClientState.CONNECTED
        events.append(ev.Connected(self.reply))

    def _answered(self, data: bytes, events: list[ev.Event]) -> None:
        if not self._unanswered:
            raise RemoteProtocolError(f"answer {data[:100]!r} without a command")
        command = self._unanswered.popleft()
        if issubclass(command, Publish):
            receipt = _receipt(command, data)
            events.append(_PUBLISHED if receipt is None else ev.Published(receipt))
        elif command is Auth:
            events.append(ev.Authenticated(AuthReply.decode(data)))
        elif command is Sub and data == OK:
            self.state = ClientState.SUBSCRIBED
            events.append(ev.Subscribed())
        elif command is Cls and data == CLOSE_WAIT:
            events.append(ev.CloseWait())
        else:
            raise RemoteProtocolError(f"answer {data[:100]!r} to {command.name}")

    def _error_frame(self, data: bytes, events: list[ev.Event]) -> None:
        error = ServerError.from_frame(data)
        answer = MESSAGE_ERRORS.get(error.code)
        if answer is not None:
            events.append(ev.AnswerFailed(answer, failed_id(data, answer), error))
            return
        command = self._unanswered[0].name if self._unanswered else None
        if self.state in _NEGOTIATING:
            command = Identify.name
        subscribed = self.state in (ClientState.SUBSCRIBED, ClientState.CLOSING)
        closes = self.dialect.closes(error.code, command, subscribed=subscribed)
        events.append(ev.CommandFailed(error, command, closes))
        if closes:
            self._last = error
        else:
            self._unanswered.popleft()


def failed_id(data: bytes, command: str) -> bytes | None:
    """Find the message id in the text of E_FIN_FAILED, E_REQ_FAILED or E_TOUCH_FAILED.

    Classic nsqd writes the 16 bytes unchanged (its ids are hex digits), the redesigned one as
    decimal numbers in brackets.
    """
    _, _, text = data.partition(f" {command} ".encode())
    decimal = _DECIMAL_ID.match(text.decode("latin-1"))
    if decimal:
        numbers = [int(number) for number in decimal[1].split()]
        return bytes(numbers) if max(numbers) < 256 else None
    return text[:16] if text[16:].startswith(b" failed") else None


def _receipt(command: type[Publish], data: bytes) -> Receipt | None:
    if issubclass(command, _TRACED) or (command is PubExt and data != OK):
        return Receipt.decode(data)
    if data != OK:
        raise RemoteProtocolError(f"answer {data[:100]!r} to {command.name}; expected OK")
    return None
