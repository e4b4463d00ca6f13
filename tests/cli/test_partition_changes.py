"""The verbs that change a cluster of the redesigned NSQ, and what they say of the classic one."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from nsqflow import blocking
from nsqflow.admin import PartitionedTopic, PartitionStats, RedesignedCluster
from nsqflow.cli.partition_creation import TopicSettings, describe_topic
from nsqflow.errors import ConfigError
from nsqflow.protocol.lookup import TopicMeta
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import InProcess, OnTerminal
from tests.cli.partitioned_clusters import PartitionedCluster, partitioned_cluster
from tests.cli.test_completion import completed


def described(cluster: PartitionedCluster, topic: str) -> PartitionedTopic:
    """A topic as nsqlookupd describes it."""
    return asyncio.run(RedesignedCluster(lookupd=cluster.lookupd).topic(topic))


def stats(cluster: PartitionedCluster, topic: str) -> list[PartitionStats]:
    """The partitions of a topic, as their leaders describe them."""
    return asyncio.run(RedesignedCluster(lookupd=cluster.lookupd).stats(topic))


def leaders(cluster: PartitionedCluster, topic: str) -> list[str]:
    """The leaders of a topic, by partition."""
    found = described(cluster, topic).leaders
    return [found[number].address for number in sorted(found)]


def filled(cluster: PartitionedCluster) -> str:
    """A topic of three partitions with a message each, and a channel."""
    topic = unique()
    cluster.broker.create_topic(topic, partitions=3)
    cluster.broker.create_channel(topic, "billing")
    for partition in range(3):
        cluster.publish(topic, partition, b"order")
    return topic


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# create


def test_a_topic_is_created_with_its_settings(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = unique()
    words = ["--partitions", "2", "--replicas", "3", "--ordered", "--extended"]
    done = nsqflow("create", topic, *words, *partitioned.through_lookupd)
    led = ", ".join(leaders(partitioned, topic))
    settings = "2 partitions, 3 replicas, ordered, extended"
    assert done == (0, f"created topic {topic}: {settings}, led by {led}\n", "")
    meta = described(partitioned, topic).meta
    assert meta == TopicMeta(partition_num=2, replica=3, ordered=True, extend_support=True)
    assert all(each.writable for each in stats(partitioned, topic))


def test_without_options_a_topic_has_one_partition_and_one_replica(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = unique()
    assert nsqflow("create", topic, *partitioned.through_lookupd).code == 0
    assert described(partitioned, topic).meta == TopicMeta(partition_num=1, replica=1)


def test_one_nsqd_may_have_several_partitions_if_asked_to(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = unique()
    words = ["create", topic, "--partitions", "4", *partitioned.through_lookupd]
    done = nsqflow(*words)
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert "No node is available for topic; " in line
    assert "--multi-part" in line
    assert nsqflow(*words, "--multi-part").code == 0
    assert len(leaders(partitioned, topic)) == 4


def test_a_channel_is_created_in_every_partition(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = unique()
    words = [topic, "billing", "--partitions", "3"]
    done = nsqflow("create", *words, "--json", *partitioned.through_lookupd)
    assert (done.code, done.err) == (0, "")
    both = {"topic": topic, "channel": "billing", "result": "created", "topic_existed": False}
    assert objects(done.out) == [
        both | {"server": leader, "partition": number}
        for number, leader in enumerate(leaders(partitioned, topic))
    ]
    assert [each.channel("billing") is not None for each in stats(partitioned, topic)] == [True] * 3


def test_a_channel_is_created_where_it_is_missing(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = unique()
    partitioned.broker.create_topic(topic, partitions=3)
    with blocking.Consumer(topic, "billing", lookupd=partitioned.lookupd, partitions=[1]):
        deadline = time.monotonic() + 60
        while not stats(partitioned, topic)[1].channels:
            assert time.monotonic() < deadline
    done = nsqflow("create", topic, "billing", *partitioned.through_lookupd)
    assert done.out.splitlines() == [
        f"created channel billing of {topic} in partitions 0, 2",
        f"channel billing of {topic} already exists in partition 1",
    ]
    done = nsqflow("create", topic, "billing", *partitioned.through_lookupd)
    assert done == (0, f"channel billing of {topic} already exists in partitions 0, 1, 2\n", "")


@pytest.mark.parametrize("extended", [False, True])
def test_the_channel_of_an_ordered_topic_is_created_as_by_a_consumer(
    nsqflow: InProcess, extended: bool
) -> None:
    # A channel that was created over HTTP would repeat its first message here.
    with partitioned_cluster(repeat_messages=True) as cluster:
        words = ["--partitions", "2", "--ordered", *["--extended"] * extended]
        done = nsqflow("create", "orders", "billing", *words, *cluster.through_lookupd)
        assert (done.code, done.err) == (0, "")
        assert "created channel billing of orders in partitions 0, 1\n" in done.out
        cluster.publish("orders", 1, b"1", b"2", b"3")
        bodies = []
        with blocking.Consumer("orders", "billing", lookupd=cluster.lookupd) as consumer:
            for message in consumer:
                bodies.append((message.body, message.attempts))
                message.finish()
                if len(bodies) == 3:
                    break
    assert bodies == [(b"1", 1), (b"2", 1), (b"3", 1)]


def test_a_topic_whose_channels_are_registered_gets_them_from_nsqlookupd(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = unique(), partitioned.through_lookupd
    words = ["--registered-channels", "--retention-days", "7", "--partitions", "2"]
    assert nsqflow("create", topic, "billing", *words, *servers).code == 0
    assert described(partitioned, topic).meta.disable_channel_auto_create
    assert described(partitioned, topic).channels == ("billing",)
    done = nsqflow("create", topic, "billing", *servers)
    assert done.out == f"channel billing of {topic} already exists in partitions 0, 1\n"
    done = nsqflow("delete", topic, "billing", "--yes", *servers)
    assert done == (0, f"deleted channel billing of {topic} in partitions 0, 1\n", "")
    assert described(partitioned, topic).channels == ()


def test_a_topic_that_exists_stays_as_it_is(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = unique(), partitioned.through_lookupd
    partitioned.broker.create_topic(topic, partitions=2)
    done = nsqflow("create", topic, "--partitions", "2", *servers)
    assert done.code == 0
    assert done.out.startswith(f"topic {topic} already exists: 2 partitions, 1 replica, led by ")
    [first, _] = objects(nsqflow("create", topic, "--json", *servers).out)
    assert (first["result"], first["topic_existed"], first["channel"]) == ("existed", True, None)
    done = nsqflow("create", topic, "--partitions", "3", *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        f"nsqflow: topic {topic} exists already, with 2 partitions, 1 replica; "
    )
    assert len(described(partitioned, topic).leaders) == 2
    done = nsqflow("create", topic, "--retention-days", "3", *servers)
    text = f"--retention-days is for a new topic: topic {topic} exists already; "
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"nsqflow: {text}")


def test_it_waits_until_a_topic_is_writable_and_says_so_on_a_terminal(empty_folder: Path) -> None:
    with partitioned_cluster(new_topic_delay=5) as cluster:
        words = ["create", "orders", "billing", "--partitions", "2", *cluster.through_lookupd]
        with OnTerminal(words) as command:
            command.await_text(r"waiting until topic orders is writable.*, [2-5] of 150 s \.\.\.")
            assert command.end() == 0
            lines = command.shown.splitlines()
        assert lines[-1] == "created channel billing of orders in partitions 0, 1"
        assert "created topic orders: 2 partitions, 1 replica, led by" in lines[-2]
        assert [len(each.channels) for each in stats(cluster, "orders")] == [1, 1]


def test_it_waits_no_longer_than_asked_to_and_again_when_run_again(nsqflow: InProcess) -> None:
    with partitioned_cluster(new_topic_delay=3) as cluster:
        words = ["create", "orders", *cluster.through_lookupd]
        done = nsqflow(*words, "--wait", "200ms")
        assert (done.code, done.out) == (1, "")
        [line] = done.err.splitlines()
        assert line.startswith("nsqflow: topic orders was created, and is not writable after 0.2 s")
        assert ": the same command waits again; " in line
        words[1] = "returns"
        done = nsqflow(*words, "--wait", "200ms", "--retention-days", "3")
        assert ": the same command without --retention-days waits again; " in done.err
        words[1] = "orders"
        done = nsqflow(*words, "--wait", "200ms")
        assert done.err.startswith("nsqflow: topic orders exists, and is not writable after 0.2 s")
        done = nsqflow(*words, "--wait", "0")
        assert done == (0, "topic orders already exists: 1 partition, 1 replica\n", "")
        done = nsqflow(*words)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("topic orders already exists: 1 partition, 1 replica, led by ")
        assert stats(cluster, "orders")[0].writable


def test_what_is_missing_before_a_topic_can_be_published_to_is_named(nsqflow: InProcess) -> None:
    with partitioned_cluster(allow_write_without_channels=False) as cluster:
        done = nsqflow("create", "orders", *cluster.through_lookupd)
        assert done.code == 0
        assert done.err == (
            "nsqflow: topic orders takes no publishes until it has a channel: 'nsqflow create "
            "orders CHANNEL' creates one\n"
        )
        done = nsqflow("create", "orders", "billing", *cluster.through_lookupd)
        assert (done.code, done.err) == (0, "")
        cluster.publish("orders", 0, b"1")


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (TopicSettings(), ""),
        (TopicSettings(replicas=1), "--replicas"),
        (TopicSettings(partitions=2, ordered=True), "--partitions"),
        (TopicSettings(extended=True), "--extended"),
        (TopicSettings(multi_part=True), "--multi-part"),
        (TopicSettings(registered_channels=True), "--registered-channels"),
        (TopicSettings(retention_days=3), "--retention-days"),
    ],
)
def test_the_first_option_that_is_given_is_named(settings: TopicSettings, given: str) -> None:
    assert settings.given == given


def test_settings_differ_only_where_they_are_given() -> None:
    meta = TopicMeta(partition_num=2, replica=3, ordered=True)
    assert describe_topic(meta) == "2 partitions, 3 replicas, ordered"
    same = (TopicSettings(), TopicSettings(partitions=2, replicas=3, ordered=True))
    assert not any(each.differs_from(meta) for each in same)
    others = (
        TopicSettings(partitions=1),
        TopicSettings(replicas=1),
        TopicSettings(extended=True),
        TopicSettings(multi_part=True),
        TopicSettings(registered_channels=True),
    )
    assert all(each.differs_from(meta) for each in others)
    assert TopicSettings(ordered=True).differs_from(TopicMeta(partition_num=2))


OPTIONS = [
    ["--partitions", "2"],
    ["--replicas", "2"],
    ["--ordered"],
    ["--extended"],
    ["--multi-part"],
    ["--registered-channels"],
    ["--retention-days", "3"],
    ["--wait", "1s"],
]


@pytest.mark.parametrize("words", OPTIONS)
@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_on_a_classic_cluster_options_are_refused_in_one_line(
    nsqflow: InProcess, cluster: NsqCluster, words: list[str], option: str
) -> None:
    topic = unique()
    servers = cluster.through_lookupd if option == "--lookupd" else cluster.directly
    done = nsqflow("create", topic, *words, *servers)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith(f"nsqflow: {words[0]} is for the redesigned NSQ, and ")
    assert topic not in cluster.known("/topics")


def test_nsqd_of_it_that_are_named_directly_are_asked_for_nothing(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    for words in ([], ["billing"]):
        done = nsqflow("create", unique(), *words, *partitioned.directly)
        assert (done.code, done.out) == (1, "")
        [line] = done.err.splitlines()
        assert "is of the redesigned NSQ (version " in line
        assert "; name its nsqlookupd with --lookupd: " in line


def test_where_both_are_named_a_new_topic_needs_options_or_one_kind_of_nsqlookupd(
    nsqflow: InProcess, cluster: NsqCluster, partitioned: PartitionedCluster
) -> None:
    both = ["--lookupd", ",".join([*partitioned.lookupd, cluster.lookupd])]
    topic, classic = unique(), unique()
    done = nsqflow("create", topic, *both)
    assert (done.code, done.out) == (2, "")
    assert " are of the classic NSQ, others of the redesigned one; name those of one " in done.err
    assert nsqflow("create", topic, "--partitions", "1", *both).code == 0
    assert described(partitioned, topic).leaders
    cluster.create(classic)
    done = nsqflow("create", classic, "billing", *both)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"created channel billing of {classic} on {cluster.lookupd}, ")
    done = nsqflow("create", classic, "--ordered", *both)
    assert (done.code, done.out) == (2, "")
    assert f"and topic {classic} is a classic one" in done.err
    done = nsqflow("delete", classic, "--yes", *both)
    assert (done.code, done.err) == (0, "")
    assert classic not in cluster.known("/topics")


# delete, pause, unpause, empty


def test_a_topic_is_deleted_in_every_partition(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = filled(partitioned), partitioned.through_lookupd
    done = nsqflow("delete", topic, *servers)
    assert (done.code, done.out) == (2, "")
    question = f"Delete topic {topic} with 3 messages, in partitions 0, 1, 2?"
    assert done.err == f"nsqflow: {question} stdin is not a terminal; pass --yes\n"
    done = nsqflow("delete", topic, "--yes", *servers)
    assert done == (0, f"deleted topic {topic} in partitions 0, 1, 2\n", "")
    with pytest.raises(ConfigError, match="does not exist"):
        described(partitioned, topic)
    done = nsqflow("delete", topic, "--yes", *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"nsqflow: there is no topic {topic!r}; ")


def test_a_channel_is_deleted_in_every_partition(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = filled(partitioned), partitioned.through_lookupd
    partitioned.broker.create_channel(topic, "mail")
    done = nsqflow("delete", topic, "billing", "--yes", "--json", *servers)
    assert (done.code, done.err) == (0, "")
    about = {"topic": topic, "channel": "billing", "result": "deleted"}
    assert objects(done.out) == [
        about | {"server": leader, "partition": number}
        for number, leader in enumerate(leaders(partitioned, topic))
    ]
    names = [[channel.name for channel in each.channels] for each in stats(partitioned, topic)]
    assert names == [["mail"]] * 3


def test_a_channel_is_emptied_in_every_partition(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = filled(partitioned), partitioned.through_lookupd
    done = nsqflow("empty", topic, "billing", *servers)
    assert "Drop 3 messages of channel billing" in done.err
    done = nsqflow("empty", topic, "billing", "--yes", *servers)
    text = f"emptied channel billing of {topic} in partitions 0, 1, 2: 3 messages dropped\n"
    assert done == (0, text, "")
    assert [each.channels[0].depth for each in stats(partitioned, topic)] == [0, 0, 0]
    partitioned.publish(topic, 1, b"more")
    rows = objects(nsqflow("empty", topic, "billing", "--yes", "--json", *servers).out)
    assert [(row["partition"], row["dropped"], row["exact"]) for row in rows] == [
        *((0, 0, True), (1, 1, True), (2, 0, True))
    ]


def test_messages_that_came_after_the_question_are_counted(
    empty_folder: Path, partitioned: PartitionedCluster
) -> None:
    topic = filled(partitioned)
    words = ["empty", topic, "billing", *partitioned.through_lookupd]
    with OnTerminal(words, columns=200) as command:
        command.await_text(r"Drop 3 messages .*\[y/N\]")
        partitioned.publish(topic, 1, b"late", b"later")
        command.type("y\n")
        assert command.end() == 0
    assert "in partitions 0, 1, 2: 5 messages dropped" in command.shown


def test_the_number_of_dropped_messages_is_about_while_there_is_a_consumer(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = filled(partitioned)
    with blocking.Consumer(topic, "billing", lookupd=partitioned.lookupd, partitions=[1]):
        deadline = time.monotonic() + 60
        while not stats(partitioned, topic)[1].channels[0].client_count:
            assert time.monotonic() < deadline
        done = nsqflow("empty", topic, "billing", "--yes", *partitioned.through_lookupd)
    assert done.out.endswith(": about 3 messages dropped\n")


def test_a_channel_is_paused_and_goes_on(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = filled(partitioned), partitioned.through_lookupd
    for verb, paused in (("pause", True), ("unpause", False)):
        done = nsqflow(verb, topic, "billing", *servers)
        assert done == (0, f"{verb}d channel billing of {topic} in partitions 0, 1, 2\n", "")
        assert [each.channels[0].paused for each in stats(partitioned, topic)] == [paused] * 3
    rows = objects(nsqflow("pause", topic, "billing", "--json", *servers).out)
    assert [(row["partition"], row["result"]) for row in rows] == [
        *((0, "paused"), (1, "paused"), (2, "paused"))
    ]


@pytest.mark.parametrize("words", [["pause"], ["unpause"], ["empty", "--yes"]])
def test_a_topic_itself_can_only_be_deleted(
    nsqflow: InProcess, partitioned: PartitionedCluster, words: list[str]
) -> None:
    topic, verb = filled(partitioned), words[0]
    done = nsqflow(*words, topic, *partitioned.through_lookupd)
    text = f"topic {topic} is of the redesigned NSQ: {verb} is for its channels"
    assert done == (2, "", f"nsqflow: {text}; nsqflow {verb} {topic} CHANNEL\n")


@pytest.mark.parametrize("words", [["pause"], ["unpause"], ["empty", "--yes"], ["delete", "--yes"]])
def test_a_channel_that_does_not_exist_is_an_error_with_a_suggestion(
    nsqflow: InProcess, partitioned: PartitionedCluster, words: list[str]
) -> None:
    topic = filled(partitioned)
    done = nsqflow(*words, topic, "bilings", *partitioned.through_lookupd)
    text = f"topic {topic!r} has no channel 'bilings'; did you mean 'billing'?"
    assert done == (1, "", f"nsqflow: {text}\n")


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["pause"], "paused"),
        (["empty", "--yes"], "emptied"),
        (["delete", "--yes"], "deleted"),
    ],
)
def test_a_partition_without_a_leader_is_reported_and_the_others_are_changed(
    nsqflow: InProcess, words: list[str], result: str
) -> None:
    with partitioned_cluster() as cluster:
        topic = filled(cluster)
        lost = leaders(cluster, topic).index(cluster.nsqd[0])
        cluster.broker.kill_node(0)
        deadline = time.monotonic() + 60
        while len(described(cluster, topic).leaders) == 3:
            assert time.monotonic() < deadline
        done = nsqflow(*words, topic, "billing", *cluster.through_lookupd)
    assert done.code == 1
    others = ", ".join(str(number) for number in range(3) if number != lost)
    assert done.out.startswith(f"{result} channel billing of {topic} in partitions {others}")
    text = f"partition {lost} of {topic}: there is no leader that answers now"
    assert done.err == f"nsqflow: {text}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["pause", "orders", "billing"],
        ["empty", "orders", "billing", "--yes"],
        ["create", "orders", "mail", "--wait", "0"],
        ["create", "ranked", "mail", "--wait", "0"],
        ["move-leader", "orders", "0", "127.0.0.1:1"],
    ],
)
def test_nothing_is_done_while_no_partition_has_a_leader(
    nsqflow: InProcess, words: list[str]
) -> None:
    with partitioned_cluster() as cluster:
        for name in ("orders", "ranked"):
            cluster.broker.create_topic(name, ordered=name == "ranked")
            cluster.broker.create_channel(name, "billing")
        [leader] = leaders(cluster, words[1])
        cluster.broker.kill_node(cluster.nsqd.index(leader))
        deadline = time.monotonic() + 60
        while described(cluster, words[1]).leaders:
            assert time.monotonic() < deadline
        done = nsqflow(*words, *cluster.through_lookupd)
    text = f"partition 0 of {words[1]}: there is no leader that answers now; try again later; "
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert line.startswith(f"nsqflow: {text}")


# move-leader


def test_a_leader_moves_and_takes_messages(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = unique(), partitioned.through_lookupd
    partitioned.broker.create_topic(topic, replicas=2)
    partitioned.broker.create_channel(topic, "billing")
    [row, *_] = objects(nsqflow("stat", topic, "--once", "--partitions", "--json", *servers).out)
    before, after = row["replicas"]
    done = nsqflow("move-leader", topic, "0", after, *servers)
    assert done == (0, f"{after} leads partition 0 of {topic} now; before, {before} did\n", "")
    assert leaders(partitioned, topic) == [after]
    partitioned.publish(topic, 0, b"1")
    done = nsqflow("move-leader", topic, "0", after, *servers)
    assert done == (0, f"{after} leads partition 0 of {topic} already\n", "")
    [moved] = objects(nsqflow("move-leader", topic, "0", before, "--json", *servers).out)
    about = {"topic": topic, "partition": 0, "result": "moved"}
    assert moved == about | {"leader": before, "former": after}
    [kept] = objects(nsqflow("move-leader", topic, "0", before, "--json", *servers).out)
    assert kept == about | {"leader": before, "former": before, "result": "kept"}


def test_a_moved_leader_of_an_ordered_topic_comes_with_a_warning(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = unique(), partitioned.through_lookupd
    partitioned.broker.create_topic(topic, replicas=3, ordered=True)
    [before] = leaders(partitioned, topic)
    after = next(each for each in partitioned.nsqd if each != before)
    done = nsqflow("move-leader", topic, "0", before, *servers)
    assert (done.code, done.err) == (0, "")
    done = nsqflow("move-leader", topic, "0", after, *servers)
    assert done.code == 0
    text = f"topic {topic} is ordered: a channel that never finished a message may not get its "
    assert f"nsqflow: {text}" in done.err


def test_a_leader_moves_only_to_an_nsqd_with_a_copy(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic, servers = unique(), partitioned.through_lookupd
    partitioned.broker.create_topic(topic, replicas=2)
    [row, *_] = objects(nsqflow("stat", topic, "--once", "--partitions", "--json", *servers).out)
    [without] = {*partitioned.nsqd} - {*row["replicas"]}
    done = nsqflow("move-leader", topic, "0", without, *servers)
    known = row["replicas"][1]
    text = f"NODE {without!r} is invalid: it has no copy of partition 0 (nsqd with one: "
    with_one = ", ".join(sorted(row["replicas"]))
    assert done == (2, "", f"nsqflow: {text}{with_one})\n")
    done = nsqflow("move-leader", topic, "7", known, *servers)
    assert done == (2, "", f"nsqflow: PARTITION 7 is invalid: {topic!r} has partition 0 only\n")
    assert leaders(partitioned, topic) == [row["leader"]]


def test_a_leader_does_not_move_while_an_nsqd_is_missing(nsqflow: InProcess) -> None:
    with partitioned_cluster() as cluster:
        cluster.broker.create_topic("orders", replicas=3)
        [before] = leaders(cluster, "orders")
        gone, target = (each for each in cluster.nsqd if each != before)
        cluster.broker.kill_node(cluster.nsqd.index(gone))
        done = nsqflow("move-leader", "orders", "0", target, *cluster.through_lookupd)
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    text = "partition 0 of orders can't be moved: the cluster is unstable; "
    assert line.startswith(f"nsqflow: {text}")


def test_it_waits_for_a_new_leader_no_longer_than_asked_to(nsqflow: InProcess) -> None:
    with partitioned_cluster(move_delay=30) as cluster:
        cluster.broker.create_topic("orders", replicas=3)
        [before] = leaders(cluster, "orders")
        target = next(each for each in cluster.nsqd if each != before)
        words = ["move-leader", "orders", "0", target, "--wait", "300ms"]
        done = nsqflow(*words, *cluster.through_lookupd, "--config", timeout_of(1))
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    text = "partition 0 of orders has no new leader that takes messages after 0.3 s; "
    assert line.startswith(f"nsqflow: {text}")


def test_a_new_leader_that_takes_no_connection_in_time_is_asked_again(
    nsqflow: InProcess, partitioned: PartitionedCluster
) -> None:
    topic = unique()
    partitioned.broker.create_topic(topic, replicas=3)
    [before] = leaders(partitioned, topic)
    moved = [number for number, each in enumerate(partitioned.nsqd) if each != before]
    servers = ["--config", "config.toml", *partitioned.through_lookupd]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # The handshake is never answered, so that the request is not sent.
        nowhere = f"https://127.0.0.1:{silent.getsockname()[1]}"
        http = partitioned.broker.nsqd_http_addresses
        names = "".join(f'"{http[number]}" = "{nowhere}"\n' for number in moved)
        Path("config.toml").write_text(f"timeout = 0.2\n[address_map]\n{names}")
        began = time.monotonic()
        words = [topic, "0", partitioned.nsqd[moved[0]], "--wait", "1s"]
        done = nsqflow("move-leader", *words, *servers)
    assert (done.code, done.out) == (1, "")
    assert " has no new leader that takes messages after 1 s; " in done.err
    assert time.monotonic() - began > 1


def timeout_of(seconds: int) -> str:
    """A config file with a timeout for each request."""
    path = Path("timeout.toml")
    path.write_text(f"timeout = {seconds}\n")
    return str(path)


def test_what_has_no_partitions_has_no_leader_to_move(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic)
    done = nsqflow("move-leader", topic, "0", cluster.nsqd[0], *cluster.through_lookupd)
    text = f"move-leader is for the redesigned NSQ, and topic {topic} is of the classic one"
    assert done == (2, "", f"nsqflow: {text}; it has no partitions\n")
    done = nsqflow("move-leader", topic, "0", cluster.nsqd[0], *cluster.directly)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("nsqflow: move-leader is for the redesigned NSQ, and nsqd ")
    done = nsqflow("move-leader", f"{topic}x", "0", cluster.nsqd[0], *cluster.through_lookupd)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"nsqflow: there is no topic {topic + 'x'!r}; did you mean ")


def test_its_arguments_are_completed(empty_folder: Path, partitioned: PartitionedCluster) -> None:
    topic = unique("moved")
    partitioned.broker.create_topic(topic, partitions=2, replicas=2, ordered=True)
    env = {"NSQFLOW_LOOKUPD": ",".join(partitioned.lookupd)}
    assert completed("nsqflow move") == ["move-leader"]
    assert completed(f"nsqflow move-leader {topic[:-2]}", env) == [topic]
    assert completed(f"nsqflow move-leader {topic} ", env) == ["0", "1"]
    nodes = completed(f"nsqflow move-leader {topic} 0 127.", env)
    assert sorted(nodes) == sorted(partitioned.nsqd)
    assert completed("nsqflow move-leader --w") == ["--wait"]
    assert completed("nsqflow create --rep") == ["--replicas"]
    assert completed(f"nsqflow pause {topic} b", env) == []
