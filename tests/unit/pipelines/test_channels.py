"""The channels of a pipeline on real servers: every sink gets what the topic had before."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest

from nsqflow.errors import NsqError
from nsqflow.pipelines.channels import create_channels
from nsqflow.spark.options import SourceOptions, parse_stream

CHANNELS = ["c.a", "c.b", "c.c"]


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex[:16]}"


def options_of(folder: Path, **options: str) -> SourceOptions:
    return parse_stream({"channel": "c.a", "spoolLocation": str(folder), **options})


def directly(folder: Path, topic: str, *http: str) -> SourceOptions:
    """Options with the HTTP addresses of nsqd; TCP is not used here."""
    return options_of(folder, topic=topic, nsqd=",".join(http), nsqdHttp=",".join(http))


def test_nsqlookupd_that_are_not_there_are_an_error(topic: str, tmp_path: Path) -> None:
    with pytest.raises(NsqError, match=r"^no server is reachable: 127\.0\.0\.1:1: "):
        create_channels(options_of(tmp_path, topic=topic, lookupd="127.0.0.1:1"), CHANNELS)


@contextmanager
def unable_to_unpause() -> Iterator[str]:
    """An nsqd that obeys, but never unpauses a topic."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, b'{"version": "1.3.0", "topics": []}')

        def do_POST(self) -> None:
            failing = self.path.startswith("/topic/unpause")
            self._answer(500 if failing else 200, b'{"message": "NO"}' if failing else b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_topic_that_stays_paused_is_reported(
    topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with unable_to_unpause() as http:
        create_channels(directly(tmp_path, topic, http), CHANNELS)
    assert f"; topic {topic} stays paused until nsqflow unpause {topic}" in caplog.text
