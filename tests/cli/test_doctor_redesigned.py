"""The verb doctor on clusters of the redesigned NSQ."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqflow import blocking
from nsqflow.admin import PartitionedTopic, PartitionStats
from nsqflow.cli.doctor.redesigned import check_channels
from nsqflow.cli.partition_table import LocatedPartition
from nsqflow.protocol.lookup import TopicMeta
from tests.cli.clusters import NsqCluster, ask
from tests.cli.commands import InProcess, run
from tests.cli.partitioned_clusters import CHANNEL, PartitionedCluster, partitioned_cluster
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import ScriptedLookupd

THREE = "where publishing must go on, use topics with three: nsqflow create --replicas 3"


@pytest.fixture(autouse=True)
def fresh_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave the caches of the user who runs the tests alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def findings(nsqflow: InProcess, *words: str) -> tuple[int, list[tuple[str, str, str, str]]]:
    """The exit code, and subject, state, text and remedy of what it finds of a cluster."""
    done = nsqflow("doctor", "--json", *words)
    assert done.err == ""
    found: list[dict[str, Any]] = [json.loads(line) for line in done.out.splitlines()]
    kinds = ("cluster", "topic ", "topics ", "channel ", "nsqlookupd")
    return done.code, [
        (each["subject"], each["state"], each["text"], each["remedy"])
        for each in found
        if each["subject"].startswith(kinds) and "version" not in each["text"]
    ]


def until_found(
    nsqflow: InProcess, cluster: PartitionedCluster, subject: str, text: str
) -> list[tuple[str, str, str, str]]:
    """Ask until there is such a finding; return all."""
    deadline = time.monotonic() + 60
    while True:
        code, found = findings(nsqflow, *cluster.through_lookupd)
        if any(each[0] == subject and text in each[2] for each in found):
            assert code == 1
            return found
        assert time.monotonic() < deadline, found


def test_a_healthy_cluster_has_nothing_to_fix(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    done = nsqflow("doctor", *partitioned.through_lookupd)
    assert (done.code, done.err) == (0, "")
    version = "version 0.3.7-HA.1.13.0+nsqflow, redesigned\n"
    for address in partitioned.lookupd:
        assert f"ok     nsqlookupd {address}: {version}" in done.out
    for address in partitioned.nsqd:
        assert f"ok     nsqd {address}: {version}" in done.out
    assert "\nok     cluster: stable, " in done.out
    assert "nsqlookupd: they disagree" not in done.out


def test_what_a_loss_would_stop_is_noted(nsqflow: InProcess) -> None:
    with partitioned_cluster() as cluster:
        for replicas in (1, 2, 3):
            cluster.broker.create_topic(f"safe-{replicas}", replicas=replicas)
        for number in range(7):
            cluster.broker.create_topic(f"pair-{number}", replicas=2)
        code, found = findings(nsqflow, *cluster.through_lookupd)
    one = "one replica: without its nsqd, a partition is neither written nor read"
    two = "two replicas: without either nsqd, a partition is not written"
    assert (code, found) == (
        0,
        [
            ("cluster", "ok", "stable, 10 topics with 10 partitions", ""),
            ("topic safe-1", "note", one, THREE),
            (
                "topics pair-0, pair-1, pair-2, pair-3, pair-4 and 3 more",
                *("note", two, THREE),
            ),
        ],
    )


def test_an_nsqd_that_is_missing_leaves_partitions_without_a_leader_or_a_majority(
    nsqflow: InProcess,
) -> None:
    with partitioned_cluster() as cluster:
        cluster.broker.create_topic("orders", partitions=3)
        cluster.broker.create_topic("twice", replicas=2)
        rows = nsqflow(
            "stat", "twice", "--once", "--partitions", "--json", *cluster.through_lookupd
        )
        gone = cluster.nsqd.index(json.loads(rows.out)["leader"])
        cluster.broker.kill_node(gone)
        found = until_found(nsqflow, cluster, "topic twice", "the leader takes no publishes")
        by_subject = {subject: (state, text, remedy) for subject, state, text, remedy in found}
        state, text, remedy = by_subject["cluster"]
        assert (state, text.partition(":")[0]) == ("error", "not stable")
        assert remedy.startswith("start the nsqd that are missing; ")
        assert ("topic orders", "error") in [each[:2] for each in found]
        assert any(each[2].endswith(": no leader") for each in found)
        cluster.broker.start_node(gone)
        deadline = time.monotonic() + 60
        while findings(nsqflow, *cluster.through_lookupd)[0]:
            assert time.monotonic() < deadline


def test_a_channel_that_some_partitions_lack_is_found_with_the_command_that_creates_it(
    nsqflow: InProcess,
) -> None:
    with partitioned_cluster() as cluster:
        cluster.broker.create_topic("orders", partitions=3)
        names = ("billing", "seen#ephemeral")
        first, second = (
            blocking.Consumer("orders", name, lookupd=cluster.lookupd, partitions=[1])
            for name in names
        )
        with first, second:
            where = "missing in partitions 0, 2: it gets nothing that is published there"
            found = until_found(nsqflow, cluster, "channel billing of orders", where)
        assert [each[0] for each in found if each[0].startswith("channel")] == [
            "channel billing of orders"
        ]
        remedy = next(each[3] for each in found if each[0].startswith("channel"))
        assert remedy == "nsqflow create orders billing"
        assert run(*remedy.split()[1:], *cluster.through_lookupd).code == 0
        assert findings(nsqflow, *cluster.through_lookupd)[0] == 0


def test_a_topic_that_takes_no_publishes_without_a_channel_is_found(nsqflow: InProcess) -> None:
    with partitioned_cluster(allow_write_without_channels=False) as cluster:
        for topic in ("orders", "returns"):
            cluster.broker.create_topic(topic, replicas=3)
        cluster.broker.create_channel("returns", "billing")
        code, found = findings(nsqflow, *cluster.through_lookupd)
        text = "it has no channel, and takes no publishes until it has one"
        assert (code, found[1:]) == (
            1,
            [("topic orders", "error", text, "nsqflow create orders CHANNEL")],
        )
        assert run("create", "orders", "billing", *cluster.through_lookupd).code == 0
        assert findings(nsqflow, *cluster.through_lookupd)[0] == 0


def test_topics_may_have_no_channel_where_they_take_publishes_anyway(
    nsqflow: InProcess,
) -> None:
    with partitioned_cluster() as cluster:
        cluster.broker.create_topic("orders", replicas=3)
        assert findings(nsqflow, *cluster.through_lookupd)[0] == 0


def test_an_nsqlookupd_that_is_listed_and_does_not_answer_is_found(nsqflow: InProcess) -> None:
    # It is listed until another one leads, which takes longer than this.
    with partitioned_cluster(lookupd_election_delay=60) as cluster:
        first, second = cluster.lookupd
        cluster.broker.stop_lookupd(1)
        code, found = findings(nsqflow, "--lookupd", first)
    text = "is listed by the others, and does not answer"
    assert (code, [each[:3] for each in found[:1]]) == (
        1,
        [(f"nsqlookupd {second}", "error", text)],
    )


def test_nsqlookupd_of_two_clusters_disagree(nsqflow: InProcess) -> None:
    with partitioned_cluster() as one, partitioned_cluster() as other:
        for cluster in (one, other):
            cluster.broker.create_topic("orders", replicas=3)
        servers = ["--lookupd", f"{one.lookupd[0]},{other.lookupd[0]}"]
        code, found = findings(nsqflow, *servers)
    assert code == 1
    texts = [text for *subject, text, _ in found if subject == ["nsqlookupd", "error"]]
    first = f"they disagree: {one.lookupd[0]} lists "
    assert [text for text in texts if text.startswith(first)]
    assert f"{other.lookupd[0]} (leading)" in texts[0]
    assert any("they disagree on the leader of partition 0 of orders: " in text for text in texts)


@asynchronous
async def test_an_nsqlookupd_that_is_no_member_is_noted(empty_folder: Path) -> None:
    with partitioned_cluster() as cluster:

        def forward(path: str, headers: dict[str, str]) -> tuple[int, bytes]:
            return ask(cluster.lookupd[0], path)

        async with ScriptedLookupd(forward) as proxy:
            words = ["doctor", "--json", "--lookupd", proxy.address]
            done = await asyncio.to_thread(run, *words)
        found = [json.loads(line) for line in done.out.splitlines()]
        listed = ", ".join(sorted(cluster.lookupd))
    [finding] = [each for each in found if "is none of" in each["text"]]
    assert (done.code, done.err) == (0, "")
    assert (finding["subject"], finding["state"]) == (f"nsqlookupd {proxy.address}", "note")
    assert finding["text"] == f"is none of those that it lists: {listed}"
    assert "address_map" in finding["remedy"]


def test_nsqd_of_it_that_are_named_directly_are_noted(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    done = nsqflow("doctor", *partitioned.directly)
    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n       name its nsqlookupd with --lookupd: ") == 3
    assert "cluster: " not in done.out


def test_a_classic_cluster_is_not_asked_for_partitions(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    done = nsqflow("doctor", *cluster.through_lookupd)
    assert (done.code, done.err) == (0, "")
    assert "\nok     cluster: " not in done.out


def test_a_remedy_has_no_name_that_a_shell_would_expand() -> None:
    def partition(number: int, *channels: str) -> LocatedPartition:
        stats = PartitionStats(
            topic="orders",
            partition=number,
            writable=True,
            message_count=0,
            start=0,
            end=0,
            channels=tuple(replace(CHANNEL, name=name) for name in channels),
        )
        return LocatedPartition(topic=topic, number=number, stats=stats)

    topic = PartitionedTopic("orders", TopicMeta(partition_num=3, replica=1), {}, ())
    both = [partition(0, "billing", "$(reboot)"), partition(1, "mail", "x#ephemeral")]
    silent = LocatedPartition(topic=topic, number=2)
    found = [*check_channels([*both, silent])]
    assert [(each.subject, each.text.partition(":")[0], each.remedy) for each in found] == [
        ("channel billing of orders", "missing in partition 1", "nsqflow create orders billing"),
        ("channel mail of orders", "missing in partition 0", "nsqflow create orders mail"),
    ]
