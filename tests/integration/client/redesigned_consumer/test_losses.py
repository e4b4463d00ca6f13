"""Connections to partitions that are lost at a bad moment: while seeking, closing, handling."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

from nsqflow import Consumer
from nsqflow.admin.partition import PartitionApi
from nsqflow.broker.version import REDESIGNED_VERSION
from nsqflow.protocol import Dialect, IdentifyReply, Message, Rdy, Req, Sub
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.integration.client.redesigned.scripted_cluster import (
    lookupd_answers,
    scripted_cluster,
    topic_answer,
)
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
    subscribed,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

UNKNOWN_FRAME = b"\0\0\0\x04\0\0\0\x09"


@asynchronous
async def test_a_connection_that_is_lost_while_its_channel_is_moved_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses: list[bool] = []
    position = PartitionApi.position

    async def lose_first(api: PartitionApi, *args: Any) -> Any:
        if not losses:
            losses.append(True)
            broker.drop_connections()
            await asyncio.sleep(0.1)
        return await position(api, *args)

    async with cluster(ordered=True) as broker:
        async with consuming(broker) as (reader, _):
            await publish(broker, b"a", b"b", partition=0)
            await finish(reader, 2)
        monkeypatch.setattr(PartitionApi, "position", lose_first)
        events = EventLog()
        options: dict[str, Any] = {"start_from": "earliest", "on_event": events}
        async with consumer_of(broker, **options) as consumer:
            assert await finish(consumer, 2) == [b"a", b"b"]
        assert [kind for kind in events.kinds if "connect" in kind][:2] == [
            "connect_failed",
            "connected",
        ]


@asynchronous
async def test_a_delayed_retry_takes_no_place_of_other_partitions() -> None:
    async with (
        cluster(1, 2, ordered=True) as broker,
        consuming(broker, 2, max_in_flight=1, **QUICK_TURNS) as (consumer, _),
    ):
        await publish(broker, b"bad", partition=0)
        (await receive(consumer)).requeue(3600)
        await publish(broker, b"good", partition=1)
        async with asyncio.timeout(5):
            assert await finish(consumer, 1) == [b"good"]


@asynchronous
async def test_a_failing_partition_is_stopped_before_its_message_is_requeued() -> None:
    def send_one(wire: Connection, command: Rdy) -> None:
        wire.send_messages([Message(1, 1, bytes(16), b"a", offset=0, size=31)])

    async with scripted_cluster(ordered=True) as scripted:
        scripted.nsqd.on(Rdy, [send_one])
        async with Consumer(TOPIC, CHANNEL, lookupd=scripted.lookupd.address) as consumer:
            (await receive(consumer)).requeue(0)
            await scripted.nsqd.received(Req)
        flow = [each for each in scripted.nsqd.commands if isinstance(each, Rdy | Req)]
        assert flow[:3] == [Rdy(1), Rdy(0), Req(bytes(16), 0)]


@asynchronous
async def test_a_close_that_meets_the_end_of_a_connection_requeues_nothing_on_it() -> None:
    async with cluster(ordered=True) as broker, consuming(broker) as (consumer, events):
        await publish(broker, b"a", partition=0)
        (await receive(consumer)).requeue(3600)
        await events.wait_for("backoff")
        assert consumer._coordinator is not None
        [subscription] = consumer._coordinator.subscriptions.values()
        assert subscription.connection is not None
        consumer.stop(signal.SIGTERM)
        subscription.connection.data_received(UNKNOWN_FRAME)
        result = await consumer.close()
        assert (result.requeued, result.abandoned) == (0, 0)


@asynchronous
async def test_a_message_that_user_code_never_had_is_not_taken_for_one_that_blocks(
    tmp_path: Path,
) -> None:
    dead = tmp_path / "dead"
    options: dict[str, Any] = {"blocked_after": 1, "on_blocked": "dead_letter", "dead_letter": dead}
    async with (
        cluster(ordered=True) as broker,
        consuming(broker, msg_timeout=1.0, **options) as (consumer, _),
    ):
        await publish(broker, b"a", b"b", partition=0)
        assert await finish(consumer, 1) == [b"a"]
        await eventually(lambda: consumer.stats().counts.expired == 1, what="b has timed out")
        assert await finish(consumer, 1) == [b"b"]
        assert consumer.stats().counts.blocked == 0
    assert not dead.exists()


@asynchronous
async def test_a_message_that_user_code_still_has_does_not_block_yet(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    options: dict[str, Any] = {"blocked_after": 1, "on_blocked": "dead_letter", "dead_letter": dead}
    async with (
        cluster(2, replicas=2, ordered=True) as broker,
        consuming(broker, **options) as (consumer, _),
    ):
        await publish(broker, b"a", b"b", partition=0)
        message = await receive(consumer)
        following = asyncio.create_task(finish(consumer, 1))
        await broker.move_leader(TOPIC, 0, 1)
        await eventually(lambda: consumer.stats().counts.received > 1, what="the copy of it")
        message.finish()
        assert await following == [b"b"]
        assert consumer.stats().counts.blocked == 0
    assert not dead.exists()


@asynchronous
async def test_deliveries_of_lost_connections_bring_no_further_attempts() -> None:
    async with (
        cluster() as broker,
        consuming(broker, max_attempts=2, max_backoff_duration=0) as (consumer, events),
    ):
        await publish(broker, b"a")
        gathering = asyncio.ensure_future(anext(consumer.batches(10, max_wait=60)))
        for number in range(1, 4):
            await eventually(lambda: consumer.stats().queued == 1, what="a delivery")
            broker.drop_connections()
            await events.wait_for("disconnected", number)
        gathering.cancel()
        for attempt in (1, 2):
            message = await receive(consumer)
            assert message.attempts == attempt
            message.requeue(0, backoff=False)
        waiting = asyncio.create_task(anext(consumer, None))
        await events.next("gave_up")
        waiting.cancel()


@asynchronous
async def test_a_former_leader_that_is_lost_late_is_not_searched_for() -> None:
    reply = IdentifyReply(version=REDESIGNED_VERSION)
    events = EventLog()
    async with scripted_cluster(2) as scripted, ScriptedNsqd(reply, Dialect.REDESIGNED) as other:
        lookupd = scripted.lookupd.address
        async with Consumer(TOPIC, CHANNEL, lookupd=lookupd, on_event=events) as consumer:
            await subscribed(consumer, 2)
            wires = {
                command.partition: wire
                for wire in scripted.nsqd.connections
                for command in wire.commands
                if isinstance(command, Sub)
            }
            answer = topic_answer({0: other.address, 1: scripted.nsqd.address})
            scripted.lookupd.answers = lookupd_answers(answer, [lookupd])
            wires[1].close()  # nsqlookupd is asked, and names the new leader of partition 0, too
            await events.wait_for("connected", 4)
            wires[0].close()
            await events.wait_for("disconnected", 2)
            await asyncio.sleep(1)
            before = scripted.lookups
            await asyncio.sleep(2)
            assert scripted.lookups == before


@asynchronous
async def test_partitions_that_are_added_are_read() -> None:
    async with scripted_cluster(1) as scripted:
        lookupd = scripted.lookupd.address
        async with Consumer(TOPIC, CHANNEL, lookupd=lookupd, lookupd_poll_interval=0.2) as consumer:
            await subscribed(consumer, 1)
            answer = topic_answer(dict.fromkeys(range(3), scripted.nsqd.address))
            scripted.lookupd.answers = lookupd_answers(answer, [lookupd])
            await subscribed(consumer, 3)
