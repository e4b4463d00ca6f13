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
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import COMMAND, CommandProcess, InProcess, OnTerminal
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, cluster: NsqCluster) -> list[str]:
    """The options that name the cluster, either way."""
    return cluster.through_lookupd if request.param == "lookupd" else cluster.directly


def await_reader(cluster: NsqCluster, topic: str, node: int = 0) -> str:
    """Wait until a client reads the topic; return the channel."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for channel in (cluster.topic(topic, node) or {"channels": []})["channels"]:
            if channel["client_count"]:
                return str(channel["channel_name"])
        time.sleep(POLL_INTERVAL)
    raise AssertionError(f"no client reads {topic}")


@contextmanager
def publishing(cluster: NsqCluster, topic: str, *bodies: bytes) -> Iterator[None]:
    """Publish as soon as a client reads the topic."""

    def publish() -> None:
        await_reader(cluster, topic)
        cluster.publish(topic, *bodies)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_pipe_gets_bodies_as_they_are(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic)
    with publishing(cluster, topic, b'{"id":1}', "größer".encode(), b"third"):
        done = nsqflow("tail", topic, "-n", "2", *servers)
    assert (done.code, done.err) == (0, "")
    assert done.out == '{"id":1}\ngrößer\n'


def test_messages_of_several_topics_are_prefixed_by_the_topic(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    one, two = unique("one"), unique("two")
    for topic in (one, two):
        cluster.create(topic)
    with publishing(cluster, one, b"1"), publishing(cluster, two, b"2"):
        done = nsqflow("tail", one, two, "-n", "2", *cluster.directly)
    assert sorted(done.out.splitlines()) == sorted([f"{one}\t1", f"{two}\t2"])


def test_messages_are_objects_for_a_program(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic)
    with publishing(cluster, topic, b'{"id":1}', b"\xff\x00"):
        done = nsqflow("tail", topic, "-n", "2", "--json", *servers)
    text, binary = map(json.loads, done.out.splitlines())
    assert text["body"] == '{"id":1}'
    assert (binary["body_base64"], "body" in binary) == ("/wA=", False)
    assert (text["topic"], text["nsqd"], text["attempts"]) == (topic, cluster.nsqd[0], 1)
    assert text["channel"].endswith("#ephemeral")
    assert len(text["id"]) == 16
    assert text["timestamp"] <= binary["timestamp"]


def test_json_can_be_indented_in_a_pipe(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic)
    with publishing(cluster, topic, b'{"id":[1]}', b"{not json"):
        done = nsqflow("tail", topic, "-n", "2", "--pretty", *cluster.directly)
    assert done.out == '{\n  "id": [\n    1\n  ]\n}\n{not json\n'


def test_other_consumers_miss_no_message(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    with CommandProcess(["tail", topic, "-n", "1", "--nsqd", cluster.nsqd[0]]) as command:
        deadline = time.monotonic() + PATIENCE
        while not any(name.startswith("tail-") for name in channels(cluster, topic)):
            assert time.monotonic() < deadline
            time.sleep(POLL_INTERVAL)
        cluster.publish(topic, b"1")
        assert command.end() == 0
        assert command.text.endswith("1\n")
    channel = cluster.channel(topic, "billing")
    assert channel is not None
    assert channel["depth"] == 1
    deadline = time.monotonic() + PATIENCE
    while channels(cluster, topic) != ["billing"]:  # its own is gone with it
        assert time.monotonic() < deadline
        time.sleep(POLL_INTERVAL)


def channels(cluster: NsqCluster, topic: str) -> list[str]:
    return [each["channel_name"] for each in (cluster.topic(topic) or {"channels": []})["channels"]]


def test_a_channel_that_is_named_is_shared(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1", b"2", b"3")
    done = nsqflow("tail", topic, "--channel", "billing", "-n", "2", *cluster.directly)
    assert (done.code, done.out) == (0, "1\n2\n")
    channel = cluster.channel(topic, "billing")
    assert channel is not None
    # The third was given back, if it was sent at all.
    assert channel["depth"] + channel["in_flight_count"] + channel["deferred_count"] == 1


def test_a_topic_that_does_not_exist_is_an_error_and_is_not_created(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique("orders")
    mistyped = topic[:-1]
    cluster.create(topic)
    done = nsqflow("tail", mistyped, "-n", "1", *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"nsqflow: there is no topic {mistyped!r}; did you mean {topic!r}? "
        "use --create to subscribe anyway\n"
    )
    assert nsqflow("tail", topic, mistyped, *servers).code == 1
    assert [cluster.topic(mistyped, node) for node in (0, 1)] == [None, None]
    assert channels(cluster, topic) == []  # nothing is subscribed to where one name is wrong


def test_a_topic_that_only_some_nsqd_have_is_read_there_alone(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic)
    with publishing(cluster, topic, b"1"):
        done = nsqflow("tail", topic, "-n", "1", *cluster.directly)
    assert (done.code, done.out, done.err) == (0, "1\n", "")
    assert cluster.topic(topic, node=1) is None


def test_a_topic_can_be_created_if_that_is_wanted(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    with publishing(cluster, topic, b"1"):
        done = nsqflow("tail", topic, "-n", "1", "--create", *cluster.directly)
    assert (done.code, done.out, done.err) == (0, "1\n", "")


def test_where_http_cannot_be_asked_it_says_that_the_topic_may_be_created(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    words = ["tail", topic, "-n", "1", "--nsqd", cluster.nsqd[0], "--nsqd-http", "127.0.0.1:9"]
    with publishing(cluster, topic, b"1"):
        done = nsqflow(*words)
    assert (done.code, done.out) == (0, "1\n")
    assert done.err == (
        "nsqflow: 127.0.0.1:9: Connection refused; a topic or channel that is missing there is "
        "created\n"
    )


def test_a_channel_that_is_named_and_does_not_exist_is_not_created(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    words = ["tail", topic, "--channel", "biling", "-n", "1", *servers]
    done = nsqflow(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"nsqflow: topic {topic!r} has no channel 'biling'; did you mean 'billing'? "
        "use --create to subscribe anyway\n"
    )
    assert channels(cluster, topic) == ["billing"]
    with publishing(cluster, topic, b"1"):
        assert nsqflow(*words, "--create").out == "1\n"


def test_a_named_channel_is_not_created_on_an_nsqd_that_has_only_the_topic(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic, node=1)  # before there is a channel: nsqd creates those nsqlookupd knows
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1")
    words = ["tail", topic, "--channel", "billing", "-n", "1", *cluster.through_lookupd]
    done = nsqflow(*words)
    assert (done.code, done.out) == (0, "1\n")
    assert done.err == (
        f"nsqflow: topic {topic!r} has no channel 'billing' on nsqd {cluster.nsqd[1]}, which is "
        "not read; --create creates it there\n"
    )
    other = cluster.topic(topic, node=1)
    assert other is not None
    assert other["channels"] == []


def test_a_named_channel_that_vanishes_need_not_exist(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic)
    with publishing(cluster, topic, b"1"):
        done = nsqflow("tail", topic, "--channel", "mine#ephemeral", "-n", "1", *cluster.directly)
    assert (done.code, done.out) == (0, "1\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_silently(
    empty_folder: Path, cluster: NsqCluster, number: int, code: int
) -> None:
    topic = unique()
    cluster.create(topic)
    with CommandProcess(["tail", topic, *cluster.through_lookupd]) as command:
        await_reader(cluster, topic)
        cluster.publish(topic, b"1")
        command.await_text("1\n")
        assert command.end(number) == code
        assert command.text == "1\n"


def test_it_ends_when_its_reader_ends(empty_folder: Path, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic)
    with CommandProcess(["tail", topic, *cluster.directly]) as command:
        await_reader(cluster, topic)
        cluster.publish(topic, b"1")
        command.await_text("1\n")
        assert command.process.stdout is not None
        command.process.stdout.close()
        cluster.publish(topic, b"2")
        assert command.process.wait(PATIENCE) == 141


def test_messages_that_were_not_shown_are_requeued_silently(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    words = ["tail", topic, "--channel", "billing", *cluster.directly]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        cluster.publish(topic, b"1")
        assert command.stdout.readline() == b"1\n"
        command.stdout.close()
        cluster.publish(topic, b"2")
        assert command.wait(PATIENCE) == 141
        assert command.stderr.read() == b""
    deadline = time.monotonic() + PATIENCE
    while not (channel := cluster.channel(topic, "billing")) or channel["depth"] != 1:
        assert time.monotonic() < deadline
        time.sleep(POLL_INTERVAL)


def test_it_goes_on_after_nsqd_was_away(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        cluster = NsqCluster(
            broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses
        )
        cluster.create("orders")
        with CommandProcess(["tail", "orders", *cluster.through_lookupd]) as command:
            await_reader(cluster, "orders")
            broker.drop_connections()
            command.await_text(r"nsqflow: no connection to|nsqflow: .*lost")
            await_reader(cluster, "orders")
            cluster.publish("orders", b"again")
            command.await_text("again\n")
            assert command.end(signal.SIGTERM) == 143


def test_a_terminal_shows_time_and_nsqd_and_indents_json(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic)
    with OnTerminal(["tail", topic, "-n", "2", *cluster.directly]) as command:
        await_reader(cluster, topic)
        cluster.publish(topic, b'{"user":"ann","tags":[1]}', b"\x1b[31mred\nsecond line\xff")
        assert command.end() == 0
    first, *body = command.shown.splitlines()[:7]
    clock, *rest = first.split()
    assert len(clock) == len("06:25:46.199")
    assert rest == [topic, cluster.nsqd[0]]
    assert body == ["{", '  "user": "ann",', '  "tags": [', "    1", "  ]", "}"]
    assert "\\x1b[31mred\nsecond line\\xff\n" in command.shown
    assert "\x1b[31m" not in command.text  # a message does not paint the terminal


def test_raw_shows_bodies_as_they_are_on_a_terminal(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic)
    with OnTerminal(["tail", topic, "-n", "1", "--raw", *cluster.directly]) as command:
        await_reader(cluster, topic)
        cluster.publish(topic, b'{"user":"ann","tags":[1]}')
        assert command.end() == 0
    assert command.shown.splitlines()[1] == '{"user":"ann","tags":[1]}'


def test_no_colour_means_none(empty_folder: Path, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic)
    words = ["tail", topic, "-n", "1", *cluster.directly]
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with OnTerminal(words, env) as command:
            await_reader(cluster, topic)
            cluster.publish(topic, b'{"user":"ann"}')
            assert command.end() == 0
        assert ("\x1b[1;34m" in command.text) == coloured


@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_without_a_server_it_is_an_error_at_once(nsqflow: InProcess, option: str) -> None:
    done = nsqflow("tail", "orders", option, "127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("nsqflow: 127.0.0.1:9: Connection refused; is it running?")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "missing argument 'TOPIC...'"),
        (["orders", "-n", "0"], "invalid value for '-n'"),
        (["orders", "--channel", "a/b"], "channel name 'a/b' has '/' at position 1"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_a_misuse(
    nsqflow: InProcess, words: list[str], expected: str
) -> None:
    done = nsqflow("tail", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nsqflow: {expected}")


def test_a_terminal_says_which_messages_it_waits_for(cluster: NsqCluster) -> None:
    topic = unique("topic")
    cluster.create(topic)
    with OnTerminal(["tail", topic, *cluster.through_lookupd]) as command:
        command.await_text(f"nsqflow: waiting for messages of {topic}; press Ctrl-C to stop")


def test_it_is_not_the_first_reader_of_messages_that_wait(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique("topic")
    cluster.create(topic)
    cluster.publish(topic, b"a", b"b")
    done = nsqflow("tail", topic, "-n", "1", *servers)
    assert (done.code, done.out) == (1, "")
    assert f"topic '{topic}' has no channel, so its first reader would take" in done.err
    assert f"'nsqflow create {topic} CHANNEL' keeps them for a channel" in done.err
    found = cluster.topic(topic)
    assert found is not None
    assert (found["depth"], found["channels"]) == (2, [])
    done = nsqflow("tail", topic, "-n", "2", "--create", *servers)
    assert sorted(done.out.split()) == ["a", "b"]
