"""An HTTP server that answers what a test wants, or does not."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable

from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import CLOSE, HANG, RESET, Deed, Listener, Wire

Reply = Callable[[str], "bytes | Deed"]
"""What becomes of a request, by its target: the bytes of an answer, or something worse."""


def answer(status: int, content: object) -> bytes:
    """The bytes of an HTTP answer; what is not bytes is sent as JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class WebWire(Wire):
    def __init__(self, server: WebServer) -> None:
        super().__init__(server)
        self._server = server
        self._received = b""

    def receive(self, data: bytes) -> None:
        before = b"\r\n\r\n" in self._received
        self._received += data
        head, end, _ = self._received.partition(b"\r\n\r\n")
        if end and not before:
            self._server.requests.append(head.decode())
            self.do(self._server.reply(head.decode().split()[1]))


class WebServer(Listener[WebWire]):
    """Answers the head of a request as the test says; ``requests`` are the heads it saw."""

    def __init__(self, reply: Reply, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.reply = reply
        self.requests: list[str] = []

    def _accept(self) -> WebWire:
        return WebWire(self)


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


__all__ = ["CLOSE", "HANG", "RESET", "WebServer", "answer", "server_context"]
