"""The verb tail on topics with partitions."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.broker import BackgroundBroker
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import CommandProcess, InProcess, OnTerminal
from tests.cli.partitioned import (
    await_readers,
    browsed,
    channels,
    depths,
    lookupd_of,
    publish,
)


@contextmanager
def publishing(
    broker: BackgroundBroker,
    topic: str,
    *bodies: bytes,
    readers: Sequence[int] = (0,),
    **options: Any,
) -> Iterator[None]:
    """Publish as soon as these partitions are read."""

    def run() -> None:
        await_readers(broker, topic, readers)
        publish(broker, topic, *bodies, **options)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def tailed(nsqflow: InProcess, *words: str) -> list[dict[str, Any]]:
    """What tail shows as objects."""
    done = nsqflow("tail", *words, "--json")
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.parametrize("ordered", [False, True])
def test_what_comes_is_shown_from_all_partitions(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker, ordered: bool
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2, ordered=ordered)
    publish(broker, "orders", b"old", partition=0)

    def run() -> None:
        await_readers(broker, "orders", (0, 1))
        publish(broker, "orders", b"1", b"3", partition=0)
        publish(broker, "orders", b"2", partition=1)

    thread = threading.Thread(target=run)
    thread.start()
    found = tailed(nsqflow, "orders", "-n", "3", *lookupd_of(broker))
    thread.join()
    assert sorted((each["partition"], each["body"]) for each in found) == [
        (0, "1"),
        (0, "3"),
        (1, "2"),
    ]
    first, second = (each for each in found if each["partition"] == 0)
    stored = browsed(broker, "orders")[1]
    assert (first["body"], first["offset"], first["internal_id"]) == (
        "1",
        stored.offset,
        str(stored.internal_id),
    )
    assert second["offset"] == first["offset"] + first["size"]
    assert first["nsqd"] in broker.nsqd_addresses
    assert first["channel"].endswith("#ephemeral")
    assert (first["headers"], first["tag"], first["trace_id"]) == (None, None, None)
    assert first["id"] == f"{stored.internal_id:016x}{0:016x}"


@pytest.mark.parametrize("ordered", [False, True])
def test_it_goes_on_when_a_leader_moves(
    nsq_redesigned_broker: BackgroundBroker, empty_folder: object, ordered: bool
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", replicas=2, ordered=ordered)
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    with CommandProcess(["tail", "orders", *lookupd_of(broker)]) as command:
        await_readers(broker, "orders", (0,))
        publish(broker, "orders", b"before")
        command.await_text("before\n")
        leader = asyncio.run(cluster.topic("orders")).leaders[0].address
        broker.move_leader("orders", 0, (broker.nsqd_addresses.index(leader) + 1) % 3)
        await_readers(broker, "orders", (0,))
        publish(broker, "orders", b"after")
        command.await_text("after\n")
        assert command.end(signal.SIGINT) == 130


def test_headers_tag_and_trace_id_are_shown(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", extended=True)
    options: dict[str, Any] = {"headers": {"region": "eu"}, "tag": "blue", "trace": 2**64 - 1}
    with publishing(broker, "orders", b"1", **options):
        [found] = tailed(nsqflow, "orders", "-n", "1", *lookupd_of(broker))
    assert (found["tag"], found["trace_id"]) == ("blue", str(2**64 - 1))
    assert found["headers"]["region"] == "eu"


def test_a_terminal_shows_where_a_message_is_and_its_headers(
    nsq_redesigned_broker: BackgroundBroker, empty_folder: object
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2, extended=True)
    words = ["tail", "orders", "--partition", "1", "-n", "1", *lookupd_of(broker)]
    with OnTerminal(words, columns=200) as command:
        await_readers(broker, "orders", (1,))
        options = {"headers": {"region": "eu\x1b[2J"}, "tag": "blue", "trace": 7}
        publish(broker, "orders", b'{"id":1}', partition=1, **options)
        assert command.end() == 0
    assert re.search(
        r"\d\d:\d\d:\d\d\.\d{3} orders 127\.0\.0\.1:\d+ partition 1 offset 0 tag blue trace 7 "
        r'\{"region": "eu\\u001b\[2J"\}\n\{\n  "id": 1\n\}\n',
        command.shown,
    )


def test_a_pipe_gets_bodies_as_they_are(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders")
    with publishing(broker, "orders", "größer".encode()):
        done = nsqflow("tail", "orders", "-n", "1", *lookupd_of(broker))
    assert done == (0, "größer\n", "")


@pytest.mark.parametrize("ordered", [False, True])
def test_it_begins_in_the_past(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker, ordered: bool
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2, ordered=ordered)
    publish(broker, "orders", b"1", b"2", b"3", partition=0)
    publish(broker, "orders", b"4", partition=1)
    messages = browsed(broker, "orders")
    words = ["orders", *lookupd_of(broker), "--from"]
    found = tailed(nsqflow, *words, "earliest", "-n", "4")
    assert [each["body"] for each in found if each["partition"] == 0] == ["1", "2", "3"]
    assert [each["body"] for each in found if each["partition"] == 1] == ["4"]
    second = datetime.fromtimestamp(messages[0].timestamp // 10**9, UTC)
    for position in (f"timestamp:{second.timestamp():.0f}", second.isoformat()):
        found = tailed(nsqflow, *words, position, "--partition", "0", "-n", "3")
        assert [each["body"] for each in found] == ["1", "2", "3"]
    place = f"offset:{messages[1].offset}"
    found = tailed(nsqflow, *words, place, "--partition", "0", "-n", "2")
    assert [each["offset"] for each in found] == [messages[1].offset, messages[2].offset]


def test_only_the_named_partitions_are_read(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=3)
    for number in range(3):
        publish(broker, "orders", str(number).encode(), partition=number)
    some = ["--partition", "2", "--partition", "0", "--from", "earliest"]
    found = tailed(nsqflow, "orders", *some, "-n", "2", *lookupd_of(broker))
    assert sorted(each["body"] for each in found) == ["0", "2"]
    assert channels(broker, "orders")[1] == []


def test_a_shared_channel_is_consumed(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2)
    broker.create_channel("orders", "billing")
    publish(broker, "orders", b"1", b"2", b"3", partition=1)
    words = ["orders", "--channel", "billing", "-n", "2", *lookupd_of(broker)]
    assert [each["body"] for each in tailed(nsqflow, *words)] == ["1", "2"]
    assert depths(broker, "orders", "billing") == [0, 1]


def test_a_shared_channel_is_created_nowhere(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2)
    lookupd = lookupd_of(broker)
    done = nsqflow("tail", "orders", "--channel", "billing", "-n", "1", *lookupd)
    assert (done.code, done.out) == (1, "")
    assert "topic 'orders' has no channel 'billing'; there is no channel yet" in done.err
    assert done.err.endswith("use --create to subscribe anyway\n")
    some = ["tail", "orders", "--channel", "billing", "--create", "--partition", "0"]
    with publishing(broker, "orders", b"1", b"2", partition=0):
        assert nsqflow(*some, "-n", "1", *lookupd).out == "1\n"
    done = nsqflow("tail", "orders", "--channel", "billing", "-n", "1", *lookupd)
    assert (done.code, done.out) == (0, "2\n")
    assert "no channel 'billing' in partition 1, which is not read" in done.err
    done = nsqflow("tail", "orders", "--channel", "billing", "--partition", "1", *lookupd)
    assert (done.code, done.out) == (1, "")
    assert "'billing' in partition 1; it is in partition 0; use --create" in done.err
    assert depths(broker, "orders", "billing") == [0, None]


def test_a_topic_whose_channels_are_registered_takes_no_temporary_one(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
    asyncio.run(admin.create_topic("orders", registered_channels=True, wait=30))
    done = nsqflow("tail", "orders", "-n", "1", *lookupd_of(broker))
    assert done == (
        1,
        "",
        "nsqflow: topic 'orders' takes no temporary channel: nsqlookupd creates its channels; "
        "use --channel, or 'nsqflow browse orders'\n",
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--partition", "2"], "--partition 2 is invalid: 'orders' has partitions 0 to 1"),
        (["--create", "--from", "latest"], "--create and --from are both given: --from is for "),
        (["--create", "--partition", "0"], "--create and --partition are both given: "),
        (["--from", "yesterday"], "--from='yesterday' is invalid: must be 'earliest', "),
        (["--from", "2100-01-01T00:00:00Z"], "is invalid: must be between 1970 and now"),
        (["--from", "2026-01-01T00:00:00"], "is invalid: must have a time zone"),
        (["--from", "latest", "--channel", "c"], "--from with --channel would move channel 'c'"),
    ],
)
def test_what_can_not_be_read_is_refused(
    nsqflow: InProcess,
    nsq_redesigned_broker: BackgroundBroker,
    options: list[str],
    problem: str,
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2)
    done = nsqflow("tail", "orders", "-n", "1", *options, *lookupd_of(broker))
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert problem in line
    assert channels(broker, "orders") == [[], []]


def test_a_topic_that_does_not_exist_is_an_error(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders")
    for options in ([], ["--from", "earliest"]):
        done = nsqflow("tail", "order", "-n", "1", *options, *lookupd_of(broker))
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("nsqflow: there is no topic 'order'; did you mean 'orders'?")


@pytest.mark.parametrize("options", [["--from", "earliest"], ["--partition", "0"]])
def test_a_classic_topic_has_neither_positions_nor_partitions(
    nsqflow: InProcess, cluster: NsqCluster, options: list[str]
) -> None:
    topic = unique()
    cluster.create(topic)
    done = nsqflow("tail", topic, "-n", "1", *options, *cluster.through_lookupd)
    assert done == (
        2,
        "",
        f"nsqflow: {options[0]} is for topics of the redesigned NSQ: {topic!r} is a classic "
        f"topic; 'nsqflow tail {topic}' shows what comes\n",
    )
    done = nsqflow("tail", topic, "-n", "1", *options, *cluster.directly)
    assert (done.code, done.out) == (2, "")
    assert f"{options[0]} is for topics of the redesigned NSQ; name its nsqlookupd" in done.err
    assert (cluster.topic(topic) or {})["channels"] == []


def test_a_topic_of_each_nsq_is_shown_by_one_command(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker, nsq_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders")
    nsq_broker.create_topic("returns")
    lookupd = [*broker.lookupd_addresses, *nsq_broker.lookupd_addresses]
    words = ["orders", "returns", "-n", "2", "--lookupd", ",".join(lookupd)]

    def publish_to_classic() -> None:
        await_readers(broker, "orders", (0,))
        publish(nsq_broker, "returns", b"2")

    thread = threading.Thread(target=publish_to_classic)
    thread.start()
    with publishing(broker, "orders", b"1"):
        found = tailed(nsqflow, *words)
    thread.join()
    shown = {(each["topic"], each["body"], each.get("partition")) for each in found}
    assert shown == {("orders", "1", 0), ("returns", "2", None)}
