"""The clients of channels, and why one gets no messages."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.admin import ChannelStats, NsqdStats, TopicStats
from nsqflow.cli.channel_stats import (
    ClientStats,
    list_clients,
    read_client,
    why_starved,
)
from tests.cli.clusters import NsqCluster, ask, unique
from tests.cli.commands import InProcess
from tests.cli.terminals import Terminal
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE

# --- why ----------------------------------------------------------------------------------------

TOPIC = TopicStats(name="t")
PAUSED = TopicStats(name="t", depth=1200, paused=True)


def channel_of(**counts: Any) -> ChannelStats:
    return ChannelStats(name="c", **counts)


@pytest.mark.parametrize(
    ("client", "topic", "channel", "code", "text"),
    [
        (None, TOPIC, channel_of(depth=7), "no-client", "no client: 7 waiting"),
        (
            ClientStats(rdy=5, in_flight=2, state=4),
            TOPIC,
            channel_of(depth=7),
            "closing",
            "closing: 2 still in flight",
        ),
        (
            ClientStats(rdy=5),
            TOPIC,
            channel_of(depth=1, paused=True),
            "channel-paused",
            "channel paused: 1 waiting",
        ),
        (
            ClientStats(rdy=0),
            TOPIC,
            channel_of(depth=1),
            "rdy-0",
            "RDY 0: paused or in backoff",
        ),
        (
            ClientStats(rdy=5, in_flight=5),
            TOPIC,
            channel_of(depth=1),
            "slow",
            "slow handlers: 5 of 5 in flight",
        ),
        (
            ClientStats(rdy=5),
            PAUSED,
            channel_of(),
            "topic-paused",
            "topic paused: 1,200 held back",
        ),
        (ClientStats(rdy=5), TOPIC, channel_of(), "nothing", "nothing to deliver"),
        (
            ClientStats(rdy=5),
            TOPIC,
            channel_of(in_flight_count=3, deferred_count=2),
            "nothing",
            "nothing to deliver: 3 in flight to other clients, 2 deferred",
        ),
    ],
)
def test_the_reason_is_named(
    client: ClientStats | None, topic: TopicStats, channel: ChannelStats, code: str, text: str
) -> None:
    assert why_starved(client, topic, channel) == (code, text)


@pytest.mark.parametrize(
    ("client", "topic", "channel"),
    [
        (ClientStats(rdy=5, in_flight=4), TOPIC, channel_of(depth=1)),
        (ClientStats(rdy=5, in_flight=1), TOPIC, channel_of()),
        (ClientStats(rdy=1, in_flight=1), TOPIC, channel_of()),  # it has all there is
        # What is in the channel already is delivered.
        (ClientStats(rdy=5), PAUSED, channel_of(depth=1)),
    ],
)
def test_one_that_gets_messages_is_not_starved(
    client: ClientStats, topic: TopicStats, channel: ChannelStats
) -> None:
    assert why_starved(client, topic, channel) is None


COUNTS = st.integers(0, 3)


@given(
    st.builds(ClientStats, rdy=COUNTS, in_flight=COUNTS, state=st.sampled_from([3, 4])),
    st.sampled_from([TOPIC, PAUSED]),
    st.builds(channel_of, depth=COUNTS, paused=st.booleans()),
)
def test_a_waiting_message_is_held_back_only_for_a_reason(
    client: ClientStats, topic: TopicStats, channel: ChannelStats
) -> None:
    why = why_starved(client, topic, channel)
    is_sent = not channel.paused and client.in_flight < client.rdy and client.state == 3
    if channel.depth:
        assert (why is None) == is_sent
    elif why is None:
        assert client.in_flight


def test_clients_are_listed_by_name_and_a_channel_without_any_too() -> None:
    clients = ({"client_id": "b"}, {"client_id": "a"})
    topic = TopicStats(
        name="t",
        channels=(ChannelStats(name="empty"), ChannelStats(name="busy", clients=clients)),
    )
    found = list_clients(
        [("one:1", NsqdStats(topics=(topic, TopicStats(name="other")))), ("two:1", NsqdStats())],
        ["t"],
    )
    assert [(each.channel.name, each.client and each.client.client_id) for each in found] == [
        ("busy", "a"),
        ("busy", "b"),
        ("empty", None),
    ]
    assert {each.nsqd for each in found} == {"one:1"}


def test_what_a_server_leaves_out_or_gets_wrong_is_left_empty() -> None:
    assert read_client({}) == ClientStats()
    assert read_client({"client_id": 5, "ready_count": "x", "state": None}) == ClientStats()
    assert read_client({"name": "old"}).client_id == "old"


# --- on servers ---------------------------------------------------------------------------------


@contextmanager
def consumer(cluster: NsqCluster, topic: str, rdy: int) -> Iterator[None]:
    """A client that takes messages and never answers."""
    host, port = cluster.nsqd[0].split(":")
    identify = json.dumps(
        {"client_id": "slow", "hostname": "slow.example", "user_agent": "test/1.0"}
    ).encode()
    with closing(socket.create_connection((host, int(port)), timeout=PATIENCE)) as connection:
        connection.sendall(
            b"  V2IDENTIFY\n"
            + len(identify).to_bytes(4, "big")
            + identify
            + f"SUB {topic} billing\nRDY {rdy}\n".encode()
        )
        deadline = time.monotonic() + PATIENCE
        while not (found := clients(cluster, topic)) or found[0]["ready_count"] != rdy:
            assert time.monotonic() < deadline, found
            time.sleep(POLL_INTERVAL)
        yield


def clients(cluster: NsqCluster, topic: str) -> list[dict[str, Any]]:
    channel = cluster.channel(topic, "billing")
    return (channel or {}).get("clients") or []


def one_client(nsqflow: InProcess, cluster: NsqCluster, topic: str) -> dict[str, Any]:
    done = nsqflow("stat", topic, "--once", "--clients", "--json", *cluster.through_lookupd)
    assert (done.code, done.err) == (0, "")
    (line,) = done.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_client_is_shown_with_its_counts_and_why_it_is_starved(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1", b"2", b"3")
    lonely = one_client(nsqflow, cluster, topic)
    assert (lonely["client_id"], lonely["rdy"], lonely["starved"]) == (None, None, "no-client")
    assert lonely["why"] == "no client: 3 waiting"
    begun = int(time.time())
    with consumer(cluster, topic, rdy=2):
        deadline = time.monotonic() + PATIENCE
        while clients(cluster, topic)[0]["in_flight_count"] < 2:
            assert time.monotonic() < deadline
            time.sleep(POLL_INTERVAL)
        found = one_client(nsqflow, cluster, topic)
        assert re.fullmatch(r"127\.0\.0\.1:\d+", found["remote_address"])
        assert begun - 1 <= found["connected"] <= time.time() + 1
        expected = {
            "topic": topic,
            "channel": "billing",
            "nsqd": cluster.nsqd[0],
            "client_id": "slow",
            "hostname": "slow.example",
            "user_agent": "test/1.0",
            "version": "V2",
            "rdy": 2,
            "in_flight": 2,
            "messages": 2,
            "finished": 0,
            "requeued": 0,
            "depth": 1,
            "starved": "slow",
            "why": "slow handlers: 2 of 2 in flight",
        }
        assert {name: found[name] for name in expected} == expected
        done = nsqflow("stat", topic, "--once", "--clients", *cluster.directly)
        head, row = done.out.splitlines()
        assert head.split() == [
            *("TOPIC", "CHANNEL", "CLIENT", "ADDRESS", "USER", "AGENT", "NSQD", "RDY"),
            *("IN", "FLIGHT", "FINISHED", "REQUEUED", "CONNECTED", "WHY", "STARVED"),
        ]
        assert row.startswith(f"{topic}  billing  slow ")
        assert row.endswith("  slow handlers: 2 of 2 in flight")
        nsqflow("pause", topic, "billing", *cluster.directly)
        assert one_client(nsqflow, cluster, topic)["starved"] == "channel-paused"


def test_a_client_with_rdy_0_and_one_without_messages_are_starved(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    with consumer(cluster, topic, rdy=0):
        assert one_client(nsqflow, cluster, topic)["starved"] == "rdy-0"
    topic = unique()
    cluster.create(topic, "billing")
    with consumer(cluster, topic, rdy=2):
        assert one_client(nsqflow, cluster, topic)["starved"] == "nothing"
        nsqflow("pause", topic, *cluster.directly)
        assert ask(cluster.nsqd_http[0], f"/pub?topic={topic}", "POST", b"1")[0] == 200
        found = one_client(nsqflow, cluster, topic)
        assert found["why"] == "topic paused: 1 held back"


def test_a_key_shows_clients_at_once_and_channels_again(
    empty_folder: Path, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.publish(topic, b"1", b"2", b"3")
    words = ["stat", topic, "--interval", "60", *cluster.through_lookupd]
    with consumer(cluster, topic, rdy=0), Terminal(words, columns=100) as command:
        command.await_text(r"2 rows by name.*scroll")
        command.press("c", r"1 row by name.*scroll")
        assert command.picture[1].split() == [
            *("topic", "channel", "client", "RDY", "in", "flight", "why", "starved")
        ]
        (row,) = [line for line in command.picture if line.startswith(topic)]
        assert re.search(r"slow +0 +0 .*RDY 0: paused or in backoff", row)
        command.press("c", r"2 rows by name.*scroll")
        assert re.search(r"billing +3 +0 ", "\n".join(command.picture))
        command.type("q")
        assert command.end() == 0
