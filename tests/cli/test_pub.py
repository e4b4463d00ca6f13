"""The verb pub."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqflow import blocking
from nsqflow.broker import BackgroundBroker
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import CommandProcess, InProcess, OnTerminal, run
from tests.fixtures.servers import start_nsqd


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, cluster: NsqCluster) -> list[str]:
    """The options that name the cluster, either way."""
    return cluster.through_lookupd if request.param == "lookupd" else cluster.directly


@contextmanager
def stdin_of(data: bytes) -> Iterator[None]:
    """Have this process read what is piped into it."""
    reader, writer = os.pipe()
    before = os.dup(0)
    os.dup2(reader, 0)
    try:
        os.write(writer, data)
        os.close(writer)
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reader)


@pytest.fixture
def real_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give sys.stdin back its descriptor, which pytest takes away."""
    with open(0, closefd=False) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield


def consumed(cluster: NsqCluster, topic: str, count: int) -> list[bytes]:
    """Take ``count`` messages of the topic, on any nsqd; sorted."""
    with blocking.Consumer(topic, "check", nsqd=cluster.nsqd) as consumer:
        bodies = []
        for message in consumer:
            message.finish()
            bodies.append(message.body)
            if len(bodies) == count:
                return sorted(bodies)
    raise AssertionError("the consumer ended")


def test_arguments_are_messages(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    done = nsqflow("pub", topic, "order 1", "order 2", *servers)
    assert done == (0, f"published 2 messages to {topic}\n", "")
    assert consumed(cluster, topic, 2) == [b"order 1", b"order 2"]


def test_each_line_of_a_file_is_a_message(
    nsqflow: InProcess, empty_folder: Path, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    (empty_folder / "orders.txt").write_bytes(b"one\n\ntwo\xff\nthree")
    done = nsqflow("pub", topic, "--file", "orders.txt", *servers)
    assert done == (0, f"published 3 messages to {topic}; 1 empty line skipped\n", "")
    assert consumed(cluster, topic, 3) == [b"one", b"three", b"two\xff"]


def test_each_line_of_stdin_is_a_message(
    nsqflow: InProcess, real_stdin: None, cluster: NsqCluster
) -> None:
    topic = unique()
    with stdin_of(b"one\ntwo\n"):
        done = nsqflow("pub", topic, *cluster.directly)
    assert done == (0, f"published 2 messages to {topic}\n", "")
    assert consumed(cluster, topic, 2) == [b"one", b"two"]


def test_a_file_can_be_one_message(
    nsqflow: InProcess, empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    (empty_folder / "picture").write_bytes(b"one\n\ntwo\n" * 20_000)
    done = nsqflow("pub", topic, "-f", "picture", "--whole", *cluster.directly)
    assert done == (0, f"published 1 message to {topic}\n", "")
    assert consumed(cluster, topic, 1) == [b"one\n\ntwo\n" * 20_000]


def test_nothing_to_publish_is_not_an_error(
    nsqflow: InProcess, empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    (empty_folder / "empty").touch()
    for words in ([], ["--whole"]):
        done = nsqflow("pub", topic, "-f", "empty", *words, *cluster.directly)
        assert done == (0, f"published 0 messages to {topic}\n", "")


def test_many_lines_are_all_published(
    nsqflow: InProcess, empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    lines = [f"line {number} {'x' * (number % 500)}" for number in range(5_000)]
    (empty_folder / "many").write_text("\n".join(lines))
    done = nsqflow("pub", topic, "-f", "many", *cluster.through_lookupd)
    assert done == (0, f"published 5,000 messages to {topic}\n", "")
    assert consumed(cluster, topic, 5_000) == sorted(line.encode() for line in lines)


def test_a_delay_puts_off_each_message(
    nsqflow: InProcess, empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    for node in (0, 1):
        cluster.create(topic, "billing", node)
    (empty_folder / "many").write_text("\n".join(map(str, range(600))))
    done = nsqflow("pub", topic, "-f", "many", "--delay", "3600", *cluster.directly)
    assert done == (0, f"published 600 messages to {topic}\n", "")
    channels = [cluster.channel(topic, "billing", node) for node in (0, 1)]
    assert sum(channel["deferred_count"] for channel in channels if channel) == 600


def test_the_counts_are_an_object_for_a_program(
    nsqflow: InProcess, empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    (empty_folder / "lines").write_text("one\n\n")
    done = nsqflow("pub", topic, "-f", "lines", "--json", *cluster.directly)
    assert json.loads(done.out) == {
        "topic": topic,
        "published": 1,
        "refused": 0,
        "uncertain": 0,
        "empty": 1,
    }


def test_what_nsqd_refuses_is_named_and_the_rest_is_published(
    nsqflow: InProcess, empty_folder: Path, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path, options=["-max-msg-size=10"]) as nsqd:
        (empty_folder / "lines").write_text("one\n" + 20 * "x" + "\nthree\n")
        done = nsqflow("pub", "orders", "-f", "lines", "--nsqd", nsqd.tcp_address)
        assert done.code == 1
        assert done.out == "published 2 messages to orders; 1 refused\n"
        [line] = done.err.splitlines()  # the client's own warning would say it twice
        assert line.startswith("nsqflow: refused: line 2: E_BAD_MESSAGE ")
        done = nsqflow("pub", "orders", 11 * "x", "--delay", "1", "--nsqd", nsqd.tcp_address)
        assert (done.code, done.out) == (1, "published 0 messages to orders; 1 refused\n")
        [line] = done.err.splitlines()
        assert line.startswith("nsqflow: refused: argument 1: E_BAD_MESSAGE ")


def test_one_message_that_is_refused_among_many_is_the_only_one(
    empty_folder: Path, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path, options=["-max-msg-size=1000"]) as nsqd:
        lines = [b"%d" % number for number in range(600)]
        lines[300] = 2_000_000 * b"x"
        done = run("pub", "orders", "--nsqd", nsqd.tcp_address, stdin=b"\n".join(lines))
    assert (done.code, done.out) == (1, "published 599 messages to orders; 1 refused\n")
    [line] = done.err.splitlines()
    assert line.startswith("nsqflow: refused: line 301: E_BAD_MESSAGE ")


def test_a_delay_that_nsqd_refuses_is_reported_once(
    nsqflow: InProcess, empty_folder: Path, tmp_path: Path
) -> None:
    (empty_folder / "many").write_text("\n".join(map(str, range(600))))
    with start_nsqd(tmp_path, options=["-max-req-timeout=1s"]) as nsqd:
        words = ["pub", "orders", "-f", "many", "--nsqd", nsqd.tcp_address]
        done = nsqflow(*words, "--delay", "2")
        assert (done.code, done.out) == (1, "published 0 messages to orders; 1 refused\n")
        refused, stopped = done.err.splitlines()
        assert refused.startswith("nsqflow: refused: line 1: E_INVALID DPUB timeout 2000 out of ")
        assert stopped == "nsqflow: stopped: nothing after line 1 was sent"
        done = nsqflow(*words, "--delay", "1ms")
        assert done == (0, "published 600 messages to orders\n", "")


def test_a_line_that_is_too_long_to_read_ends_it_after_those_before(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        data = b"one\n" + (32 * 1024 * 1024 + 1) * b"x" + b"\nthree\n"
        done = run("pub", "orders", "--nsqd", *broker.nsqd_addresses, stdin=data)
    assert (done.code, done.out) == (1, "published 1 message to orders\n")
    assert done.err == (
        "nsqflow: line 2 has more than 33,554,432 bytes; "
        "this line and all later ones are not sent\n"
    )


def test_what_was_sent_and_never_answered_is_named_and_ends_it(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        cluster = NsqCluster(
            broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses
        )
        words = ["pub", "orders", "--timeout", "1", *cluster.directly]
        with CommandProcess(words) as command:
            assert command.process.stdin is not None
            command.process.stdin.write(b"one\n")
            assert consumed(cluster, "orders", 1) == [b"one"]
            broker.slow(3)  # longer than it waits
            command.process.stdin.write(b"two\nthree\n")
            command.process.stdin.flush()
            command.await_text(r"uncertain: lines 2 to 3: ")
            assert command.end() == 1
            broker.slow(0)
    assert "stopped: nothing after line 3 was sent\n" in command.text
    assert command.text.endswith("published 1 message to orders; 2 uncertain\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_it_prints_what_was_published(
    empty_folder: Path, cluster: NsqCluster, number: int, code: int
) -> None:
    topic = unique()
    with CommandProcess(["pub", topic, "--nsqd", cluster.nsqd[0]]) as command:
        assert command.process.stdin is not None
        command.process.stdin.write(b"one\ntwo")
        assert consumed(cluster, topic, 1) == [b"one"]
        assert command.end(number) == code
    assert command.text == f"published 1 message to {topic}\n"


def test_a_terminal_says_that_each_line_is_a_message(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    with OnTerminal(["pub", topic, *cluster.directly]) as command:
        command.await_text("each line is a message; press Ctrl-D to end")
        command.type("hello\n\x04")
        command.await_text(f"published 1 message to {topic}")
        assert command.end() == 0


def test_progress_is_shown_when_it_takes_long(empty_folder: Path, cluster: NsqCluster) -> None:
    topic = unique()
    with OnTerminal(["pub", topic, *cluster.directly]) as command:
        command.await_text("press Ctrl-D")
        command.type("hello\n")
        command.await_text(r"published 1 message, \d+/s")
        assert command.end(signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["orders", ""], "message 1 is empty: nsqd rejects empty messages"),
        (["orders", "x", "--whole"], "give messages either as arguments or in a file"),
        (["orders", "x", "--delay", "-1"], "--delay='-1' is invalid"),
        (["orders", "x", "--delay", "nan"], "--delay='nan' is invalid: must be a duration from 0s"),
        (["orders", "x", "--delay", "10 minutes"], "--delay='10 minutes' is invalid"),
        (["orders", "x", "--delay", "1000000001"], "--delay='1000000001' is invalid"),
        (["orders", "x", "--timeout", "nan"], "--timeout='nan' is invalid"),
        (
            ["orders", "x", "--timeout", "0"],
            "--timeout='0' is invalid: must be a duration from 100ms to 1h",
        ),
        (["or ders", "x"], "topic name 'or ders' has ' ' at position 2"),
        (["orders", "-f", "missing"], "missing: No such file or directory\n"),
        (["orders", "-f", "/"], "/: Is a directory\n"),
    ],
)
def test_a_command_line_that_cannot_be_meant_publishes_nothing(
    nsqflow: InProcess, words: list[str], expected: str
) -> None:
    done = nsqflow("pub", *words, "--nsqd", "127.0.0.1:9")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nsqflow: {expected}")


@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_without_a_server_it_is_an_error_at_once(nsqflow: InProcess, option: str) -> None:
    done = nsqflow("pub", "orders", "x", option, "127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("nsqflow: 127.0.0.1:9: Connection refused; is it running?")


def test_a_stopped_server_is_reported_and_another_takes_the_message(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    done = nsqflow("pub", topic, "x", "--lookupd", "127.0.0.1:9", *cluster.through_lookupd)
    assert (done.code, done.out) == (0, f"published 1 message to {topic}\n")
    assert {*done.err.splitlines()} == {
        "nsqflow: nsqlookupd failed: 127.0.0.1:9: Connection refused"
    }


def test_an_nsqlookupd_that_knows_no_nsqd_is_reported(
    nsqflow: InProcess, empty_folder: Path
) -> None:
    with BackgroundBroker() as broker:
        broker.stop_node(0)
        [lookupd] = broker.lookupd_addresses
        done = nsqflow("pub", "orders", "x", "--lookupd", lookupd)
    assert done.code == 1
    assert done.err.startswith(f"nsqflow: nsqlookupd {lookupd} knows no nsqd; ")
