"""The HTTP APIs of nsqd and nsqlookupd: finds the route of a request and puts its answer in form.

    api = Api({("GET", "/info"): info, ("GET", "/config/{opt}"): config}, logger)

A route is a function, or a coroutine function, that takes the request and what ``{names}`` stand
for in its path. What it returns is the answer: text or bytes as they are, None for an empty one,
a ``Response`` that is complete already, and anything else as JSON. It refuses by raising
``ApiError``. All of this, and what becomes of paths that don't exist, is as the Go daemons have it
(``internal/http_api`` and httprouter).
"""

from __future__ import annotations

import html
import inspect
import json
import logging
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_plus

from nsqflow.http.server import Request, Response
from nsqflow.protocol.names import is_valid_name

Route = Callable[..., object]

_JSON = ("Content-Type", "application/json; charset=utf-8")
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_HTML = ("Content-Type", "text/html; charset=utf-8")
_V1 = ("X-Nsq-Content-Type", "nsq; version=1.0")

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# What Go's encoder writes otherwise than ours, so that JSON is safe inside HTML.
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


class ApiError(Exception):
    """A request is refused: the HTTP status, and the message that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class Query:
    """The parameters of a request, read as Go does; raises ``ApiError`` if they can't be."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, str] = {}
        for pair in filter(None, text.split("&")):
            if ";" in pair or _BAD_ESCAPE.search(pair):
                raise ApiError(400, "INVALID_REQUEST")
            name, _, value = pair.partition("=")
            # Of several values the first one counts.
            self._values.setdefault(unquote_plus(name), unquote_plus(value))

    def get(self, name: str) -> str | None:
        """Give a parameter, if there is one of this name."""
        return self._values.get(name)

    def require(self, name: str) -> str:
        """Give a parameter that must be there."""
        value = self.get(name)
        if value is None:
            raise ApiError(400, f"MISSING_ARG_{name.upper()}")
        return value

    def topic(self, invalid: str = "INVALID_ARG_TOPIC") -> str:
        """Give the topic; ``invalid`` is what a name that no topic can have is refused with."""
        return self._name("topic", invalid)

    def topic_and_channel(self) -> tuple[str, str]:
        """Give both."""
        return self.topic(), self._name("channel", "INVALID_ARG_CHANNEL")

    def _name(self, of: str, invalid: str) -> str:
        name = self.require(of)
        if not is_valid_name(name):
            raise ApiError(400, invalid)
        return name


class Api:
    """Answers requests: the handler of an ``HttpServer``.

    ``routes`` are by method and path. Requests are logged, but for the ``quiet`` paths.
    """

    def __init__(
        self,
        routes: Mapping[tuple[str, str], Route],
        logger: logging.Logger,
        *,
        quiet: Container[str] = (),
    ) -> None:
        self._entries = [_Entry.of(*key, route) for key, route in routes.items()]
        self._logger = logger
        self._quiet = quiet

    async def __call__(self, request: Request) -> Response:
        """Answer; what a route raises besides ``ApiError`` goes on to the server."""
        began = time.perf_counter()
        response = await self._answer(request)
        if request.path not in self._quiet:
            self._logger.info(
                "%d %s %s (%s) %.3fms",
                response.status,
                request.method,
                _uri(request.path, request.query),
                request.client,
                (time.perf_counter() - began) * 1000,
            )
        return response

    async def _answer(self, request: Request) -> Response:
        for entry, params in self._matches(request.path):
            if entry.method == request.method:
                return await _call(entry.route, request, params)
        return self._redirect(request) or self._turn_away(request)

    def _redirect(self, request: Request) -> Response | None:
        """Show the way to a path that was meant: other case, surplus slashes or dots."""
        meant = _clean(request.path)
        for entry in self._entries:
            if entry.method == request.method and (match := entry.any_case.fullmatch(meant)):
                break
        else:
            return None
        location = _uri(entry.path.format(**match.groupdict()), request.query)
        if request.method != "GET":
            return Response(307, headers=[("Location", location)])
        page = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
        return Response(301, page.encode(), [_HTML, ("Location", location)])

    def _turn_away(self, request: Request) -> Response:
        methods = {entry.method for entry, _ in self._matches(request.path)}
        if not methods:
            return _refusal(404, "NOT_FOUND")
        allow = ("Allow", ", ".join(sorted({*methods, "OPTIONS"})))
        if request.method == "OPTIONS":
            return Response(headers=[allow])
        refusal = _refusal(405, "METHOD_NOT_ALLOWED")
        return Response(refusal.status, refusal.body, [allow, *refusal.headers])

    def _matches(self, path: str) -> Iterator[tuple[_Entry, dict[str, str]]]:
        for entry in self._entries:
            if match := entry.exact.fullmatch(path):
                yield entry, match.groupdict()


class _Entry(NamedTuple):
    method: str
    path: str
    route: Route
    exact: re.Pattern[str]
    any_case: re.Pattern[str]

    @staticmethod
    def of(method: str, path: str, route: Route) -> _Entry:
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)
        return _Entry(method, path, route, re.compile(pattern), re.compile(pattern, re.IGNORECASE))


def plain_text(text: str, status: int = 200) -> Response:
    """Answer with text alone, in good and in bad times, as ``/ping`` does."""
    return Response(status, text.encode(), [_TEXT])


def encode_json(value: object) -> bytes:
    """Write JSON as Go does: tight, not only in ASCII, and safe inside HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED).encode("utf-8", "replace")


async def _call(route: Route, request: Request, params: dict[str, str]) -> Response:
    try:
        result: Any = route(request, **params)
        if inspect.isawaitable(result):
            result = await result
    except ApiError as error:
        return _refusal(error.status, error.message)
    return _response(result)


def _response(result: object) -> Response:
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(headers=[_V1])
    if isinstance(result, str | bytes):
        body = result.encode() if isinstance(result, str) else result
        return Response(200, body, [_TEXT, _V1] if body else [_V1])
    return Response(200, encode_json(result), [_JSON, _V1])


def _refusal(status: int, message: str) -> Response:
    return Response(status, encode_json({"message": message}), [_JSON, _V1])


def _uri(path: str, query: str) -> str:
    return quote(path, safe="/$&+,:;=@") + f"?{query}" * bool(query)


def _clean(path: str) -> str:
    """Resolve what dots mean in it, and leave out empty parts."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
