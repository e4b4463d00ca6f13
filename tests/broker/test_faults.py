"""Fault injection of the embedded broker."""

import asyncio
import time

import pytest

import nsqflow
from nsqflow import errors
from nsqflow.broker import Broker
from tests.fixtures.loops import asynchronous, eventually


@asynchronous
async def test_the_next_publish_fails_and_only_that_one() -> None:
    async with Broker() as broker, nsqflow.Producer(broker.nsqd_addresses) as producer:
        broker.fail_next("PUB", "E_PUB_FAILED")
        with pytest.raises(errors.PublishFailedError):
            await producer.publish("orders", b"x")
        await producer.publish("orders", b"y")
        consumer = nsqflow.Consumer("orders", "ch", nsqd=broker.nsqd_addresses)
        async with consumer:
            message = await anext(consumer)
            assert message.body == b"y"
            message.finish()


@asynchronous
async def test_faults_of_one_command_come_in_order() -> None:
    async with Broker() as broker, nsqflow.Producer(broker.nsqd_addresses) as producer:
        broker.fail_next("PUB", "E_PUB_FAILED")
        broker.fail_next("PUB", "E_BAD_TOPIC")
        for code in ("E_PUB_FAILED", "E_BAD_TOPIC"):
            with pytest.raises(nsqflow.ServerError, match=code):
                await producer.publish("orders", b"x")
        await producer.publish("orders", b"x")


@asynchronous
async def test_a_finish_that_fails_leaves_the_connection_and_the_message() -> None:
    events: list[nsqflow.ClientEvent] = []
    async with Broker(msg_timeout=1) as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
        async with nsqflow.Consumer(
            "orders", "ch", nsqd=broker.nsqd_addresses, on_event=events.append
        ) as consumer:
            broker.fail_next("FIN", "E_FIN_FAILED")
            (await anext(consumer)).finish()
            again = await anext(consumer)
            assert again.attempts == 2
            again.finish()
        assert [each.kind for each in events].count("connected") == 1


@asynchronous
async def test_a_refused_subscription_is_retried() -> None:
    async with Broker() as broker:
        broker.fail_next("SUB", "E_SUB_FAILED")
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
        async with nsqflow.Consumer(
            "orders", "ch", nsqd=broker.nsqd_addresses, reconnect_delay=0.05
        ) as consumer:
            (await anext(consumer)).finish()


@asynchronous
async def test_clients_reconnect_after_drop_connections() -> None:
    events: list[str] = []
    async with (
        Broker(nodes=2) as broker,
        nsqflow.Consumer(
            "orders",
            "ch",
            nsqd=broker.nsqd_addresses,
            reconnect_delay=0.05,
            on_event=lambda each: events.append(each.kind),
        ) as consumer,
    ):
        await eventually(lambda: events.count("connected") == 2)
        broker.drop_connections()
        await eventually(lambda: events.count("connected") == 4)
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
        (await anext(consumer)).finish()


@asynchronous
async def test_a_slow_broker_responds_late_and_in_order() -> None:
    async with Broker() as broker, nsqflow.Producer(broker.nsqd_addresses) as producer:
        await producer.publish("orders", b"connected")
        broker.slow(0.3)
        before = time.monotonic()
        await asyncio.gather(*(producer.publish("orders", b"%d" % i) for i in range(10)))
        assert time.monotonic() - before >= 0.3
        with pytest.raises(nsqflow.PublishUncertain):
            await producer.publish("orders", b"x", timeout=0.05)
        broker.slow(0)
        await producer.publish("orders", b"at once")


@asynchronous
async def test_invalid_faults_are_refused() -> None:
    async with Broker() as broker:
        with pytest.raises(nsqflow.ConfigError, match="command='GET'"):
            broker.fail_next("GET", "E_INVALID")
        with pytest.raises(nsqflow.ConfigError, match="code='E_NONE'"):
            broker.fail_next("PUB", "E_NONE")
        with pytest.raises(nsqflow.ConfigError, match="seconds=-1"):
            broker.slow(-1)
