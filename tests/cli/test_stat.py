"""The verb stat, and how it sums up."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from nsqflow.admin import ChannelStats, NsqdStats, TopicStats
from nsqflow.broker import BackgroundBroker
from nsqflow.cli.channel_stats import ChannelTotals, Rates, Totals, compute_rates, sum_stats
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import CommandProcess, InProcess, OnTerminal

HEADS = [
    *("TOPIC", "CHANNEL", "DEPTH", "IN", "FLIGHT", "DEFERRED", "IN/S", "OUT/S"),
    *("REQUEUED", "TIMED", "OUT", "CLIENTS", "NSQD"),
]
WIDE = ("REQUEUED", "TIMED", "OUT", "NSQD")


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, cluster: NsqCluster) -> list[str]:
    """The options that name the cluster, either way."""
    return cluster.through_lookupd if request.param == "lookupd" else cluster.directly


def filled(cluster: NsqCluster) -> str:
    """A topic on both nsqd: three messages in a channel that is paused on one of them."""
    topic = unique()
    for node in (0, 1):
        cluster.create(topic, "billing", node)
    cluster.publish(topic, b"1", b"2", node=0)
    cluster.publish(topic, b"3", node=1)
    return topic


def test_a_sample_sums_up_all_nsqd(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = filled(cluster)
    done = nsqflow("stat", topic, "--once", *servers)
    assert (done.code, done.err) == (0, "")
    head, whole, channel = done.out.splitlines()
    assert head.split() == HEADS
    assert whole.split() == [topic, "-", "0", *("-" * 7), "2"]
    assert channel.split() == [topic, "billing", "3", "0", "0", "-", "-", "0", "0", "0", "2"]


def test_rows_are_objects_for_a_program(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = filled(cluster)
    nsqflow(
        "pause", topic, "billing", "--nsqd", cluster.nsqd[0], "--nsqd-http", cluster.nsqd_http[0]
    )
    done = nsqflow("stat", topic, "--once", "--json", *servers)
    whole, channel = map(json.loads, done.out.splitlines())
    assert (whole["channel"], whole["messages"]) == (None, 3)
    assert (channel["channel"], channel["depth"], channel["nsqd"]) == ("billing", 3, 2)
    assert (channel["paused"], whole["paused"]) == (True, False)
    assert channel["in_rate"] is None
    assert channel["at"] == whole["at"] > 0


def test_all_topics_are_shown_unless_some_are_named(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    one, two, three = (filled(cluster) for _ in range(3))
    done = nsqflow("stat", one, two, "--once", "--json", *cluster.directly)
    assert {json.loads(line)["topic"] for line in done.out.splitlines()} == {one, two}
    done = nsqflow("stat", "--once", "--json", *cluster.directly)
    assert {one, two, three} <= {json.loads(line)["topic"] for line in done.out.splitlines()}


def test_a_topic_that_does_not_exist_is_reported(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(f"{topic}-more")
    for words in (["--json"], []):
        done = nsqflow("stat", topic, "--once", *words, *cluster.directly)
        assert (done.code, done.out) == (1, "")
        hint = f"did you mean {topic + '-more'!r}?"
        assert done.err == f"nsqflow: there is no topic {topic!r}; {hint}\n"


def test_what_is_there_is_shown_beside_what_is_not(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = filled(cluster)
    done = nsqflow("stat", topic, f"{topic}x", "--once", *cluster.directly)
    assert done.code == 1
    assert done.err.startswith(f"nsqflow: there is no topic {topic + 'x'!r}; did you mean ")
    assert len(done.out.splitlines()) == 3


def test_a_topic_that_only_nsqlookupd_knows_is_reported(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    nsqflow("create", topic, *cluster.through_lookupd)
    done = nsqflow("stat", topic, "--once", *cluster.through_lookupd)
    assert done == (
        1, "", f"nsqflow: no nsqd has topic {topic} yet; it is only registered with nsqlookupd\n"
    )  # fmt: skip


def test_where_there_is_nothing_yet_it_says_so(nsqflow: InProcess) -> None:
    with BackgroundBroker() as broker:
        servers = ["--lookupd", *broker.lookupd_addresses]
        assert nsqflow("stat", "--once", *servers) == (0, "", "nsqflow: there is no topic yet\n")
        nsqds = [*broker.nsqd_addresses, "127.0.0.1:9"]
        https = [*broker.nsqd_http_addresses, "127.0.0.1:9"]
        servers_one_dead = ["--nsqd", ",".join(nsqds), "--nsqd-http", ",".join(https)]
        done = nsqflow("stat", "--once", *servers_one_dead)
        assert (done.code, done.out) == (1, "")
        assert done.err.splitlines() == [
            "nsqflow: there is no topic yet",
            "nsqflow: 127.0.0.1:9: Connection refused",
        ]
        broker.stop_node(0)
        done = nsqflow("stat", "--once", *servers)
        assert (done.code, done.out) == (0, "")
        assert " knows no nsqd; nsqd's -lookupd-tcp-address names it\n" in done.err


def test_an_nsqd_that_does_not_answer_is_reported(nsqflow: InProcess) -> None:
    with BackgroundBroker(nodes=2) as broker:
        http = broker.nsqd_http_addresses
        cluster = NsqCluster(broker.lookupd_addresses[0], broker.nsqd_addresses, http)
        topic = filled(cluster)
        broker.kill_node(0)
        done = nsqflow("stat", topic, "--once", "--json", *cluster.directly)
    assert [json.loads(line)["nsqd"] for line in done.out.splitlines()] == [1, 1]
    assert (done.code, done.err) == (1, f"nsqflow: {http[0]}: Connection refused\n")


def test_a_pipe_gets_one_sample_after_the_other_with_rates(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = filled(cluster)
    words = ["stat", topic, "--interval", "0.1", "--json", *cluster.through_lookupd]
    with CommandProcess(words) as command:
        command.await_text(r'"in_rate": 0\.0')
        cluster.publish(topic, b"4")
        command.await_text(r'"depth": 4,.*"in_rate": [1-9]')
        assert command.end(signal.SIGINT) == 130
    assert all(json.loads(line) for line in command.text.splitlines())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_terminal_shows_changes(
    empty_folder: Path, cluster: NsqCluster, number: int, code: int
) -> None:
    topic = filled(cluster)
    words = ["stat", topic, "--interval", "0.1", *cluster.through_lookupd]
    with OnTerminal(words) as command:
        command.await_text(r"billing +3 +0 +0 .*\n")
        cluster.publish(topic, b"4", b"5")
        command.await_text(r"billing +5 +0 +0 .*\n")
        assert command.end(number) == code
    lines = command.shown.splitlines()
    assert lines[0].startswith(f"nsqlookupd {cluster.lookupd}  ")
    assert lines[1].upper().split() == HEADS
    assert command.text.count("\x1b[?25l") == command.text.count("\x1b[?25h") == 1  # the cursor
    assert command.text.count("\x1b[?1049h") == command.text.count("\x1b[?1049l") == 1
    # What it showed last stays on the terminal.
    last = command.text.rpartition("\x1b[?1049l")[2]
    assert re.search(r"billing +5 +0 +0 ", last)


def test_a_terminal_shows_which_nsqd_does_not_answer_and_goes_on(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        http = broker.nsqd_http_addresses
        cluster = NsqCluster(broker.lookupd_addresses[0], broker.nsqd_addresses, http)
        cluster.create("orders", "billing")
        with OnTerminal(["stat", "--interval", "0.1", *cluster.directly]) as command:
            command.await_text(r"orders +billing +0")
            broker.stop_node(0)
            command.await_text(rf"{http[0]}: Connection refused")
            broker.start_node(0)
            cluster.publish("orders", b"1")
            command.await_text(r"orders +billing +1")
            assert command.end(signal.SIGINT) == 130


def test_more_rows_than_lines_are_cut_and_counted(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        for number in range(40):
            broker.create_topic(f"topic-{number:02}")
        with OnTerminal(["stat", "--lookupd", *broker.lookupd_addresses]) as command:
            command.await_text("1-27 of 40 rows by name")
            assert command.end(signal.SIGINT) == 130
    assert "topic-26" in command.shown
    assert "topic-27" not in command.shown


def test_without_stdin_the_keys_are_those_of_the_terminal(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        for number in range(40):
            broker.create_topic(f"topic-{number:02}")
        words = ["stat", "--interval", "0.1", "--lookupd", *broker.lookupd_addresses]
        with OnTerminal(words, stdin=subprocess.DEVNULL) as command:
            modes = command.modes
            command.await_text("1-27 of 40 rows by name")
            command.press("G", "14-40 of 40 rows by name")
            command.type("q")
            assert command.end() == 0
            assert command.modes == modes
    assert command.text.rpartition("\x1b[?1049l")[2].count("topic-") == 26
    assert command.shown.endswith("and 14 rows more\n")


@pytest.mark.parametrize(
    ("columns", "lines", "heads"),
    [
        (80, 30, [head for head in HEADS if head not in WIDE]),
        (200, 30, HEADS),
        (80, 10, [head for head in HEADS if head not in WIDE]),
    ],
)
def test_a_terminal_of_any_size_is_filled_and_not_more(
    empty_folder: Path, columns: int, lines: int, heads: list[str]
) -> None:
    with BackgroundBroker() as broker:
        for number in range(30):
            broker.create_topic(f"topic-{number:02}")
        words = ["stat", "--lookupd", *broker.lookupd_addresses]
        with OnTerminal(words, columns=columns, lines=lines) as command:
            command.await_text("of 30 rows by name.*q quit[^\n]*scroll")
            picture = command.picture
            assert command.end(signal.SIGINT) == 130
    assert picture[1].upper().split() == heads
    assert len(picture) == lines
    assert max(map(len, picture)) <= columns
    # What is not known yet stands where the number will.
    assert {row.index(" -", 25) for row in picture[2:-1]} == {picture[1].index("in flight") + 7}


def test_a_dumb_terminal_gets_one_sample_after_the_other(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = filled(cluster)
    words = ["stat", topic, "--interval", "0.1", *cluster.directly]
    with OnTerminal(words, {"TERM": "dumb"}) as command:
        command.await_text(rf"(?s){topic}.*{topic}.*{topic}.*{topic}")
        assert command.end(signal.SIGINT) == 130
    assert "\x1b[" not in command.text


@pytest.mark.parametrize("words", [["--once"], []])
@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_without_a_server_it_is_an_error_at_once(
    nsqflow: InProcess, words: list[str], option: str
) -> None:
    done = nsqflow("stat", *words, option, "127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert "Connection refused; is it running?" in done.err


def stats(*topics: TopicStats) -> NsqdStats:
    return NsqdStats(topics=topics)


def test_counts_are_added_by_name() -> None:
    one = ChannelStats(
        name="c",
        depth=1,
        in_flight_count=2,
        deferred_count=3,
        message_count=10,
        requeue_count=4,
        timeout_count=5,
        client_count=6,
    )
    other = ChannelStats(name="c", depth=10, message_count=20, paused=True)
    found = sum_stats(
        [
            stats(TopicStats(name="b", depth=7, message_count=9, channels=(one,))),
            stats(TopicStats(name="b", channels=(other,)), TopicStats(name="a")),
        ]
    )
    assert [*found] == [("a", None), ("b", None), ("b", "c")]
    assert found["b", None] == ChannelTotals(depth=7, messages=9, nsqd=2)
    assert found["b", "c"] == ChannelTotals(
        depth=11,
        in_flight=2,
        deferred=3,
        messages=30,
        requeued=4,
        timed_out=5,
        clients=6,
        nsqd=2,
        paused=True,
    )


def test_messages_that_arrived_and_left_are_counted_as_out() -> None:
    before: Totals = {("t", "c"): ChannelTotals(messages=100, depth=10, nsqd=1)}
    now: Totals = {("t", "c"): ChannelTotals(messages=150, depth=20, in_flight=5, nsqd=1)}
    assert compute_rates(now, before, 5.0) == {("t", "c"): Rates(in_rate=10.0, out_rate=7.0)}


@pytest.mark.parametrize(
    "now",
    [
        ChannelTotals(messages=5, nsqd=2),  # one was started again
        ChannelTotals(messages=200, nsqd=3),  # one has come
        ChannelTotals(messages=200, nsqd=1),  # one could not be asked
    ],
)
def test_there_is_no_rate_between_samples_that_cannot_be_compared(now: ChannelTotals) -> None:
    before: Totals = {("t", "c"): ChannelTotals(messages=100, nsqd=2)}
    same: Totals = {("t", "c"): now}
    other: Totals = {("t", "new"): now}
    assert compute_rates(same, before, 1.0) == {}
    assert compute_rates(other, before, 1.0) == {}


def test_a_narrow_terminal_cuts_names_and_leaves_numbers_whole(empty_folder: Path) -> None:
    with BackgroundBroker() as broker:
        cluster = NsqCluster(
            broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses
        )
        topic = "a-topic-with-a-name-of-some-length" + "x" * 20
        cluster.create(topic, "billing")
        cluster.publish(topic, *([b"x"] * 12))
        with OnTerminal(["stat", "--once", *cluster.directly], {"COLUMNS": "80"}) as command:
            assert command.end() == 0
    head, _, channel = command.shown.splitlines()
    assert head.upper().split() == [each for each in HEADS if each not in WIDE]
    assert all(len(line) <= 80 for line in (head, channel))
    assert channel.split()[0].startswith("a-topic-with")
    assert channel.split()[0].endswith("…")
    assert channel.split()[2:5] == ["12", "0", "0"]


@pytest.mark.parametrize("interval", ["soon", "0", "-1", "2h"])
def test_an_interval_that_is_not_a_duration_is_refused(nsqflow: InProcess, interval: str) -> None:
    done = nsqflow("stat", "--interval", interval)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nsqflow: --interval={interval!r} is invalid: must be a duration")
