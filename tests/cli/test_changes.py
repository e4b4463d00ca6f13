"""The verbs create, delete, pause, unpause and empty."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsqflow.admin import Nsqd, NsqdNode
from nsqflow.admin.registrations import find_lookupd
from nsqflow.blocking import Consumer
from nsqflow.broker import BackgroundBroker
from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.servers import CliServers
from tests.cli.clusters import NsqCluster, ask, unique
from tests.cli.commands import InProcess, OnTerminal, run
from tests.cli.scripted_http import scripted_http
from tests.fixtures.crashing import until
from tests.fixtures.servers import Kind, Nsqlookupd, start_nsqd, start_nsqlookupd


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, cluster: NsqCluster) -> list[str]:
    """The options that name the cluster, either way."""
    return cluster.through_lookupd if request.param == "lookupd" else cluster.directly


def assert_listed(error: str, expected: bool) -> None:
    """Where nsqd alone is named, nsqlookupd's HTTP port is guessed; these have others."""
    assert ("may still list" in error) == expected, error
    assert len(error.splitlines()) == expected


def test_a_topic_is_created_on_the_nsqd_that_are_named(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    done = nsqflow("create", topic, *cluster.directly)
    assert done == (0, f"created topic {topic} on {', '.join(cluster.nsqd)}\n", "")
    assert [cluster.topic(topic, node) is None for node in (0, 1)] == [False, False]


def test_a_channel_is_created_with_its_topic(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    done = nsqflow("create", topic, "billing", *cluster.directly)
    servers = ", ".join(cluster.nsqd)
    assert done == (0, f"created topic {topic} with channel billing on {servers}\n", "")
    assert cluster.channel(topic, "billing") is not None


def test_a_new_topic_is_registered_with_nsqlookupd_and_no_nsqd_has_it_yet(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    done = nsqflow("create", topic, "billing", *cluster.through_lookupd)
    assert done == (0, f"created topic {topic} with channel billing on {cluster.lookupd}\n", "")
    assert topic in cluster.known("/topics")
    assert cluster.known(f"/channels?topic={topic}") == ["billing"]
    assert cluster.topic(topic) is None


def test_a_channel_is_created_where_the_topic_is_already(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic, node=1)
    until(lambda: topic in cluster.known("/topics"))
    done = nsqflow("create", topic, "billing", *cluster.through_lookupd)
    assert (
        done.out == f"created channel billing of {topic} on {cluster.lookupd}, {cluster.nsqd[1]}\n"
    )
    assert cluster.channel(topic, "billing", node=1) is not None
    assert cluster.topic(topic, node=0) is None


def test_what_existed_already_is_named_so(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    nsqflow("create", topic, "billing", *servers)
    for words, name in (([], f"topic {topic}"), (["billing"], f"channel billing of {topic}")):
        done = nsqflow("create", topic, *words, *servers)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"{name} already exists on ")
        assert len(done.out.splitlines()) == 1
    done = nsqflow("create", topic, "mail", *servers)
    assert done.out.startswith(f"created channel mail of {topic} on ")


def test_each_server_says_by_itself_what_existed(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic, node=0)
    done = nsqflow("create", topic, *cluster.directly)
    assert done.out.splitlines() == [
        f"topic {topic} already exists on {cluster.nsqd[0]}",
        f"created topic {topic} on {cluster.nsqd[1]}",
    ]
    cluster.create(topic, "billing", node=1)
    done = nsqflow("create", topic, "billing", "--json", *cluster.directly)
    both = {"topic": topic, "channel": "billing", "topic_existed": True}
    assert [*map(json.loads, done.out.splitlines())] == [
        {"server": cluster.nsqd[0], "result": "created", **both},
        {"server": cluster.nsqd[1], "result": "existed", **both},
    ]
    done = nsqflow("create", unique(), "--json", *cluster.through_lookupd)
    made = json.loads(done.out)
    assert (made["server"], made["channel"]) == (cluster.lookupd, None)
    assert (made["result"], made["topic_existed"]) == ("created", False)


def test_a_topic_is_deleted_from_every_nsqd_that_has_it(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    for node in (0, 1):
        cluster.create(topic, "billing", node)
    done = nsqflow("delete", topic, "--yes", *servers)
    assert done.code == 0
    assert_listed(done.err, servers == cluster.directly)
    assert done.out.startswith(f"deleted topic {topic} on ")
    assert all(address in done.out for address in cluster.nsqd)
    assert [cluster.topic(topic, node) for node in (0, 1)] == [None, None]
    if servers == cluster.through_lookupd:
        assert topic not in cluster.known("/topics")


def test_a_channel_is_deleted_and_its_topic_stays(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.create(topic, "mail")
    done = nsqflow("delete", topic, "billing", "--yes", *servers)
    assert done.code == 0
    assert_listed(done.err, servers == cluster.directly)
    assert cluster.channel(topic, "billing") is None
    assert cluster.channel(topic, "mail") is not None
    if servers == cluster.through_lookupd:
        assert cluster.known(f"/channels?topic={topic}") == ["mail"]


def test_what_nsqlookupd_alone_knows_can_be_deleted(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    nsqflow("create", topic, "billing", *cluster.through_lookupd)
    done = nsqflow("delete", topic, "billing", "--yes", *cluster.through_lookupd)
    assert done == (0, f"deleted channel billing of {topic} on {cluster.lookupd}\n", "")
    done = nsqflow("delete", topic, "--yes", *cluster.through_lookupd)
    assert done == (0, f"deleted topic {topic} on {cluster.lookupd}\n", "")
    assert topic not in cluster.known("/topics")


def test_a_channel_is_paused_and_unpaused_on_every_nsqd_that_has_it(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    for node in (0, 1):
        cluster.create(topic, "billing", node)

    def paused() -> list[bool]:
        channels = [cluster.channel(topic, "billing", node) for node in (0, 1)]
        return [bool(channel and channel["paused"]) for channel in channels]

    done = nsqflow("pause", topic, "billing", *servers)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"paused channel billing of {topic} on ")
    assert paused() == [True, True]
    done = nsqflow("unpause", topic, "billing", *servers)
    assert done.out.startswith(f"unpaused channel billing of {topic} on ")
    assert paused() == [False, False]


def test_a_topic_is_paused_where_it_is(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic, node=1)
    done = nsqflow("pause", topic, *servers)
    assert done == (0, f"paused topic {topic} on {cluster.nsqd[1]}\n", "")
    found = cluster.topic(topic, node=1)
    assert found is not None
    assert found["paused"]
    assert cluster.topic(topic, node=0) is None


def test_a_channel_is_emptied(nsqflow: InProcess, cluster: NsqCluster, servers: list[str]) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.create(topic, "mail")
    cluster.publish(topic, b"1", b"2")
    done = nsqflow("empty", topic, "billing", "--yes", *servers)
    result = f"emptied channel billing of {topic} on {cluster.nsqd[0]}: 2 messages dropped"
    assert done == (0, f"{result}\n", "")
    emptied, other = cluster.channel(topic, "billing"), cluster.channel(topic, "mail")
    assert emptied is not None
    assert other is not None
    assert (emptied["depth"], other["depth"]) == (0, 2)


def test_a_topic_is_emptied(nsqflow: InProcess, cluster: NsqCluster, servers: list[str]) -> None:
    topic = unique()
    cluster.publish(topic, b"1", b"2")
    done = nsqflow("empty", topic, "-y", *servers)
    result = f"emptied topic {topic} on {cluster.nsqd[0]}: 2 messages dropped"
    assert done == (0, f"{result}\n", "")
    found = cluster.topic(topic)
    assert found is not None
    assert found["depth"] == 0


def test_a_topic_whose_channels_hold_messages_is_emptied_with_a_hint(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1", b"2")
    until(lambda: (cluster.channel(topic, "billing") or {})["depth"] == 2)
    code, out, err = nsqflow("empty", topic, "-y", *servers)
    assert code == 0
    assert out.endswith(": 0 messages dropped\n")
    assert "about" not in out
    assert f"its channels hold 2 messages: nsqflow empty {topic} CHANNEL" in err


def test_json_has_the_number_of_dropped_messages(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    for node in (0, 1):
        cluster.create(topic, "billing", node)
    cluster.publish(topic, b"1", b"2", node=1)
    done = nsqflow("empty", topic, "billing", "--yes", "--json", *servers)
    found = {each["server"]: each for each in map(json.loads, done.out.splitlines())}
    same = {"topic": topic, "channel": "billing", "result": "emptied", "exact": True}
    assert found == {
        cluster.nsqd[0]: {"server": cluster.nsqd[0], "dropped": 0, **same},
        cluster.nsqd[1]: {"server": cluster.nsqd[1], "dropped": 2, **same},
    }
    for verb, result in (("pause", "paused"), ("unpause", "unpaused"), ("delete", "deleted")):
        words = ["--yes"] if verb == "delete" else []
        done = nsqflow(verb, topic, "billing", *words, "--json", *servers)
        results = [*map(json.loads, done.out.splitlines())]
        assert {each["result"] for each in results} == {result}
        assert {*cluster.nsqd} <= {each["server"] for each in results}


def test_messages_that_a_consumer_may_finish_meanwhile_are_counted_with_about(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1", b"2", b"3")
    with Consumer(topic, "billing", nsqd=cluster.nsqd[:1], max_in_flight=1):
        until(lambda: bool((cluster.channel(topic, "billing") or {})["clients"]))
        done = nsqflow("empty", topic, "billing", "--yes", *cluster.through_lookupd)
    assert done.out.endswith(": about 3 messages dropped\n")


@pytest.mark.parametrize("verb", ["delete", "pause", "unpause", "empty"])
def test_what_is_not_there_is_named_with_a_hint(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str], verb: str
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    words = ["--yes"] if verb in ("delete", "empty") else []
    done = nsqflow(verb, topic, "biling", *words, *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"nsqflow: topic {topic!r} has no channel 'biling'; did you mean 'billing'?\n"
    )
    done = nsqflow(verb, f"{topic}x", *words, *servers)
    assert done == (
        1, "", f"nsqflow: there is no topic {topic + 'x'!r}; did you mean {topic!r}?\n"
    )  # fmt: skip


def test_what_no_nsqd_has_cannot_be_paused(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    nsqflow("create", topic, *cluster.through_lookupd)
    done = nsqflow("pause", topic, *cluster.through_lookupd)
    assert done == (
        1, "", f"nsqflow: no nsqd has topic {topic} yet; it is only registered with nsqlookupd\n"
    )  # fmt: skip


def test_an_nsqd_that_does_not_answer_is_reported_and_the_others_are_changed(
    nsqflow: InProcess,
) -> None:
    with BackgroundBroker(nodes=2) as broker:
        http = broker.nsqd_http_addresses
        cluster = NsqCluster(broker.lookupd_addresses[0], broker.nsqd_addresses, http)
        for node in (0, 1):
            cluster.create("orders", node=node)
        broker.kill_node(0)
        done = nsqflow("delete", "orders", "--yes", *cluster.directly)
        assert done.out == f"deleted topic orders on {cluster.nsqd[1]}\n"
        refused, listed = done.err.splitlines()
        assert (done.code, refused) == (1, f"nsqflow: {http[0]}: Connection refused")
        assert_listed(listed, True)


@pytest.mark.parametrize("verb", ["delete", "empty"])
def test_nothing_is_destroyed_without_a_terminal_to_ask_on(
    empty_folder: Path, cluster: NsqCluster, verb: str
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1")
    done = run(verb, topic, "billing", *cluster.through_lookupd)
    assert (done.code, done.out) == (2, "")
    assert "1 message" in done.err
    assert done.err.endswith("stdin is not a terminal; pass --yes\n")
    channel = cluster.channel(topic, "billing")
    assert channel is not None
    assert channel["depth"] == 1


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_a_terminal_asks_before_something_is_destroyed(
    empty_folder: Path, cluster: NsqCluster, answer: str, left: int
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1")
    with OnTerminal(["empty", topic, "billing", *cluster.through_lookupd]) as command:
        command.await_text(
            rf"Drop 1 message of channel billing of {topic}, on {cluster.nsqd[0]}\? \[y/N\] "
        )
        command.type(answer)
        assert command.end() == left
        assert ("nothing was dropped" in command.shown) == bool(left)
    channel = cluster.channel(topic, "billing")
    assert channel is not None
    assert channel["depth"] == left


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x04", 1)])
def test_without_an_answer_nothing_is_destroyed(
    empty_folder: Path, cluster: NsqCluster, key: str, code: int
) -> None:
    topic = unique()
    cluster.create(topic)
    with OnTerminal(["delete", topic, *cluster.directly]) as command:
        command.await_text(r"\[y/N\] ")
        command.type(key)
        if key == "\x03":  # it has no terminal that would make a signal of it
            command.process.send_signal(signal.SIGINT)
        assert command.end() == code
    assert re.search(r"\[y/N\] (\^C)?\n", command.shown)  # what comes next has its own line
    assert cluster.topic(topic) is not None


def test_a_cluster_of_many_nsqd_is_changed_as_a_whole(nsqflow: InProcess) -> None:
    with BackgroundBroker(nodes=40) as broker:
        broker.create_topic("orders")
        [lookupd] = broker.lookupd_addresses
        done = nsqflow("pause", "orders", "--lookupd", lookupd)
        assert done == (0, "paused topic orders on 40 servers\n", "")
        done = nsqflow("delete", "orders", "--yes", "--lookupd", lookupd)
        assert done == (0, "deleted topic orders on 41 servers\n", "")
        assert nsqflow("topics", "--lookupd", lookupd) == (0, "", "")


# --- nsqlookupd, where nsqd alone is named ------------------------------------------------------


def start_side_by_side(kind: Kind) -> Nsqlookupd:
    """An nsqlookupd whose HTTP port is the one above its TCP port, as by default."""
    for _ in range(50):
        with socket.socket() as lower, socket.socket() as upper:
            lower.bind(("127.0.0.1", 0))
            port = lower.getsockname()[1]
            try:
                upper.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        options = [f"-tcp-address=127.0.0.1:{port}", f"-http-address=127.0.0.1:{port + 1}"]
        return start_nsqlookupd(kind=kind, options=options)
    raise AssertionError("no two free ports side by side")


@pytest.fixture(params=["real", "ours"])
def usual(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NsqCluster]:
    """Two nsqd, and an nsqlookupd on ports as they are by default."""
    kind: Kind = request.param
    with ExitStack() as stack:
        lookupd = stack.enter_context(start_side_by_side(kind))
        nsqds = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            nsqd = start_nsqd(tmp_path / name, kind=kind, lookupd=[lookupd])
            nsqds.append(stack.enter_context(nsqd))
        yield NsqCluster(
            lookupd.http_address,
            [nsqd.tcp_address for nsqd in nsqds],
            [nsqd.http_address for nsqd in nsqds],
        )


def listed(cluster: NsqCluster, topic: str) -> set[int]:
    """The TCP ports of the nsqd that nsqlookupd lists for a topic."""
    status, body = ask(cluster.lookupd, f"/lookup?topic={topic}")
    return {each["tcp_port"] for each in json.loads(body)["producers"]} if status == 200 else set()


def test_a_topic_is_deleted_from_nsqlookupd_though_nsqd_alone_is_named(
    nsqflow: InProcess, usual: NsqCluster
) -> None:
    for node in (0, 1):
        usual.create("orders", "billing", node)
    until(lambda: len(listed(usual, "orders")) == 2)
    done = nsqflow("delete", "orders", "billing", "--yes", *usual.directly)
    assert done.out.endswith(f", {usual.lookupd}\n")
    assert usual.known("/channels?topic=orders") == []
    done = nsqflow("delete", "orders", "--yes", *usual.directly)
    servers = ", ".join([*usual.nsqd, usual.lookupd])
    assert done == (0, f"deleted topic orders on {servers}\n", "")
    assert usual.known("/topics") == []


def test_a_topic_that_another_nsqd_has_stays_with_nsqlookupd(
    nsqflow: InProcess, usual: NsqCluster
) -> None:
    for node in (0, 1):
        usual.create("orders", node=node)
    until(lambda: len(listed(usual, "orders")) == 2)
    one = ["--nsqd", usual.nsqd[0], "--nsqd-http", usual.nsqd_http[0]]
    done = nsqflow("delete", "orders", "--yes", *one)
    assert (done.code, done.out) == (0, f"deleted topic orders on {usual.nsqd[0]}\n")
    assert done.err == (
        f"nsqflow: nsqlookupd {usual.lookupd} still lists topic orders: "
        f"nsqd {usual.nsqd[1]} has topic orders\n"
    )
    until(lambda: listed(usual, "orders") == {int(usual.nsqd[1].rpartition(":")[2])})
    assert usual.topic("orders", node=1) is not None


def test_an_nsqlookupd_that_is_not_at_the_usual_port_is_named(
    nsqflow: InProcess, tmp_path: Path
) -> None:
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd:
        cluster = NsqCluster(lookupd.http_address, [nsqd.tcp_address], [nsqd.http_address])
        cluster.create("orders")
        done = nsqflow("delete", "orders", "--yes", *cluster.directly)
        assert (done.code, done.out) == (0, f"deleted topic orders on {nsqd.tcp_address}\n")
        assert done.err.startswith(
            f"nsqflow: nsqlookupd {lookupd.tcp_address} may still list topic orders; "
        )
        assert done.err.endswith(": delete it with --lookupd\n")
        until(lambda: cluster.known("/topics") == ["orders"])
        done = nsqflow("delete", "orders", "--yes", *cluster.through_lookupd)
        assert done == (0, f"deleted topic orders on {lookupd.http_address}\n", "")


@pytest.mark.parametrize(
    ("named", "nsqd", "expected"),
    [
        ("127.0.0.1:4160", "127.0.0.1:4151", "127.0.0.1:4161"),
        ("localhost:4160", "10.0.0.7:4151", "10.0.0.7:4161"),  # seen from there
        ("[::1]:4160", "[fd00::7]:4151", "[fd00::7]:4161"),
        ("LOCALHOST:4160", "10.0.0.7:4151", "10.0.0.7:4161"),
        ("127.1:4160", "10.0.0.7:4151", "10.0.0.7:4161"),
        ("2130706433:4160", "10.0.0.7:4151", "10.0.0.7:4161"),
        ("[::ffff:127.0.0.1]:4160", "10.0.0.7:4151", "10.0.0.7:4161"),
        ("0.0.0.0:4160", "10.0.0.7:4151", "10.0.0.7:4161"),
        ("nsqlookupd:4160", "127.0.0.1:4151", "nsqlookupd:4161"),
        ("mapped:4160", "127.0.0.1:4151", "10.0.0.9:4161"),
        ("nsqlookupd:65535", "127.0.0.1:4151", None),
        ("no address", "127.0.0.1:4151", None),
        (5, "127.0.0.1:4151", None),
    ],
)
def test_where_nsqlookupd_is_asked_follows_from_what_nsqd_names(
    named: object, nsqd: str, expected: str | None
) -> None:
    servers = CliServers(nsqd=("a:4150",), address_map={"mapped": "10.0.0.9"})
    found = asyncio.run(find_lookupd(CliCluster(servers), NsqdNode("a:4150", Nsqd(nsqd)), named))
    assert (found and found.http_address) == expected


def test_what_an_nsqd_names_is_in_the_question_and_no_scan(nsqflow: InProcess) -> None:
    named = [f"127.0.0.1:{port}" for port in range(1, 60_000, 30)]
    stats = {"topics": [{"topic_name": "orders", "depth": 5}]}
    answers = {
        "/stats": stats,
        "/info": {"broadcast_address": "10.9.9.9", "tcp_port": 4150},
        "/config/nsqlookupd_tcp_addresses": named,
    }
    with scripted_http(answers) as server:
        done = nsqflow("delete", "orders", "--nsqd", "127.0.0.1:1", "--nsqd-http", server.address)
    assert done.code == 2
    assert "with 5 messages, on 127.0.0.1:1, and its name on nsqlookupd 16 servers?" in done.err
