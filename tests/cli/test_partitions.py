"""The verbs that look at topics of the redesigned NSQ: stat, topics, channels, nodes."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqflow import blocking
from nsqflow.admin import PartitionedTopic, PartitionStats
from nsqflow.cli.channel_stats import count_partitions, sum_partitions
from nsqflow.cli.partition_table import LocatedPartition, channel_stats, show_numbers
from nsqflow.protocol.lookup import Node, TopicMeta
from tests.cli.clusters import NsqCluster, ask, unique
from tests.cli.commands import CommandProcess, InProcess, OnTerminal, run
from tests.cli.partitioned_clusters import CHANNEL, PartitionedCluster, partitioned_cluster
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import ScriptedLookupd


def objects(nsqflow: InProcess, *words: str) -> list[dict[str, Any]]:
    """What a verb prints as JSON."""
    done = nsqflow(*words, "--json")
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


def ordered_topic(cluster: PartitionedCluster) -> str:
    """A topic of two partitions with three replicas each, and a channel."""
    topic = unique()
    cluster.broker.create_topic(topic, partitions=2, replicas=3, ordered=True)
    cluster.broker.create_channel(topic, "billing")
    return topic


# stat


def test_a_row_sums_up_all_partitions(nsqflow: InProcess, partitioned: PartitionedCluster) -> None:
    topic = ordered_topic(partitioned)
    partitioned.publish(topic, 0, b"1", b"2")
    partitioned.publish(topic, 1, b"3")
    done = nsqflow("stat", topic, "--once", *partitioned.through_lookupd)
    assert (done.code, done.err) == (0, "")
    head, whole, channel = done.out.splitlines()
    assert head.split() == [
        *("TOPIC", "CHANNEL", "DEPTH", "IN", "FLIGHT", "DEFERRED", "IN/S", "OUT/S", "AGE"),
        *("REQUEUED", "TIMED", "OUT", "CLIENTS", "PARTITIONS", "NSQD"),
    ]
    assert whole.split() == [topic, "-", "0", *("-" * 8), "2", "2"]
    *counts, age, requeued, timed_out, clients, partitions, nsqd = channel.split()
    assert counts == [topic, "billing", "3", "0", "0", "-", "-"]
    assert age.endswith("s")
    assert [requeued, timed_out, clients, partitions, nsqd] == ["0", "0", "0", "2", "2"]


def test_a_row_for_each_partition_has_its_leader_and_replicas(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = ordered_topic(partitioned)
    partitioned.broker.move_leader(topic, 1, 2)
    partitioned.publish(topic, 1, b"1", b"2")
    rows = objects(nsqflow, "stat", topic, "--once", "--partitions", *partitioned.through_lookupd)
    names = [(row["channel"], row["partition"]) for row in rows]
    assert names == [(None, 0), (None, 1), ("billing", 0), ("billing", 1)]
    for row in rows:
        assert row["replicas"][0] == row["leader"]
        assert sorted(row["replicas"]) == sorted(partitioned.nsqd)
        assert (row["replica_count"], row["writable"]) == (3, True)
    assert {row["leader"] for row in rows if row["partition"] == 1} == {partitioned.nsqd[2]}
    assert [row["depth"] for row in rows] == [0, 0, 0, 2]
    assert [row["messages"] for row in rows] == [0, 2, 0, 2]
    done = nsqflow("stat", topic, "--once", "--partitions", *partitioned.through_lookupd)
    head, *lines = done.out.splitlines()
    assert head.split()[:5] == ["TOPIC", "CHANNEL", "PARTITION", "LEADER", "REPLICAS"]
    assert lines[3].split()[:4] == [topic, "billing", "1", partitioned.nsqd[2]]
    assert lines[3].split()[7:10] == ["2", "0", "0"]


def test_the_age_of_a_backlog_grows_until_it_is_empty(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = ordered_topic(partitioned)
    started = time.time()
    partitioned.publish(topic, 0, b"1")

    def age() -> float | None:
        rows = objects(nsqflow, "stat", topic, "--once", *partitioned.through_lookupd)
        value: float | None = rows[1]["age"]
        return value

    first, second = age(), age()
    assert first is not None
    assert second is not None
    assert 0 <= first < second <= time.time() - started
    servers = {"lookupd": partitioned.lookupd}
    with blocking.Consumer(topic, "billing", **servers) as consumer:  # type: ignore[arg-type]
        next(iter(consumer)).finish()
    assert age() is None


def test_what_is_in_flight_or_deferred_is_counted_once() -> None:
    found = channel_stats(CHANNEL, 50)
    assert (found.depth, found.in_flight_count, found.deferred_count) == (6, 3, 3)
    assert found.message_count == 50


def test_a_partition_without_a_leader_has_no_counts() -> None:
    meta = TopicMeta(partition_num=2, replica=1)
    node = Node(broadcast_address="h", tcp_port=1)
    topic = PartitionedTopic("orders", meta, {1: node}, ("billing",))
    channel = replace(CHANNEL, depth_timestamp=90 * 10**9)
    stats = PartitionStats(
        topic="orders",
        partition=1,
        writable=True,
        message_count=50,
        start=0,
        end=1800,
        channels=(channel,),
    )
    partitions = [
        LocatedPartition(topic=topic, number=0),
        LocatedPartition(topic=topic, number=1, copies=("h:1",), stats=stats),
    ]
    totals = sum_partitions(partitions, at=100.0)
    assert (totals["orders", None].partitions, totals["orders", None].nsqd) == (2, 1)
    assert (totals["orders", "billing"].partitions, totals["orders", "billing"].age) == (1, 10.0)
    assert [*count_partitions(partitions, 100.0)] == [("orders", None, 1), ("orders", "billing", 1)]


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "partition 3"), ([2, 0], "partitions 0, 2")]
)
def test_partitions_are_named_by_their_numbers(numbers: list[int], text: str) -> None:
    assert show_numbers(numbers) == text


def test_a_partition_that_has_lost_its_leader_is_shown(nsqflow: InProcess) -> None:
    with partitioned_cluster() as cluster:
        cluster.broker.create_topic("orders", partitions=3)
        cluster.broker.create_topic("twice", replicas=2)
        lost = cluster.nsqd[0]
        rows = objects(nsqflow, "stat", "--once", "--partitions", *cluster.through_lookupd)
        leads = {row["topic"]: row["partition"] for row in rows if row["leader"] == lost}
        assert {*leads} == {"orders", "twice"}
        cluster.broker.kill_node(0)
        deadline = time.monotonic() + 60
        while True:
            rows = objects(nsqflow, "stat", "--once", "--partitions", *cluster.through_lookupd)
            after = {(row["topic"], row["partition"]): row for row in rows}
            twice = after["twice", 0]
            if after["orders", leads["orders"]]["leader"] is None and twice["leader"]:
                break
            assert time.monotonic() < deadline, rows
        done = nsqflow("stat", "--once", "--partitions", *cluster.through_lookupd)
    gone = after["orders", leads["orders"]]
    assert (gone["replicas"], gone["writable"], gone["messages"]) == ([], False, 0)
    assert (twice["replica_count"], len(twice["replicas"]), twice["writable"]) == (2, 1, False)
    assert "  none  " in done.out
    assert f"{twice['leader']} (1 of 2)" in done.out
    assert "  none (0 of 1)  " in done.out


def test_clients_have_a_row_for_each_partition_that_they_read(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = ordered_topic(partitioned)
    with blocking.Consumer(topic, "billing", lookupd=partitioned.lookupd):
        deadline = time.monotonic() + 60
        while True:
            words = ("stat", topic, "--once", "--clients", *partitioned.through_lookupd)
            rows = objects(nsqflow, *words)
            if all(row["client_id"] for row in rows):
                break
            assert time.monotonic() < deadline, rows
        assert [row["partition"] for row in rows] == [0, 1]
        assert {row["starved"] for row in rows} == {"rdy-0"}  # nothing has been asked of it yet
        head, first, _ = nsqflow(*words).out.splitlines()
    assert "PARTITION" in head.split()
    assert first.split()[:2] == [topic, "billing"]


def test_topics_of_both_are_shown_side_by_side(
    nsqflow: InProcess, cluster: NsqCluster, partitioned: PartitionedCluster
) -> None:
    topic, classic = ordered_topic(partitioned), unique()
    cluster.create(classic, "billing")
    cluster.publish(classic, b"1")
    both = ["--lookupd", ",".join([*partitioned.lookupd, cluster.lookupd])]
    rows = objects(nsqflow, "stat", topic, classic, "--once", *both)
    found = {(row["topic"], row["channel"]): row for row in rows}
    assert {*found} == {(name, each) for name in (topic, classic) for each in (None, "billing")}
    assert found[classic, "billing"]["depth"] == 1
    assert found[classic, "billing"]["partitions"] is None
    assert found[topic, "billing"]["partitions"] == 2
    done = nsqflow("stat", topic, classic, "--once", "--partitions", *both)
    assert (done.code, done.err) == (0, "")
    rows_of = [line.split() for line in done.out.splitlines()]
    assert [classic, "billing", "-", "-", "-", "1"] in [row[:6] for row in rows_of]
    assert [topic, "billing", "1"] in [row[:3] for row in rows_of]
    assert {topic, classic} <= {each["topic"] for each in objects(nsqflow, "topics", *both)}
    nodes = {each["nsqd"] for each in objects(nsqflow, "nodes", *both)}
    assert nodes == {*cluster.nsqd, *partitioned.nsqd}


def test_a_pipe_gets_rates_of_partitions_too(
    empty_folder: Path, partitioned: PartitionedCluster
) -> None:
    topic = ordered_topic(partitioned)
    words = ["stat", topic, "--partitions", "--interval", "0.1", "--json"]
    with CommandProcess([*words, *partitioned.through_lookupd]) as command:
        command.await_text(r'"in_rate": 0\.0')
        partitioned.publish(topic, 1, b"1")
        command.await_text(r'"channel": "billing", "partition": 1,.*"depth": 1,.*"in_rate": [1-9]')
        assert command.end(signal.SIGINT) == 130


def test_a_key_shows_partitions_and_a_key_clients(
    empty_folder: Path, partitioned: PartitionedCluster
) -> None:
    topic = ordered_topic(partitioned)
    words = ["stat", topic, "--interval", "0.2", *partitioned.through_lookupd]
    with OnTerminal(words, columns=160) as command:
        command.await_text("p partitions")
        command.press("p", "replicas")
        assert any(partitioned.nsqd[0] in line for line in command.picture)
        command.press("c", "why starved")
        command.press("p", "replicas")
        command.press("p", r"1mpartitions")  # the head of a column
        command.type("q")
        assert command.end() == 0


@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_partitions_are_not_for_classic_topics(
    nsqflow: InProcess, cluster: NsqCluster, option: str
) -> None:
    cluster.create(unique())
    servers = cluster.through_lookupd if option == "--lookupd" else cluster.directly
    done = nsqflow("stat", "--once", "--partitions", *servers)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("nsqflow: --partitions is for ")
    assert "the redesigned NSQ" in line


def test_one_kind_of_rows_is_shown_at_a_time(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    done = nsqflow("stat", "--once", "--partitions", "--clients", *partitioned.through_lookupd)
    assert done == (2, "", "nsqflow: both --clients and --partitions are given: give one\n")


def test_nsqd_that_are_named_directly_need_nsqlookupd(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    done = nsqflow("stat", "--once", *partitioned.directly)
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert "is of the redesigned NSQ (version 0.3.7-HA" in line
    assert "; name its nsqlookupd with --lookupd: " in line


# topics, channels, nodes


def test_topics_have_their_settings_as_objects_and_are_plain_names_in_a_pipe(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = unique()
    partitioned.broker.create_topic(topic, partitions=3, extended=True)
    found = {
        each["topic"]: each for each in objects(nsqflow, "topics", *partitioned.through_lookupd)
    }
    assert found[topic] == {
        "topic": topic,
        "partitions": 3,
        "replicas": 1,
        "ordered": False,
        "extended": True,
        "multi_part": False,
        "registered_channels": False,
    }
    names = nsqflow("topics", *partitioned.through_lookupd).out.splitlines()
    assert names == sorted(found)


def test_topics_are_a_table_on_a_terminal(
    empty_folder: Path, partitioned: PartitionedCluster
) -> None:
    topic = ordered_topic(partitioned)
    with OnTerminal(["topics", *partitioned.through_lookupd]) as command:
        assert command.end() == 0
    lines = [line.split() for line in command.shown.splitlines()]
    assert lines[0] == ["topic", "partitions", "replicas", "ordered", "extended"]
    assert [topic, "2", "3", "yes", "no"] in lines


def test_channels_are_those_of_all_partitions(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = ordered_topic(partitioned)
    done = nsqflow("channels", topic, *partitioned.through_lookupd)
    assert done == (0, "billing\n", "")


def test_nodes_have_what_they_lead_and_follow(nsqflow: InProcess) -> None:
    with partitioned_cluster() as cluster:
        cluster.broker.create_topic("orders", partitions=2, replicas=2, ordered=True)
        cluster.broker.create_channel("orders", "billing")
        cluster.broker.move_leader("orders", 0, 1)
        cluster.broker.move_leader("orders", 1, 1)
        cluster.publish("orders", 1, b"1", b"2", b"3")
        found = objects(nsqflow, "nodes", *cluster.through_lookupd)
        nodes = {each["nsqd"]: each for each in found}
        done = nsqflow("nodes", *cluster.through_lookupd)
        one = nodes[cluster.nsqd[1]]
    assert (one["leads"], one["follows"]) == ({"orders": [0, 1]}, {})
    assert (one["depth"], one["topics"], one["health"]) == (3, 1, "OK")
    others = [each for each in found if each is not one]
    assert [each["leads"] for each in others] == [{}, {}]
    followed = [number for each in others for number in each["follows"].get("orders", [])]
    assert sorted(followed) == [0, 1]
    head, *rows = done.out.splitlines()
    assert head.split()[-2:] == ["LEADS", "FOLLOWS"]
    assert [row.split()[-2:] for row in rows if row.startswith(one["nsqd"])] == [
        ["orders:0,1", "-"]
    ]


@asynchronous
async def test_one_nsqlookupd_may_know_topics_of_both(
    empty_folder: Path, cluster: NsqCluster, partitioned: PartitionedCluster
) -> None:
    topic, classic = ordered_topic(partitioned), unique()
    cluster.create(classic, "billing")
    cluster.publish(classic, b"1", b"2")
    partitioned.publish(topic, 1, b"3")

    def answer(path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        kind = path.partition("?")[0]
        merged = {"/topics": "topics", "/nodes": "producers"}.get(kind)
        if merged is None:
            is_classic = path.startswith(("/lookup?", "/channels?")) and f"topic={classic}" in path
            return ask(cluster.lookupd if is_classic else partitioned.lookupd[0], path)
        asked = (cluster.lookupd, partitioned.lookupd[0])
        both = [json.loads(ask(each, path)[1]) for each in asked]
        named = [each.get("data", each)[merged] for each in both]
        return 200, json.dumps({merged: [*named[0], *named[1]]}).encode()

    async with ScriptedLookupd(answer) as lookupd:
        servers = ["--lookupd", lookupd.address]
        words = ["stat", topic, classic, "--once", "--json", *servers]
        done = await asyncio.to_thread(run, *words)
        rows = [json.loads(line) for line in done.out.splitlines()]
        created = await asyncio.to_thread(run, "create", classic, "mail", *servers)
        paused = await asyncio.to_thread(run, "pause", classic, "mail", *servers)
    assert (done.code, done.err) == (0, "")
    depths = {(row["topic"], row["channel"]): (row["depth"], row["partitions"]) for row in rows}
    assert depths == {
        (classic, None): (0, None),
        (classic, "billing"): (2, None),
        (topic, None): (0, 2),
        (topic, "billing"): (1, 2),
    }
    assert created == (0, f"created channel mail of {classic} on {cluster.nsqd[0]}\n", "")
    assert paused == (0, f"paused channel mail of {classic} on {cluster.nsqd[0]}\n", "")
