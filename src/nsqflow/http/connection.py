"""One connection of an HTTP server: waits for a request, has it answered, and so on.

h11 speaks the protocol. A request is read whole, within its limit, before it is handled, and the
next one only when the answer is out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

import h11

from nsqflow.http.guests import Guest, Guests
from nsqflow.http.request import (
    BadTarget,
    Handler,
    Request,
    Response,
    join_headers,
    split_target,
)

logger = logging.getLogger("nsqflow.http.server")

_LINGER = 2.0  # seconds in which a client that still talks may read why it is closed
_STRIDE = 64 * 1024  # bytes of a body that earn its sender another idle_timeout
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_FAILED = Response(
    500,
    b'{"message":"INTERNAL_ERROR"}',
    (
        ("Content-Type", "application/json; charset=utf-8"),
        ("X-Nsq-Content-Type", "nsq; version=1.0"),
    ),
)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the connections of one server have in common."""

    handler: Handler
    body_limit: Callable[[str, str], int]
    idle_timeout: float
    guests: Guests


class Connection(Guest):
    """A client: waits for a request, has it answered, and so on."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms.guests)
        self._terms = terms
        self._http = h11.Connection(our_role=h11.SERVER)
        self._task: asyncio.Task[None] | None = None  # the handler's
        self._head: h11.Request | None = None  # of the request that is being read
        self._target = ("", "")  # its path and query
        self._limit = 0
        self._body = bytearray()
        self._waiting = True  # for the first byte of a request
        self._can_write = True
        self._leaving = False  # nothing more is read, or what is read is dropped

    # What asyncio calls

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if not self._leaving:
            if self._waiting:
                self._waiting = False
                self._allow(self._terms.idle_timeout)
            self._http.receive_data(data)
            self._advance()

    def eof_received(self) -> bool:
        """Answer what was asked before; then close."""
        if not self._leaving:
            self._http.receive_data(b"")
            self._advance()
        return not self._leaving

    def pause_writing(self) -> None:
        """Ask nothing more of a client that does not read its answers."""
        self._can_write = False

    def resume_writing(self) -> None:
        """Go on."""
        self._can_write = True
        if not self._leaving:
            self._allow(self._terms.idle_timeout)
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind."""
        self._leaving = True
        self._stop_timer()
        if self._task is None:
            self._vanish()
        else:
            self._task.cancel()
            self._task.add_done_callback(self._vanish)

    def _begin(self) -> None:
        self._allow(self._terms.idle_timeout)

    # Reading

    def _advance(self) -> None:
        """Read as far as a whole request, unless there is still something to do for the last."""
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
        else:  # the client has closed, having asked all it wanted to
            self._close()

    def _read_head(self, head: h11.Request) -> None:
        self._head, self._waiting = head, False
        self._target = split_target(head.target.decode("ascii"))
        self._limit = self._terms.body_limit(head.method.decode("ascii"), self._target[0])
        # (h11 has made sure that there is one such header at most, and that it is a number.)
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
            self._allow(self._terms.idle_timeout)

    # Answering

    def _dispatch(self, *, complete: bool) -> None:
        assert self._head is not None
        self._stop_timer()  # a handler takes as long as it takes
        self._guests.protect(self)
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
            response = await self._terms.handler(request)
        except Exception:
            logger.exception("HTTP: %s %s failed", request.method, request.path)
            response = _FAILED
        except asyncio.CancelledError:  # of the handler's own making, unless it is lost already
            self._transport.abort()
            raise
        self._task = None
        if self._transport.is_closing():
            return
        try:
            self._answer(request, response)
        except h11.LocalProtocolError:
            logger.exception("HTTP: %s %s has an answer that is none", request.method, request.path)
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
            self._allow(self._terms.idle_timeout)
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
        """Answer what can't be understood, or what can't be served, and end."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._close()
            return
        text = f"{status} {_PHRASES[status]}".encode()
        response = Response(status, text, [("Content-Type", "text/plain; charset=utf-8")])
        self._send(response, close=True)
        self._linger()

    def _linger(self) -> None:
        """Close this side, and drop what comes.

        A socket that is closed with unread bytes in it resets the connection, and the client
        would lose the answer.
        """
        self._leaving = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._allow(_LINGER)

    def _close(self) -> None:
        self._leaving = True
        self._transport.close()
        self._allow(self._terms.idle_timeout)  # for what is unsent

    def _allow(self, seconds: float) -> None:
        super()._allow(seconds)
        self._guests.expose(self)
