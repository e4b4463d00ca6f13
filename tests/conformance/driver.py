"""Plain blocking drivers for the sessions: a socket, TLS if asked for, and nothing more.

They are independent of ``nsqflow.transport`` on purpose: every event and every byte sent is seen
here, so that the real servers judge the protocol core alone.
"""

from __future__ import annotations

import json
import queue
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from nsqflow.protocol import (
    ClientSession,
    Command,
    Connected,
    Event,
    Heartbeat,
    IdentifyRequest,
    LookupSession,
    Message,
    MessageBatch,
    Peer,
    PeerCommand,
    PeerIdentify,
    PeerReply,
    PeerSession,
    Ping,
    StartTls,
)
from nsqflow.protocol.session import Session
from tests.fixtures.servers import PATIENCE, Nsqd

E = TypeVar("E")
K = TypeVar("K")


class Connection(Generic[E]):
    """A session on a socket; every wait ends after PATIENCE."""

    def __init__(self, session: Session[E], sock: socket.socket) -> None:
        self._session = session
        self._socket = sock
        self._socket.settimeout(PATIENCE)
        self._arrived: deque[E] = deque()
        self.sent = bytearray()  # by the session so far, before TLS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def flush(self) -> None:
        """Send what the session has queued."""
        if data := self._session.data_to_send():
            self.sent += data
            self._socket.sendall(data)

    def send_raw(self, data: bytes) -> None:
        """Send bytes that no session would send."""
        self._socket.sendall(data)

    def next(self) -> E:
        """Return the next event; raise ``EOFError`` if the server has closed the connection."""
        while not self._arrived:
            data = self._receive()
            if not data:
                raise EOFError
            self._session.receive_data(data)
            while events := self._session.events():
                self._arrived += events
            self.flush()
        return self._arrived.popleft()

    def expect(self, kind: type[K]) -> K:
        """Return the next event, which must be of this kind."""
        event = self.next()
        assert isinstance(event, kind), event
        return event

    def expect_end(self) -> None:
        """Wait until the server closes the connection without another event."""
        try:
            event = self.next()
        except EOFError:
            return
        raise AssertionError(f"not closed, but: {event}")

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except ConnectionResetError:  # the server closed it before it had read everything
            return b""


class Client(Connection[Event]):
    """A client of nsqd, connected but not yet negotiated."""

    def __init__(
        self,
        sock: socket.socket,
        identify: IdentifyRequest | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.session = ClientSession(identify)
        self._tls = tls
        super().__init__(self.session, sock)
        self.flush()

    def negotiate(self) -> list[Event]:
        """Negotiate until the first command may be sent; return the events."""
        events: list[Event] = []
        while not any(isinstance(event, Connected) for event in events):
            events.append(self.next())
            if isinstance(events[-1], StartTls):
                self._start_tls(events[-1])
        return events

    def _start_tls(self, event: StartTls) -> None:
        # A TLS server waits for the client, so no byte of the handshake can have arrived.
        assert self._tls
        assert event.pending == b""
        self._socket = self._tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self.session.tls_started()

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.session.send(command)
        self.flush()

    def request(self, command: Command, answer: type[K]) -> K:
        """Send a command and return its response."""
        self.send(command)
        return self.expect(answer)

    def messages(self, count: int) -> list[Message]:
        """Wait for ``count`` messages."""
        messages: list[Message] = []
        while len(messages) < count:
            messages += self.batch().messages()
        assert len(messages) == count
        return messages

    def batch(self) -> MessageBatch:
        """Wait for messages; heartbeats may come before them."""
        while isinstance(event := self.next(), Heartbeat):
            pass
        assert isinstance(event, MessageBatch), event
        return event


class PeerConnection(Connection[PeerReply]):
    """The connection of an nsqd to nsqlookupd."""

    def __init__(self, sock: socket.socket) -> None:
        self.session = PeerSession()
        super().__init__(self.session, sock)

    def request(self, command: PeerCommand) -> PeerReply:
        """Send a command and return its response."""
        self.session.send(command)
        self.flush()
        return self.expect(PeerReply)


class LookupServer(threading.Thread):
    """An nsqlookupd that accepts all commands of the one nsqd that connects to it.

    It ends when that nsqd does.
    """

    def __init__(self, me: Peer) -> None:
        super().__init__()
        self.commands: queue.Queue[PeerCommand] = queue.Queue()
        self._me = me
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join()

    def next(self) -> PeerCommand:
        """Return the nsqd's next command other than PING."""
        return self.commands.get(timeout=PATIENCE)

    def run(self) -> None:
        with self._listener:
            sock, _ = self._listener.accept()
        session = LookupSession()
        with Connection(session, sock) as connection:
            while True:
                try:
                    command = connection.next()
                except EOFError:
                    return
                if isinstance(command, PeerIdentify):
                    session.send_peer(self._me)
                else:
                    session.send_response()
                connection.flush()
                if not isinstance(command, Ping):  # sent every 15 seconds
                    self.commands.put(command)


def stats_of(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    """Return nsqd's stats of a topic."""
    status, body = nsqd.ask(f"/stats?format=json&topic={topic}")
    assert status == 200
    [stats] = json.loads(body)["topics"]
    result: dict[str, Any] = stats
    return result


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll the state of another process until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.01)
