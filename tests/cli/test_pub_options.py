"""The verb pub on topics with partitions: keys, partitions, trace ids, headers and tags."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nsqflow.broker import BackgroundBroker
from nsqflow.client.producer.partitioner import murmur3_partition
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import InProcess
from tests.cli.partitioned import bodies, browsed, lookupd_of

PARTITIONED = [
    ["--key", "user-1"],
    ["--partition", "0"],
    ["--trace", "7"],
    ["--header", "region=eu"],
    ["--tag", "blue"],
]


def test_messages_go_to_a_topic_with_partitions(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2)
    done = nsqflow("pub", "orders", "1", "2", *lookupd_of(broker))
    assert done == (0, "published 2 messages to orders\n", "")
    assert sorted(bodies(broker, "orders", 0) + bodies(broker, "orders", 1)) == ["1", "2"]


def test_a_key_or_a_number_chooses_the_partition(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=3)
    lookupd = lookupd_of(broker)
    assert nsqflow("pub", "orders", "1", "2", "--key", "größe", *lookupd).code == 0
    number = murmur3_partition("größe".encode(), 3)
    assert bodies(broker, "orders", number) == ["1", "2"]
    other = (number + 1) % 3
    assert nsqflow("pub", "orders", "3", "4", "--partition", str(other), *lookupd).code == 0
    assert bodies(broker, "orders", other) == ["3", "4"]
    assert bodies(broker, "orders", number) == ["1", "2"]


def test_a_traced_message_is_printed_with_its_receipt(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2)
    words = ["pub", "orders", "1", "--partition", "1", *lookupd_of(broker)]
    done = nsqflow(*words, "--trace", "7")
    [first] = browsed(broker, "orders", 1)
    assert (done.code, done.err) == (0, "")
    match = re.fullmatch(
        r"stored argument 1: partition 1, offset 0, size (\d+), internal id (\d+), trace id 7\n"
        r"published 1 message to orders\n",
        done.out,
    )
    assert match is not None
    assert int(match[2]) == first.internal_id
    done = nsqflow(*words, "--trace", str(2**64 - 1), "--json")
    receipt, counts = map(json.loads, done.out.splitlines())
    [_, second] = browsed(broker, "orders", 1)
    assert receipt == {
        "topic": "orders",
        "argument": 1,
        "partition": 1,
        "offset": second.offset,
        "size": int(match[1]),
        "internal_id": str(second.internal_id),
        "trace_id": str(2**64 - 1),
    }
    assert (counts["published"], second.trace_id) == (1, 2**64 - 1)


def test_each_traced_line_has_its_receipt(
    nsqflow: InProcess, empty_folder: Path, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", ordered=True)
    (empty_folder / "orders.txt").write_text("1\n\n2\n3\n")
    done = nsqflow(
        "pub", "orders", "--file", "orders.txt", "--trace", "9", "--json", *lookupd_of(broker)
    )
    *receipts, counts = map(json.loads, done.out.splitlines())
    found = browsed(broker, "orders")
    assert [each["line"] for each in receipts] == [1, 3, 4]
    assert [each["offset"] for each in receipts] == [message.offset for message in found]
    assert [message.body for message in found] == ["1", "2", "3"]
    assert (counts["published"], counts["empty"]) == (3, 1)


def test_headers_and_a_tag_go_with_each_message(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", extended=True)
    options = ["--header", "region=eu", "--header", "note=a=b", "--tag", "blue", "--trace", "7"]
    done = nsqflow("pub", "orders", "1", "2", *options, *lookupd_of(broker))
    assert (done.code, done.err) == (0, "")
    assert done.out.count("trace id 7") == 2
    for message in browsed(broker, "orders"):
        assert message.headers is not None
        assert (message.headers["region"], message.headers["note"]) == ("eu", "a=b")
        assert (message.headers["##client_dispatch_tag"], message.trace_id) == ("blue", 7)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--delay", "1s"], "--delay is for topics of the classic NSQ"),
        (["--partition", "2"], "--partition 2 is invalid: 'orders' has partitions 0 to 1"),
        (["--header", "a=1"], "--header needs a topic with headers"),
        (["--tag", "blue"], "--tag needs a topic with headers"),
        (["--header", "a"], "--header 'a' is invalid: must be NAME=VALUE"),
        (["--header", "=a"], "--header '=a' is invalid: must be NAME=VALUE"),
        (["--header", "a=1", "--header", "a=2"], "--header 'a' is given twice"),
        (["--header", "##x=1"], "nsqflow: --header '##x' is invalid: the name is reserved"),
        (["--key", "a", "--partition", "0"], "--key and --partition are both given: give one"),
        (["--key", ""], "nsqflow: --key '' is invalid: must not be empty"),
        (["--tag", "t" * 101], "is invalid: must have 1 to 100 bytes"),
        (["--tag", ""], "nsqflow: --tag '' is invalid: must have 1 to 100 bytes"),
        (["--trace", "-1"], "nsqflow: --trace -1 is invalid: must be an integer from 0 to"),
        (["--trace", str(2**64)], "is invalid: must be an integer from 0 to"),
        (["--trace", "abc"], "invalid value for '--trace'"),
    ],
)
def test_what_a_topic_with_partitions_does_not_take_is_refused_before_anything_is_published(
    nsqflow: InProcess,
    nsq_redesigned_broker: BackgroundBroker,
    options: list[str],
    problem: str,
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders", partitions=2)
    done = nsqflow("pub", "orders", "1", "2", *options, *lookupd_of(broker))
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert problem in line
    assert bodies(broker, "orders", 0) + bodies(broker, "orders", 1) == []


def test_a_topic_that_no_publish_would_create_is_refused(
    nsqflow: InProcess, nsq_redesigned_broker: BackgroundBroker
) -> None:
    broker = nsq_redesigned_broker
    broker.create_topic("orders")
    for options in ([], ["--key", "user-1"]):
        done = nsqflow("pub", "order", "1", *options, *lookupd_of(broker))
        assert done == (1, "", "nsqflow: there is no topic 'order'; did you mean 'orders'?\n")


@pytest.mark.parametrize("options", PARTITIONED)
def test_a_classic_topic_takes_none_of_it(
    nsqflow: InProcess, cluster: NsqCluster, options: list[str]
) -> None:
    topic = unique()
    cluster.create(topic)
    done = nsqflow("pub", topic, "1", *options, *cluster.through_lookupd)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"nsqflow: {options[0]} is for topics of the redesigned NSQ: {topic!r} is a classic "
        "topic; classic NSQ has no partitions, keys, trace ids, headers or tags\n"
    )
    done = nsqflow("pub", topic, "1", *options, *cluster.directly)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert f"{options[0]} is for topics of the redesigned NSQ; name its nsqlookupd" in line
    found = cluster.topic(topic)
    assert found is not None
    assert found["message_count"] == 0
