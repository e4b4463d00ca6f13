"""One HTTP connection to one daemon, kept from question to question.

The survey asks dozens of times a second. A connection for each question, as ``nsqflow.http``
makes them, would double what that costs, and with TLS it would be four times as much.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from time import monotonic

import h11

from nsqflow.errors import NetworkError
from nsqflow.http.client import MAX_ANSWER, parse_http_address
from nsqflow.protocol.lookup import ACCEPT_V1

_READ_SIZE = 64 * 1024
_IDLE = 30.0  # seconds; after a long batch something on the way may have forgotten a connection


class HttpLink:
    """Asks one daemon with GET, one question at a time; connects when it has to.

    ``tls`` is called for an https address. How long to wait is the caller's: a question that
    is cancelled takes its connection with it.
    """

    def __init__(self, address: str, tls: Callable[[], ssl.SSLContext]) -> None:
        self.given = address
        self._address = parse_http_address(address)
        self._tls = tls
        self._headers = [("host", self._address.authority), ("accept", ACCEPT_V1)]
        if self._address.credentials:
            token = base64.b64encode(self._address.credentials.encode()).decode()
            self._headers.append(("authorization", f"Basic {token}"))
        self._last: tuple[str, h11.Request] | None = None
        self._http: h11.Connection | None = None  # None: not connected
        self._used = 0.0  # when it was of use the last time
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    def __str__(self) -> str:
        return str(self._address)  # unlike what was given, it never has a password in it

    async def get(self, target: str) -> tuple[int, bytes]:
        """Ask; gives status and body of the answer, whichever they are, or ``NetworkError``."""
        try:
            if monotonic() - self._used > _IDLE:
                self.close()
            if self._http is not None:
                try:
                    return await self._exchange(self._http, target)
                except (OSError, h11.RemoteProtocolError):
                    pass  # it was closed since the last time, so once more
            return await self._exchange(await self._connect(), target)
        except (OSError, UnicodeError) as error:  # the latter from a name that DNS can't have
            raise NetworkError(f"{self}: {error}") from error
        except h11.RemoteProtocolError as error:
            raise NetworkError(f"{self}: what it answered is not HTTP: {error}") from error

    def close(self) -> None:
        """Drop the connection; the next question makes another."""
        if self._http is not None:
            self._http = None
            # At once: TLS would wait half a minute for the other's goodbye.
            self._writer.transport.abort()

    async def _connect(self) -> h11.Connection:
        address = self._address
        context = self._tls() if address.scheme == "https" else None
        self._reader, self._writer = await asyncio.open_connection(
            address.host, address.port, ssl=context
        )
        self._http = h11.Connection(our_role=h11.CLIENT)
        return self._http

    async def _exchange(self, http: h11.Connection, target: str) -> tuple[int, bytes]:
        whole = False
        try:
            self._writer.write(self._encode(http, target))
            answer = await self._answer(http)
            whole = http.our_state is http.their_state is h11.DONE
            return answer
        finally:
            if whole:
                http.start_next_cycle()
                self._used = monotonic()
            else:  # cut short, or the server wants no more of it
                self.close()

    def _encode(self, http: h11.Connection, target: str) -> bytes:
        if self._last is None or self._last[0] != target:  # mostly it is what was asked before
            request = h11.Request(
                method="GET", target=self._address.prefix + target, headers=self._headers
            )
            self._last = target, request
        return (http.send(self._last[1]) or b"") + (http.send(h11.EndOfMessage()) or b"")

    async def _answer(self, http: h11.Connection) -> tuple[int, bytes]:
        status, body = 0, bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await self._reader.read(_READ_SIZE))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_ANSWER:
                    raise NetworkError(f"{self}: its answer has more than {MAX_ANSWER} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return status, bytes(body)
