"""The verb broker."""

from __future__ import annotations

import json
import random
import signal
import socket
from pathlib import Path

import pytest

from tests.cli.clusters import ask
from tests.cli.commands import CommandProcess, InProcess, run


def started(*words: str) -> tuple[CommandProcess, dict[str, str]]:
    """A broker on free ports, and its addresses."""
    command = CommandProcess(["broker", "--port", "0", "--json", *words])
    return command, json.loads(command.await_text(r"\{.*\}\n")[0])


def free_ports(*above: int) -> int:
    """The first of some ports that are free, at these distances.

    They are below those that the kernel gives to clients: another test can't get one meanwhile.
    """
    while True:
        base = random.randrange(20_000, 32_000)
        try:
            for distance in (0, *above):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", base + distance))
        except OSError:
            continue
        return base


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_takes_messages_once_it_has_printed_its_addresses(
    empty_folder: Path, number: int
) -> None:
    command, addresses = started()
    with command:
        done = run("pub", "orders", "hello", "--lookupd", addresses["lookupd"])
        assert (done.code, done.out) == (0, "published 1 message to orders\n")
        nodes = json.loads(ask(addresses["lookupd"], "/nodes")[1])["producers"]
        assert [node["tcp_port"] for node in nodes] == [int(addresses["nsqd"].split(":")[1])]
        assert command.end(number) == 0


def test_its_ports_follow_from_one(empty_folder: Path) -> None:
    port = free_ports(1, 10, 11)
    with CommandProcess(["broker", "--port", str(port)]) as command:
        command.await_text(r"Press Ctrl-C to stop\.\n")
        nsqd, lookupd, messages, hint, _ = command.text.splitlines()
        assert nsqd == f"nsqd        127.0.0.1:{port}, HTTP 127.0.0.1:{port + 1}"
        assert lookupd == f"nsqlookupd  127.0.0.1:{port + 10}, HTTP 127.0.0.1:{port + 11}"
        assert messages == "messages    only in memory"
        assert hint == f"Try: nsqflow pub orders hello --lookupd 127.0.0.1:{port + 11}"
        assert command.end(signal.SIGTERM) == 0


def test_what_it_was_given_a_folder_for_is_there_the_next_time(empty_folder: Path) -> None:
    command, addresses = started("--data-path", "messages")
    with command:
        assert addresses["data_path"] == "messages"
        assert ask(addresses["nsqd_http"], "/pub?topic=orders", "POST", b"hello")[0] == 200
        assert command.end(signal.SIGTERM) == 0
    command, addresses = started("--data-path", "messages")
    with command:
        _, body = ask(addresses["nsqd_http"], "/stats?format=json")
        assert [topic["depth"] for topic in json.loads(body)["topics"]] == [1]
        assert command.end(signal.SIGTERM) == 0


def test_a_port_that_is_taken_is_reported_with_a_hint(empty_folder: Path) -> None:
    port = free_ports(1, 10, 11)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        done = run("broker", "--port", str(port))
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert line.startswith(f"nsqflow: failed to start - http_address 127.0.0.1:{port + 1}: ")
    assert line.endswith("another process listens there; stop it or choose another --port")


def test_a_folder_that_cannot_be_created_is_an_error(empty_folder: Path) -> None:
    (empty_folder / "file").touch()
    done = run("broker", "--port", "0", "--data-path", "file/folder")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("nsqflow: failed to start - file/folder: Not a directory")


def test_a_port_with_too_few_above_it_is_a_usage_error(nsqflow: InProcess) -> None:
    done = nsqflow("broker", "--port", "65530")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("nsqflow: invalid value for '--port'")
