"""The common part of the HTTP APIs of nsqd and nsqlookupd."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any, Literal, Self

from nsqflow.address import parse_http_address
from nsqflow.errors import AdminError
from nsqflow.http.client import EMPTY, HttpClient
from nsqflow.protocol.names import check_channel, check_topic

_MAX_MESSAGE = 200  # characters of a server's message

Change = Literal["create", "delete", "empty", "pause", "unpause"]


class HttpApi:
    """One nsqd or nsqlookupd, by its HTTP address.

    ``address`` is ``host:port`` or a URL; ``tls`` is used if it is https. ``headers`` go
    with every request; ``timeout`` limits each request as a whole, in seconds. With
    ``keep_alive`` a connection stays open between requests.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] = EMPTY,
        timeout: float = 5.0,
        keep_alive: bool = False,
    ) -> None:
        self._address = parse_http_address(address)
        self._http = HttpClient(tls=tls, headers=headers, timeout=timeout, keep_alive=keep_alive)

    @property
    def address(self) -> str:
        """Its address, without credentials."""
        return str(self._address)

    async def ping(self) -> None:
        """Raise if the server is not healthy; nsqd is not while it cannot write to disk."""
        await self._call("GET", "/ping")

    async def info(self) -> Mapping[str, Any]:
        """Return the version and, for nsqd, addresses and limits."""
        return await self._object("/info")

    async def create_topic(self, topic: str) -> None:
        """Create a topic, unless it exists; nsqlookupd only registers its name."""
        await self.change("create", topic)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels, on nsqd with all their messages."""
        await self.change("delete", topic)

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel, unless it exists; an nsqd must have the topic already.

        An nsqd that creates a topic also creates the channels that nsqlookupd has for it.
        """
        await self.change("create", topic, channel)

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel, on nsqd with its messages; its clients are disconnected."""
        await self.change("delete", topic, channel)

    async def change(self, change: Change, topic: str, channel: str | None = None) -> None:
        """Change a topic, or one of its channels; nsqlookupd supports only create and delete."""
        kind = "topic" if channel is None else "channel"
        await self._call("POST", f"/{kind}/{change}", name_query(topic, channel))

    def close_idle(self) -> None:
        """Close the connections that ``keep_alive`` has left open."""
        self._http.close_idle()

    async def close(self) -> None:
        """Close the HTTP client; further calls fail."""
        self._http.close()

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
        query: Mapping[str, str] = EMPTY,
        body: bytes | None = None,
    ) -> bytes:
        """Send a request; return the body, or raise the server's error."""
        response = await self._http.request(self._address, method, path, query, body or b"")
        if response.status != 200:
            raise AdminError(response.status, _message(response.body), self._where(path))
        return response.body

    async def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] = EMPTY,
        body: bytes | None = None,
    ) -> Any:
        answer = await self._call(method, path, query, body)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise self._useless(path, f"not JSON: {answer[:100]!r}") from None

    async def _object(self, path: str, query: Mapping[str, str] = EMPTY) -> dict[str, Any]:
        """Request a JSON object; before 1.0 it came in an envelope."""
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


def name_query(topic: str, channel: str | None = None) -> dict[str, str]:
    """Return the query for a topic or a channel; raise ``ConfigError`` for an invalid name."""
    query = {"topic": check_topic(topic)}
    return query if channel is None else query | {"channel": check_channel(channel)}


def _message(body: bytes) -> str:
    """Return the server's message, from ``{"message": ...}`` if it is JSON."""
    text = body.decode("utf-8", "backslashreplace").strip()
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    return (isinstance(answer, dict) and _text(answer)) or text[:_MAX_MESSAGE]


def _text(answer: dict[str, Any]) -> str:
    return str(answer.get("message") or answer.get("status_txt") or "")[:_MAX_MESSAGE]
