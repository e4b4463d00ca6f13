"""A small HTTP/1.1 server on h11, for the HTTP APIs of the broker's daemons.

    server = HttpServer(handler, body_limit=lambda method, path: 1024)
    listener = await loop.create_server(server, "127.0.0.1", 4151)
    ...
    listener.close()
    await server.close()

A connection reads one whole request at a time, and the next one only after the response is
written. So the memory that a client can use is bounded: a head, a body up to its limit and a
response. A client that takes longer than ``idle_timeout`` to send or to read is disconnected, and
so is the one that is idle longest when a connection above ``max_connections`` arrives.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

import h11

from nsqflow.http.connection_limit import ConnectionLimiter, TrackedConnection

logger = logging.getLogger(__name__)

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile(r"https?://[^/?]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Request:
    """A request, read completely unless its body is too long."""

    method: str
    path: str
    """Percent-decoded, without the query."""
    query: str
    """As it was sent."""
    headers: Mapping[str, str]
    """Names are in lower case; values of a repeated header are joined by commas."""
    body: bytes
    complete: bool
    """False if the body is longer than its limit: ``body`` is then at most its beginning."""
    client: str = ""
    """The client's address."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response; the server adds the headers Date and Content-Length."""

    status: int = 200
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


Handler = Callable[[Request], Awaitable[Response]]


class BadTarget(Exception):
    """The request target has no valid path; never raised to users of this module."""


def split_target(target: str) -> tuple[str, str]:
    """Return path and query of a request target, which may be a complete URL."""
    if match := _ORIGIN.match(target):
        target = target[match.end() :]
        target = target if target.startswith("/") else "/" + target
    path, _, query = target.partition("?")
    if not path.startswith("/") or _BAD_ESCAPE.search(path):
        raise BadTarget
    return unquote(path), query


def join_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the values by name; those of a repeated header are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


_LINGER = 2.0  # seconds for a client that still sends to read the last response
_STRIDE = 64 * 1024  # bytes of a body after which idle_timeout starts again
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_FAILED = Response(
    500,
    b'{"message":"INTERNAL_ERROR"}',
    (
        ("Content-Type", "application/json; charset=utf-8"),
        ("X-Nsq-Content-Type", "nsq; version=1.0"),
    ),
)


class HttpConnection(TrackedConnection):
    """Reads a request, has it handled, writes the response, and starts again."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.limiter)
        self._server = server
        self._http = h11.Connection(our_role=h11.SERVER)
        self._task: asyncio.Task[None] | None = None  # runs the handler
        self._head: h11.Request | None = None  # of the current request
        self._target = ("", "")  # path and query of the current request
        self._limit = 0
        self._body = bytearray()
        self._waiting = True  # for the first byte of a request
        self._can_write = True
        self._leaving = False  # closing: further input is ignored

    # Called by asyncio

    def data_received(self, data: bytes) -> None:
        """Parse input."""
        if not self._leaving:
            if self._waiting:
                self._waiting = False
                self._set_timeout(self._server.idle_timeout)
            self._http.receive_data(data)
            self._advance()

    def eof_received(self) -> bool:
        """Answer pending requests, then close; TLS has no half-closed connections."""
        if not self._leaving:
            self._http.receive_data(b"")
            self._advance()
        return not self._leaving and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """Parse no more requests of a client that does not read responses."""
        self._can_write = False

    def resume_writing(self) -> None:
        """Continue."""
        self._can_write = True
        if not self._leaving:
            self._set_timeout(self._server.idle_timeout)
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the handler."""
        self._leaving = True
        self._stop_timer()
        if self._task is None:
            self._mark_closed()
        else:
            self._task.cancel()
            self._task.add_done_callback(self._mark_closed)

    def _start(self) -> None:
        self._set_timeout(self._server.idle_timeout)

    # Reading

    def _advance(self) -> None:
        """Parse up to one complete request, unless the previous one is still being answered."""
        try:
            while not self._leaving and self._task is None and self._can_write:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._read_on()
                    return
                self._take(event)
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint)
        except BadTarget:
            self._refuse(400)

    def _read_on(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self._transport.write(self._http.send(go_on) or b"")
        self._transport.resume_reading()

    def _take(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.Request):
            self._read_head(event)
        elif isinstance(event, h11.Data):
            self._add(event.data)
        elif isinstance(event, h11.EndOfMessage):
            self._dispatch(complete=True)
        else:  # the client has sent its last request
            self._close()

    def _read_head(self, head: h11.Request) -> None:
        self._head, self._waiting = head, False
        self._target = split_target(head.target.decode("ascii"))
        self._limit = self._server.body_limit(head.method.decode("ascii"), self._target[0])
        # h11 has checked that there is at most one such header and that it is a number.
        length = next((value for name, value in head.headers if name == b"content-length"), b"0")
        if int(length) > self._limit:
            self._dispatch(complete=False)

    def _add(self, data: bytes | bytearray) -> None:
        before = len(self._body)
        self._body += data
        if len(self._body) > self._limit:
            del self._body[self._limit :]
            self._dispatch(complete=False)
        elif len(self._body) // _STRIDE > before // _STRIDE:
            self._set_timeout(self._server.idle_timeout)

    # Answering

    def _dispatch(self, *, complete: bool) -> None:
        assert self._head is not None
        self._stop_timer()  # handlers have no time limit
        self._limiter.mark_busy(self)
        self._transport.pause_reading()
        request = Request(
            self._head.method.decode("ascii"),
            *self._target,
            join_headers(self._head.headers),
            bytes(self._body),
            complete,
            self._client,
        )
        self._task = self._loop.create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            response = await self._server.handler(request)
        except Exception:
            logger.exception("HTTP: %s %s failed", request.method, request.path)
            response = _FAILED
        except asyncio.CancelledError:  # the connection is lost, or the handler cancelled itself
            self._transport.abort()
            raise
        self._task = None
        if self._transport.is_closing():
            return
        try:
            self._answer(request, response)
        except h11.LocalProtocolError:
            logger.exception("HTTP: %s %s: invalid response", request.method, request.path)
            self._transport.abort()

    def _answer(self, request: Request, response: Response) -> None:
        self._send(response, close=not request.complete)
        if not request.complete:
            self._linger()
        elif self._http.our_state is h11.MUST_CLOSE:
            self._close()
        else:
            self._http.start_next_cycle()
            self._head, self._body, self._waiting = None, bytearray(), True
            self._set_timeout(self._server.idle_timeout)
            self._advance()

    def _send(self, response: Response, *, close: bool) -> None:
        headers = [
            *response.headers,
            ("Date", formatdate(usegmt=True)),
            ("Content-Length", str(len(response.body))),
        ]
        if close:
            headers.append(("Connection", "close"))
        head = h11.Response(
            status_code=response.status,
            headers=headers,
            reason=_PHRASES.get(response.status, "").encode(),
        )
        data = [self._http.send(head)]
        if self._head is None or self._head.method != b"HEAD":
            data.append(self._http.send(h11.Data(data=response.body)))
        data.append(self._http.send(h11.EndOfMessage()))
        self._transport.write(b"".join(filter(None, data)))

    # Ending

    def _refuse(self, status: int) -> None:
        """Respond to an invalid request and close."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._close()
            return
        text = f"{status} {_PHRASES[status]}".encode()
        response = Response(status, text, [("Content-Type", "text/plain; charset=utf-8")])
        self._send(response, close=True)
        self._linger()

    def _linger(self) -> None:
        """Close the sending side and discard input for a while.

        Closing a socket that has unread input resets the connection, and the client would lose
        the response.
        """
        self._leaving = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._set_timeout(_LINGER)

    def _close(self) -> None:
        self._leaving = True
        self._transport.close()
        self._set_timeout(self._server.idle_timeout)  # for unsent data

    def _set_timeout(self, seconds: float) -> None:
        super()._set_timeout(seconds)
        self._limiter.mark_idle(self)


class HttpServer:
    """A protocol factory for ``loop.create_server``, and the connections it has created.

    ``handler`` returns the response to a request. ``body_limit(method, path)`` is the number of
    bytes read of a body; of a longer one the handler gets the beginning, and the connection is
    closed after the response.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        body_limit: Callable[[str, str], int],
        idle_timeout: float = 60.0,
        max_connections: int = 1000,
    ) -> None:
        self.handler = handler
        self.body_limit = body_limit
        self.idle_timeout = idle_timeout
        self.limiter = ConnectionLimiter("HTTP", max_connections, logger)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return HttpConnection(self)

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self.limiter)

    async def close(self) -> None:
        """Close all connections, cancel their handlers and wait until both have ended."""
        await self.limiter.close()
