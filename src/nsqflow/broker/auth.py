"""Authorization of clients by an auth server.

nsqd sends what it knows about the client; the server responds with patterns of topics and channels,
and a time to live. The secret is in the request only, never in an error or a log.
"""

from __future__ import annotations

import json
import random
import re
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nsqflow.address import HttpAddress, parse_http_address
from nsqflow.config.go_regexp import compile_go_regexp
from nsqflow.errors import NsqError
from nsqflow.http.client import HttpClient

_MAX_ANSWER = 4 * 1024 * 1024
_PERMISSIONS = ("subscribe", "publish")


class AuthorizationFailed(NsqError):
    """No auth server returned a usable response. Must not be shown to the client."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """Permissions on the topics and channels that match the patterns."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Return whether a client may subscribe, or publish if no channel is given."""
        if ("subscribe" if channel else "publish") not in self.permissions:
            return False
        # To publish, a channel pattern must match the empty string, as in nsqd.
        return bool(self.topic.search(topic)) and any(p.search(channel) for p in self.channels)


@dataclass(frozen=True, slots=True)
class AuthState:
    """An auth server's response about a client."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires: int
    """In nanoseconds since 1970."""

    @property
    def count(self) -> int:
        """The number of authorizations; with none, the client may do nothing."""
        return len(self.authorizations)

    def allows(self, topic: str, channel: str = "") -> bool:
        """Return whether the client may subscribe, or publish if no channel is given."""
        return any(authorization.allows(topic, channel) for authorization in self.authorizations)

    def expired(self, now: int) -> bool:
        """Return whether the auth server must be asked again."""
        return self.expires < now


class Authorizer:
    """Queries the auth servers."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._servers = [(parse_http_address(text), _path(text)) for text in addresses]
        timeout = connect_timeout + request_timeout  # one timeout for both
        self._http = HttpClient(tls=tls, timeout=timeout, max_response=_MAX_ANSWER)

    async def query(
        self, remote_ip: str, tls: bool, common_name: str, secret: str | bytes
    ) -> AuthState:
        """Query the servers in turn, starting with a random one, until one responds.

        ``remote_ip`` is empty for a client on a unix socket. Raises ``AuthorizationFailed``.
        """
        query: dict[str, Any] = {  # the secret may be any bytes
            "common_name": common_name,
            "remote_ip": remote_ip,
            "secret": secret,
            "tls": "true" if tls else "false",
        }
        failures = []
        start = random.randrange(len(self._servers))
        for address, path in self._servers[start:] + self._servers[:start]:
            try:
                return await self._ask(address, path, query)
            except (NsqError, ValueError) as error:
                failures.append(f"failed to auth against {address} - {error}")
        raise AuthorizationFailed("; ".join(failures))

    async def _ask(self, address: HttpAddress, path: str, query: dict[str, Any]) -> AuthState:
        response = await self._http.get(address, path, query)
        if response.status != 200:  # the body is not shown: it may repeat the request
            raise ValueError(f"got response {response.status}")
        return _read_state(response.body, time.time_ns())


def _path(address: str) -> str:
    """Return what a request appends to the address; a URL is used as it is."""
    if "://" not in address:
        return "/auth"
    end = address.partition("://")[2]
    return "/" if "/" not in end or end.endswith("/") else ""


def _read_state(body: bytes, now: int) -> AuthState:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None
    if not isinstance(answer, dict):
        raise ValueError("the response is not an object")
    authorizations = tuple(map(_read_authorization, _field(answer, "authorizations", list)))
    ttl = _field(answer, "ttl", int)
    if ttl <= 0:
        raise ValueError(f"invalid TTL {ttl} (must be >0)")
    return AuthState(
        identity=_field(answer, "identity", str),
        identity_url=_field(answer, "identity_url", str),
        authorizations=authorizations,
        expires=now + ttl * 10**9,
    )


def _read_authorization(value: Any) -> Authorization:
    if not isinstance(value, dict):
        raise ValueError("an authorization is not an object")
    permissions = _field(value, "permissions", list)
    for permission in permissions:
        if permission not in _PERMISSIONS:
            raise ValueError(f"unknown permission {permission!r}")
    channels = _field(value, "channels", list)
    return Authorization(
        topic=_compile("topic", _field(value, "topic", str)),
        channels=tuple(_compile("channel", channel) for channel in channels),
        permissions=frozenset(permissions),
    )


def _compile(what: str, pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise ValueError(f"a {what} is not text")
    try:
        return compile_go_regexp(pattern)
    except ValueError as error:
        raise ValueError(f"unable to compile {what} {pattern!r}: {error}") from None


def _field(value: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """Return a field of the response; one that is missing or null is empty, as in Go."""
    found = value.get(name)
    if found is None:
        return kind()
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"{name} is not {kind.__name__}")
    return found
