"""The verb tail."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqflow.broker import BackgroundBroker
from tests.cli.commands import COMMAND, Here, OnTerminal, Running
from tests.cli.sites import Site, unique
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, site: Site) -> list[str]:
    """The options that name the site, either way."""
    return site.through_lookupd if request.param == "lookupd" else site.directly


def await_reader(site: Site, topic: str, node: int = 0) -> str:
    """Wait until somebody reads the topic; gives the channel."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for channel in (site.topic(topic, node) or {"channels": []})["channels"]:
            if channel["client_count"]:
                return str(channel["channel_name"])
        time.sleep(POLL_INTERVAL)
    raise AssertionError(f"nobody reads {topic}")


@contextmanager
def publishing(site: Site, topic: str, *bodies: bytes) -> Iterator[None]:
    """Publish as soon as somebody reads the topic."""

    def publish() -> None:
        await_reader(site, topic)
        site.publish(topic, *bodies)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_bodies_come_as_they_are_where_no_person_reads_them(
    nsqflow: Here, site: Site, servers: list[str]
) -> None:
    topic = unique()
    site.create(topic)
    with publishing(site, topic, b'{"id":1}', "größer".encode(), b"third"):
        done = nsqflow("tail", topic, "-n", "2", *servers)
    assert (done.code, done.err) == (0, "")
    assert done.out == '{"id":1}\ngrößer\n'


def test_several_topics_are_told_apart(nsqflow: Here, site: Site) -> None:
    one, two = unique("one"), unique("two")
    for topic in (one, two):
        site.create(topic)
    with publishing(site, one, b"1"), publishing(site, two, b"2"):
        done = nsqflow("tail", one, two, "-n", "2", *site.directly)
    assert sorted(done.out.splitlines()) == sorted([f"{one}\t1", f"{two}\t2"])


def test_messages_are_objects_for_a_program(nsqflow: Here, site: Site, servers: list[str]) -> None:
    topic = unique()
    site.create(topic)
    with publishing(site, topic, b'{"id":1}', b"\xff\x00"):
        done = nsqflow("tail", topic, "-n", "2", "--json", *servers)
    text, binary = map(json.loads, done.out.splitlines())
    assert text["body"] == '{"id":1}'
    assert (binary["body_base64"], "body" in binary) == ("/wA=", False)
    assert (text["topic"], text["nsqd"], text["attempts"]) == (topic, site.nsqd[0], 1)
    assert text["channel"].endswith("#ephemeral")
    assert len(text["id"]) == 16
    assert text["timestamp"] <= binary["timestamp"]


def test_json_can_be_indented_in_a_pipe(nsqflow: Here, site: Site) -> None:
    topic = unique()
    site.create(topic)
    with publishing(site, topic, b'{"id":[1]}', b"{not json"):
        done = nsqflow("tail", topic, "-n", "2", "--pretty", *site.directly)
    assert done.out == '{\n  "id": [\n    1\n  ]\n}\n{not json\n'


def test_nothing_is_taken_from_anybody(nsqflow: Here, site: Site) -> None:
    topic = unique()
    site.create(topic, "billing")
    with Running(["tail", topic, "-n", "1", "--nsqd", site.nsqd[0]]) as command:
        deadline = time.monotonic() + PATIENCE
        while not any(name.startswith("tail-") for name in channels(site, topic)):
            assert time.monotonic() < deadline
            time.sleep(POLL_INTERVAL)
        site.publish(topic, b"1")
        assert command.end() == 0
        assert command.text.endswith("1\n")
    channel = site.channel(topic, "billing")
    assert channel is not None
    assert channel["depth"] == 1
    deadline = time.monotonic() + PATIENCE
    while channels(site, topic) != ["billing"]:  # its own is gone with it
        assert time.monotonic() < deadline
        time.sleep(POLL_INTERVAL)


def channels(site: Site, topic: str) -> list[str]:
    return [each["channel_name"] for each in (site.topic(topic) or {"channels": []})["channels"]]


def test_a_channel_that_is_named_is_shared(nsqflow: Here, site: Site) -> None:
    topic = unique()
    site.create(topic, "billing")
    site.publish(topic, b"1", b"2", b"3")
    done = nsqflow("tail", topic, "--channel", "billing", "-n", "2", *site.directly)
    assert (done.code, done.out) == (0, "1\n2\n")
    channel = site.channel(topic, "billing")
    assert channel is not None
    # The third was given back, if it was sent at all.
    assert channel["depth"] + channel["in_flight_count"] + channel["deferred_count"] == 1


def test_a_topic_that_is_not_there_is_remarked_upon(nsqflow: Here, site: Site) -> None:
    topic = unique("orders")
    site.create(topic)
    with publishing(site, topic[:-1], b"1"):
        done = nsqflow("tail", topic[:-1], "-n", "1", *site.directly)
    assert (done.code, done.out) == (0, "1\n")
    assert done.err == f"nsqflow: there is no topic {topic[:-1]!r} yet; {topic!r} is\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_without_a_word(nowhere: Path, site: Site, number: int, code: int) -> None:
    topic = unique()
    site.create(topic)
    with Running(["tail", topic, *site.through_lookupd]) as command:
        await_reader(site, topic)
        site.publish(topic, b"1")
        command.await_text("1\n")
        assert command.end(number) == code
        assert command.text == "1\n"


def test_it_ends_with_who_reads_it(nowhere: Path, site: Site) -> None:
    topic = unique()
    site.create(topic)
    with Running(["tail", topic, *site.directly]) as command:
        await_reader(site, topic)
        site.publish(topic, b"1")
        command.await_text("1\n")
        assert command.process.stdout is not None
        command.process.stdout.close()
        site.publish(topic, b"2")
        assert command.process.wait(PATIENCE) == 141


def test_what_nobody_has_read_is_given_back_without_a_word(nowhere: Path, site: Site) -> None:
    topic = unique()
    site.create(topic, "billing")
    words = ["tail", topic, "--channel", "billing", "--nsqd", site.nsqd[0]]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        site.publish(topic, b"1")
        assert command.stdout.readline() == b"1\n"
        command.stdout.close()
        site.publish(topic, b"2")
        assert command.wait(PATIENCE) == 141
        assert command.stderr.read() == b""
    deadline = time.monotonic() + PATIENCE
    while not (channel := site.channel(topic, "billing")) or channel["depth"] != 1:
        assert time.monotonic() < deadline
        time.sleep(POLL_INTERVAL)


def test_it_goes_on_after_nsqd_was_away(nowhere: Path) -> None:
    with BackgroundBroker() as broker:
        site = Site(broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses)
        site.create("orders")
        with Running(["tail", "orders", *site.through_lookupd]) as command:
            await_reader(site, "orders")
            broker.drop_connections()
            command.await_text(r"nsqflow: no connection to|nsqflow: .*lost")
            await_reader(site, "orders")
            site.publish("orders", b"again")
            command.await_text("again\n")
            assert command.end(signal.SIGTERM) == 143


def test_a_person_sees_when_and_whence_and_json_over_several_lines(
    nowhere: Path, site: Site
) -> None:
    topic = unique()
    site.create(topic)
    with OnTerminal(["tail", topic, "-n", "2", *site.directly]) as command:
        await_reader(site, topic)
        site.publish(topic, b'{"user":"ann","tags":[1]}', b"\x1b[31mred\nsecond line\xff")
        assert command.end() == 0
    first, *body = command.shown.splitlines()[:7]
    clock, *rest = first.split()
    assert len(clock) == len("06:25:46.199")
    assert rest == [topic, site.nsqd[0]]
    assert body == ["{", '  "user": "ann",', '  "tags": [', "    1", "  ]", "}"]
    assert "\\x1b[31mred\nsecond line\\xff\n" in command.shown
    assert "\x1b[31m" not in command.text  # a message does not paint the terminal


def test_a_person_may_want_bodies_as_they_are(nowhere: Path, site: Site) -> None:
    topic = unique()
    site.create(topic)
    with OnTerminal(["tail", topic, "-n", "1", "--raw", *site.directly]) as command:
        await_reader(site, topic)
        site.publish(topic, b'{"user":"ann","tags":[1]}')
        assert command.end() == 0
    assert command.shown.splitlines()[1] == '{"user":"ann","tags":[1]}'


def test_no_colour_means_none(nowhere: Path, site: Site) -> None:
    topic = unique()
    site.create(topic)
    words = ["tail", topic, "-n", "1", *site.directly]
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with OnTerminal(words, env) as command:
            await_reader(site, topic)
            site.publish(topic, b'{"user":"ann"}')
            assert command.end() == 0
        assert ("\x1b[1;34m" in command.text) == coloured


@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_where_nobody_answers_that_is_an_error_at_once(nsqflow: Here, option: str) -> None:
    done = nsqflow("tail", "orders", option, "127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("nsqflow: 127.0.0.1:9: Connection refused; is it running?")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "missing argument 'TOPIC...'"),
        (["orders", "-n", "0"], "invalid value for '-n'"),
        (["orders", "--channel", "a/b"], "channel name 'a/b' has '/' at position 1"),
    ],
)
def test_a_command_line_that_can_not_be_meant_is_a_misuse(
    nsqflow: Here, words: list[str], told: str
) -> None:
    done = nsqflow("tail", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nsqflow: {told}")
