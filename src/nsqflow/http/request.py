"""What goes in and out of an HTTP server: a request as its handler sees it, and the response."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile(r"https?://[^/?]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    """Percent-decoded, without the query."""
    query: str
    """As it was sent."""
    headers: Mapping[str, str]
    """Their names in lower case; what came several times is joined by commas."""
    body: bytes
    complete: bool
    """False: the body is longer than its limit, and this is its beginning at most."""
    client: str = ""
    """The address that it comes from."""


@dataclass(frozen=True, slots=True)
class Response:
    """What it gets; the server adds the date and the length."""

    status: int = 200
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()


Handler = Callable[[Request], Awaitable[Response]]


class BadTarget(Exception):
    """It names no path; never leaves ``nsqflow.http``."""


def split_target(target: str) -> tuple[str, str]:
    """Give path and query of a request's target, which may be a whole URL."""
    if match := _ORIGIN.match(target):
        target = target[match.end() :]
        target = target if target.startswith("/") else "/" + target
    path, _, query = target.partition("?")
    if not path.startswith("/") or _BAD_ESCAPE.search(path):
        raise BadTarget
    return unquote(path), query


def join_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Give the values by name; what came several times is joined by commas."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
