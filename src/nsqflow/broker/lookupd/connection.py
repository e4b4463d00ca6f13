"""An nsqd's connection to nsqlookupd: updates the registrations by the nsqd's commands.

Registrations last as long as the connection. The nsqd pings every 15 seconds; one that does not
identify in time, or sends nothing for too long, is disconnected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from nsqflow.broker.lookupd.registration_db import RegisteredNode, Registration, RegistrationDb
from nsqflow.errors import RemoteProtocolError
from nsqflow.http.connection_limit import ConnectionLimiter, TrackedConnection
from nsqflow.protocol import LookupSession, Peer, PeerCommand, PeerIdentify, Register, Unregister

logger = logging.getLogger("nsqflow.broker.lookupd")


@dataclass(frozen=True, slots=True)
class LookupdSettings:
    """What all connections of one nsqlookupd share."""

    db: RegistrationDb
    answer: Callable[[], Peer]
    """Returns the reply to IDENTIFY."""
    identify_timeout: float
    """Seconds for the first command, IDENTIFY."""
    silence_timeout: float
    """Seconds for each further command."""
    limiter: ConnectionLimiter


class NsqdConnection(TrackedConnection):
    """An nsqd's connection."""

    def __init__(self, settings: LookupdSettings) -> None:
        super().__init__(settings.limiter)
        self._settings = settings
        self._session = LookupSession()
        self._node: RegisteredNode | None = None  # set by IDENTIFY

    # Called by asyncio

    def data_received(self, data: bytes) -> None:
        """Execute commands and respond."""
        if not self._transport.is_closing():
            self._session.receive_data(data)
            self._process()

    def eof_received(self) -> None:
        """Respond to an incomplete command; the transport then closes."""
        if not self._transport.is_closing():
            self._session.receive_eof()
            self._process()

    def _process(self) -> None:
        try:
            while commands := self._session.events():
                for command in commands:
                    self._execute(command)
                if self._node is not None:
                    self._set_timeout(self._settings.silence_timeout)
        except RemoteProtocolError as error:
            logger.error("[%s] - %s", self._client, _escaped(str(error)))
            self._transport.write(self._session.data_to_send())
            self._transport.close()
        else:
            self._transport.write(self._session.data_to_send())

    def pause_writing(self) -> None:
        """Read no more from an nsqd that does not read responses."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the nsqd's registrations."""
        self._stop_timer()
        if self._node is not None:
            self._log("UNREGISTER", self._settings.db.leave(self._node))
        if self._accepted:
            logger.info("PROTOCOL(V1): [%s] exiting ioloop", self._client)
        self._mark_closed()

    # Private methods

    def _start(self) -> None:
        if self._client == "@":
            # Clients of a unix socket have no address, but nodes are distinguished by it.
            self._client += str(self._transport.get_extra_info("socket").fileno())
        logger.info("TCP: new client(%s)", self._client)
        self._set_timeout(self._settings.identify_timeout)

    def _execute(self, command: PeerCommand) -> None:
        if isinstance(command, PeerIdentify):
            self._identify(command.peer)
            self._session.send_peer(self._settings.answer())
            return
        if isinstance(command, Unregister):  # a subclass of Register
            self._unregister(command.topic, command.channel)
        elif isinstance(command, Register):
            assert self._node is not None  # ensured by the session
            added = self._settings.db.register(self._node, command.topic, command.channel)
            self._log("REGISTER", added)
        elif self._node is not None:
            now = time.time_ns()
            silence = (now - self._node.last_update) / 1e9
            logger.info("CLIENT(%s): pinged (last ping %.3fs)", self._client, silence)
            self._node.last_update = now
        self._session.send_response()

    def _identify(self, peer: Peer) -> None:
        self._limiter.mark_busy(self)
        self._node = RegisteredNode(self._client, peer, time.time_ns())
        self._settings.db.join(self._node)
        logger.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self._client,
            _escaped(peer.broadcast_address),
            peer.tcp_port,
            peer.http_port,
            _escaped(peer.version),
        )
        self._log("REGISTER", [Registration("client")])

    def _unregister(self, topic: str, channel: str) -> None:
        assert self._node is not None
        removed = self._settings.db.unregister(self._node, topic, channel)
        if not channel and len(removed) > 1:
            logger.warning("client(%s) unexpected UNREGISTER of %s's channels", self._client, topic)
        self._log("UNREGISTER", removed)

    def _on_timeout(self, seconds: float) -> None:
        what = "identify itself" if self._node is None else "send anything"
        logger.warning("client(%s) did not %s within %g s", self._client, what, seconds)
        super()._on_timeout(seconds)

    def _log(self, what: str, registrations: list[Registration]) -> None:
        for each in registrations:
            text = "DB: client(%s) %s category:%s key:%s subkey:%s"
            logger.info(text, self._client, what, *each)


def _escaped(text: str) -> str:
    """Return text of a client as one line that cannot control a terminal."""
    return text.encode("unicode_escape").decode("ascii")
