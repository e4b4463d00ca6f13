"""What the producer does about each error of the redesigned nsqd: the retry table."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from nsqflow import Producer, PublishUncertain
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.errors import (
    SERVER_ERRORS,
    BadMessageError,
    InvalidCommandError,
    PrecedingPublishFailed,
    TlsNotGrantedError,
    TopicNotExistError,
)
from nsqflow.protocol import Mpub, Pub
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import BEHAVE, CLOSE, HANG, Connection
from tests.fixtures.servers import PATIENCE
from tests.integration.client.redesigned.scripted_cluster import QUICK, scripted_cluster

RETRIED = [
    "E_FAILED_ON_NOT_LEADER",
    "E_FAILED_ON_NOT_WRITABLE",
    "E_PUB_FAILED",
    "E_TOPIC_NOT_EXIST",
    "E_PUB_TOO_MUCH_WAITING",
    "E_INVALID",
]
RAISED = [
    "E_BAD_TOPIC",
    "E_BAD_MESSAGE",
    "E_BAD_BODY",
    "E_BAD_PARTITION",
    "E_INVALID_JSON_HEADER",
    "INVALID_TRACE_ID",
    "E_EXT_NOT_SUPPORT",
    "E_UNAUTHORIZED",
]


async def stored(broker: Broker) -> list[str]:
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    return [each.body async for each in cluster.browse("orders", 0)]


def refuse(code: str) -> Callable[[Connection, Any], None]:
    return lambda connection, _: connection.send_error(code.encode())


def refuse_and_close(code: str) -> Callable[[Connection, Any], None]:
    def react(connection: Connection, _: Any) -> None:
        connection.send_error(code.encode())
        connection.do(CLOSE)

    return react


@pytest.mark.proves(rows=[69, 70])
@pytest.mark.parametrize("code", RETRIED)
@asynchronous
async def test_a_publish_that_may_succeed_later_is_sent_again(code: str) -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        broker.fail_next("PUB", code)
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            await producer.publish("orders", b"a", partition=0)
        assert await stored(broker) == ["a"]


@pytest.mark.proves(rows=[69, 70])
@asynchronous
async def test_a_batch_that_was_not_stored_is_sent_again() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        broker.fail_next("MPUB", "E_MPUB_FAILED")
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            await producer.publish_many("orders", [b"a", b"b"], partition=0)
        assert await stored(broker) == ["a", "b"]


@pytest.mark.proves(rows=[69])
@pytest.mark.parametrize("code", RETRIED[:3])
@asynchronous
async def test_nsqlookupd_is_asked_before_a_publish_is_sent_again(code: str) -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, [refuse(code), BEHAVE])
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            await producer.publish("orders", b"a")
        assert [each.name for each in cluster.published] == ["PUB", "PUB"]
        assert cluster.lookups == 2


@pytest.mark.proves(rows=[70])
@pytest.mark.parametrize("code", RAISED)
@asynchronous
async def test_an_invalid_publish_is_never_sent_again(code: str) -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, refuse_and_close(code))
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            with pytest.raises(SERVER_ERRORS[code]):
                await producer.publish("orders", b"a")
        assert len(cluster.published) == 1


@pytest.mark.proves(rows=[70])
@asynchronous
async def test_an_invalid_command_is_sent_once_more_on_a_fresh_connection() -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, refuse_and_close("E_INVALID"))
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            with pytest.raises(InvalidCommandError):
                await producer.publish("orders", b"a")
        assert len(cluster.published) == 2
        assert [len(each.commands) for each in cluster.nsqd.connections[:2]] == [2, 2]


@pytest.mark.proves(rows=[70])
@asynchronous
async def test_a_topic_counts_as_missing_after_two_further_lookups() -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, refuse_and_close("E_TOPIC_NOT_EXIST"))
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            with pytest.raises(TopicNotExistError):
                await producer.publish("orders", b"a")
        assert len(cluster.published) == 3
        assert cluster.lookups >= 3


@pytest.mark.proves(rows=[69, 70])
@asynchronous
async def test_a_refused_publish_is_tried_until_its_timeout() -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, refuse("E_FAILED_ON_NOT_LEADER"))
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            with pytest.raises(TimeoutError, match="partition 0 of 'orders'"):
                await producer.publish("orders", b"a", partition=0, timeout=1.5)
        assert len(cluster.published) >= 2


@pytest.mark.proves(rows=[70])
@pytest.mark.parametrize("code", RETRIED[:4])
@asynchronous
async def test_an_error_later_than_a_second_after_the_write_is_uncertain(code: str) -> None:
    async with scripted_cluster() as cluster:

        def refuse_late(connection: Connection, _: Any) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(1.1, connection.send_error, code.encode())

        cluster.nsqd.on(Pub, refuse_late)
        events = EventLog()
        async with Producer(lookupd=cluster.lookupd.address, on_event=events, **QUICK) as producer:
            with pytest.raises(PublishUncertain, match=code):
                await producer.publish("orders", b"a")
        assert len(cluster.published) == 1
        assert events.count("uncertain") == 1


@pytest.mark.proves(rows=[70])
@asynchronous
async def test_a_leader_that_gives_up_its_follower_leaves_the_publish_uncertain() -> None:
    async with Broker("redesigned", 2, follower_timeout=1.2) as broker:
        await broker.create_topic("orders", replicas=2)
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            await producer.publish("orders", b"a", partition=0)
            await broker.kill_node(1)
            with pytest.raises(PublishUncertain, match="partition 0 of 'orders'"):
                await producer.publish("orders", b"b", partition=0)


@asynchronous
async def test_what_comes_behind_a_batch_waits_until_it_is_answered() -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, [HANG, BEHAVE])
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            first = producer.send("orders", b"a", partition=0)
            await cluster.nsqd.received(Pub)
            later = [producer.send("orders", body, partition=0) for body in (b"b", b"c")]
            await asyncio.sleep(0.05)  # nothing may come: no event could be awaited
            assert len(cluster.published) == 1
            cluster.nsqd.connections[0].send_response()
            await asyncio.gather(first, *later)
        batch = cluster.published[1]
        assert isinstance(batch, Mpub)
        assert [*batch.bodies] == [b"b", b"c"]


@pytest.mark.parametrize("end", [b"E_BAD_MESSAGE", None], ids=["refused", "uncertain"])
@asynchronous
async def test_what_waits_behind_a_failed_publish_fails_with_it(end: bytes | None) -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, [HANG, BEHAVE])
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            first = producer.send("orders", b"a", partition=0)
            await cluster.nsqd.received(Pub)
            behind = producer.send("orders", b"b", partition=0)
            connection = cluster.nsqd.connections[0]
            connection.do(CLOSE) if end is None else connection.send_error(end)
            with pytest.raises(PublishUncertain if end is None else BadMessageError):
                await first
            with pytest.raises(PrecedingPublishFailed, match="partition 0 of 'orders'"):
                await behind


@pytest.mark.parametrize("partition", [None, 0])
@asynchronous
async def test_a_leader_that_refuses_every_connection_fails_a_publish_at_once(
    partition: int | None,
) -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        context = ssl.create_default_context()
        async with Producer(lookupd=broker.lookupd_addresses, tls=context) as producer:
            with pytest.raises(TlsNotGrantedError):
                await producer.publish("orders", b"x", partition=partition, timeout=PATIENCE)
