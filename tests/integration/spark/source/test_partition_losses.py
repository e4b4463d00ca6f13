"""What may be lost around a partition: its spool, slots, leader, and other readers of its channel.

Messages that a spool has lost may still be in the partition: what the query is not known to have
read is read again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.blocking import Consumer, Producer
from nsqflow.broker import BackgroundBroker
from nsqflow.broker.redesigned.engine.channel import PartitionChannel
from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber
from nsqflow.errors import DataLossError, SourceInUseError
from nsqflow.spark.source.pull import Chunk, PullSubscription
from nsqflow.spark.spool.slots import Slots
from tests.integration.spark.source.batches import BatchRun, Row, in_order, numbers
from tests.integration.spark.source.clusters import Start

SLOT = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker(
        "redesigned",
        nodes=3,
        max_rdy_count=SLOT,
        repeat_messages=True,
        skip_unfinished=True,
        lose_moved_cursor=True,
    ) as broker:
        yield broker


def send(producer: Producer, topic: str, count: int, first: int = 0) -> None:
    """Publish numbers to partition 0."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    producer.publish_many(topic, bodies, partition=0)


def spool_of(run: BatchRun) -> Path:
    return Path(run.given["spoolLocation"])


# --- the spool ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_a_spool_of_partitions_that_is_lost_between_batches_loses_nothing(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start()
    run.begin()
    send(producer, topic, 100)
    rows = run.batch(30)
    run.close()
    shutil.rmtree(spool_of(run))
    run.restart()
    with pytest.raises(DataLossError, match="has nothing of generation"):
        run.plan()
    run.restart(failOnDataLoss="false")
    rows += run.read_all(70)
    assert sorted(numbers(rows)) == [*range(100)]
    run.restart(failOnDataLoss="true")
    assert run.plan() == run.start


def test_a_batch_of_partitions_that_was_open_when_the_spool_was_lost_is_an_error(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    run = start()
    run.begin()
    send(producer, topic, 100)
    rows = run.batch(30)
    end = run.await_plan(30)
    lost = run.read(end)
    run.close()
    shutil.rmtree(spool_of(run))
    run.restart()
    with pytest.raises(DataLossError, match="Up to 30 messages of it may be lost"):
        run.read(end)
    run.restart(failOnDataLoss="false")
    rows += run.read(end)
    run.commit(end)
    rows += run.read_all(70 - len(rows))
    assert sorted(numbers(rows + lost)) == [*range(100)]


def test_a_checkpoint_of_partitions_that_is_restored_finds_its_batches_unchanged(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    """Also if the batch that it ends with has left the spool."""
    broker.create_topic(topic)
    run = start(spoolRetentionBatches="1")
    run.begin()
    send(producer, topic, 100)
    rows = run.batch(30)
    checkpoint = run.start
    later = run.batch(30)
    run.settle()
    run.close()
    run.start = checkpoint
    run.restart()
    assert run.batch(30) == later
    rows += later + run.read_all(40)
    assert sorted(numbers(rows)) == [*range(100)]


# --- slots --------------------------------------------------------------------------------------


def damage(path: Path, kind: str) -> None:
    if kind == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("kind", ["missing", "altered"])
@pytest.mark.parametrize(("number", "lost"), [(1, 20), (2, 0)])
def test_a_slot_of_a_partition_that_is_lost_fails_the_query_until_the_loss_is_accepted(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    lost: int,
    kind: str,
    ordered: bool,
) -> None:
    """What was in the last slot is not known to have been read: the next batch has it."""
    monkeypatch.setattr("nsqflow.spark.source.ordered_writer._MAX_MESSAGES", SLOT)
    broker.create_topic(topic, ordered=ordered)
    run = start()
    run.begin()
    send(producer, topic, 100)
    rows = run.batch(10)
    end = run.await_plan(60)
    (partition,) = run.partitions(end)
    before = run.read(end)
    damage(run.slot_paths(partition)[number], kind)
    run.restart()
    with pytest.raises(DataLossError, match=f"lost slot {number} of batch 2, .*partition 0, in "):
        run.read(end)
    run.restart(failOnDataLoss="false")
    found = run.read(end)
    assert found == [row for index, row in enumerate(before) if index // SLOT != number]
    run.restart(failOnDataLoss="true")
    assert run.read(end) == found
    run.commit(end)
    rows += found
    rows += run.read_all(100 - lost - len(rows))
    gone = numbers(before[SLOT * number : SLOT * (number + 1)]) if lost else []
    assert sorted(numbers(rows) + gone) == [*range(100)]


def test_a_last_slot_of_a_completed_batch_that_is_lost_is_read_again(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    run = start()
    run.begin()
    send(producer, topic, 60)
    end = run.await_plan(40)
    (partition,) = run.partitions(end)
    rows = run.read(end)
    run.commit(end)
    paths = run.slot_paths(partition)
    damage(paths[-1], "missing")
    again = run.read_all(60 - SLOT * (len(paths) - 1))
    known = rows[: 60 - len(again)]
    assert sorted(numbers(known + again)) == [*range(60)]
    assert {*numbers(rows)} & {*numbers(again)}


def test_what_was_read_of_partitions_is_not_believed_if_its_marker_was_altered(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    run = start()
    run.begin()
    send(producer, topic, 60)
    rows = run.batch(20) + run.batch(20)
    run.close()
    (marker,) = spool_of(run).glob("*/batches/00000002/_planned")
    altered = re.sub(
        rb'"offsets": \[\[(\d+), \d+\]\]', rb'"offsets": [[\1, 1500]]', marker.read_bytes()
    )
    assert altered != marker.read_bytes()
    marker.write_bytes(altered)
    run.restart()
    with pytest.raises(DataLossError, match="does not say what was read of partition 0 before"):
        run.plan()
    run.restart(failOnDataLoss="false")
    rows += run.read_all(20)
    assert sorted(numbers(rows)) == [*range(60)]


# --- the driver ---------------------------------------------------------------------------------


def test_a_driver_that_ends_before_an_offset_is_logged_or_a_commit_is_known_changes_nothing(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    run = start(spoolRetentionBatches="1")
    run.begin()
    send(producer, topic, 100)
    rows = run.batch(30)
    run.await_plan(30)
    run.restart()  # Spark knows nothing of that plan
    end = run.await_plan(20)
    rows += run.read(end)
    run.start = end
    run.restart()  # Spark has committed, and the source does not know
    rows += run.read_all(50)
    assert sorted(numbers(rows)) == [*range(100)]


def test_one_task_reads_a_partition_whatever_the_options_say(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic, partitions=2)
    run = start(partitionsPerNsqd="3", maxMessagesPerPartition="15")
    run.begin()
    send(producer, topic, 40)
    end = run.await_plan()
    assert end["plan"] == {f"{topic}|0": [15]}
    rows = run.read(end)
    run.commit(end)
    rows += run.read_all(25)
    assert sorted(numbers(rows)) == [*range(40)]


# --- other readers of the channel ---------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_a_second_query_on_the_partitions_of_a_channel_is_refused(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, partitions=2, ordered=ordered)
    run = start()
    run.begin()
    send(producer, topic, 50)
    rows = run.batch(20)
    with pytest.raises(SourceInUseError, match=f"{topic!r} on partition [01] is read by"):
        start().plan()
    rows += run.read_all(30)
    assert sorted(numbers(rows)) == [*range(50)]


def test_queries_that_share_the_partitions_of_a_channel_lose_nothing_and_report_no_loss(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    """What the one has read is not missing to the other, and it moves nothing back."""
    broker.create_topic(topic)
    runs = [start(allowSharedChannel="true") for _ in range(2)]
    for run in runs:
        run.begin()
    rows: list[int] = []
    for turn in range(8):
        send(producer, topic, 40, first=40 * turn)
        rows += numbers(runs[turn % 2].read_all(40))
        assert runs[1 - turn % 2].plan() == runs[1 - turn % 2].start
    runs[0].restart()
    assert runs[0].plan() == runs[0].start
    assert sorted(rows) == [*range(320)]


def test_a_task_that_dies_on_a_shared_ordered_channel_has_finished_nothing_that_is_not_stored(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other task would move the channel back."""
    broker.create_topic(topic, ordered=True)
    run = start(allowSharedChannel="true")
    run.begin()
    send(producer, topic, 30)
    rows = run.batch(5)
    end = run.await_plan(10)
    create = Slots.create

    def die_later(slots: Slots, number: int, *given: Any) -> Any:
        if number == 3:
            raise RuntimeError("killed")
        return create(slots, number, *given)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(Slots, "create", die_later)
        run.read(end)
    rows += run.read(end)
    run.commit(end)
    rows += run.read_all(30 - len(rows))
    assert numbers(rows) == [*range(30)]


def test_what_another_consumer_has_taken_from_a_partition_is_read_as_well(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    run = start()
    run.begin()
    send(producer, topic, 60)
    rows = run.batch(10)
    taken = []
    with Consumer(topic, "spark", lookupd=broker.lookupd_addresses, max_in_flight=1) as consumer:
        for message in consumer:
            message.finish()
            taken.append(int(message.body))
            if len(taken) == 10:
                break
    rows += run.read_all(50)
    assert sorted(numbers(rows)) == [*range(60)]
    assert {*taken} <= {*numbers(rows)}


def test_a_channel_that_someone_moved_back_repeats_nothing(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
) -> None:
    broker.create_topic(topic)
    run = start()
    run.begin()
    send(producer, topic, 100)
    run.read_all(100)
    asyncio.run(cluster.seek(topic, "spark", "earliest"))
    run.await_none()
    assert run.plan() == run.start
    assert run.reader.reportLatestOffset()["last_batch"]["duplicates"] == 100
    send(producer, topic, 10, first=100)
    assert sorted(numbers(run.read_all(10))) == [*range(100, 110)]


def test_messages_before_the_start_are_dropped_in_large_parts(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the first message of a new channel is pulled alone."""
    broker.create_topic(topic)
    send(producer, topic, 300)
    run = start(startingPosition="latest")
    run.begin()
    asyncio.run(cluster.seek(topic, "spark", "earliest"))
    finish, calls = PullSubscription.finish, []

    def finish_and_count(pull: PullSubscription, ids: bytes) -> None:
        calls.append(len(ids))
        finish(pull, ids)

    monkeypatch.setattr(PullSubscription, "finish", finish_and_count)
    send(producer, topic, 10, first=300)
    assert sorted(numbers(run.read_all(10))) == [*range(300, 310)]
    assert len(calls) < 2 * 310 / SLOT


def test_a_paused_channel_is_not_planned_for(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
) -> None:
    broker.create_topic(topic)
    run = start()
    run.begin()
    asyncio.run(cluster.change_channel("pause", topic, "spark"))
    send(producer, topic, 10)
    assert run.plan() == run.start
    assert run.reader.reportLatestOffset()["paused"] == 10
    asyncio.run(cluster.change_channel("unpause", topic, "spark"))
    assert sorted(numbers(run.read_all(10))) == [*range(10)]


@pytest.mark.parametrize("position", ["existing", "earliest"])
def test_a_message_of_the_delay_queue_is_a_row_once_when_its_time_comes(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    position: str,
) -> None:
    """Though the channel is beyond it, and others after it were read long ago."""
    requeue = PartitionChannel.requeue

    def requeue_earlier(
        channel: PartitionChannel, client: PartitionSubscriber, id: bytes, delay: int, now: int
    ) -> None:
        requeue(channel, client, id, delay, now - 900 * 10**9 if delay else now)

    monkeypatch.setattr(PartitionChannel, "requeue", requeue_earlier)
    broker.create_topic(topic)
    broker.create_channel(topic, "spark")
    send(producer, topic, 3)
    with Consumer(
        topic,
        "spark",
        lookupd=broker.lookupd_addresses,
        max_requeue_delay=7200,
        max_in_flight=1,
    ) as consumer:
        next(iter(consumer)).requeue(902)  # which ends in two seconds
    run = start(startingPosition=position)
    assert sorted(numbers(run.read_all(3))) == [0, 1, 2]


# --- what is not a row --------------------------------------------------------------------------


def test_a_dead_letter_keeps_its_headers_and_is_no_new_topic_if_it_is_delivered_again(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its FIN is lost: it is the newest message that the query knows, and in no slot."""
    for name in (topic, f"{topic}dead"):
        broker.create_topic(name, extended=True)
    run = start(maxAttempts="1", deadLetterTopic=f"{topic}dead")
    run.begin()
    producer.publish(topic, b"0")
    rows = run.batch()
    producer.publish(topic, b"1", headers={"colour": "red"}, tag="t")
    with Consumer(topic, "spark", lookupd=broker.lookupd_addresses, desired_tag="t") as consumer:
        next(iter(consumer)).requeue(0)
    finish = PullSubscription.finish

    def finish_nothing(pull: PullSubscription, ids: bytes) -> None:
        finish(pull, b"")

    with monkeypatch.context() as patch:
        patch.setattr(PullSubscription, "finish", finish_nothing)
        run.await_none()
    producer.publish(topic, b"2")
    rows += run.read_all(1)
    assert numbers(rows) == [0, 2]
    (dead,) = start(topic=f"{topic}dead", startingPosition="earliest").read_all(1)
    assert (dead["body"], dict(dead["headers"])["colour"], dead["tag"]) == (b"1", "red", "t")


def test_a_body_that_is_published_twice_is_two_rows_of_a_partition(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    broker.create_topic(topic)
    run = start(dedupe="always")
    run.begin()
    for _ in range(2):
        send(producer, topic, 10)
    rows = run.read_all(20)
    assert sorted(numbers(rows)) == sorted([*range(10)] * 2)
    assert len({row["internal_id"] for row in rows}) == 20


@pytest.mark.parametrize("ordered", [False, True])
def test_a_limit_in_bytes_ends_the_part_of_a_partition_early(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    """On an ordered topic more was finished by then: the next batch reads that."""
    broker.create_topic(topic, ordered=ordered)
    run = start(maxBytesPerTrigger="5000")
    run.begin()
    producer.publish_many(topic, [b"%d" % (10**299 + number) for number in range(60)])
    rows: list[Row] = []
    while len(rows) < 60:
        batch = run.batch()
        assert len(batch) <= 17
        rows += batch
    assert sorted(numbers(rows)) == [*range(10**299, 10**299 + 60)]
    assert not ordered or in_order(rows)


@pytest.mark.parametrize(
    ("missing", "late"), [([25], []), ([25], [27]), ([25, 27], []), ([25, 27, 29, 30], [])], ids=str
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_message_that_an_ordered_partition_does_not_have_any_more_is_a_loss(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    missing: list[int],
    late: list[int],
    fails: bool,
) -> None:
    """Each gap is reported, also if a single message is between two; a second one may be filled.

    What was read early comes first in every other attempt, so that it matters how many there were.
    """
    monkeypatch.setattr("nsqflow.spark.source.ordered_writer._GAP_DELAY", 0.01)
    broker.create_topic(topic, ordered=True)
    run = start()
    run.begin()
    send(producer, topic, 100)
    rows = run.batch(10)
    next_chunk = PullSubscription.next_chunk

    def next_chunk_but_missing(pull: PullSubscription, *given: Any) -> Chunk:
        while True:
            chunk = next_chunk(pull, *given)
            skipped = missing if "has nothing between" in caplog.text else missing + late
            if not chunk.count or int(b"".join(chunk.columns[0].bodies())) not in skipped:
                return chunk
            pull.finish(chunk.ids())

    monkeypatch.setattr(PullSubscription, "next_chunk", next_chunk_but_missing)
    end = run.await_plan(30)
    if fails:
        with pytest.raises(DataLossError, match="has nothing between offset"):
            run.read(end)
    run.restart(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        rows += run.read(end)
        run.commit(end)
        rows += run.read_all(100 - len(missing) - len(rows), limit=10)
    assert numbers(rows) == [number for number in range(100) if number not in missing]
    gaps = {text for text in caplog.messages if "has nothing between offset" in text}
    assert len(gaps) == len({number for number in missing if number - 1 not in missing})
    assert run.plan() == run.start


@pytest.mark.parametrize("available_now", [False, True])
def test_messages_that_nsqd_removed_before_they_were_read_are_a_loss(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_now: bool
) -> None:
    """It is reported before anything that follows is read."""
    monkeypatch.setattr("nsqflow.spark.source.progress.CONFIRM_TIME", 0.5)
    given = {"topic": topic, "channel": "spark", "spoolLocation": str(tmp_path / "spool")}
    with BackgroundBroker("redesigned", max_memory=1024 * 1024) as broker:
        broker.create_topic(topic)
        broker.create_channel(topic, "spark")
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        run = BatchRun(
            given | {"lookupd": broker.lookupd_addresses[0]}, available_now=available_now
        )
        with Producer(lookupd=broker.lookupd_addresses) as producer, closing(run):
            send(producer, topic, 50)
            rows = run.batch(10)
            run.close()
            for _ in range(30):  # until the broker has dropped the oldest messages
                producer.publish_many(topic, [b"99" + b" " * 10_000] * 2)
                asyncio.run(cluster.change_channel("empty", topic, "spark"))
            send(producer, topic, 10, first=50)
            run.restart()
            with pytest.raises(DataLossError, match=r"has removed what it had from offset \d+ to"):
                run.read_all(1)
            run.restart(failOnDataLoss="false")
            while 59 not in numbers(rows):
                rows += run.batch()
        found = {*numbers(rows)}
        assert len(found & {*range(50)}) == 10
        assert {*range(50, 60)} < found
