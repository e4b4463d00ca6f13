"""A small asyncio HTTP client, over h11, for the HTTP APIs of nsqd and nsqlookupd.

    http = HttpClient(timeout=5)
    response = await http.get("127.0.0.1:4161", "/lookup", {"topic": "orders"})

No proxies and no redirects. Every status is returned as a response; an exception means that there
is none. By default each request has a connection of its own: nsqlookupd is queried once a minute,
so a connection kept open would often be dead, and the host name is resolved each time. With
``keep_alive``, for many requests per second, one connection per server stays open.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from types import MappingProxyType
from urllib.parse import quote, urlencode

import h11

from nsqflow.address import HttpAddress, parse_http_address
from nsqflow.errors import ConfigError, NetworkError, NoResponseError, RequestTimeout
from nsqflow.protocol.lookup import ACCEPT_V1
from nsqflow.transport.dial import without_address

MAX_RESPONSE = 64 * 1024 * 1024
EMPTY: Mapping[str, str] = MappingProxyType({})

_READ_SIZE = 64 * 1024
_MAX_IDLE = 30.0  # seconds; a connection idle for longer may have been dropped on the way
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+(?:[ \t]+[\x21-\x7e]+)*")
_FRAMING = {"connection", "content-length", "transfer-encoding"}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case."""


class HttpClient:
    """Sends requests to HTTP servers, any number at once.

    ``tls`` is the context for https, or a function that returns it when it is needed. ``timeout``
    bounds each request as a whole, in seconds; with None that is left to the caller.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        headers: Mapping[str, str] = EMPTY,
        timeout: float | None,
        max_response: int = MAX_RESPONSE,
        keep_alive: bool = False,
    ) -> None:
        if timeout is not None and not 0 < timeout < math.inf:
            raise ConfigError(f"timeout={timeout!r} is invalid: must be a number of seconds > 0")
        # The Accept header makes every nsqlookupd send a bare response with its real status.
        self._headers = {"accept": ACCEPT_V1} | _checked(headers)
        self._tls = tls
        self._timeout = timeout
        self._max_response = max_response
        self._keep_alive = keep_alive
        self._idle: dict[HttpAddress, _Connection] = {}
        self._last: tuple[object, h11.Request] | None = None  # most requests go to the same server
        self._closed = False

    async def get(
        self, address: str | HttpAddress, path: str, query: Mapping[str, str] = EMPTY
    ) -> HttpResponse:
        """Send a GET request."""
        return await self.request(address, "GET", path, query)

    async def request(
        self,
        address: str | HttpAddress,
        method: str,
        path: str,
        query: Mapping[str, str] = EMPTY,
        body: bytes = b"",
    ) -> HttpResponse:
        """Send a request; return the response, whatever its status.

        Raises ``RequestTimeout`` or ``NetworkError`` if nothing was sent, and the latter's
        ``NoResponseError`` if something was.
        """
        to = parse_http_address(address) if isinstance(address, str) else address
        if self._closed:
            raise NetworkError(f"{to}: this HTTP client is closed")
        exchange = _Exchange(self._request(to, method, path, query, len(body)), body)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._send(to, exchange)
        except TimeoutError:
            if exchange.sent:
                raise NoResponseError(f"{to}: no answer within {self._timeout:g} s") from None
            raise RequestTimeout(f"{to}: no connection within {self._timeout:g} s") from None
        except (OSError, UnicodeError) as error:  # the latter from a name that DNS can't have
            kind = NoResponseError if exchange.sent else NetworkError
            raise kind(f"{to}: {without_address(error)}") from error
        except h11.RemoteProtocolError as error:
            raise NoResponseError(f"{to}: the response is not HTTP: {error}") from error
        except _TooLargeError:
            text = f"{to}: the response has more than {self._max_response} bytes"
            raise NoResponseError(text) from None

    def close(self) -> None:
        """Close idle connections, and refuse further requests."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close idle connections; the next request opens another."""
        while self._idle:
            self._idle.popitem()[1].close()

    # Private methods

    def _request(
        self, to: HttpAddress, method: str, path: str, query: Mapping[str, str], size: int
    ) -> h11.Request:
        key = (to, method, path, query, size)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        headers = {"host": to.authority} | _authorization(to) | self._headers
        if not self._keep_alive:
            headers["connection"] = "close"
        if size or method != "GET":
            headers["content-length"] = str(size)
        target = to.prefix + quote(path) + ("?" + urlencode(query, quote_via=quote)) * bool(query)
        request = h11.Request(method=method, target=target, headers=[*headers.items()])
        if self._keep_alive:
            self._last = key, request
        return request

    async def _send(self, to: HttpAddress, exchange: _Exchange) -> HttpResponse:
        kept = self._idle.pop(to, None) if exchange.request.method == b"GET" else None
        if kept is not None:
            if monotonic() - kept.idle_since > _MAX_IDLE:
                kept.close()
            else:
                try:
                    return await self._run(to, kept, exchange)
                except (OSError, h11.RemoteProtocolError):
                    pass  # the server has closed it since the last request
        return await self._run(to, await _Connection.open(to, self._tls_for(to)), exchange)

    async def _run(
        self, to: HttpAddress, connection: _Connection, exchange: _Exchange
    ) -> HttpResponse:
        reusable = False
        try:
            response = await connection.run(exchange, self._max_response)
            reusable = self._keep_alive and not self._closed and connection.start_next_cycle()
            return response
        finally:
            if reusable and to not in self._idle:
                self._idle[to] = connection
            else:  # cut short, or the server closes it
                connection.close()

    def _tls_for(self, address: HttpAddress) -> ssl.SSLContext | None:
        if address.scheme == "http":
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        elif not isinstance(self._tls, ssl.SSLContext):
            return self._tls()
        return self._tls


class _TooLargeError(Exception):
    """The response exceeds the limit."""


class _Exchange:
    """A request, and whether the server may have seen it."""

    def __init__(self, request: h11.Request, body: bytes) -> None:
        self.request = request
        self.body = body
        self.sent = False


class _Connection:
    """A connection to an HTTP server, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.idle_since = 0.0
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(our_role=h11.CLIENT)

    @classmethod
    async def open(cls, to: HttpAddress, tls: ssl.SSLContext | None) -> _Connection:
        """Connect to a server."""
        return cls(*await asyncio.open_connection(to.host, to.port, ssl=tls))

    async def run(self, exchange: _Exchange, max_response: int) -> HttpResponse:
        """Send a request and read the whole response."""
        exchange.sent = True
        # Not drained: a server that refuses a large body responds before it has read it all.
        self._writer.write(self._encode(exchange))
        status, size, pieces, headers = 0, 0, list[bytes](), dict[str, str]()
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in event.headers}
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                size += len(event.data)
                if size > max_response:
                    raise _TooLargeError
            elif isinstance(event, h11.EndOfMessage):
                return HttpResponse(status, b"".join(pieces), headers)

    def start_next_cycle(self) -> bool:
        """Prepare for the next request; return False if the connection can't have one."""
        if not self._http.our_state is self._http.their_state is h11.DONE:
            return False
        self._http.start_next_cycle()
        self.idle_since = monotonic()
        return True

    def close(self) -> None:
        """Close at once: TLS would wait half a minute for the server's close_notify."""
        self._writer.transport.abort()

    def _encode(self, exchange: _Exchange) -> bytes:
        events = (exchange.request, h11.Data(data=exchange.body), h11.EndOfMessage())
        return b"".join(self._http.send(event) or b"" for event in events)

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_READ_SIZE))
        return event


def _authorization(address: HttpAddress) -> dict[str, str]:
    if not address.credentials:
        return {}
    return {"authorization": "Basic " + base64.b64encode(address.credentials.encode()).decode()}


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with names in lower case; errors show no values, which may be secret."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"header name {name!r} is invalid: must be letters, digits and '-'")
        if name.lower() in _FRAMING:
            raise ConfigError(f"header {name!r} can't be set: it belongs to the request itself")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"the value of header {name!r} is invalid: must be printable ASCII")
    return {name.lower(): value for name, value in headers.items()}
