"""Batch reads of a channel of a redesigned topic, to peek and to consume, on our broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsqflow import blocking
from nsqflow.admin import RedesignedCluster
from nsqflow.admin.partition import PartitionChannelStats
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import ConfigError, SourceInUseError, SpoolError
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from nsqflow.spark.source.batch_plan import BatchPlan
from nsqflow.spark.source.offsets import Offset
from nsqflow.spark.source.presence import client_id
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.generation import BATCH_PREFIX, remove_generation
from nsqflow.spark.spool.layout import generation_marker
from nsqflow.spark.spool.store import open_store
from tests.integration.spark.source.table_reads import (
    TOPIC,
    TableRead,
    await_no_channel,
    check_order,
    numbers,
    publish,
    stats,
)

CHANNEL = "spark"


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", 3) as broker:
        broker.create_topic(TOPIC, partitions=4, replicas=2)
        broker.create_channel(TOPIC, CHANNEL)
        yield broker


def channels(broker: BackgroundBroker, topic: str = TOPIC) -> list[PartitionChannelStats]:
    found = [each.channel(CHANNEL) for each in stats(broker, topic)]
    return [each for each in found if each is not None]


def depth(broker: BackgroundBroker, topic: str = TOPIC) -> int:
    return sum(each.depth for each in channels(broker, topic))


# mode=peek


def peek(broker: BackgroundBroker, **options: str) -> TableRead:
    return TableRead(broker, mode="peek", channel=CHANNEL, **options)


def finish(broker: BackgroundBroker, count: int, topic: str = TOPIC) -> list[bytes]:
    """Have a consumer finish some messages."""
    bodies = []
    with blocking.Consumer(
        topic, CHANNEL, lookupd=broker.lookupd_addresses, max_in_flight=1
    ) as consumer:
        for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies


def test_a_peek_reads_what_waits_and_changes_nothing(broker: BackgroundBroker) -> None:
    publish(broker, range(400))
    before = channels(broker)
    read = peek(broker)
    for _ in range(2):
        rows = read.rows()
        assert numbers(rows) == [*range(400)]
        assert {row["attempts"] for row in rows} == {1}
        assert {row["channel"] for row in rows} == {CHANNEL}
        check_order(rows)
    assert channels(broker) == before
    await_no_channel(broker, TOPIC, CHANNEL)


def test_a_peek_leaves_out_what_is_finished(broker: BackgroundBroker) -> None:
    publish(broker, range(100), partition=2)
    finished = finish(broker, 30)
    left = [n for n in range(100) if b"%d" % n not in finished]
    assert peek(broker).numbers() == left
    assert depth(broker) == len(left)


def test_a_peek_is_limited(broker: BackgroundBroker) -> None:
    publish(broker, range(400))
    assert len(peek(broker, maxMessages="50").rows()) == 50
    assert len(peek(broker, maxMessagesPerPartition="20").rows()) == 80
    assert peek(broker, maxMessagesPerPartition="20", maxMessages="8").numbers()


def test_a_peek_sees_an_ordered_topic_without_disturbing_it(broker: BackgroundBroker) -> None:
    broker.create_topic("changes", partitions=2, replicas=2, ordered=True)
    with blocking.Consumer("changes", CHANNEL, lookupd=broker.lookupd_addresses) as consumer:
        publish(broker, [*range(50)], "changes", partition=1)
        with next(iter(consumer)) as message:  # in flight: it keeps all others waiting
            assert peek(broker, topic="changes").numbers() == [*range(50)]
            assert message.body == b"0"
    assert depth(broker, "changes") == 49


def test_a_peek_creates_nothing(broker: BackgroundBroker) -> None:
    broker.create_topic("fares", replicas=2)
    with pytest.raises(ConfigError, match=r"'spark' of topic 'fares' is unknown .* creates noth"):
        peek(broker, topic="fares")
    await_no_channel(broker, "fares")


def test_a_peek_at_an_empty_channel_has_no_rows(broker: BackgroundBroker) -> None:
    assert peek(broker).partitions == []


# mode=consume


def consume(broker: BackgroundBroker, folder: Path, **options: str) -> TableRead:
    given = {"channel": CHANNEL, "spoolLocation": str(folder / "spool")} | options
    return TableRead(broker, **given)


def test_a_read_takes_what_waits(broker: BackgroundBroker, tmp_path: Path) -> None:
    publish(broker, range(400))
    read = consume(broker, tmp_path)
    assert {type(each) for each in read.partitions} == {NsqInputPartition}
    rows = read.rows()
    assert numbers(rows) == [*range(400)]
    assert {row["channel"] for row in rows} == {CHANNEL}
    assert {row["nsqd"] for row in rows} <= {*broker.nsqd_addresses}
    assert depth(broker) == 0
    assert read.rows() == rows  # from the spool
    publish(broker, range(400, 500))
    assert consume(broker, tmp_path).numbers() == [*range(400, 500)]


def test_a_read_is_limited_and_leaves_the_rest(broker: BackgroundBroker, tmp_path: Path) -> None:
    publish(broker, range(400))
    first = consume(broker, tmp_path, maxMessages="150").numbers()
    assert len(first) == 150
    assert depth(broker) == 250
    assert sorted(first + consume(broker, tmp_path).numbers()) == [*range(400)]


def test_a_read_of_an_ordered_topic_is_in_order(broker: BackgroundBroker, tmp_path: Path) -> None:
    broker.create_topic("changes", partitions=2, replicas=2, ordered=True)
    consume(broker, tmp_path, topic="changes").rows()  # makes the channel
    publish(broker, range(200), "changes")
    rows = consume(broker, tmp_path, topic="changes").rows()
    assert numbers(rows) == [*range(200)]
    check_order(rows)
    assert depth(broker, "changes") == 0


def test_a_named_read_has_the_same_rows_after_new_messages(
    broker: BackgroundBroker, tmp_path: Path
) -> None:
    publish(broker, range(400))
    rows = consume(broker, tmp_path, readId="monday").rows()
    assert numbers(rows) == [*range(400)]
    publish(broker, range(400, 500))
    assert consume(broker, tmp_path, readId="monday").rows() == rows
    assert depth(broker) == 100


def test_a_named_read_of_nothing_keeps_no_other_read_away(
    broker: BackgroundBroker, tmp_path: Path
) -> None:
    assert consume(broker, tmp_path, readId="monday").partitions == []
    publish(broker, range(100))
    assert consume(broker, tmp_path, readId="monday").partitions == []
    assert consume(broker, tmp_path, readId="tuesday").numbers() == [*range(100)]


@pytest.mark.parametrize("ordered", [False, True], ids=["ordinary", "ordered"])
def test_a_named_read_that_broke_off_goes_on_where_it_was(
    broker: BackgroundBroker, tmp_path: Path, ordered: bool
) -> None:
    broker.create_topic("moving", partitions=1, replicas=3, ordered=ordered)
    consume(broker, tmp_path, topic="moving").rows()  # makes the channel
    count = 1500 if ordered else 6000
    publish(broker, range(count), "moving")
    options = {"topic": "moving", "readId": "monday"}
    read = consume(broker, tmp_path, **options)
    batches = read.batches(read.partitions[0])
    first = next(batches).to_pylist()
    batches.close()  # type: ignore[attr-defined]  # as Python does with a task that ends
    broker.move_leader("moving", 0, 1)
    again = consume(broker, tmp_path, **options)
    rows = again.rows()
    assert rows[: len(first)] == first
    assert numbers(rows) == [*range(count)]
    assert depth(broker, "moving") == 0
    assert consume(broker, tmp_path, **options).rows() == rows


def test_a_leader_that_moves_during_a_read_changes_nothing(
    broker: BackgroundBroker, tmp_path: Path
) -> None:
    publish(broker, range(8000), partition=0)
    (partition,) = (read := consume(broker, tmp_path)).partitions
    rows: list[dict[str, Any]] = []
    for number, batch in enumerate(read.batches(partition)):
        rows += batch.to_pylist()
        broker.move_leader(TOPIC, 0, number % 3)
    assert numbers(rows) == [*range(8000)]


def test_a_plan_says_where_each_partition_begins(broker: BackgroundBroker, tmp_path: Path) -> None:
    publish(broker, range(40))
    consume(broker, tmp_path, readId="monday").rows()
    publish(broker, range(40, 80))
    read = consume(broker, tmp_path, readId="tuesday")
    bases = {}
    for each in read.partitions:
        assert isinstance(each, NsqInputPartition)
        assert each.coverage is not None
        bases[each.id.key] = each.coverage.base
    assert all(base > 0 for base in bases.values())
    store = open_store(str(tmp_path / "spool"), "owner")
    marker = json.loads(store.read(generation_marker("read-tuesday")))
    plan = BatchPlan.decode(marker["plan"])
    assert {key: state.coverage.base for key, state in plan.progress.states.items()} == bases


def test_a_plan_that_does_not_say_it_is_damaged(broker: BackgroundBroker, tmp_path: Path) -> None:
    publish(broker, range(40))
    consume(broker, tmp_path, readId="monday").rows()
    store = open_store(str(tmp_path / "spool"), "owner")
    name = generation_marker("read-monday")
    marker = json.loads(store.read(name))
    del marker["plan"]["progress"]
    remove_generation(store, "read-monday")
    store.write(name, json.dumps(marker).encode())
    with pytest.raises(SpoolError, match=r"is damaged: it does not say where orders\|0 begins"):
        consume(broker, tmp_path, readId="monday")


def test_a_plan_is_the_same_after_json() -> None:
    plan = BatchPlan(Offset("read-a", 1, 5, {"t|h:1": [5]}), {"t|h:1": "h:2"})
    assert BatchPlan.decode(json.loads(json.dumps(plan.encode()))).encode() == plan.encode()
    assert "progress" not in plan.encode()


def test_two_reads_do_not_share_a_channel(broker: BackgroundBroker, tmp_path: Path) -> None:
    publish(broker, range(100), partition=0)
    read = consume(broker, tmp_path)
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    leader = asyncio.run(cluster.topic(TOPIC)).leaders[0].address
    other = connect(
        leader,
        Access(),
        topic=TOPIC,
        channel=CHANNEL,
        partition=0,
        client_id=client_id(f"{BATCH_PREFIX}{'0' * 32}"),
    )
    with (
        closing(other),
        pytest.raises(
            SourceInUseError, match="channel 'spark' of topic 'orders' on partition 0 is"
        ),
    ):
        read.rows()
    with pytest.raises(SourceInUseError):  # the task is tried again, when the other has ended
        read.rows()
    assert depth(broker) == 100
