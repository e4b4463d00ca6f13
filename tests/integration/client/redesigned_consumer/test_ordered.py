"""Ordered partitions: one message at a time each, in order, and none is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsqflow import Consumer, Producer
from nsqflow.admin import RedesignedCluster
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.consumer.ordered import PartitionOrder, retry_at
from nsqflow.client.message import Message
from nsqflow.errors import BlockedMessageError, ConfigError, OrderViolation
from tests.fixtures.loops import asynchronous, eventually
from tests.integration.client.redesigned_consumer.reading import (
    CHANNEL,
    QUICK_TURNS,
    TOPIC,
    cluster,
    consumer_of,
    consuming,
    finish,
    publish,
    receive,
)

HASTE: dict[str, Any] = {"default_requeue_delay": 0.01, "max_backoff_duration": 0.01}


@pytest.mark.proves(rows=[76])
@asynchronous
async def test_an_ordered_topic_is_read_one_message_at_a_time() -> None:
    async with cluster(ordered=True) as broker, consuming(broker) as (consumer, _):
        await publish(broker, b"a", b"b", b"c", partition=0)
        first = await receive(consumer)
        assert [each.rdy for each in consumer.stats().connections] == [1]
        assert consumer.stats().counts.received == 1
        first.finish()
        assert [first.body, *await finish(consumer, 2)] == [b"a", b"b", b"c"]


@pytest.mark.proves(rows=[76])
@asynchronous
async def test_an_ordinary_topic_is_read_in_order_by_force() -> None:
    async with cluster() as broker, consuming(broker, ordered="force") as (consumer, _):
        await publish(broker, b"a", b"b")
        first = await receive(consumer)
        assert first.offset == 0
        assert consumer.stats().counts.received == 1
        first.finish()
        assert await finish(consumer, 1) == [b"b"]


@asynchronous
async def test_order_is_refused_where_the_topic_has_none() -> None:
    async with cluster() as broker, consumer_of(broker, ordered=True) as consumer:
        with pytest.raises(ConfigError, match="is not ordered"):
            await receive(consumer)


@asynchronous
async def test_partitions_go_on_in_parallel() -> None:
    async with cluster(1, 3, ordered=True) as broker, consuming(broker, 3) as (consumer, _):
        for number in range(3):
            await publish(broker, b"a", partition=number)
        held = [await receive(consumer) for _ in range(3)]
        assert {message.partition for message in held} == {0, 1, 2}
        for message in held:
            message.finish()


@asynchronous
async def test_partitions_take_turns_where_max_in_flight_is_smaller() -> None:
    async with (
        cluster(1, 3, ordered=True) as broker,
        consuming(broker, 3, max_in_flight=1, **QUICK_TURNS) as (consumer, _),
    ):
        for number in range(3):
            await publish(broker, b"%d" % number, partition=number)
        assert sorted(await finish(consumer, 3)) == [b"0", b"1", b"2"]


@asynchronous
async def test_a_failure_backs_off_in_its_partition_alone() -> None:
    async with cluster(1, 2, ordered=True) as broker, consuming(broker, 2) as (consumer, events):
        await publish(broker, b"bad", partition=0)
        (await receive(consumer)).requeue(0)
        assert "partition 0" in (await events.next("backoff")).text
        await publish(broker, b"good", partition=1)
        assert await finish(consumer, 1) == [b"good"]


@asynchronous
async def test_a_delayed_retry_waits_in_the_client_and_comes_again_first() -> None:
    async with cluster(ordered=True) as broker, consuming(broker, **HASTE) as (consumer, _):
        await publish(broker, b"a", b"b", partition=0)
        (await receive(consumer)).requeue(0.2)
        again = await receive(consumer)
        assert (again.body, again.attempts) == (b"a", 2)
        assert consumer.stats().counts.requeued == 1
        again.finish()
        assert await finish(consumer, 1) == [b"b"]


@asynchronous
async def test_a_delayed_retry_comes_again_before_the_message_times_out() -> None:
    async with (
        cluster(ordered=True) as broker,
        consuming(broker, msg_timeout=2.0, max_backoff_duration=0) as (consumer, _),
    ):
        await publish(broker, b"a", b"b", partition=0)
        (await receive(consumer)).requeue(3600)
        again = await receive(consumer)
        assert (again.body, again.attempts) == (b"a", 2)
        assert consumer.stats().counts.requeued == 1
        again.finish()
        assert await finish(consumer, 1) == [b"b"]


def test_a_failed_message_is_requeued_after_its_delay_or_shortly_before_its_deadline() -> None:
    assert retry_at(100.0, 5.0, 160.0, 60.0) == 105.0
    assert retry_at(100.0, 3600.0, 160.0, 60.0) == 157.0
    assert retry_at(100.0, 3600.0, 101.0, 1.0) == 100.9
    assert retry_at(100.0, 3600.0, 90.0, 60.0) == 100.0, "late already: at once"


@pytest.mark.proves(rows=[79])
@asynchronous
async def test_a_blocked_message_is_reported_and_never_skipped() -> None:
    async with (
        cluster(ordered=True) as broker,
        consuming(broker, blocked_after=2, max_attempts=1, **HASTE) as (consumer, events),
    ):
        await publish(broker, b"bad", b"good", partition=0)
        for _ in range(5):
            message = await receive(consumer)
            assert message.body == b"bad"
            message.requeue(0)
        assert "delivered 3 times; wait" in (await events.next("blocked")).text
        assert await finish(consumer, 2) == [b"bad", b"good"]
        assert consumer.stats().counts.blocked >= 3


@pytest.mark.proves(rows=[79])
@pytest.mark.parametrize(
    "decide", ["dead_letter", lambda message: "dead_letter"], ids=["word", "function"]
)
@asynchronous
async def test_a_blocked_message_is_stored_as_a_dead_letter(decide: Any, tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    options = {"blocked_after": 1, "on_blocked": decide, "dead_letter": path, **HASTE}
    async with (
        cluster(ordered=True) as broker,
        consuming(broker, **options) as (consumer, _),
    ):
        await publish(broker, b"bad", b"good", partition=0)
        (await receive(consumer)).requeue(0)
        assert await finish(consumer, 1) == [b"good"]
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.proves(rows=[79])
@pytest.mark.parametrize("decide", ["stop", lambda message: "stop"], ids=["word", "function"])
@asynchronous
async def test_a_blocked_message_stops_the_consumer(decide: Any) -> None:
    async with cluster(ordered=True) as broker:
        options = {"blocked_after": 1, "on_blocked": decide, **HASTE}
        async with consuming(broker, **options) as (consumer, _):
            await publish(broker, b"bad", partition=0)
            (await receive(consumer)).requeue(0)
            with pytest.raises(BlockedMessageError, match="delivered 2 times"):
                await receive(consumer)
        async with consuming(broker) as (other, _):
            assert await finish(other, 1) == [b"bad"]


def fails(message: Message) -> str:
    raise LookupError(message.body)


@pytest.mark.proves(rows=[79])
@pytest.mark.parametrize(
    ("decide", "logged"),
    [
        (lambda message: "wait", "delivered 2 times; wait"),
        (lambda message: None, "on_blocked returned None"),
        (lambda message: "dead_letter", "on_blocked returned 'dead_letter', and there is none"),
        (fails, "on_blocked raised"),
    ],
    ids=["wait", "nonsense", "no dead letters", "failure"],
)
@asynchronous
async def test_a_blocked_message_waits_if_the_function_decides_nothing_else(
    decide: Any, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(ordered=True) as broker:
        options = {"blocked_after": 1, "on_blocked": decide, **HASTE}
        async with consuming(broker, **options) as (consumer, _):
            await publish(broker, b"bad", b"good", partition=0)
            (await receive(consumer)).requeue(0)
            assert await finish(consumer, 2) == [b"bad", b"good"]
        assert any(logged in text for text in caplog.messages)


def test_ten_deliveries_block_and_the_consumer_waits_unless_it_is_configured() -> None:
    config = ConsumerConfig(lookupd=("127.0.0.1:4161",))
    assert (config.blocked_after, config.on_blocked) == (10, "wait")


def test_dead_letters_of_blocked_messages_need_a_place() -> None:
    with pytest.raises(ConfigError, match="without dead_letter"):
        Consumer(TOPIC, CHANNEL, lookupd="127.0.0.1:4161", on_blocked="dead_letter")


@pytest.mark.proves(rows=[77, 80])
@asynchronous
async def test_a_message_has_its_position_and_both_ids() -> None:
    async with cluster(ordered=True) as broker, consuming(broker) as (consumer, _):
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            receipts = [
                await producer.publish(TOPIC, body, partition=0, trace=trace)
                for body, trace in [(b"a", 7), (b"bcd", 2**64 - 1)]
            ]
        for receipt in receipts:
            message = await receive(consumer)
            assert receipt is not None
            assert (message.internal_id, message.trace_id) == (
                receipt.internal_id,
                receipt.trace_id,
            )
            assert (message.offset, message.size) == (receipt.offset, receipt.size)
            message.finish()


@pytest.mark.proves(rows=[78])
@asynchronous
async def test_an_older_message_after_a_newer_one_is_reported() -> None:
    seen: list[str] = []
    async with (
        cluster(ordered=True) as broker,
        consuming(broker, on_order_violation=lambda _, error: seen.append(str(error))) as (
            consumer,
            events,
        ),
    ):
        await publish(broker, b"a", b"b", partition=0)
        assert await finish(consumer, 2) == [b"a", b"b"]
        await eventually(lambda: consumer.stats().counts.finished == 2)
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await admin.seek(TOPIC, CHANNEL, "earliest")
        assert await finish(consumer, 1) == [b"a"]
        await events.next("order_violation")
        assert consumer.stats().counts.order_violations == 1
        assert "came after" in seen[0]


@pytest.mark.proves(rows=[78])
@asynchronous
async def test_a_violation_ends_the_consumer_if_the_callback_raises() -> None:
    def refuse(message: Message, error: OrderViolation) -> None:
        raise error

    async with (
        cluster(ordered=True) as broker,
        consuming(broker, on_order_violation=refuse) as (consumer, _),
    ):
        await publish(broker, b"a", b"b", partition=0)
        assert await finish(consumer, 2) == [b"a", b"b"]
        await eventually(lambda: consumer.stats().counts.finished == 2)
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await admin.seek(TOPIC, CHANNEL, "earliest")
        with pytest.raises(OrderViolation, match=r"partition 0 of 'orders': .* came after"):
            await receive(consumer)


@pytest.mark.proves(rows=[78])
@asynchronous
async def test_a_topic_that_is_created_again_violates_no_order() -> None:
    async with cluster(ordered=True) as broker, consuming(broker) as (consumer, events):
        await publish(broker, b"a", b"b", partition=0)
        assert await finish(consumer, 2) == [b"a", b"b"]
        await RedesignedCluster(lookupd=broker.lookupd_addresses).delete_topic(TOPIC)
        await events.next("disconnected")
        await broker.create_topic(TOPIC, ordered=True)
        await events.wait_for("connected", 2)
        await publish(broker, b"c", partition=0)
        assert await finish(consumer, 1) == [b"c"]
        assert consumer.stats().counts.order_violations == 0


@pytest.mark.proves(rows=[78])
def test_the_same_message_and_a_new_leader_violate_no_order() -> None:
    order = PartitionOrder()
    assert order.received("one", 5, 100, 1) is None
    assert order.received("one", 5, 100, 1) is None
    assert order.received("one", 6, 130, 2) is None
    assert order.received("other", 5, 100, 1) is None
    assert order.received("other", 6, 90, 3) is not None


@pytest.mark.proves(rows=[76, 78])
@asynchronous
async def test_order_holds_over_a_change_of_leaders_that_repeats_messages() -> None:
    async with (
        cluster(2, replicas=2, ordered=True, repeat_messages=True) as broker,
        consuming(broker) as (consumer, events),
    ):
        bodies = [b"%d" % number for number in range(6)]
        await publish(broker, *bodies[:3], partition=0)
        seen = await finish(consumer, 2)
        await broker.move_leader(TOPIC, 0, 1)
        await events.wait_for("connected", 2)
        await publish(broker, *bodies[3:], partition=0)
        while not seen or seen[-1] != bodies[-1]:
            seen += await finish(consumer, 1)
        assert sorted(seen) == seen
        assert sorted(set(seen)) == bodies
