"""The server's side of a connection, without I/O.

Its events are the client's commands, as objects. A command that is not allowed in the connection's
state is refused here, with nsqd's text. The broker decides everything else: whether a topic exists,
a message is in flight or a client is authorized. A command that breaks the protocol is answered
with an error frame; ``events()`` then raises, and the caller sends what is left and closes.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from nsqflow.errors import LocalProtocolError, RemoteProtocolError, ServerError
from nsqflow.protocol.body_decoder import Limits
from nsqflow.protocol.command_decoder import CommandDecoder
from nsqflow.protocol.commands import (
    MAGIC_V2,
    Cls,
    Command,
    Fin,
    Identify,
    Req,
    Sub,
    Touch,
)
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.events import StartTls
from nsqflow.protocol.frames import CLOSE_WAIT, HEARTBEAT, OK, FrameType, encode_frame
from nsqflow.protocol.identify import IdentifyReply, IdentifyRequest
from nsqflow.protocol.messages import (
    PLAIN,
    Message,
    MessageLike,
    Receipt,
    encode_messages,
    encode_plain_messages,
)
from nsqflow.protocol.session import Session


class ServerState(Enum):
    """The state of a connection, as nsqd sees it."""

    MAGIC = "magic"
    INIT = "init"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    FAILED = "failed"


# nsqd/protocol_v2.go: the states in which a command is accepted; those not listed, in any state.
_ALLOWED_STATES: dict[str, tuple[ServerState, ...]] = {
    "IDENTIFY": (ServerState.INIT,),
    "AUTH": (ServerState.INIT,),
    "SUB": (ServerState.INIT,),
    "SUB_ORDERED": (ServerState.INIT,),
    "SUB_ADVANCED": (ServerState.INIT,),
    "RDY": (ServerState.SUBSCRIBED, ServerState.CLOSING),
    "FIN": (ServerState.SUBSCRIBED, ServerState.CLOSING),
    "REQ": (ServerState.SUBSCRIBED, ServerState.CLOSING),
    "TOUCH": (ServerState.SUBSCRIBED, ServerState.CLOSING),
    "CLS": (ServerState.SUBSCRIBED,),
}


class ServerSession(Session[Command | StartTls]):
    """Speaks NSQ to a client: commands out, answers and messages in."""

    def __init__(
        self,
        *,
        dialect: Dialect = Dialect.CLASSIC,
        limits: Limits | None = None,
        tls_required: bool = False,
        gather_fins: bool = False,
    ) -> None:
        self._commands = CommandDecoder(dialect, limits, self._admit)
        super().__init__(self._commands.buffer)
        self.dialect = dialect
        self.state = ServerState.MAGIC
        self.identify = IdentifyRequest()  # the client's request
        self._reply = IdentifyReply()
        self._layout = PLAIN
        self._tls_needed = tls_required
        self._gather_fins = gather_fins  # consecutive FINs are one event

    # Public methods

    def accept_identify(self, reply: IdentifyReply) -> None:
        """Answer IDENTIFY; start TLS and compression if the reply grants them.

        If one of the next events is ``StartTls``, the caller must do the handshake.
        """
        if not self._identifying:
            raise LocalProtocolError("there is no IDENTIFY to answer")
        if unasked := reply.unasked(self.identify):
            raise LocalProtocolError(f"{unasked} is granted to a client that did not request it")
        self._paused = False
        if not self.identify.feature_negotiation:
            self.send_response(OK)
            return
        self._reply = reply
        self.send_response(reply.encode())
        if reply.tls_v1:
            self._held.append(StartTls(self._await_tls()))
        else:
            self._begin_compression()

    def send_response(self, data: bytes = OK) -> None:
        """Queue the answer to a command that succeeded."""
        self._out.append(encode_frame(FrameType.RESPONSE, data))

    def send_receipt(self, receipt: Receipt) -> None:
        """Queue the answer to PUB_TRACE."""
        self.send_response(receipt.encode())

    def send_close_wait(self) -> None:
        """Queue the answer to CLS."""
        self.send_response(CLOSE_WAIT)

    def send_heartbeat(self) -> None:
        """Queue a heartbeat; the client answers with any command."""
        self.send_response(HEARTBEAT)

    def send_error(self, code: str, text: str = "") -> None:
        """Queue an error that does not close the connection."""
        # The redesigned server sends the space even if there is no text.
        bare = f"{code} " if self.dialect is Dialect.REDESIGNED else code
        data = f"{code} {text}" if text else bare
        self._out.append(encode_frame(FrameType.ERROR, data.encode("utf-8", "replace")))

    def send_answer_failed(self, command: Fin | Req | Touch, reason: str) -> None:
        """Queue the error for a FIN, REQ or TOUCH of a message that is not in flight."""
        # The dialects write the id differently: classic nsqd as raw bytes.
        id = command.id
        if self.dialect is Dialect.REDESIGNED:
            id = f"[{' '.join(map(str, id))}]".encode()
        head, tail = f"E_{command.name}_FAILED {command.name} ", f" failed {reason}"
        data = head.encode() + id + tail.encode("utf-8", "replace")
        self._out.append(encode_frame(FrameType.ERROR, data))

    def fail(self, code: str, text: str = "") -> None:
        """Queue an error and read nothing more: send what is queued, then close."""
        self.send_error(code, text)
        self.state = ServerState.FAILED
        self._last = None  # later input is ignored, valid or not
        self._stop()

    def send_messages(self, messages: Iterable[Message]) -> None:
        """Queue messages, in the layout of the client's subscription."""
        self._check_subscribed()
        self._out.append(encode_messages(messages, self._layout))

    def send_plain_messages(self, messages: Iterable[MessageLike]) -> int:
        """Queue messages of the classic dialect, of any class; return their size in bytes."""
        self._check_subscribed()
        self._out.append(data := encode_plain_messages(messages))
        return len(data)

    def send_frames(self, frames: bytes) -> None:
        """Queue messages that are encoded already, in the layout of this subscription."""
        self._check_subscribed()
        self._out.append(frames)

    # Private methods

    def _check_subscribed(self) -> None:
        if self.state not in (ServerState.SUBSCRIBED, ServerState.CLOSING):
            raise LocalProtocolError(f"messages for a client in state {self.state.value}")

    @property
    def _identifying(self) -> bool:
        """Whether IDENTIFY was read and not answered yet."""
        return self._paused and not self._awaiting_tls

    def _parse(self, events: list[Command | StartTls]) -> None:
        if self.state is ServerState.MAGIC:
            if not self._read_magic(MAGIC_V2):
                return
            self.state = ServerState.INIT
        while self._reading:
            if self._gather_fins and (fins := self._commands.next_fins()) is not None:
                events.append(fins)
            elif (command := self._commands.next()) is not None:
                self._advance(command)
                events.append(command)
            else:
                return

    def _check_end(self) -> None:
        self._commands.check_end()

    def _admit(self, name: str) -> bool:
        """Raise if the state forbids the command; return False to skip it (RDY after CLS)."""
        if self._tls_needed and name != "IDENTIFY":
            raise RemoteProtocolError(f"cannot {name} in current state (TLS required)", "E_INVALID")
        if self.state not in _ALLOWED_STATES.get(name, (self.state,)):
            name = "SUB" if name.startswith("SUB_") else name  # the server's wording
            raise RemoteProtocolError(f"cannot {name} in current state", "E_INVALID")
        if name.startswith("SUB") and self.identify.heartbeat_interval == -1:
            raise RemoteProtocolError("cannot SUB with heartbeats disabled", "E_INVALID")
        if name == "SUB_ORDERED" and self.identify.sample_rate:
            text = "order consume is not allowed while sample rate is not 0"
            raise RemoteProtocolError(text, "E_INVALID")
        return not (name == "RDY" and self.state is ServerState.CLOSING)

    def _advance(self, command: Command) -> None:
        if isinstance(command, Identify):
            self.identify = IdentifyRequest.decode(command.body, self.dialect)
            # What follows may be TLS or compressed, depending on the reply.
            self._paused = True
        elif isinstance(command, Sub):
            self.state = ServerState.SUBSCRIBED
            self._layout = command.layout(self.identify.extend_support)
        elif isinstance(command, Cls):
            self.state = ServerState.CLOSING

    def _end(self, error: RemoteProtocolError | ServerError) -> None:
        self.state = ServerState.FAILED
        if error.code:
            self.send_error(error.code, error.text)

    def _tls_started(self) -> None:
        self._tls_needed = False
        self.send_response(OK)
        self._begin_compression()

    def _begin_compression(self) -> None:
        for method in ("snappy", "deflate"):
            if getattr(self._reply, method):
                self._compress(method, self._reply.deflate_level)
                self.send_response(OK)
                return
