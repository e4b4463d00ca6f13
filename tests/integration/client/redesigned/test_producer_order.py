"""The order of a partition while things go wrong: what fails with what, and what goes first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsqflow import Producer
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.errors import BadMessageError, ConfigError, PrecedingPublishFailed, RequestTimeout
from nsqflow.protocol import Pub
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import BEHAVE, HANG, ScriptedLookupd
from tests.integration.client.redesigned.scripted_cluster import (
    QUICK,
    lookupd_answers,
    scripted_cluster,
    topic_answer,
)


async def stored(broker: Broker) -> list[str]:
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    return [each.body async for each in cluster.browse("orders", 0)]


@asynchronous
async def test_a_message_that_times_out_takes_none_before_it_along() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            await producer.publish("orders", b"a", partition=0)
            broker.fail_next("PUB", "E_PUB_TOO_MUCH_WAITING")  # nothing is sent for a while
            before = producer.send("orders", b"b", partition=0)
            await asyncio.sleep(0)  # they are no batch
            late = producer.send("orders", b"c", partition=0, timeout=0.1)
            await asyncio.sleep(0)
            after = producer.send("orders", b"d", partition=0)
            with pytest.raises(RequestTimeout):
                await late
            with pytest.raises(PrecedingPublishFailed):
                await after
            await before
        assert await stored(broker) == ["a", "b"]


@asynchronous
async def test_what_a_topic_can_not_take_fails_without_those_before_it() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            before = producer.send("orders", b"a", partition=0)  # not looked up yet
            headers = producer.send("orders", b"b", partition=0, headers={"x": 1})
            after = producer.send("orders", b"c", partition=0)
            with pytest.raises(ConfigError, match="headers"):
                await headers
            with pytest.raises(PrecedingPublishFailed):
                await after
            await before


@asynchronous
async def test_a_bad_message_of_a_batch_is_found_and_the_ones_before_it_are_stored() -> None:
    async with Broker("redesigned", max_msg_size=100) as broker:
        await broker.create_topic("orders")
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            bodies = (b"a", b"b", b"x" * 101, b"c")
            results = [producer.send("orders", body, partition=0) for body in bodies]
            await asyncio.gather(*results[:2])
            with pytest.raises(BadMessageError):
                await results[2]
            with pytest.raises(PrecedingPublishFailed):
                await results[3]
        assert await stored(broker) == ["a", "b"]


@asynchronous
async def test_a_message_that_waits_with_others_times_out_by_its_own_time() -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(Pub, [BEHAVE, HANG, HANG])
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            await producer.publish("orders", b"a", partition=0)
            outstanding = producer.send("orders", b"b", partition=0)
            await cluster.nsqd.received(Pub)
            await cluster.nsqd.received(Pub)
            patient = producer.send("orders", b"c", partition=0, timeout=60.0)
            await asyncio.sleep(0)
            hasty = producer.send("orders", b"d", partition=0, timeout=0.5)
            cluster.nsqd.connections[0].send_response()
            await outstanding
            with pytest.raises(RequestTimeout):
                await hasty
            cluster.nsqd.connections[0].send_response()
            await patient


@asynchronous
async def test_keys_that_wait_for_memory_and_for_their_partition_keep_their_order() -> None:
    sizes: dict[str, Any] = {"max_msg_size": 1000, "max_body_size": 1100, "max_pending": 2000}
    async with Broker("redesigned") as broker, ScriptedLookupd({}) as lookupd:
        await broker.create_topic("orders")
        async with Producer(lookupd=lookupd.address, **QUICK, **sizes) as producer:
            lookupd.answers = lookupd_answers((200, b"{}"), [lookupd.address])

            def send(number: int, size: int) -> asyncio.Future[Any]:
                body = f"{number}".ljust(size).encode()
                return producer.send("orders", body, key=b"k", wait=True)

            results = [send(each, 900) for each in range(3)]  # the third waits for memory
            results += [send(each, 9) for each in (3, 4)]
            answer = topic_answer({0: broker.nsqd_addresses[0]})
            lookupd.answers = lookupd_answers(answer, [lookupd.address])
            assert producer._accumulator is not None
            route = producer._accumulator._pool.route("orders")
            assert route is not None
            await eventually(lambda: route.known)
            results += [send(each, 9) for each in (5, 6)]
            await asyncio.gather(*results)
            assert producer._accumulator.pending_bytes == 0
        assert [int(body) for body in await stored(broker)] == [*range(7)]


@asynchronous
async def test_a_key_that_times_out_before_its_topic_is_known_takes_those_after_it_along() -> None:
    async with ScriptedLookupd({}) as lookupd:
        lookupd.answers = lookupd_answers((200, b"{}"), [lookupd.address])
        async with Producer(lookupd=lookupd.address, **QUICK) as producer:
            before = producer.send("orders", b"a", key=b"k")
            late = producer.send("orders", b"b", key=b"k", timeout=0.2)
            after = producer.send("orders", b"c", key=b"k")
            other = producer.send("orders", b"d", key=b"other")
            with pytest.raises(RequestTimeout):
                await late
            with pytest.raises(PrecedingPublishFailed, match="'orders'"):
                await after
            for unaffected in (before, other):
                assert not unaffected.done()
                unaffected.cancel()


@pytest.mark.parametrize("place", [{"partition": 0}, {"key": b"k"}, {"headers": {"x": 1}}])
@asynchronous
async def test_a_topic_without_a_channel_is_waited_for_whatever_it_can_take(
    place: dict[str, Any],
) -> None:
    async with Broker("redesigned", allow_write_without_channels=False) as broker:
        await broker.create_topic("orders", extended=True)
        async with Producer(lookupd=broker.lookupd_addresses, **QUICK) as producer:
            with pytest.raises(RequestTimeout, match="has no channel"):
                await producer.publish("orders", b"a", timeout=1.5, **place)
            await broker.create_channel("orders", "billing")
            await producer.publish("orders", b"b", **place)
        assert await stored(broker) == ["b"]


@asynchronous
async def test_an_invalid_topic_is_not_looked_up() -> None:
    async with Producer(lookupd="127.0.0.1:1") as producer:
        with pytest.raises(ConfigError, match="topic name"):
            await producer.publish("no topic", b"a", key=b"k")
        with pytest.raises(ConfigError, match="topic name"):
            await producer.publish_many("no topic", [b"a"], partition=0)
        assert "nsqflow lookup" not in {each.get_name() for each in asyncio.all_tasks()}
