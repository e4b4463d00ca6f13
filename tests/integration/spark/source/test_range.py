"""``mode=range``: a part of a redesigned topic, as driver and tasks read it, on our broker."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nsqflow import blocking
from nsqflow.admin import RedesignedCluster
from nsqflow.admin.partition import PartitionApi
from nsqflow.broker import BackgroundBroker
from nsqflow.client.position import Position
from nsqflow.errors import ConfigError, DataLossError, NetworkError, NsqError
from nsqflow.spark.options import parse_batch
from nsqflow.spark.source import range_plan, range_reader
from nsqflow.spark.source.batch_reader import NsqBatchReader
from nsqflow.spark.source.range_plan import MessageRange, RangeInputPartition
from tests.fixtures.servers import PATIENCE
from tests.integration.spark.source.table_reads import (
    TOPIC,
    TableRead,
    await_no_channel,
    check_order,
    moving_leaders,
    now,
    numbers,
    publish,
    stats,
)


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", 3) as broker:
        broker.create_topic(TOPIC, partitions=4, replicas=2)
        yield broker


def ranged(broker: BackgroundBroker, **options: str) -> TableRead:
    return TableRead(broker, mode="range", **options)


def ranges(read: TableRead) -> list[MessageRange]:
    found = []
    for partition in read.partitions:
        assert isinstance(partition, RangeInputPartition)
        found.append(partition.range)
    return found


def test_a_range_has_all_messages_in_order_and_leaves_no_channel(broker: BackgroundBroker) -> None:
    publish(broker, range(3000))
    read = ranged(broker)
    assert [each.key for each in ranges(read)] == [f"{TOPIC}|{number}" for number in range(4)]
    rows = read.rows()
    assert numbers(rows) == [*range(3000)]
    check_order(rows)
    await_no_channel(broker)


def test_rows_say_where_they_come_from_and_no_channel(broker: BackgroundBroker) -> None:
    publish(broker, [7], partition=2, trace=99)
    (row,) = ranged(broker).rows()
    place = {name: row[name] for name in ("partition", "offset", "size", "trace_id", "attempts")}
    assert place == {"partition": 2, "offset": 0, "size": 31, "trace_id": 99, "attempts": 1}
    assert row["internal_id"] == (2 << 50) + 2
    assert row["nsqd"] in broker.nsqd_addresses
    assert (row["topic"], row["channel"], row["headers"], row["tag"]) == (TOPIC, None, None, None)


def test_a_range_by_time_has_exactly_what_lies_between(broker: BackgroundBroker) -> None:
    publish(broker, range(400))
    start = now()
    publish(broker, range(400, 800))
    end = now()
    publish(broker, range(800, 1200))
    assert ranged(broker, startingPosition=start).numbers() == [*range(400, 1200)]
    assert ranged(broker, endingTimestamp=end).numbers() == [*range(800)]
    both = {"startingPosition": start, "endingTimestamp": end}
    first, second = ranged(broker, **both), ranged(broker, **both)
    assert first.numbers() == [*range(400, 800)]
    assert second.rows() == first.rows()


def test_a_range_ends_where_the_partitions_ended_when_it_was_planned(
    broker: BackgroundBroker,
) -> None:
    publish(broker, range(100))
    read = ranged(broker)
    publish(broker, range(100, 200))
    assert read.numbers() == [*range(100)]
    publish(broker, range(200, 300))
    assert read.numbers() == [*range(100)]


def test_a_range_begins_at_offsets(broker: BackgroundBroker) -> None:
    publish(broker, range(40))
    rows = ranged(broker).rows()
    middle = [row for row in rows if row["partition"] == 1][5]
    offsets = {TOPIC: {"0": "latest", "1": middle["offset"], "2": "earliest"}}
    found = ranged(broker, startingPosition=json.dumps(offsets)).rows()
    expected = [row for row in rows if row["partition"] in (2, 3)]
    expected += [row for row in rows if row["partition"] == 1 and row["offset"] >= middle["offset"]]
    assert numbers(found) == numbers(expected)


def test_nothing_is_a_range_too(broker: BackgroundBroker) -> None:
    assert ranged(broker).partitions == []
    publish(broker, range(10))
    assert ranged(broker, startingPosition="latest").partitions == []
    assert ranged(broker, startingPosition=now()).partitions == []
    assert ranged(broker, endingTimestamp="timestamp:0").partitions == []


def test_a_range_is_limited_and_the_same_each_time(broker: BackgroundBroker) -> None:
    publish(broker, range(1000))
    read = ranged(broker, maxMessages="101")
    rows = read.rows()
    assert len(rows) == 101
    check_order(rows)
    assert {row["partition"] for row in rows} == {0, 1, 2, 3}
    assert ranged(broker, maxMessages="101").rows() == rows
    assert len(ranged(broker, maxMessages="3").rows()) == 3
    assert len(ranged(broker, maxMessages="5000").rows()) == 1000


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"partitionsPerNsqd": "3"}, [34, 33, 33]),
        ({"maxMessagesPerPartition": "40"}, [34, 33, 33]),
        ({"partitionsPerNsqd": "2", "maxMessages": "51"}, [26, 25]),
    ],
)
def test_a_partition_is_split_by_offsets(
    broker: BackgroundBroker, options: dict[str, str], sizes: list[int]
) -> None:
    publish(broker, range(100), partition=0)
    read = ranged(broker, **options)
    assert [each.count for each in ranges(read)] == sizes
    assert [sum(map(len, read.batches(each))) for each in read.partitions] == sizes
    rows = read.rows()
    check_order(rows)
    assert numbers(rows) == [*range(sum(sizes))]


def test_an_ordered_topic_is_read_in_order(broker: BackgroundBroker) -> None:
    broker.create_topic("changes", partitions=2, replicas=2, ordered=True)
    publish(broker, range(500), "changes")
    read = ranged(broker, topic="changes", partitionsPerNsqd="2")
    assert len(read.partitions) == 4
    rows = read.rows()
    assert numbers(rows) == [*range(500)]
    check_order(rows)
    await_no_channel(broker, "changes")


def test_headers_and_tags_are_columns(broker: BackgroundBroker) -> None:
    broker.create_topic("events", replicas=2, extended=True)
    publish(broker, [1], "events", headers={"region": "eu"}, tag="a", trace=5)
    publish(broker, [2], "events")
    first, second = ranged(broker, topic="events").rows()
    assert (dict(first["headers"])["region"], first["tag"], first["trace_id"]) == ("eu", "a", 5)
    assert (second["headers"], second["tag"]) == (None, None)


def test_a_read_of_several_topics_has_all_of_them(broker: BackgroundBroker) -> None:
    broker.create_topic("orders.eu", replicas=2)
    publish(broker, range(10))
    publish(broker, range(10, 20), "orders.eu")
    assert ranged(broker, topic=f"{TOPIC},orders.eu").numbers() == [*range(20)]
    given = {"lookupd": ",".join(broker.lookupd_addresses), "topicPattern": "orders.*"}
    reader = NsqBatchReader(parse_batch(given | {"mode": "range"}), positions=True)
    assert len(reader.partitions()) == 5


# Leaders


@pytest.mark.parametrize("ordered", [False, True], ids=["ordinary", "ordered"])
def test_nothing_is_missed_or_repeated_when_leaders_move(
    broker: BackgroundBroker, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_MAX_ORDERED", 100)
    count = 1000 if ordered else 8000
    broker.create_topic("moving", partitions=1, replicas=3, ordered=ordered)
    publish(broker, range(count), "moving")
    (partition,) = (read := ranged(broker, topic="moving")).partitions
    rows: list[dict[str, Any]] = []
    for number, batch in enumerate(read.batches(partition)):
        rows += batch.to_pylist()
        broker.move_leader("moving", 0, number % 3)
    assert [int(row["body"]) for row in rows] == [*range(count)]
    check_order(rows)
    assert len({row["nsqd"] for row in rows}) > 1
    await_no_channel(broker, "moving")


def test_an_ordered_range_goes_on_however_often_the_leader_moves(broker: BackgroundBroker) -> None:
    broker.create_topic("moving", partitions=1, replicas=3, ordered=True)
    publish(broker, range(300), "moving")
    read = ranged(broker, topic="moving")
    broker.slow(0.005)  # for each message: so no leader stays until all of them have come
    with moving_leaders(broker, "moving", 1):
        rows = read.rows()
    assert [int(row["body"]) for row in rows] == [*range(300)]
    check_order(rows)


def test_a_killed_leader_is_replaced(broker: BackgroundBroker) -> None:
    broker.create_topic("moving", partitions=1, replicas=3)
    publish(broker, range(6000), "moving")
    (partition,) = (read := ranged(broker, topic="moving")).partitions
    batches = read.batches(partition)
    rows = next(batches).to_pylist()
    broker.kill_node(broker.nsqd_addresses.index(rows[0]["nsqd"]))
    for batch in batches:
        rows += batch.to_pylist()
    assert [int(row["body"]) for row in rows] == [*range(6000)]


def test_lost_connections_are_made_again(broker: BackgroundBroker) -> None:
    publish(broker, range(6000), partition=0)
    (partition,) = (read := ranged(broker)).partitions
    rows: list[dict[str, Any]] = []
    for batch in read.batches(partition):
        rows += batch.to_pylist()
        broker.drop_connections()
    assert [int(row["body"]) for row in rows] == [*range(6000)]
    await_no_channel(broker)


@pytest.mark.parametrize("hazard", ["repeat_messages", "lose_moved_cursor", "skip_unfinished"])
def test_the_hazards_of_real_servers_change_no_row(hazard: str) -> None:
    options: dict[str, Any] = {hazard: True}
    with BackgroundBroker("redesigned", 3, **options) as broker:
        broker.create_topic("changes", partitions=1, replicas=3, ordered=True)
        publish(broker, range(300), "changes")
        (partition,) = (read := ranged(broker, topic="changes")).partitions
        batches = read.batches(partition)
        broker.move_leader("changes", 0, 1)
        assert [int(row["body"]) for batch in batches for row in batch.to_pylist()] == [*range(300)]


def test_a_read_that_is_given_up_leaves_no_channel(broker: BackgroundBroker) -> None:
    publish(broker, range(6000), partition=0)
    (partition,) = (read := ranged(broker)).partitions
    batches = read.batches(partition)
    assert len(next(batches)) < 6000
    assert [len(each.channels) for each in stats(broker)] == [1, 0, 0, 0]
    batches.close()  # type: ignore[attr-defined]  # as Python does with a task that ends
    await_no_channel(broker)


@pytest.mark.parametrize("later", [0, 50], ids=["silent", "busy"])
def test_a_channel_that_was_not_moved_is_moved_again(
    broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    publish(broker, range(10), partition=0)
    read = ranged(broker)
    move, moved = PartitionApi.set_offset, list[Position]()

    async def ignored_once(
        api: PartitionApi, topic: str, partition: int, channel: str, position: Position
    ) -> None:
        """Real nsqd may answer 200 and do nothing."""
        moved.append(position)
        if len(moved) > 1:
            await move(api, topic, partition, channel, position)
        else:
            await asyncio.to_thread(publish, broker, range(10, 10 + later), partition=0)

    monkeypatch.setattr(PartitionApi, "set_offset", ignored_once)
    monkeypatch.setattr(range_reader, "_SILENCE", 0.1 if not later else PATIENCE)
    assert read.numbers() == [*range(10)]
    assert len(moved) == 2


def test_a_partition_without_a_leader_fails_after_a_while(
    broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("alone", replicas=1)
    publish(broker, range(10), "alone")
    read = ranged(broker, topic="alone")
    (leader,) = {row["nsqd"] for row in read.rows()}
    broker.kill_node(broker.nsqd_addresses.index(leader))
    monkeypatch.setattr(range_reader, "_TIMEOUT", 0.0)
    with pytest.raises(NetworkError, match="partition 0 of 'alone' has no leader now"):
        read.rows()
    monkeypatch.setattr(range_plan, "LEADER_TIMEOUT", 0.0)
    with pytest.raises(NsqError, match="partition 0 of 'alone' has no leader that answers"):
        ranged(broker, topic="alone")


def test_messages_whose_clock_disagrees_with_their_place_are_left_out(
    broker: BackgroundBroker,
) -> None:
    for number in range(5):
        publish(broker, [number], partition=0)
    read = ranged(broker)
    times = [row["timestamp_ns"] for row in read.rows()]
    (whole,) = ranges(read)
    read.partitions = [RangeInputPartition(replace(whole, since=times[1], until=times[4]))]
    assert read.numbers() == [1, 2, 3]
    read.partitions = [RangeInputPartition(replace(whole, since=times[4] + 1))]
    assert read.numbers() == []


# Losses


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_GAP_TIME", 0.0)


def beginning_at(start: int, read: TableRead) -> TableRead:
    """Change what is planned, as if the server had kept more then."""
    read.partitions = [RangeInputPartition(replace(each, start=start)) for each in ranges(read)]
    return read


@pytest.mark.usefixtures("impatient")
def test_messages_that_are_gone_are_a_loss(
    broker: BackgroundBroker, caplog: pytest.LogCaptureFixture
) -> None:
    publish(broker, range(10), partition=0)
    words = "partition 0 of 'orders' has nothing between offset 1 and 31"
    with pytest.raises(DataLossError, match=words):
        beginning_at(1, ranged(broker)).rows()
    lenient = beginning_at(1, ranged(broker, failOnDataLoss="false"))
    with caplog.at_level(logging.WARNING):
        assert lenient.numbers() == [*range(1, 10)]
    assert f"{words}; continuing without them" in caplog.messages


@pytest.mark.usefixtures("impatient")
def test_a_topic_that_was_created_again_is_noticed(broker: BackgroundBroker) -> None:
    publish(broker, range(10), partition=0)
    read, lenient = ranged(broker), ranged(broker, failOnDataLoss="false")

    async def delete() -> None:
        await RedesignedCluster(lookupd=broker.lookupd_addresses).delete_topic(TOPIC)

    asyncio.run(delete())
    broker.create_topic(TOPIC, partitions=4, replicas=2)
    publish(broker, range(5), partition=0)
    with pytest.raises(DataLossError, match=r"ends at offset 155, and was to be read up to 310"):
        read.rows()
    assert lenient.rows() == []
    publish(broker, range(5, 10), partition=0)
    with pytest.raises(DataLossError, match="has another message at offset 0: its topic was creat"):
        read.rows()


# What is refused


def test_a_classic_topic_is_refused_with_what_classic_nsq_can_do() -> None:
    with BackgroundBroker() as broker:
        broker.create_topic(TOPIC)
        for topic in (TOPIC, "missing"):
            with pytest.raises(ConfigError) as caught:
                ranged(broker, topic=topic)
            assert str(caught.value) == (
                f"mode=range is invalid: {topic!r} is a classic topic, and classic NSQ keeps "
                "nothing that is finished; must be consume or peek, which read what waits in a "
                "channel"
            )


def test_an_unknown_topic_is_refused_with_similar_names(broker: BackgroundBroker) -> None:
    with pytest.raises(ConfigError) as caught:
        ranged(broker, topic="order")
    assert str(caught.value).startswith("topic 'order' is unknown to nsqlookupd ")
    assert str(caught.value).endswith("; did you mean 'orders'? mode=range creates nothing")


def test_a_pattern_that_matches_nothing_is_refused(broker: BackgroundBroker) -> None:
    given = {"lookupd": broker.lookupd_addresses[0], "topicPattern": "fares.*", "mode": "range"}
    with pytest.raises(ConfigError) as caught:
        NsqBatchReader(parse_batch(given), positions=True).partitions()
    assert str(caught.value).startswith("topicPattern 'fares.*' matches no topic on nsqlookupd ")
    assert str(caught.value).endswith("; there are the topics 'orders'; mode=range creates nothing")


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ({"fares": {"0": 0}}, "startingPosition names topic 'fares', which is not read"),
        ({TOPIC: {"4": 0}}, "startingPosition names partition 4 of 'orders', which is invalid: mu"),
        ({TOPIC: {"0": 1}}, "startingPosition has offset 1 for partition 0 of 'orders', which is"),
    ],
)
def test_offsets_that_there_are_not_are_refused(
    broker: BackgroundBroker, offsets: dict[str, dict[str, int]], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ranged(broker, startingPosition=json.dumps(offsets))
    assert str(caught.value).startswith(words)


def test_a_topic_whose_channels_would_stay_is_refused(broker: BackgroundBroker) -> None:
    async def create() -> None:
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await cluster.create_topic("fixed", registered_channels=True, wait=30)

    asyncio.run(create())
    with blocking.Producer(lookupd=broker.lookupd_addresses) as producer:
        producer.publish("fixed", b"1")
    with pytest.raises(ConfigError) as caught:
        ranged(broker, topic="fixed")
    assert str(caught.value) == (
        "mode=range is invalid for topic 'fixed': nsqlookupd alone creates its channels, and keeps "
        "them; must be consume, with a channel"
    )
