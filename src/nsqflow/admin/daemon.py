"""What nsqd and nsqlookupd have in common over HTTP, and the error both may answer with."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any, Self

from nsqflow.errors import NsqError
from nsqflow.http.client import NOTHING, HttpClient, parse_http_address
from nsqflow.protocol.names import check_channel, check_topic

_MAX_MESSAGE = 200  # characters of a server's message that are worth showing


class AdminError(NsqError):
    """The daemon refused, or gave an answer of no use; ``status`` is that of HTTP."""

    def __init__(self, status: int, message: str, where: str = "") -> None:
        super().__init__(status, message, where)
        self.status = status
        self.message = message
        self.where = where
        """The address and path that were asked."""

    def __str__(self) -> str:
        return f"{self.where}: {self.status} {self.message}"


class Daemon:
    """One nsqd or nsqlookupd, by its HTTP address.

    ``address`` is ``host:port`` or a URL; ``tls`` counts where that is https. ``headers`` go
    with every request; ``timeout`` bounds each one as a whole, in seconds.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] = NOTHING,
        timeout: float = 5.0,
    ) -> None:
        self._address = parse_http_address(address)
        self._http = HttpClient(tls=tls, headers=headers, timeout=timeout)

    @property
    def address(self) -> str:
        """Its address, without credentials."""
        return str(self._address)

    async def ping(self) -> None:
        """Return if it is well; nsqd is not while it can't write to its disk."""
        await self._call("GET", "/ping")

    async def info(self) -> Mapping[str, Any]:
        """Its version and, from nsqd, addresses and limits."""
        return await self._object("/info")

    async def close(self) -> None:
        """Take no more calls."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
    ) -> bytes:
        """Ask; the answer's body, or its error raised."""
        status, answer = await self._http.request(self._address, method, path, query, body)
        if status != 200:
            raise AdminError(status, _message(answer), self._where(path))
        return answer

    async def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
    ) -> Any:
        answer = await self._call(method, path, query, body)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise self._useless(path, f"not JSON: {answer[:100]!r}") from None

    async def _object(self, path: str, query: Mapping[str, str] = NOTHING) -> dict[str, Any]:
        """Ask for a JSON object; those before 1.0 come in an envelope."""
        answer = await self._json("GET", path, query)
        if isinstance(answer, dict) and "status_code" in answer:
            if answer["status_code"] != 200:
                raise AdminError(answer["status_code"], _text(answer), self._where(path))
            answer = answer.get("data")
        if not isinstance(answer, dict):
            raise self._useless(path, "expected a JSON object")
        return answer

    def _useless(self, path: str, why: str) -> AdminError:
        return AdminError(200, why, self._where(path))

    def _where(self, path: str) -> str:
        return f"{self._address}{path}"


def topic_query(topic: str) -> dict[str, str]:
    """The query that names a topic; ``ConfigError`` for a name no server takes."""
    return {"topic": check_topic(topic)}


def channel_query(topic: str, channel: str) -> dict[str, str]:
    """The query that names a channel; ``ConfigError`` for a name no server takes."""
    return {"topic": check_topic(topic), "channel": check_channel(channel)}


def _message(body: bytes) -> str:
    """What the server says, out of ``{"message": ...}`` if it is in there."""
    text = body.decode("utf-8", "backslashreplace").strip()
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    return (isinstance(answer, dict) and _text(answer)) or text[:_MAX_MESSAGE]


def _text(answer: dict[str, Any]) -> str:
    return str(answer.get("message") or answer.get("status_txt") or "")[:_MAX_MESSAGE]
