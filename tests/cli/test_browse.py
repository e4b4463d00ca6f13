"""The verb browse."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.broker import BackgroundBroker
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import InProcess, OnTerminal
from tests.cli.partitioned import browsed, channels, depths, lookupd_of, publish


def shown(nsqflow: InProcess, *words: str) -> list[dict[str, Any]]:
    """What browse shows as objects."""
    done = nsqflow("browse", *words, "--json")
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


def test_all_messages_are_shown_and_none_is_consumed(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2, extended=True)
    broker.create_channel("orders", "billing")
    publish(broker, "orders", b"1", "größer".encode(), partition=0)
    publish(broker, "orders", b"3", partition=1, headers={"region": "eu"}, tag="blue", trace=7)
    done = nsqflow("browse", "orders", *lookupd_of(broker))
    assert done == (0, "1\ngrößer\n3\n", "")
    *_, last = shown(nsqflow, "orders", *lookupd_of(broker))
    [stored] = browsed(broker, "orders", 1)
    assert last.pop("headers")["region"] == "eu"
    assert last == {
        "topic": "orders",
        "channel": None,
        "nsqd": None,
        "id": f"{stored.internal_id:016x}{7:016x}",
        "timestamp": stored.timestamp,
        "attempts": None,
        "body": "3",
        "partition": 1,
        "offset": 0,
        "size": None,
        "internal_id": str(stored.internal_id),
        "trace_id": "7",
        "tag": "blue",
    }
    assert depths(broker, "orders", "billing") == [2, 1]
    assert channels(broker, "orders") == [["billing"], ["billing"]]


def test_it_reads_some_partitions_from_a_position_up_to_a_number(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=3)
    for number in range(3):
        publish(broker, "orders", *(f"{number}-{i}".encode() for i in range(3)), partition=number)
    words = ["browse", "orders", *lookupd_of(broker)]
    offset = browsed(broker, "orders", 1)[1].offset
    assert nsqflow(*words, "--partition", "1", "--offset", str(offset)).out == "1-1\n1-2\n"
    assert nsqflow(*words, "--partition", "1", "--from", f"offset:{offset}").out == "1-1\n1-2\n"
    some = ["--partition", "2", "--partition", "0"]
    assert nsqflow(*words, *some, "--from", "count:3").out == "0-2\n2-2\n"
    assert nsqflow(*words, "--max-messages", "4").out == "0-0\n0-1\n0-2\n1-0\n"
    assert nsqflow(*words, "-n", "1").out == "0-0\n"
    assert nsqflow(*words, "--from", "latest") == (0, "", "")
    second = browsed(broker, "orders", 0)[0].timestamp // 10**9
    done = nsqflow(*words, "--partition", "0", "--from", f"timestamp:{second}")
    assert done.out == "0-0\n0-1\n0-2\n"


def test_a_terminal_shows_where_a_message_is(
    nsq_redesigned_broker: BackgroundBroker, empty_folder: object
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders")
    publish(broker, "orders", b'{"id":1}')
    with OnTerminal(["browse", "orders", *lookupd_of(broker)]) as command:
        assert command.end() == 0
    where, *body = command.shown.splitlines()
    assert where.endswith(" orders partition 0 offset 0")
    assert body == ["{", '  "id": 1', "}"]


def test_bodies_that_nsqd_replaces_parts_of_are_counted(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders")
    publish(broker, "orders", b"1", b"\xff2")
    done = nsqflow("browse", "orders", *lookupd_of(broker))
    assert (done.code, done.out) == (0, "1\n\N{REPLACEMENT CHARACTER}2\n")
    assert done.err == (
        "nsqflow: 1 message may be damaged: nsqd returns text here, and replaces what is not "
        "UTF-8\n"
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--partition", "2"], "--partition 2 is invalid: 'orders' has partitions 0 to 1"),
        (["--offset", "5"], "--offset is a place in one partition, and 'orders' has partitions"),
        (["--offset", "5", "--from", "latest"], "--from and --offset are both given"),
        (["--from", "noon"], "--from='noon' is invalid: must be 'earliest', "),
        (["--partition", "-1"], "invalid value for '--partition'"),
        (["-n", "0"], "invalid value for '-n'"),
    ],
)
def test_what_can_not_be_read_is_refused(
    nsqflow: InProcess,
    nsq_redesigned_broker: BackgroundBroker,
    options: list[str],
    problem: str,
) -> None:
    nsq_redesigned_broker.create_topic("orders", partitions=2)
    done = nsqflow("browse", "orders", *options, *lookupd_of(nsq_redesigned_broker))
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert problem in line


def test_a_topic_that_does_not_exist_is_an_error(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    nsq_redesigned_broker.create_topic("orders")
    done = nsqflow("browse", "order", *lookupd_of(nsq_redesigned_broker))
    assert done == (1, "", "nsqflow: there is no topic 'order'; did you mean 'orders'?\n")


def test_a_partition_without_a_leader_is_named(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=3)
    broker.kill_node(0)
    done = nsqflow("browse", "orders", *lookupd_of(broker))
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert "of 'orders' has no leader now; its nsqd may have stopped" in line


def test_a_terminal_shows_that_it_searches(
    empty_folder: Path, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders")
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    leader = asyncio.run(cluster.topic("orders")).leaders[0].http_address
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        Path("config.toml").write_text(f'[address_map]\n"{leader}" = "{address}"\n')
        words = ["browse", "orders", "--config", "config.toml", *lookupd_of(broker)]
        with OnTerminal(words) as command:
            command.await_text(r"looking for messages of orders \.\.\.")


def test_a_classic_topic_can_not_be_browsed(nsqflow: InProcess, cluster: NsqCluster) -> None:
    topic = unique()
    cluster.create(topic)
    done = nsqflow("browse", topic, *cluster.through_lookupd)
    assert done == (
        2,
        "",
        f"nsqflow: browse is for topics of the redesigned NSQ: {topic!r} is a classic topic; "
        "classic NSQ keeps no finished messages; 'nsqflow tail' shows those that come\n",
    )
    done = nsqflow("browse", topic, *cluster.directly)
    assert (done.code, done.out) == (2, "")
    assert "browse is for topics of the redesigned NSQ; name its nsqlookupd" in done.err
