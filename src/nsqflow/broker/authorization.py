"""What a client may do, as an auth server says.

nsqd sends it what it knows of the client; it answers with patterns of topics and channels, and
for how long they hold. The secret is in the request, and nowhere else: in no text, no log.
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

from nsqflow.broker.regexp import compile_go
from nsqflow.errors import NsqError
from nsqflow.http.client import HttpAddress, HttpClient, parse_http_address

_MAX_ANSWER = 4 * 1024 * 1024
_PERMISSIONS = ("subscribe", "publish")


class AuthorizationFailed(NsqError):
    """No auth server gave a usable answer. Not for the eyes of the client."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """What is allowed on the topics and channels that patterns match."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether it lets a client subscribe, or publish if no channel is given."""
        if ("subscribe" if channel else "publish") not in self.permissions:
            return False
        # To publish, some pattern of channels must match the empty text: so it is with nsqd.
        return bool(self.topic.search(topic)) and any(p.search(channel) for p in self.channels)


@dataclass(frozen=True, slots=True)
class AuthState:
    """What an auth server said of a client."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires: int
    """In nanoseconds since 1970."""

    @property
    def count(self) -> int:
        """How many authorizations there are; with none the client may do nothing."""
        return len(self.authorizations)

    def allows(self, topic: str, channel: str = "") -> bool:
        """Whether the client may subscribe, or publish if no channel is given."""
        return any(authorization.allows(topic, channel) for authorization in self.authorizations)

    def expired(self, now: int) -> bool:
        """Whether it must be asked for anew."""
        return self.expires < now


class Authorizer:
    """Asks the auth servers."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect_timeout: float,
        request_timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._servers = [(parse_http_address(text), _path(text)) for text in addresses]
        timeout = connect_timeout + request_timeout  # one for both: what connecting leaves, it has
        self._http = HttpClient(tls=tls, timeout=timeout, max_answer=_MAX_ANSWER)

    async def query(
        self, remote_ip: str, tls: bool, common_name: str, secret: str | bytes
    ) -> AuthState:
        """Ask one server after the other, from any of them on, until one gives an answer.

        ``remote_ip`` is empty for a client on a unix socket. Raises ``AuthorizationFailed``.
        """
        query: dict[str, Any] = {  # (the secret may be any bytes)
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
        status, body = await self._http.get(address, path, query)
        if status != 200:  # (its body is not told: it may well repeat the question)
            raise ValueError(f"got response {status}")
        return _read_state(body, time.time_ns())


def _path(address: str) -> str:
    """Give what follows the address in a request: a URL is taken as it is."""
    if "://" not in address:
        return "/auth"
    end = address.partition("://")[2]
    return "/" if "/" not in end or end.endswith("/") else ""


def _read_state(body: bytes, now: int) -> AuthState:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("its answer is not JSON") from None
    if not isinstance(answer, dict):
        raise ValueError("its answer is not an object")
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
        return compile_go(pattern)
    except ValueError as error:
        raise ValueError(f"unable to compile {what} {pattern!r}: {error}") from None


def _field(value: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """Give a part of the answer; one that is missing or null is empty, as it is to Go."""
    found = value.get(name)
    if found is None:
        return kind()
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"{name} is not {kind.__name__}")
    return found
