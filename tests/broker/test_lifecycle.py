"""Starting and stopping a broker: once, twice, never, in the wrong order."""

import asyncio
from pathlib import Path

import pytest

import nsqflow
from nsqflow import LocalProtocolError, blocking
from nsqflow.broker import BackgroundBroker, Broker
from nsqflow.broker.nsqd.daemon import NsqdDaemon
from tests.fixtures.loops import asynchronous


@asynchronous
async def test_a_stopped_broker_can_be_started_again_with_its_messages() -> None:
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


def test_a_stopped_background_broker_can_be_started_again() -> None:
    broker = BackgroundBroker()
    for _ in range(2):
        with broker, blocking.Producer(broker.nsqd_addresses) as producer:
            producer.publish("orders", b"x")


@asynchronous
async def test_starting_a_running_broker_is_refused() -> None:
    async with Broker() as broker:
        before = broker.lookupd_addresses
        with pytest.raises(LocalProtocolError, match="running already"):
            await broker.start()
        assert broker.lookupd_addresses == before
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")


@asynchronous
async def test_a_broker_that_was_not_started_has_no_addresses() -> None:
    broker = Broker(nodes=2)
    assert broker.nsqd_addresses == broker.nsqd_http_addresses == broker.lookupd_addresses == []
    with pytest.raises(LocalProtocolError, match=r"call start\(\) first"):
        await broker.start_node(0)
    await broker.stop()  # does nothing


@asynchronous
async def test_a_node_that_fails_to_stop_does_not_prevent_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(nodes=2)
    await broker.start()
    addresses = [*broker.nsqd_addresses[1:], *broker.lookupd_addresses]
    stop = NsqdDaemon.stop

    async def fail(nsqd: NsqdDaemon) -> None:
        await stop(nsqd)
        if nsqd.options.node_id == 0:
            raise OSError("on purpose")

    monkeypatch.setattr(NsqdDaemon, "stop", fail)
    with pytest.raises(OSError, match="on purpose"):
        await broker.stop()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address.split(":"))


def test_an_option_for_another_nsqlookupd_is_refused() -> None:
    with pytest.raises(nsqflow.ConfigError, match="lookupd_tcp_address"):
        Broker(lookupd_tcp_address=["127.0.0.1:4160"])


@asynchronous
async def test_a_broker_whose_data_path_is_in_use_does_not_start(
    tmp_path: Path,
) -> None:
    async with Broker(data_path=tmp_path) as broker:
        with pytest.raises(nsqflow.ConfigError, match="data_path="):
            await Broker(data_path=tmp_path).start()
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
