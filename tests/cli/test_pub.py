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
from tests.cli.commands import Here, OnTerminal, Running, run
from tests.cli.sites import Site, unique
from tests.fixtures.servers import start_nsqd


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, site: Site) -> list[str]:
    """The options that name the site, either way."""
    return site.through_lookupd if request.param == "lookupd" else site.directly


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


def consumed(site: Site, topic: str, count: int) -> list[bytes]:
    """Take so many messages from the topic, wherever they are; sorted."""
    with blocking.Consumer(topic, "check", nsqd=site.nsqd) as consumer:
        bodies = []
        for message in consumer:
            message.finish()
            bodies.append(message.body)
            if len(bodies) == count:
                return sorted(bodies)
    raise AssertionError("the consumer ended")


def test_arguments_are_messages(nsqflow: Here, site: Site, servers: list[str]) -> None:
    topic = unique()
    done = nsqflow("pub", topic, "order 1", "order 2", *servers)
    assert done == (0, f"published 2 messages to {topic}\n", "")
    assert consumed(site, topic, 2) == [b"order 1", b"order 2"]


def test_each_line_of_a_file_is_a_message(
    nsqflow: Here, nowhere: Path, site: Site, servers: list[str]
) -> None:
    topic = unique()
    (nowhere / "orders.txt").write_bytes(b"one\n\ntwo\xff\nthree")
    done = nsqflow("pub", topic, "--file", "orders.txt", *servers)
    assert done == (0, f"published 3 messages to {topic}; 1 empty line left out\n", "")
    assert consumed(site, topic, 3) == [b"one", b"three", b"two\xff"]


def test_each_line_of_stdin_is_a_message(nsqflow: Here, real_stdin: None, site: Site) -> None:
    topic = unique()
    with stdin_of(b"one\ntwo\n"):
        done = nsqflow("pub", topic, *site.directly)
    assert done == (0, f"published 2 messages to {topic}\n", "")
    assert consumed(site, topic, 2) == [b"one", b"two"]


def test_a_file_can_be_one_message(nsqflow: Here, nowhere: Path, site: Site) -> None:
    topic = unique()
    (nowhere / "picture").write_bytes(b"one\n\ntwo\n" * 20_000)
    done = nsqflow("pub", topic, "-f", "picture", "--whole", *site.directly)
    assert done == (0, f"published 1 message to {topic}\n", "")
    assert consumed(site, topic, 1) == [b"one\n\ntwo\n" * 20_000]


def test_nothing_to_publish_is_no_error(nsqflow: Here, nowhere: Path, site: Site) -> None:
    topic = unique()
    (nowhere / "empty").touch()
    for words in ([], ["--whole"]):
        done = nsqflow("pub", topic, "-f", "empty", *words, *site.directly)
        assert done == (0, f"published 0 messages to {topic}\n", "")


def test_many_lines_are_all_published(nsqflow: Here, nowhere: Path, site: Site) -> None:
    topic = unique()
    lines = [f"line {number} {'x' * (number % 500)}" for number in range(5_000)]
    (nowhere / "many").write_text("\n".join(lines))
    done = nsqflow("pub", topic, "-f", "many", *site.through_lookupd)
    assert done == (0, f"published 5,000 messages to {topic}\n", "")
    assert consumed(site, topic, 5_000) == sorted(line.encode() for line in lines)


def test_a_delay_puts_off_each_message(nsqflow: Here, nowhere: Path, site: Site) -> None:
    topic = unique()
    for node in (0, 1):
        site.create(topic, "billing", node)
    (nowhere / "many").write_text("\n".join(map(str, range(600))))
    done = nsqflow("pub", topic, "-f", "many", "--delay", "3600", *site.directly)
    assert done == (0, f"published 600 messages to {topic}\n", "")
    channels = [site.channel(topic, "billing", node) for node in (0, 1)]
    assert sum(channel["deferred_count"] for channel in channels if channel) == 600


def test_the_counts_are_an_object_for_a_program(nsqflow: Here, nowhere: Path, site: Site) -> None:
    topic = unique()
    (nowhere / "lines").write_text("one\n\n")
    done = nsqflow("pub", topic, "-f", "lines", "--json", *site.directly)
    assert json.loads(done.out) == {
        "topic": topic,
        "published": 1,
        "refused": 0,
        "uncertain": 0,
        "empty": 1,
    }


def test_what_nsqd_refuses_is_named_and_the_rest_is_published(
    nsqflow: Here, nowhere: Path, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path, options=["-max-msg-size=10"]) as nsqd:
        (nowhere / "lines").write_text("one\n" + 20 * "x" + "\nthree\n")
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
    nowhere: Path, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path, options=["-max-msg-size=1000"]) as nsqd:
        lines = [b"%d" % number for number in range(600)]
        lines[300] = 2_000_000 * b"x"
        done = run("pub", "orders", "--nsqd", nsqd.tcp_address, stdin=b"\n".join(lines))
    assert (done.code, done.out) == (1, "published 599 messages to orders; 1 refused\n")
    [line] = done.err.splitlines()
    assert line.startswith("nsqflow: refused: line 301: E_BAD_MESSAGE ")


def test_a_delay_that_nsqd_does_not_take_is_told_once(
    nsqflow: Here, nowhere: Path, tmp_path: Path
) -> None:
    (nowhere / "many").write_text("\n".join(map(str, range(600))))
    with start_nsqd(tmp_path, options=["-max-req-timeout=1s"]) as nsqd:
        words = ["pub", "orders", "-f", "many", "--nsqd", nsqd.tcp_address]
        done = nsqflow(*words, "--delay", "2")
        assert (done.code, done.out) == (1, "published 0 messages to orders; 1 refused\n")
        refused, stopped = done.err.splitlines()
        assert refused.startswith("nsqflow: refused: line 1: E_INVALID DPUB timeout 2000 out of ")
        assert stopped == "nsqflow: stopped: nothing after line 1 was sent"
        done = nsqflow(*words, "--delay", "0.001")
        assert done == (0, "published 600 messages to orders\n", "")


def test_a_line_that_is_too_long_to_read_ends_it_after_those_before(nowhere: Path) -> None:
    with BackgroundBroker() as broker:
        data = b"one\n" + (32 * 1024 * 1024 + 1) * b"x" + b"\nthree\n"
        done = run("pub", "orders", "--nsqd", *broker.nsqd_addresses, stdin=data)
    assert (done.code, done.out) == (1, "published 1 message to orders\n")
    assert done.err == (
        "nsqflow: line 2 has more than 33,554,432 bytes; it and what follows is not sent\n"
    )


def test_what_was_sent_and_never_answered_is_named_and_ends_it(nowhere: Path) -> None:
    with BackgroundBroker() as broker:
        site = Site(broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses)
        words = ["pub", "orders", "--timeout", "1", *site.directly]
        with Running(words) as command:
            assert command.process.stdin is not None
            command.process.stdin.write(b"one\n")
            assert consumed(site, "orders", 1) == [b"one"]
            broker.slow(3)  # longer than it waits
            command.process.stdin.write(b"two\nthree\n")
            command.process.stdin.flush()
            command.await_text(r"uncertain: lines 2 to 3: ")
            assert command.end() == 1
            broker.slow(0)
    assert "stopped: nothing after line 3 was sent\n" in command.text
    assert command.text.endswith("published 1 message to orders; 2 uncertain\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_it_tells_what_was_published(
    nowhere: Path, site: Site, number: int, code: int
) -> None:
    topic = unique()
    with Running(["pub", topic, "--nsqd", site.nsqd[0]]) as command:
        assert command.process.stdin is not None
        command.process.stdin.write(b"one\ntwo")
        assert consumed(site, topic, 1) == [b"one"]
        assert command.end(number) == code
    assert command.text == f"published 1 message to {topic}\n"


def test_a_person_is_told_that_lines_are_awaited(nowhere: Path, site: Site) -> None:
    topic = unique()
    with OnTerminal(["pub", topic, *site.directly]) as command:
        command.await_text("each line is a message; Ctrl-D ends")
        command.type("hello\n\x04")
        command.await_text(f"published 1 message to {topic}")
        assert command.end() == 0


def test_how_it_goes_is_told_when_it_takes_its_time(nowhere: Path, site: Site) -> None:
    topic = unique()
    with OnTerminal(["pub", topic, *site.directly]) as command:
        command.await_text("Ctrl-D ends")
        command.type("hello\n")
        command.await_text(r"published 1 message, \d+/s")
        assert command.end(signal.SIGINT) == 130


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["orders", ""], "message 1 is empty; nsqd takes none of that kind"),
        (["orders", "x", "--whole"], "messages as arguments, and a file too; give one of them"),
        (["orders", "x", "--delay", "-1"], "invalid value for '--delay'"),
        (["orders", "x", "--delay", "nan"], "--delay nan; allowed are 0 to below 1000000000 sec"),
        (["orders", "x", "--delay", "1e9"], "--delay 1000000000.0; allowed are 0 to below 1000"),
        (["orders", "x", "--timeout", "nan"], "--timeout nan; allowed are 0.1 to 3600 seconds"),
        (["orders", "x", "--timeout", "0"], "invalid value for '--timeout'"),
        (["or ders", "x"], "topic name 'or ders' has ' ' at position 2"),
        (["orders", "-f", "missing"], "missing: No such file or directory\n"),
        (["orders", "-f", "/"], "/: Is a directory\n"),
    ],
)
def test_a_command_line_that_can_not_be_meant_publishes_nothing(
    nsqflow: Here, words: list[str], told: str
) -> None:
    done = nsqflow("pub", *words, "--nsqd", "127.0.0.1:9")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nsqflow: {told}")


@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_where_nobody_answers_that_is_an_error_at_once(nsqflow: Here, option: str) -> None:
    done = nsqflow("pub", "orders", "x", option, "127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("nsqflow: 127.0.0.1:9: Connection refused; is it running?")


def test_a_server_that_is_away_is_told_of_and_another_takes_it(nsqflow: Here, site: Site) -> None:
    topic = unique()
    done = nsqflow("pub", topic, "x", "--lookupd", "127.0.0.1:9", *site.through_lookupd)
    assert (done.code, done.out) == (0, f"published 1 message to {topic}\n")
    assert {*done.err.splitlines()} == {
        "nsqflow: nsqlookupd failed: 127.0.0.1:9: Connection refused"
    }


def test_an_nsqlookupd_that_knows_no_nsqd_is_told(nsqflow: Here, nowhere: Path) -> None:
    with BackgroundBroker() as broker:
        broker.stop_node(0)
        [lookupd] = broker.lookupd_addresses
        done = nsqflow("pub", "orders", "x", "--lookupd", lookupd)
    assert done.code == 1
    assert done.err.startswith(f"nsqflow: nsqlookupd {lookupd} knows no nsqd; ")
