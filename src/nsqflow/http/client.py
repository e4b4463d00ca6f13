"""A small HTTP client: for nsqlookupd, and for the HTTP APIs of both daemons.

    http = HttpClient(timeout=5)
    status, body = await http.get("127.0.0.1:4161", "/lookup", {"topic": "orders"})

It asks whom it is told to ask: no proxies, no redirects, no second try. Whatever status comes
is an answer; only what prevents one is raised.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import quote, unquote, urlencode

import h11

from nsqflow.errors import ConfigError, NetworkError, RequestTimeout
from nsqflow.http.exchange import AnswerTooLarge, Exchange
from nsqflow.protocol.lookup import ACCEPT_V1, join_address

MAX_ANSWER = 64 * 1024 * 1024
NOTHING: Mapping[str, str] = MappingProxyType({})

_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?)://(?:(?P<credentials>[^@/\s]*)@)?)?"
    r"(?:\[(?P<v6>[0-9a-z:.%_-]+)\]|(?P<host>[0-9a-z._-]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<prefix>/[^?#\s]*)?",
    re.IGNORECASE | re.ASCII,
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+(?:[ \t]+[\x21-\x7e]+)*")
_FRAMING = {"connection", "content-length", "transfer-encoding"}
_DEFAULT_PORTS = {"http": 80, "https": 443}


class NoAnswer(NetworkError):
    """The request was sent and no usable answer came: it may have had its effect, or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """Where an HTTP API is. As text it is without the credentials."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    credentials: str = field(default="", repr=False)

    def __str__(self) -> str:
        if self.scheme == "http" and not self.prefix:
            return self.authority
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """``host:port``."""
        return join_address(self.host, self.port)


def parse_http_address(text: str) -> HttpAddress:
    """Read ``host:port`` or a URL; raise ``ConfigError`` that says what is allowed."""
    if not isinstance(text, str):
        raise ConfigError(f"HTTP address must be a str, not {type(text).__name__}")
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not (match["scheme"] or (match["port"] and not match["prefix"])):
        raise _bad_address(text)
    scheme = (match["scheme"] or "http").lower()
    port = int(match["port"] or _DEFAULT_PORTS[scheme])
    if not 1 <= port <= 65535:
        raise _bad_address(text)
    return HttpAddress(
        scheme=scheme,
        host=match["v6"] or match["host"],
        port=port,
        prefix=quote((match["prefix"] or "").rstrip("/"), safe="/%"),
        credentials=unquote(match["credentials"] or ""),
    )


class HttpClient:
    """Asks HTTP servers; one for many addresses, and for many requests at once."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] = NOTHING,
        timeout: float,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        if not 0 < timeout < math.inf:
            raise ConfigError(f"timeout {timeout!r}; allowed is a number of seconds above 0")
        # The Accept header brings a bare answer and an honest status from every nsqlookupd.
        self._headers = {"accept": ACCEPT_V1} | _checked(headers)
        self._tls = tls
        self._timeout = timeout
        self._max_answer = max_answer
        self._closed = False

    async def get(
        self, address: str | HttpAddress, path: str, query: Mapping[str, str] = NOTHING
    ) -> tuple[int, bytes]:
        """Ask with GET; gives status and body."""
        return await self.request(address, "GET", path, query)

    async def request(
        self,
        address: str | HttpAddress,
        method: str,
        path: str,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
    ) -> tuple[int, bytes]:
        """Ask; gives status and body of the answer, whichever they are.

        Raises ``RequestTimeout`` or ``NetworkError`` if nothing was sent, and the latter's
        ``NoAnswer`` if something was.
        """
        if isinstance(address, str):
            address = parse_http_address(address)
        if self._closed:
            raise NetworkError(f"{address}: this HTTP client is closed")
        content = body or b""
        request = self._request(address, method, path, query, len(content))
        return await self._exchange(
            address, Exchange(request, content, max_answer=self._max_answer)
        )

    async def aclose(self) -> None:
        """Take no more requests; there is no connection to close, as each request has its own."""
        self._closed = True

    def _request(
        self, to: HttpAddress, method: str, path: str, query: Mapping[str, str], size: int
    ) -> h11.Request:
        target = to.prefix + quote(path) + ("?" + urlencode(query, quote_via=quote)) * bool(query)
        headers = {"host": to.authority} | _authorization(to) | self._headers
        headers["connection"] = "close"
        if size or method != "GET":
            headers["content-length"] = str(size)
        return h11.Request(method=method, target=target, headers=[*headers.items()])

    async def _exchange(self, to: HttpAddress, exchange: Exchange) -> tuple[int, bytes]:
        tls = self._tls_for(to)
        try:
            async with asyncio.timeout(self._timeout):
                return await exchange.run(to.host, to.port, tls)
        except TimeoutError:
            if exchange.sent:
                raise NoAnswer(f"{to}: no answer within {self._timeout:g} s") from None
            raise RequestTimeout(f"{to}: no connection within {self._timeout:g} s") from None
        except (OSError, UnicodeError) as error:  # the latter from a name that DNS can't have
            kind = NoAnswer if exchange.sent else NetworkError
            raise kind(f"{to}: {error}") from error
        except h11.RemoteProtocolError as error:
            raise NoAnswer(f"{to}: what it answered is not HTTP: {error}") from error
        except AnswerTooLarge:
            raise NoAnswer(f"{to}: its answer has more than {self._max_answer} bytes") from None

    def _tls_for(self, address: HttpAddress) -> ssl.SSLContext | None:
        if address.scheme == "http":
            return None
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _bad_address(text: str) -> ConfigError:
    shown = re.sub(r"^((?:\w+://)?).*@", r"\1***@", text, flags=re.DOTALL)
    return ConfigError(
        f"HTTP address {shown!r}; allowed are host:port, [IPv6]:port, http://host:port/prefix and "
        "https://host:port/prefix, with a port of 1 to 65535"
    )


def _authorization(address: HttpAddress) -> dict[str, str]:
    if not address.credentials:
        return {}
    return {"authorization": "Basic " + base64.b64encode(address.credentials.encode()).decode()}


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with names in lower case. Errors don't show values: they may be secrets."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"header name {name!r}; allowed are letters, digits and '-'")
        if name.lower() in _FRAMING:
            raise ConfigError(f"header {name!r} can't be set; it belongs to the request itself")
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"the value of header {name!r}; allowed is printable ASCII")
    return {name.lower(): value for name, value in headers.items()}
