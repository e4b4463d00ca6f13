"""Questions over HTTP: what is asked of a server, and exactly what it must answer.

"an empty message": ("POST /pub?topic={topic}", b"", refused(400, "MSG_EMPTY"))
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fixtures.servers import PATIENCE, Server

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """All of an answer that a client can go by."""

    status: int
    body: bytes = b""
    content_type: str | None = None
    nsq_content_type: str | None = "nsq; version=1.0"
    allow: str | None = None

    def json(self) -> Any:
        assert (self.status, self.content_type) == (200, JSON), self
        return json.loads(self.body)


Question = tuple[str, bytes | None, Answer]

DONE = Answer(200)
OK = Answer(200, b"OK", TEXT)
PONG = Answer(200, b"OK", TEXT, nsq_content_type=None)


def refused(status: int, message: str, allow: str | None = None) -> Answer:
    return Answer(status, b'{"message":"%s"}' % message.encode(), JSON, allow=allow)


def ask(
    server: Server, request: str, body: bytes | None = None, *, chunked: bool = False
) -> Answer:
    """Ask a server, with "METHOD /path"."""
    method, path = request.split(" ", 1)
    connection = http.client.HTTPConnection(server.http_address, timeout=PATIENCE)
    try:
        # http.client sends an iterable in chunks, as it does not know its length.
        connection.request(method, path, [body] if chunked and body else body)
        response = connection.getresponse()
        return Answer(
            response.status,
            response.read(),
            response.headers["Content-Type"],
            response.headers["X-NSQ-Content-Type"],
            response.headers["Allow"],
        )
    finally:
        connection.close()


def questions(table: Mapping[str, Question]) -> pytest.MarkDecorator:
    """Run a test once for each question."""
    return pytest.mark.parametrize("question", table.values(), ids=table)


def check(server: Server, topic: str, question: Question) -> None:
    """Ask, and compare all of the answer."""
    request, body, answer = question
    assert ask(server, request.replace("{topic}", topic), body) == answer


def shape(value: Any) -> Any:
    """What is left of JSON without its values: all keys, and of what type they are."""
    match value:
        case dict():
            return {key: shape(each) for key, each in value.items()}
        case list():
            return [shape(each) for each in value]
        case None:
            return None
        case _:
            return type(value)
