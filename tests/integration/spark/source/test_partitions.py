"""A stream of topics of the redesigned NSQ, without Spark: rows, changes of leaders, losses.

The cluster has the hazards of the real servers: an ordered channel repeats messages when its
leader changes, a channel that never finished a message skips to the end, and a seek is undone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.admin.partition import BrowsedMessage
from nsqflow.blocking import Consumer, Producer
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import (
    AdminError,
    ConfigError,
    DataLossError,
    DiscoveryError,
    NetworkError,
    NsqError,
)
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.pull import PullSubscription
from nsqflow.spark.spool.slots import Slots
from tests.integration.spark.source.batches import BatchRun, Row, by_partition, in_order, numbers
from tests.integration.spark.source.clusters import (
    PARTITIONS,
    Start,
    follower_of,
    leader_of,
    move,
    publish,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker(
        "redesigned",
        nodes=3,
        repeat_messages=True,
        skip_unfinished=True,
        lose_moved_cursor=True,
    ) as broker:
        yield broker


# --- rows ---------------------------------------------------------------------------------------


def test_a_row_has_all_that_nsqd_says_of_a_message(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic, partitions=2, extended=True)
    run = start()
    run.begin()
    receipt = producer.publish(
        topic,
        b"1",
        partition=1,
        trace=2**64 - 1,
        headers={"colour": "red", "size": 3, "nested": {"a": None}},
        tag="blue",
    )
    assert receipt is not None
    producer.publish(topic, b"2", partition=1)
    first, second = run.read_all(2)
    assert first["internal_id"] == receipt.internal_id == int.from_bytes(first["id"][:8], "big")
    assert (first["partition"], first["offset"], first["size"]) == (1, receipt.offset, receipt.size)
    assert first["trace_id"] == Decimal(2**64 - 1)
    headers = dict(first["headers"])
    assert (headers["colour"], headers["size"], headers["nested"]) == ("red", "3", '{"a": null}')
    assert first["tag"] == "blue"
    assert (first["topic"], first["channel"]) == (topic, "spark")
    assert first["nsqd"] in broker.nsqd_addresses
    assert first["attempts"] == 1
    assert (second["trace_id"], second["headers"], second["tag"]) == (Decimal(0), None, None)
    assert second["offset"] == first["offset"] + first["size"]


def test_each_message_of_each_partition_is_a_row_once(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic, PARTITIONS)
    run = start()
    run.begin()
    publish(producer, topic, 3000)
    rows = run.read_all(3000, limit=1000)
    assert sorted(numbers(rows)) == [*range(3000)]
    assert {*by_partition(rows)} == {0, 1, 2}
    assert run.plan() == run.start


def test_bodies_alone_have_no_positions(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    run = start(positions=False, includeMetadata="false")
    run.begin()
    producer.publish(topic, b"1")
    assert run.read_all(1) == [{"body": b"1"}]


# --- channels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_the_channel_is_in_every_partition_before_anything_is_read(
    broker: BackgroundBroker, cluster: RedesignedCluster, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, PARTITIONS, ordered=ordered)
    start().begin()
    stats = asyncio.run(cluster.stats(topic))
    assert [each.partition for each in stats if each.channel("spark")] == [0, 1, 2]


def test_the_channel_of_a_topic_with_registered_channels_is_created_through_nsqlookupd(
    cluster: RedesignedCluster, producer: Producer, topic: str, start: Start
) -> None:
    asyncio.run(cluster.create_topic(topic, partitions=2, registered_channels=True, wait=20))
    run = start()
    run.begin()
    producer.publish(topic, b"1", partition=1)
    assert numbers(run.read_all(1)) == [1]


def test_a_channel_that_exists_is_read_from_where_it_is(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
) -> None:
    broker.create_topic(topic)
    asyncio.run(cluster.create_channel(topic, "spark"))
    producer.publish_many(topic, [b"0", b"1", b"2"])
    with Consumer(topic, "spark", lookupd=broker.lookupd_addresses, max_in_flight=1) as consumer:
        next(iter(consumer)).finish()
    assert sorted(numbers(start().read_all(2))) == [1, 2]


def test_a_topic_that_is_missing_is_an_error_with_the_command_that_creates_it(
    topic: str, start: Start
) -> None:
    with pytest.raises(ConfigError, match=f"{topic!r} does not exist .*nsqflow create {topic}"):
        start().plan()


def test_new_partitions_are_read_from_their_first_message(
    broker: BackgroundBroker, producer: Producer, start: Start, topic: str
) -> None:
    broker.create_topic(f"{topic}a")
    run = start(topic=None, topicPattern=f"{topic}.")
    run.begin()
    producer.publish(f"{topic}a", b"1")
    assert numbers(run.read_all(1)) == [1]
    broker.create_topic(f"{topic}b", partitions=2)
    producer.publish(f"{topic}b", b"2", partition=0)
    producer.publish(f"{topic}b", b"3", partition=1)
    assert sorted(numbers(run.read_all(2))) == [2, 3]


# --- changes of leaders -------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_a_leader_that_moves_between_and_in_batches_loses_and_repeats_nothing(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    ordered: bool,
) -> None:
    broker.create_topic(topic, PARTITIONS, replicas=3, ordered=ordered)
    run = start()
    run.begin()
    publish(producer, topic, 900)
    rows: list[Row] = []
    while len(rows) < 900:
        end = run.await_plan(200)
        for number, partition in enumerate(run.partitions(end)):
            taken = run.rows(partition)
            rows.append(next(taken))
            move(broker, cluster, topic, number)
            rows += taken
        run.commit(end)
    assert sorted(numbers(rows)) == [*range(900)]
    assert not ordered or in_order(rows)


def test_an_ordinary_topic_is_read_in_order_if_it_is_to_be(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
) -> None:
    broker.create_topic(topic, 2, replicas=3)
    run = start(ordered="true")
    run.begin()
    publish(producer, topic, 400, partitions=2)
    rows = run.batch(100)
    move(broker, cluster, topic, 0)
    rows += run.read_all(400 - len(rows), limit=100)
    assert sorted(numbers(rows)) == [*range(400)]
    assert in_order(rows)


def test_a_query_may_read_in_order_from_a_restart_on_and_then_stays_so(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic, 2)
    run = start()
    run.begin()
    publish(producer, topic, 400, partitions=2)
    rows = run.batch(100)
    run.restart(ordered="true")
    later = run.read_all(200, limit=100)
    run.restart(ordered="false")
    later += run.read_all(400 - len(rows) - len(later))
    assert in_order(later)
    assert sorted(numbers(rows + later)) == [*range(400)]


def test_a_leader_that_is_killed_loses_and_repeats_nothing(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    cluster: RedesignedCluster,
) -> None:
    broker.create_topic(topic, PARTITIONS, replicas=3)
    run = start()
    run.begin()
    publish(producer, topic, 600)
    rows = run.batch(300)
    node = broker.nsqd_addresses.index(leader_of(cluster, topic, 0))
    broker.kill_node(node)
    try:
        rows += run.read_all(600 - len(rows))
    finally:
        broker.start_node(node)
    assert sorted(numbers(rows)) == [*range(600)]


def test_a_follower_and_an_nsqlookupd_that_are_lost_change_nothing(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    cluster: RedesignedCluster,
) -> None:
    broker.create_topic(topic, 1, replicas=2)
    run = start()
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(200)])
    rows = run.batch(100)
    node = broker.nsqd_addresses.index(asyncio.run(follower_of(cluster, topic)))
    broker.kill_node(node)
    broker.stop_lookupd(0)
    try:
        rows += run.read_all(100)
    finally:
        broker.start_node(node)
        broker.start_lookupd(0)
    assert sorted(numbers(rows)) == [*range(200)]


# --- crashes ------------------------------------------------------------------------------------


class Crash(Exception):
    """A task or a driver that dies."""


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_that_is_read_again_has_the_same_rows(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, PARTITIONS, ordered=ordered)
    run = start()
    run.begin()
    publish(producer, topic, 300)
    end = run.await_plan(200)
    before = run.read(end)
    assert run.read(end) == before
    publish(producer, topic, 100, first=300)
    run.restart()
    assert run.read(end) == before
    run.commit(end)
    rows = before + run.read_all(400 - len(before))
    assert sorted(numbers(rows)) == [*range(400)]
    assert not ordered or in_order(rows)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(
    "step", [(Slots, "create"), (PullSubscription, "finish")], ids=["before slot", "before FIN"]
)
def test_a_task_that_dies_loses_and_repeats_nothing(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    ordered: bool,
    moved: bool,
    step: tuple[type, str],
) -> None:
    """What came before the slot of an ordered topic is finished: the next task moves back."""
    broker.create_topic(topic, replicas=3, ordered=ordered)
    run = start(msgTimeout="1s")
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(50)])
    rows = run.batch(10)
    end = run.await_plan(30)

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(*step, crash)
        run.read(end)
    if moved:
        move(broker, cluster, topic, 0)
    rows += run.read(end)
    run.commit(end)
    rows += run.read_all(50 - len(rows))
    assert sorted(numbers(rows)) == [*range(50)]
    assert not ordered or numbers(rows) == [*range(50)]


@pytest.mark.parametrize("ordered", [False, True])
def test_tasks_that_read_a_partition_at_once_have_the_same_rows(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start()
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(2000)])
    end = run.await_plan()
    (partition,) = run.partitions(end)
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(run.read_partition, [partition] * 3)
    assert others == [first, first]
    run.commit(end)
    rows = first + (run.read_all(2000 - len(first)) if len(first) < 2000 else [])
    assert sorted(numbers(rows)) == [*range(2000)]
    assert not ordered or in_order(rows)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_is_limited_by_bytes(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start(maxBytesPerTrigger="1000")
    run.begin()
    producer.publish_many(topic, [b"%010d" % number for number in range(500)])
    rows = run.batch()
    assert 1 <= len(rows) <= 100
    rows += run.read_all(500 - len(rows))
    assert sorted(numbers(rows)) == [*range(500)]
    assert not ordered or in_order(rows)


def test_an_ordered_channel_that_is_shared_is_finished_only_after_its_slots(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another consumer may read what a moved channel repeats, so it is never moved."""
    broker.create_topic(topic, ordered=True)
    run = start(allowSharedChannel="true", msgTimeout="1s")
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(30)])
    end = run.await_plan()

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Slots, "create", crash)
        run.read(end)
    rows = run.read(end)
    run.commit(end)
    rows += run.read_all(30 - len(rows)) if len(rows) < 30 else []
    assert numbers(rows) == [*range(30)]


def test_connections_that_are_lost_while_a_batch_is_read_lose_and_repeat_nothing(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nsqd requeues at once and counts no attempt: the copies look like new messages."""
    broker.create_topic(topic)
    run = start()
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(300)])
    rows = run.batch(100)
    end = run.await_plan(100)
    create = Slots.create
    lost: list[bool] = []

    def create_and_lose(self: Slots, *given: object) -> object:
        created = create(self, *given)  # type: ignore[arg-type]
        if not lost:
            lost.append(True)
            broker.drop_connections()
        return created

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "create", create_and_lose)
        rows += run.read(end)
    run.commit(end)
    rows += run.read_all(300 - len(rows))
    assert lost
    assert sorted(numbers(rows)) == [*range(300)]


# --- losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
def test_a_topic_that_is_created_again_is_reported(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    stopped: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asyncio.run(cluster.create_topic(topic, wait=20))
    run = start()
    run.begin()
    producer.publish_many(topic, [b"1", b"2"])
    run.read_all(2)
    if stopped:
        run.close()
    asyncio.run(cluster.delete_topic(topic))
    asyncio.run(cluster.create_topic(topic, wait=20))
    asyncio.run(cluster.create_channel(topic, "spark"))
    producer.publish_many(topic, [b"3", b"4", b"5"])
    if stopped:
        run.restart()
    with pytest.raises(DataLossError, match="created again"):
        run.read_all(1)
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert sorted(numbers(run.read_all(3))) == [3, 4, 5]
    assert "created again" in caplog.text


FAILURES: list[NsqError] = [
    NetworkError("127.0.0.1:1: connection refused"),
    DiscoveryError("partition 0 has no leader now"),
    AdminError(400, "E_FAILED_ON_NOT_LEADER"),
]


@pytest.mark.parametrize("created_again", [False, True])
def test_a_leader_that_moves_does_not_hide_that_a_topic_was_created_again(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    created_again: bool,
) -> None:
    """Nothing is read before its leader has said what it has now."""
    asyncio.run(cluster.create_topic(topic, wait=20))
    run = start()
    run.begin()
    producer.publish_many(topic, [b"1"] * 20)
    run.read_all(20)
    run.close()
    if created_again:
        asyncio.run(cluster.delete_topic(topic))
        asyncio.run(cluster.create_topic(topic, wait=20))
    larger = [b"%d" % number + b" " * 1000 for number in range(3, 6)]  # with lower ids, if new
    producer.publish_many(topic, larger)
    failures = [*FAILURES]
    message_at = BacklogMonitor.message_at

    def fail(monitor: BacklogMonitor, key: str, offset: int) -> BrowsedMessage:
        if failures:
            raise failures.pop()
        return message_at(monitor, key, offset)

    monkeypatch.setattr(BacklogMonitor, "message_at", fail)
    run.restart()
    if created_again:
        with pytest.raises(DataLossError, match="created again: its internal ids start over"):
            run.read_all(1)
        assert not failures
        run.restart(failOnDataLoss="false")
    assert sorted(numbers(run.read_all(3))) == [3, 4, 5]
    assert not failures


def test_available_now_does_not_end_as_long_as_a_partition_is_not_checked(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nsqflow.spark.source.planner._LATE", 0.1)
    broker.create_topic(topic)
    run = start(msgTimeout="1s")
    run.begin()
    producer.publish_many(topic, [b"1", b"2"])
    run.read_all(2)
    producer.publish_many(topic, [b"3"])
    run.close()

    def fail(*_: object) -> BrowsedMessage:
        raise FAILURES[0]

    with monkeypatch.context() as patch:
        patch.setattr(BacklogMonitor, "message_at", fail)
        again = start(available_now=True, spoolLocation=run.given["spoolLocation"], msgTimeout="1s")
        again.start = run.start
        with pytest.raises(NetworkError, match=r"not everything can be read.*connection refused"):
            again.read_now()
    again.restart()
    assert numbers(again.read_now()) == [3]


def test_a_channel_that_was_deleted_loses_nothing_as_its_messages_are_kept(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
) -> None:
    broker.create_topic(topic)
    run = start()
    run.begin()
    producer.publish_many(topic, [b"1", b"2"])
    assert numbers(run.batch(1)) == [1]
    asyncio.run(cluster.change_channel("delete", topic, "spark"))
    assert numbers(run.read_all(1)) == [2]


# --- where a query begins -----------------------------------------------------------------------


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_query_begins_with_the_oldest_message_if_it_is_to(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    ordered: bool,
    moved: bool,
) -> None:
    broker.create_topic(topic, replicas=3, ordered=ordered)
    producer.publish_many(topic, [b"%d" % number for number in range(30)])
    run = start(startingPosition="earliest")
    end = run.await_plan()
    if moved:
        move(broker, cluster, topic, 0)
    rows = run.read(end)
    run.commit(end)
    rows += run.read_all(30 - len(rows)) if len(rows) < 30 else []
    assert sorted(numbers(rows)) == [*range(30)]
    assert not ordered or in_order(rows)


def publish_until(producer: Producer, topic: str, second: int) -> int:
    """Publish numbers to partition 0 until a second has begun; return how many."""
    count = 0
    while time.time() < second:
        producer.publish(topic, b"%d" % count, partition=0)
        count += 1
    return count


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_query_begins_at_a_time(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    ordered: bool,
    moved: bool,
) -> None:
    broker.create_topic(topic, PARTITIONS, replicas=3, ordered=ordered)
    second = int(time.time()) + 1
    count = publish_until(producer, topic, second)
    publish(producer, topic, 300, first=count)
    earlier = start(channel="other", startingPosition="earliest").read_all(count + 300)
    expected = {int(row["body"]) for row in earlier if row["timestamp_ns"] >= second * 10**9}
    assert expected
    run = start(startingPosition=f"timestamp:{second}")
    end = run.await_plan()
    if moved:
        for number in range(PARTITIONS):
            move(broker, cluster, topic, number)
    rows = run.read(end)
    run.commit(end)
    rows += run.read_all(len(expected) - len(rows)) if len(rows) < len(expected) else []
    assert sorted(numbers(rows)) == sorted(expected)
    assert run.plan() == run.start
    assert not ordered or in_order(rows)


def test_a_query_begins_at_offsets_by_partition(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic, PARTITIONS)
    publish(producer, topic, 300)
    rows = start(channel="other", startingPosition="earliest").read_all(300)
    offset = by_partition(rows)[1][40]["offset"]
    position = {topic: {"0": "latest", "1": offset + 1, "2": "earliest"}}
    run = start(startingPosition=json.dumps(position))
    found = by_partition(run.read_all(59 + 100))
    assert {number: len(rows) for number, rows in found.items()} == {1: 59, 2: 100}
    assert found[1][0]["offset"] > offset


def test_an_offset_beyond_the_end_is_an_error_with_the_range(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    producer.publish(topic, b"1")
    position = json.dumps({topic: {"0": 10**6}})
    with pytest.raises(ConfigError, match=r"offset 1000000 .* is invalid: must be from 0 to 31"):
        start(startingPosition=position).plan()


@pytest.mark.parametrize("named", ["another topic", "another partition"])
def test_an_offset_of_what_is_not_read_is_an_error_until_the_query_has_begun(
    broker: BackgroundBroker, topic: str, start: Start, named: str
) -> None:
    broker.create_topic(topic)
    wrong = {f"{topic}s": {"0": 0}} if named == "another topic" else {topic: {"1": 0}}
    run = start(startingPosition=json.dumps(wrong))
    with pytest.raises(ConfigError, match="startingPosition names"):
        run.plan()
    run.restart(startingPosition=json.dumps({topic: {"0": 0}}))
    run.begin()
    run.restart(startingPosition=json.dumps(wrong))
    assert run.plan() == run.start


def test_a_query_begins_with_what_is_published_from_now_on(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
) -> None:
    broker.create_topic(topic)
    asyncio.run(cluster.create_channel(topic, "spark"))
    producer.publish_many(topic, [b"1", b"2"])
    run = start(startingPosition="latest")
    run.begin()
    producer.publish(topic, b"3")
    assert numbers(run.read_all(1)) == [3]
    producer.publish(topic, b"4")
    run.restart()
    assert numbers(run.read_all(1)) == [4]


@pytest.mark.parametrize("text", ["earliest", "timestamp:1700000000", '{"t": {"0": 5}}'])
def test_a_classic_topic_can_not_go_back(text: str, tmp_path: Path) -> None:
    given = {"topic": "t", "channel": "c", "spoolLocation": str(tmp_path), "startingPosition": text}
    with BackgroundBroker() as broker, Producer(broker.nsqd_addresses) as producer:
        producer.publish("t", b"1")
        run = BatchRun(given | {"lookupd": broker.lookupd_addresses[0]}, positions=False)
        with closing(run), pytest.raises(ConfigError, match="classic NSQ can't go back"):
            run.plan()


# --- available now ------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_available_now_reads_what_was_there_also_if_a_leader_moves(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    ordered: bool,
) -> None:
    broker.create_topic(topic, PARTITIONS, replicas=3, ordered=ordered)
    asyncio.run(cluster.create_channel(topic, "spark"))
    publish(producer, topic, 300)
    run = start(available_now=True)
    end = run.plan(100)
    publish(producer, topic, 100, first=300)
    rows = run.read(end)
    run.commit(end)
    move(broker, cluster, topic, 1)
    rows += run.read_now(100)
    assert len(rows) == len({*numbers(rows)}) == 300


@pytest.mark.parametrize("ordered", [False, True])
def test_available_now_reads_all_that_the_channel_is_beyond_however_small_it_is(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    ordered: bool,
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start()
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(100)])
    producer.publish_many(topic, [b"%d" % number + b" " * 5000 for number in range(100, 120)])
    run.close()
    asyncio.run(cluster.seek(topic, "spark", "count:101"))
    now = start(available_now=True, spoolLocation=run.given["spoolLocation"])
    now.start = run.start
    end = now.plan(20)
    producer.publish_many(topic, [b"120"] * 10)
    rows = now.read(end)
    now.commit(end)
    rows += now.read_now(20)
    assert sorted(numbers(rows)) == [*range(120)]


def test_messages_on_the_delay_queue_are_reported_and_not_waited_for(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
) -> None:
    broker.create_topic(topic)
    asyncio.run(cluster.create_channel(topic, "spark"))
    producer.publish_many(topic, [b"0", b"1", b"2"])
    with Consumer(
        topic, "spark", lookupd=broker.lookupd_addresses, max_requeue_delay=7200
    ) as consumer:
        message = next(iter(consumer))
        message.requeue(3600)
        delayed = int(message.body)
    run = start(available_now=True)
    assert sorted(numbers(run.read_now())) == [number for number in range(3) if number != delayed]
    assert run.reader.reportLatestOffset()["delayed"] == 1
