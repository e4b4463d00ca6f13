"""Whether the servers of a pipeline can be reached, before Spark is started."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsqflow.pipelines.pipeline import load_pipeline
from nsqflow.pipelines.reachability import unreachable_error


def error_of(folder: Path, source: str) -> str | None:
    path = folder / "p.toml"
    path.write_text(
        f'source = {{ {source} }}\nparse = {{ format = "text" }}\n'
        'sink = [{ name = "out", format = "console" }]\n'
    )
    error = unreachable_error(load_pipeline(path, servers=dict).source)
    return None if error is None else str(error)


@pytest.fixture
def closed() -> int:
    """A port that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def test_no_server_is_an_error_that_names_each_and_why(tmp_path: Path, closed: int) -> None:
    error = error_of(tmp_path, f'topic = "t", lookupd = ["127.0.0.1:{closed}"]')
    assert error == f"no nsqlookupd is reachable: 127.0.0.1:{closed}: Connection refused"


def test_an_nsqd_is_named_by_the_address_in_the_file_too(tmp_path: Path, closed: int) -> None:
    error = error_of(tmp_path, f'topic = "t", nsqd = ["127.0.0.1:{closed - 1}"]')
    assert error is not None
    assert error.endswith(f" (the HTTP API of nsqd 127.0.0.1:{closed - 1})")


def test_one_server_that_answers_is_enough(tmp_path: Path, closed: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        given = f'topic = "t", lookupd = ["127.0.0.1:{closed}", "127.0.0.1:{port}"]'
        assert error_of(tmp_path, given) is None


def test_a_server_that_does_not_speak_http_is_an_error_with_the_usual_port(tmp_path: Path) -> None:
    def answer() -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(4)
            peer.sendall(b"\x00\x00\x00\x12\x00\x00\x00\x01E_BAD_PROTOCOL")

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        port = server.getsockname()[1]
        thread.submit(answer)
        error = error_of(tmp_path, f'topic = "t", lookupd = ["127.0.0.1:{port}"]')
    assert error == (
        f"no nsqlookupd is reachable: 127.0.0.1:{port}: it answers, but not with HTTP; "
        "nsqlookupd's HTTP port is 4161 by default"
    )


def test_files_need_no_server(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("x")
    assert error_of(tmp_path, f'topic = "t", files = "{tmp_path}/in.txt"') is None


@pytest.mark.parametrize("key", ["nsqd", "lookupd"])
def test_a_value_from_the_environment_is_not_shown(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "AKIA-Secret-1")
    error = error_of(tmp_path, f'topic = "t", {key} = "${{KEY}}.invalid:4150"')
    assert error is not None
    assert "secret" not in error.lower()
    assert "${KEY}.invalid:41" in error
