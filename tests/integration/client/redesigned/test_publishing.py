"""Which partition a message goes to, and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsqflow import ConfigError, Producer
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.client.producer.partitioner import murmur3_partition
from nsqflow.client.producer.retry import RETRY_DELAY
from nsqflow.errors import NsqError, RequestTimeout
from nsqflow.protocol import Dialect, IdentifyRequest, Mpub, MpubExt, Pub, Publish
from nsqflow.transport.connection import Connection
from nsqflow.transport.handler import ConnectionHandler
from nsqflow.transport.handshake import ConnectionSettings
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import BEHAVE, CLOSE, HANG
from tests.fixtures.scripted import Connection as Wire
from tests.fixtures.servers import PATIENCE
from tests.integration.client.redesigned.scripted_cluster import (
    QUICK,
    ScriptedCluster,
    lookupd_answers,
    scripted_cluster,
    topic_answer,
)


async def stored(broker: Broker, partitions: int, topic: str = "orders") -> list[list[str]]:
    """The bodies of each partition."""
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    return [
        [message.body async for message in cluster.browse(topic, number)]
        for number in range(partitions)
    ]


def key_of(partition: int, partitions: int) -> bytes:
    """A key that belongs to a partition."""
    keys = (b"user-%d" % number for number in range(1000))
    return next(key for key in keys if murmur3_partition(key, partitions) == partition)


def bodies_of(command: Publish) -> list[bytes]:
    return [*command.bodies] if isinstance(command, Mpub) else [command.body]  # type: ignore[attr-defined]


@pytest.mark.proves(rows=[68])
@asynchronous
async def test_pub_and_mpub_name_their_partition() -> None:
    async with scripted_cluster(partitions=3) as cluster:
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            for number in range(3):
                await producer.publish("orders", b"a", partition=number)
                await producer.publish_many("orders", [b"b", b"c"], partition=number)
        sent = [(each.name, each.partition) for each in cluster.published]  # type: ignore[attr-defined]
        assert sent == [(name, number) for number in range(3) for name in ("PUB", "MPUB")]


@pytest.mark.proves(rows=[68])
@asynchronous
async def test_messages_are_stored_in_the_partition_that_is_named() -> None:
    async with Broker("redesigned", 2) as broker:
        await broker.create_topic("orders", partitions=4)
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            for number in range(4):
                await producer.publish("orders", b"%d" % number, partition=number)
                await producer.publish_many("orders", [b"b", b"c"], partition=number)
        assert await stored(broker, 4) == [[f"{number}", "b", "c"] for number in range(4)]


@pytest.mark.proves(rows=[72])
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@asynchronous
async def test_messages_without_a_key_go_to_the_partitions_in_turn(ordered: bool) -> None:
    async with Broker("redesigned", 2) as broker:
        await broker.create_topic("orders", partitions=4, ordered=ordered)
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            for number in range(8):
                await producer.publish("orders", b"%d" % number)
        assert [len(each) for each in await stored(broker, 4)] == [2, 2, 2, 2]


@pytest.mark.proves(rows=[72])
@asynchronous
async def test_topics_that_are_published_to_alternately_have_turns_of_their_own() -> None:
    async with Broker("redesigned") as broker:
        for topic in ("orders", "others"):
            await broker.create_topic(topic, partitions=2)
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            for _ in range(4):
                for topic in ("orders", "others"):
                    await producer.publish(topic, b"x")
        for topic in ("orders", "others"):
            assert [len(each) for each in await stored(broker, 2, topic)] == [2, 2]


@pytest.mark.proves(rows=[71])
@asynchronous
async def test_topics_and_partitions_share_the_connection_to_an_nsqd_without_waiting() -> None:
    async with scripted_cluster(partitions=3) as cluster:
        cluster.nsqd.on(Pub, HANG)
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            sent = [
                producer.send(topic, b"x", partition=number)
                for topic in ("orders", "others")
                for number in range(3)
            ]
            for _ in sent:
                await cluster.nsqd.received(Pub)
            assert not any(each.done() for each in sent)
            (connection,) = cluster.nsqd.connections
            for _ in sent:
                connection.send_response()
            await asyncio.gather(*sent)


@pytest.mark.proves(rows=[74])
@asynchronous
async def test_a_key_waits_for_its_partition_while_the_metadata_says_that_one_is_missing() -> None:
    async with scripted_cluster() as cluster:
        nsqd, lookupd = cluster.nsqd, cluster.lookupd
        some = topic_answer({0: nsqd.address}, 2)
        lookupd.answers = lookupd_answers(some, [lookupd.address])
        async with Producer(lookupd=lookupd.address, **QUICK) as producer:
            waiting = producer.send("orders", b"keyed", key=key_of(1, 2))
            await producer.publish("orders", b"plain")
            for _ in range(3):  # asked again and again, long before the interval is over
                await lookupd.requested("/lookup?")
            assert [bodies_of(each) for each in cluster.published] == [[b"plain"]]
            every = topic_answer({0: nsqd.address, 1: nsqd.address})
            lookupd.answers = lookupd_answers(every, [lookupd.address])
            await waiting
        sent = cluster.published[-1]
        assert isinstance(sent, Pub)
        assert (sent.body, sent.partition) == (b"keyed", 1)


@pytest.mark.proves(rows=[74])
@asynchronous
async def test_a_complete_answer_is_not_asked_for_again() -> None:
    async with scripted_cluster(partitions=2) as cluster:
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            for _ in range(4):
                await producer.publish("orders", b"x")
        assert cluster.lookups == 1


@pytest.mark.proves(rows=[75])
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@pytest.mark.parametrize(
    "arguments", [{"partition": 1}, {"key": key_of(1, 2)}], ids=["partition", "key"]
)
@asynchronous
async def test_a_partition_without_a_leader_is_an_error_and_never_another_partition(
    arguments: dict[str, Any], ordered: bool
) -> None:
    async with Broker("redesigned", 2) as broker:
        await broker.create_topic("orders", partitions=2, ordered=ordered)
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        leader = (await admin.topic("orders")).leaders[1].address
        node = broker.nsqd_addresses.index(leader)
        events = EventLog()
        async with Producer(lookupd=broker.lookupd_addresses, on_event=events) as producer:
            await producer.publish("orders", b"before", **arguments)
            await broker.kill_node(node)
            await events.next("disconnected")
            with pytest.raises(RequestTimeout, match="partition 1 of 'orders'"):
                await producer.publish("orders", b"lost", timeout=2, **arguments)
            await producer.publish("orders", b"other", partition=0)
            waiting = producer.send("orders", b"after", timeout=PATIENCE, **arguments)
            await broker.start_node(node)
            await waiting
        assert (await stored(broker, 2))[0] == ["other"]
        assert (await stored(broker, 2))[1][-1] == "after"


@pytest.mark.proves(rows=[69, 75])
@asynchronous
async def test_a_refused_message_is_sent_again_before_those_that_come_after_it() -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, [HANG, BEHAVE])
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            first = producer.send("orders", b"a", key=b"user-1")
            await cluster.nsqd.received(Pub)
            later = [producer.send("orders", body, key=b"user-1") for body in (b"b", b"c")]
            cluster.nsqd.connections[0].send_error(b"E_FAILED_ON_NOT_LEADER")
            await asyncio.gather(first, *later)
        sent = [body for each in cluster.published for body in bodies_of(each)]
        assert sent == [b"a", b"a", b"b", b"c"]


@pytest.mark.proves(rows=[70])
@asynchronous
async def test_a_publish_that_nsqd_has_no_room_for_is_sent_again_after_a_delay() -> None:
    async with scripted_cluster() as cluster:
        times: list[float] = []

        def refuse_once(connection: Wire, _: Pub) -> None:
            times.append(asyncio.get_running_loop().time())
            if len(times) > 1:
                connection.send_response()
            else:
                connection.send_error(b"E_PUB_TOO_MUCH_WAITING")
                connection.do(CLOSE)

        cluster.nsqd.on(Pub, refuse_once)
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            await producer.publish("orders", b"a", partition=0)
        assert times[1] - times[0] >= RETRY_DELAY


@asynchronous
async def test_closing_ends_such_a_delay() -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, lambda wire, _: wire.send_error(b"E_PUB_TOO_MUCH_WAITING"))
        producer = Producer(lookupd=cluster.lookupd.address, **QUICK)
        sent = producer.send("orders", b"a", partition=0, timeout=PATIENCE)
        await cluster.nsqd.received(Pub)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing], timeout=PATIENCE)
        with pytest.raises(NsqError):
            await sent


# What no topic, or not this one, can take

BAD: list[tuple[dict[str, Any], str]] = [
    ({"trace": -1}, "trace=-1 is invalid"),
    ({"trace": 2**64}, "trace=18446744073709551616 is invalid"),
    ({"partition": 2}, "partition=2 is invalid: must be 0 to 1"),
    ({"partition": -1}, "partition=-1 is invalid"),
    ({"partition": True}, "partition=True is invalid"),
    ({"key": b"a", "partition": 0}, "choose one of them"),
    ({"key": b""}, "must not be empty"),
    ({"delay": 5}, "delay=5 is invalid: .*requeue the message with a delay"),
    ({"headers": {"a": "b"}}, "headers, tag and body_compression are invalid"),
    ({"tag": "a"}, "headers, tag and body_compression are invalid"),
]
BAD_EXTENDED: list[tuple[dict[str, Any], str]] = [
    ({"headers": {"a": "x" * 65_528}}, "headers of 65536 bytes"),
    ({"headers": {"##trace_id": "7"}}, "'##trace_id' is invalid: the name is reserved"),
    ({"headers": {"a": float("nan")}}, "can't be written as JSON"),
    ({"tag": "x" * 101}, "must have 1 to 100 bytes"),
    ({"tag": "é" * 51}, "must have 1 to 100 bytes"),
    ({"tag": ""}, "must have 1 to 100 bytes"),
]


async def expect_refusal(
    cluster: ScriptedCluster, arguments: dict[str, Any], text: str, known: bool
) -> None:
    async with Producer(lookupd=cluster.lookupd.address, partitioner="java", **QUICK) as producer:
        if known:
            await producer.publish("orders", b"before")
        with pytest.raises(ConfigError, match=text):
            await producer.publish("orders", b"x", **arguments)
        await producer.publish("orders", b"after")
    expected = [[b"before"], [b"after"]] if known else [[b"after"]]
    assert [bodies_of(each) for each in cluster.published] == expected


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [*BAD, ({"key": b"\xff"}, r"must be UTF-8 text for partitioner='java'")],
    ids=str,
)
@asynchronous
async def test_what_a_topic_can_not_take_is_refused_before_it_is_sent(
    arguments: dict[str, Any], text: str, known: bool
) -> None:
    async with scripted_cluster(partitions=2) as cluster:
        await expect_refusal(cluster, arguments, text, known)


@pytest.mark.parametrize(
    ("arguments", "text"), BAD_EXTENDED, ids=["size", "reserved", "nan", "tag", "bytes", "empty"]
)
@asynchronous
async def test_headers_and_tags_out_of_range_are_refused_before_they_are_sent(
    arguments: dict[str, Any], text: str
) -> None:
    async with scripted_cluster(extend_support=True) as cluster:
        await expect_refusal(cluster, arguments, text, known=True)


@asynchronous
async def test_the_largest_headers_and_tag_are_stored() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders", extended=True)
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            await producer.publish("orders", b"a", headers={"a": "x" * 65_527})
            await producer.publish("orders", b"b", headers={}, tag="é" * 50)
        assert await stored(broker, 1) == [["a", "b"]]


@asynchronous
async def test_a_partitioner_of_the_user_decides_and_its_failure_is_raised() -> None:
    def by_length(key: bytes, count: int) -> int:
        return len(key) % count if key != b"bad" else 1 // 0

    async with Broker("redesigned") as broker:
        await broker.create_topic("orders", partitions=2)
        options: dict[str, Any] = {"partitioner": by_length}
        async with Producer(lookupd=broker.lookupd_addresses, **options) as producer:
            sent = [producer.send("orders", key, key=key) for key in (b"bad", b"a", b"ab", b"abc")]
            results = await asyncio.gather(*sent, return_exceptions=True)
        assert isinstance(results[0], ConfigError)
        assert "partitioner failed for key=b'bad'" in str(results[0])
        assert await stored(broker, 2) == [["ab"], ["a", "abc"]]


class Answers(ConnectionHandler):
    """Nothing of interest arrives."""


@asynchronous
async def test_a_connection_is_dropped_after_a_refused_mpub_ext() -> None:
    # nsqd does not read the rest of its body, and would read on in the middle of it.
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(MpubExt, lambda wire, _: wire.send_error(b"E_EXT_NOT_SUPPORT"))
        settings = ConnectionSettings(identify=IdentifyRequest(), dialect=Dialect.REDESIGNED)
        connection = Connection(cluster.nsqd.address, settings, Answers())
        await connection.open()
        connection.send(MpubExt("orders", [(b"{}", b"a"), (b"{}", b"b")], 0))
        await cluster.nsqd.connections[0].ended()
        await connection.wait_ended()
        assert [each.name for each in cluster.published] == ["MPUB_EXT"]
