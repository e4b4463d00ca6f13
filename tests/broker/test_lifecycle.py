"""A broker is started and stopped: once, twice, never, in the wrong order."""

import asyncio
from pathlib import Path

import pytest

import nsqflow
from nsqflow import LocalProtocolError, blocking
from nsqflow.broker import BackgroundBroker, Broker
from tests.fixtures.loops import asynchronous


@asynchronous
async def test_a_broker_that_was_stopped_can_be_started_again_and_has_kept_its_messages() -> None:
    broker = Broker(nodes=2)
    await broker.start()
    async with nsqflow.Producer(broker.nsqd_addresses) as producer:
        await producer.publish("orders", b"x")
    addresses = broker.nsqd_addresses
    await broker.stop()
    await broker.start()
    try:
        assert broker.nsqd_addresses == addresses
        async with nsqflow.Consumer(
            "orders", "ch", lookupd=broker.lookupd_addresses, lookupd_poll_interval=0.1
        ) as consumer:
            message = await anext(consumer)
            assert message.body == b"x"
            message.finish()
    finally:
        await broker.stop()


def test_so_can_one_on_a_thread() -> None:
    broker = BackgroundBroker()
    for _ in range(2):
        with broker, blocking.Producer(broker.nsqd_addresses) as producer:
            producer.publish("orders", b"x")


@asynchronous
async def test_starting_a_broker_that_runs_is_refused_and_does_it_no_harm() -> None:
    async with Broker() as broker:
        before = broker.lookupd_addresses
        with pytest.raises(LocalProtocolError, match="running already"):
            await broker.start()
        assert broker.lookupd_addresses == before
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")


@asynchronous
async def test_before_it_is_started_a_broker_is_nowhere() -> None:
    broker = Broker(nodes=2)
    assert broker.nsqd_addresses == broker.nsqd_http_addresses == broker.lookupd_addresses == []
    with pytest.raises(LocalProtocolError, match=r"call start\(\) first"):
        await broker.start_node(0)
    await broker.stop()  # no matter


@asynchronous
async def test_a_node_that_can_not_stop_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(nodes=2)
    await broker.start()
    addresses = [*broker.nsqd_addresses[1:], *broker.lookupd_addresses]
    stop = broker.stop_node

    async def fail(node: int) -> None:
        await stop(node)
        if node == 0:
            raise OSError("on purpose")

    monkeypatch.setattr(broker, "stop_node", fail)
    with pytest.raises(OSError, match="on purpose"):
        await broker.stop()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address.split(":"))


def test_another_nsqlookupd_is_refused() -> None:
    with pytest.raises(nsqflow.ConfigError, match="a Broker has an nsqlookupd of its own"):
        Broker(lookupd_tcp_address=["127.0.0.1:4160"])


@asynchronous
async def test_a_data_path_that_is_in_use_is_told_and_stops_what_had_started(
    tmp_path: Path,
) -> None:
    async with Broker(data_path=tmp_path) as broker:
        with pytest.raises(nsqflow.ConfigError, match="in use by another nsqd"):
            await Broker(data_path=tmp_path).start()
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
