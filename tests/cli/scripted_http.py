"""Scripted HTTP servers, for commands in this process and in others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

from tests.fixtures.servers import PATIENCE


class ScriptedHttp(HTTPServer):
    """Answers each path with an object as JSON; 404 where there is none."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.headers: list[dict[str, str]] = []
        """Those of each request, by their names in small letters."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedHttp
    timeout = PATIENCE

    def do_GET(self) -> None:
        self.server.headers.append({name.lower(): text for name, text in self.headers.items()})
        answer = self.server.answers.get(self.path.partition("?")[0])
        body = json.dumps(answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def scripted_http(answers: Mapping[str, Any]) -> Iterator[ScriptedHttp]:
    """Serve on a thread of its own."""
    with ScriptedHttp(answers) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def lookupd_answers(
    topics: list[str], channels: list[str] | None = None, nodes: list[Any] | None = None
) -> dict[str, Any]:
    """What an nsqlookupd with these names answers."""
    return {
        "/info": {"version": "1.3.0"},
        "/topics": {"topics": topics},
        "/channels": {"channels": channels or []},
        "/nodes": {"producers": nodes or []},
    }
