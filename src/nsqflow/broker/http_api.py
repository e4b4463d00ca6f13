"""Routing for the HTTP APIs of nsqd and nsqlookupd.

    api = ApiRouter({("GET", "/info"): info, ("GET", "/config/{opt}"): config}, logger)

A route is a function or coroutine function that takes the request and the values of the ``{names}``
in its path. It returns text or bytes, None for an empty response, a ``Response``, or anything else
to be sent as JSON. It refuses a request by raising ``ApiError``. Responses, also to unknown paths,
are those of the Go daemons (``internal/http_api`` and httprouter).
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
from nsqflow.protocol.lookup import ACCEPT_V1
from nsqflow.protocol.names import is_valid_name

Route = Callable[..., object]

JSON = ("Content-Type", "application/json; charset=utf-8")
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_HTML = ("Content-Type", "text/html; charset=utf-8")
V1 = ("X-Nsq-Content-Type", "nsq; version=1.0")

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Escaped by Go's encoder, so that JSON is safe inside HTML.
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


class ApiError(Exception):
    """Refuses a request with an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


class Query:
    """The query parameters of a request, read as Go does; raises ``ApiError`` if malformed."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, str] = {}
        for pair in filter(None, text.split("&")):
            if ";" in pair or _BAD_ESCAPE.search(pair):
                raise ApiError(400, "INVALID_REQUEST")
            name, _, value = pair.partition("=")
            # The first of several values counts.
            self._values.setdefault(unquote_plus(name), unquote_plus(value))

    def get(self, name: str) -> str | None:
        """Return a parameter, or None."""
        return self._values.get(name)

    def require(self, name: str) -> str:
        """Return a parameter; raise ``ApiError`` if it is missing."""
        value = self.get(name)
        if value is None:
            raise ApiError(400, f"MISSING_ARG_{name.upper()}")
        return value

    def topic(self, invalid: str = "INVALID_ARG_TOPIC") -> str:
        """Return the topic; raise ``ApiError`` with the message ``invalid`` for an invalid name."""
        return self._name("topic", invalid)

    def topic_and_channel(self) -> tuple[str, str]:
        """Return topic and channel."""
        return self.topic(), self._name("channel", "INVALID_ARG_CHANNEL")

    def _name(self, of: str, invalid: str) -> str:
        name = self.require(of)
        if not is_valid_name(name):
            raise ApiError(400, invalid)
        return name


class ApiRouter:
    """Dispatches requests to routes: the handler of an ``HttpServer``.

    ``routes`` are by method and path. Requests are logged, except those to ``quiet`` paths.
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
        """Respond; exceptions of a route other than ``ApiError`` go to the server."""
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
        """Redirect to the path that was meant: other case, extra slashes or dots."""
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
            return refusal(404, "NOT_FOUND")
        allow = ("Allow", ", ".join(sorted({*methods, "OPTIONS"})))
        if request.method == "OPTIONS":
            return Response(headers=[allow])
        answer = refusal(405, "METHOD_NOT_ALLOWED")
        return Response(answer.status, answer.body, [allow, *answer.headers])

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
    """Return a response of plain text, as ``/ping`` has it."""
    return Response(status, text.encode(), [_TEXT])


def encode_json(value: object) -> bytes:
    """Encode JSON as Go does: compact, not limited to ASCII, and safe inside HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED).encode("utf-8", "replace")


async def _call(route: Route, request: Request, params: dict[str, str]) -> Response:
    try:
        result: Any = route(request, **params)
        if inspect.isawaitable(result):
            result = await result
    except ApiError as error:
        return refusal(error.status, error.message)
    return _response(result)


def _response(result: object) -> Response:
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(headers=[V1])
    if isinstance(result, str | bytes):
        body = result.encode() if isinstance(result, str) else result
        return Response(200, body, [_TEXT, V1] if body else [V1])
    return Response(200, encode_json(result), [JSON, V1])


def refusal(status: int, message: str) -> Response:
    """Return the response that refuses a request."""
    return Response(status, encode_json({"message": message}), [JSON, V1])


def negotiated(route: Route) -> Route:
    """Return a route of the redesigned NSQ, with answers in the form that the client accepts.

    A client that accepts version 1.0 gets the bare object and honest status codes, any other one
    the object in an envelope, and every error as status 500.
    """

    async def negotiate(request: Request, **params: str) -> object:
        accepts_v1 = request.headers.get("accept") == ACCEPT_V1
        try:
            result: Any = route(request, **params)
            if inspect.isawaitable(result):
                result = await result
        except ApiError as error:
            if accepts_v1:
                raise
            return _envelope(500, error.message, None)
        if accepts_v1 or isinstance(result, str | bytes | Response):
            return result
        return _envelope(200, "OK", result)

    return negotiate


def _envelope(status: int, text: str, data: object) -> Response:
    body = encode_json({"status_code": status, "status_txt": text, "data": data})
    return Response(status, body, [JSON])


def _uri(path: str, query: str) -> str:
    return quote(path, safe="/$&+,:;=@") + f"?{query}" * bool(query)


def _clean(path: str) -> str:
    """Resolve dots and remove empty parts."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
