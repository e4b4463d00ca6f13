"""One connection of an nsqd to nsqlookupd: keeps the registry in step with what the nsqd says.

What it is registered for lasts as long as the connection. The nsqd pings every 15 seconds; one that
does not identify itself in time, or falls silent, is cut off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from nsqflow.broker.lookupd.registry import Node, Registration, Registry
from nsqflow.errors import RemoteProtocolError
from nsqflow.http.guests import Guest, Guests
from nsqflow.protocol import LookupSession, Peer, PeerCommand, PeerIdentify, Register, Unregister

logger = logging.getLogger("nsqflow.broker.lookupd")


@dataclass(frozen=True, slots=True)
class Terms:
    """What the connections of one nsqlookupd have in common."""

    registry: Registry
    answer: Callable[[], Peer]
    """What an nsqd is told of nsqlookupd when it identifies itself."""
    identify_timeout: float
    """Seconds in which it must do so."""
    silence_timeout: float
    """Seconds in which each next command must come."""
    guests: Guests


class LookupConnection(Guest):
    """An nsqd's connection."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms.guests)
        self._terms = terms
        self._session = LookupSession()
        self._node: Node | None = None  # once it has identified itself

    # What asyncio calls

    def data_received(self, data: bytes) -> None:
        """Do what the nsqd says, and answer."""
        if not self._transport.is_closing():
            self._session.receive_data(data)
            self._work()

    def eof_received(self) -> None:
        """Answer what it left unfinished; the transport then closes."""
        if not self._transport.is_closing():
            self._session.receive_eof()
            self._work()

    def _work(self) -> None:
        try:
            while commands := self._session.events():
                for command in commands:
                    self._do(command)
                if self._node is not None:
                    self._allow(self._terms.silence_timeout)
        except RemoteProtocolError as error:
            logger.error("[%s] - %s", self._client, _escaped(str(error)))
            self._transport.write(self._session.data_to_send())
            self._transport.close()
        else:
            self._transport.write(self._session.data_to_send())

    def pause_writing(self) -> None:
        """Hear nothing more from an nsqd that does not read its answers."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister all that it had."""
        self._stop_timer()
        if self._node is not None:
            self._log("UNREGISTER", self._terms.registry.leave(self._node))
        if self._admitted:
            logger.info("PROTOCOL(V1): [%s] exiting ioloop", self._client)
        self._vanish()

    # Private methods

    def _begin(self) -> None:
        if self._client == "@":
            # Those of a unix socket have no names, and need one: it is what tells nodes apart.
            self._client += str(self._transport.get_extra_info("socket").fileno())
        logger.info("TCP: new client(%s)", self._client)
        self._allow(self._terms.identify_timeout)

    def _do(self, command: PeerCommand) -> None:
        if isinstance(command, PeerIdentify):
            self._identify(command.peer)
            self._session.send_peer(self._terms.answer())
            return
        if isinstance(command, Unregister):  # which is a Register to Python
            self._unregister(command.topic, command.channel)
        elif isinstance(command, Register):
            assert self._node is not None  # the session has seen to it
            news = self._terms.registry.register(self._node, command.topic, command.channel)
            self._log("REGISTER", news)
        elif self._node is not None:
            now = time.time_ns()
            silence = (now - self._node.last_update) / 1e9
            logger.info("CLIENT(%s): pinged (last ping %.3fs)", self._client, silence)
            self._node.last_update = now
        self._session.send_response()

    def _identify(self, peer: Peer) -> None:
        self._guests.protect(self)
        self._node = Node(self._client, peer, time.time_ns())
        self._terms.registry.join(self._node)
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
        gone = self._terms.registry.unregister(self._node, topic, channel)
        if not channel and len(gone) > 1:
            logger.warning("client(%s) unexpected UNREGISTER of %s's channels", self._client, topic)
        self._log("UNREGISTER", gone)

    def _give_up(self, seconds: float) -> None:
        what = "identify itself" if self._node is None else "say anything"
        logger.warning("client(%s) did not %s within %g s", self._client, what, seconds)
        super()._give_up(seconds)

    def _log(self, what: str, registrations: list[Registration]) -> None:
        for each in registrations:
            text = "DB: client(%s) %s category:%s key:%s subkey:%s"
            logger.info(text, self._client, what, *each)


def _escaped(text: str) -> str:
    """Give what somebody else wrote as one line that can do nothing to a terminal."""
    return text.encode("unicode_escape").decode("ascii")
