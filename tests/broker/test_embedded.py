"""The embedded broker: nodes, discovery, restarts, storage."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import nsqflow
from nsqflow import admin, blocking
from nsqflow.broker import BackgroundBroker, Broker
from tests.fixtures.loops import asynchronous


async def consume(broker: Broker, topic: str, count: int, channel: str = "ch") -> list[bytes]:
    """Consume ``count`` messages through nsqlookupd and return their bodies."""
    bodies: list[bytes] = []
    async with nsqflow.Consumer(
        topic, channel, lookupd=broker.lookupd_addresses, lookupd_poll_interval=0.1
    ) as consumer:
        async for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies


async def channel_stats(broker: Broker, topic: str, node: int = 0) -> admin.ChannelStats:
    """Return the stats of the topic's channel on a node."""
    async with admin.Nsqd(broker.nsqd_http_addresses[node]) as nsqd:
        stats = await nsqd.stats(topic=topic)
    return stats.topics[0].channels[0]


@asynchronous
async def test_published_messages_are_consumed_through_nsqlookupd() -> None:
    async with Broker(nodes=2) as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            for i in range(10):
                await producer.publish("orders", b"%d" % i)
        assert sorted(await consume(broker, "orders", 10)) == [b"%d" % i for i in range(10)]


@asynchronous
async def test_all_nodes_are_registered_when_start_returns() -> None:
    async with Broker(nodes=3) as broker, admin.Lookupd(broker.lookupd_addresses[0]) as lookupd:
        nodes = {node.address for node in await lookupd.nodes()}
    assert nodes == set(broker.nsqd_addresses)


@asynchronous
async def test_a_topic_can_be_created_on_all_nodes() -> None:
    async with Broker(nodes=2) as broker:
        await broker.create_topic("orders")
        for address in broker.nsqd_http_addresses:
            async with admin.Nsqd(address) as nsqd:
                assert [topic.name for topic in (await nsqd.stats()).topics] == ["orders"]


@asynchronous
async def test_a_stopped_node_keeps_its_messages_and_ports() -> None:
    async with Broker() as broker:
        [address] = broker.nsqd_addresses
        async with nsqflow.Producer(address) as producer:
            await producer.publish_many("orders", [b"%d" % i for i in range(100)])
            await producer.publish("orders", b"later", delay=0.2)
        await broker.stop_node(0)
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection(*address.split(":"))
        await broker.start_node(0)
        assert broker.nsqd_addresses == [address]
        assert len(await consume(broker, "orders", 101)) == 101


@asynchronous
async def test_messages_in_flight_at_a_stop_are_delivered_again() -> None:
    async with Broker() as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
        async with nsqflow.Consumer(
            "orders", "ch", nsqd=broker.nsqd_addresses, reconnect_delay=0.05
        ) as consumer:
            first = await anext(consumer)
            await broker.stop_node(0)
            await broker.start_node(0)
            again = await anext(consumer)
            assert (again.id, again.attempts) == (first.id, 2)
            again.finish()
            first.finish()  # without effect, but the consumer waits for it


@asynchronous
async def test_a_killed_node_loses_its_messages_but_not_its_topics() -> None:
    async with Broker() as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"lost")
        async with admin.Nsqd(broker.nsqd_http_addresses[0]) as nsqd:
            await nsqd.create_channel("orders", "ch")
            await nsqd.pause_channel("orders", "ch")
        await broker.kill_node(0)
        await broker.start_node(0)
        stats = await channel_stats(broker, "orders")
        assert (stats.name, stats.depth, stats.paused) == ("ch", 0, True)


@asynchronous
async def test_with_a_data_path_a_kill_loses_nothing(tmp_path: Path) -> None:
    async with Broker(data_path=tmp_path) as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish_many("orders", [b"%d" % i for i in range(1000)])
            await producer.publish("orders", b"later", delay=0.5)
        await broker.kill_node(0)
        await broker.start_node(0)
        assert len(set(await consume(broker, "orders", 1001))) == 1001


@asynchronous
async def test_with_a_data_path_another_broker_continues(tmp_path: Path) -> None:
    async with Broker(data_path=tmp_path) as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish_many("orders", [b"a", b"b", b"c"])
        async with admin.Nsqd(broker.nsqd_http_addresses[0]) as nsqd:
            await nsqd.create_channel("orders", "ch")
            await nsqd.pause_channel("orders", "ch")
    async with Broker(data_path=tmp_path) as broker:
        stats = await channel_stats(broker, "orders")
        assert (stats.depth, stats.paused) == (3, True)
        async with admin.Nsqd(broker.nsqd_http_addresses[0]) as nsqd:
            await nsqd.unpause_channel("orders", "ch")
        assert await consume(broker, "orders", 3) == [b"a", b"b", b"c"]


@asynchronous
async def test_finished_messages_are_not_delivered_again_after_a_kill(tmp_path: Path) -> None:
    async with Broker(data_path=tmp_path) as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish_many("orders", [b"1", b"2", b"3"])
            assert await consume(broker, "orders", 2) == [b"1", b"2"]
            # A commit of this publish includes the FINs before it.
            await producer.publish("orders", b"4")
        await broker.kill_node(0)
        await broker.start_node(0)
        assert sorted(await consume(broker, "orders", 2)) == [b"3", b"4"]


@asynchronous
async def test_options_of_nsqd_are_passed_on() -> None:
    async with (
        Broker(max_msg_size=10) as broker,
        nsqflow.Producer(broker.nsqd_addresses) as producer,
    ):
        with pytest.raises(nsqflow.ServerError, match="E_BAD_MESSAGE"):
            await producer.publish("orders", b"12345678901")


@asynchronous
async def test_publishes_beyond_max_memory_are_refused() -> None:
    async with (
        Broker(max_memory=100_000) as broker,
        nsqflow.Producer(broker.nsqd_addresses, reconnect_delay=0.05) as producer,
    ):
        with pytest.raises(nsqflow.ServerError, match=r"E_PUB_FAILED .*max-memory"):
            for _ in range(100):
                await producer.publish("orders", bytes(2000))
        async with admin.Nsqd(broker.nsqd_http_addresses[0]) as nsqd:
            depth = (await nsqd.stats()).topics[0].depth
        assert 0 < depth < 50
        assert len(await consume(broker, "orders", depth)) == depth
        await producer.publish("orders", b"fits again")


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(nsqflow.ConfigError, match="dialect='x'"):
        Broker("x")
    for nodes in (0, 101, "2", 1.5, None):
        with pytest.raises(nsqflow.ConfigError, match=f"nodes={nodes!r}"):
            Broker(nodes=nodes)  # type: ignore[arg-type]
    with pytest.raises(nsqflow.ConfigError, match="'nods'"):
        Broker(nods=2)
    with pytest.raises(nsqflow.ConfigError, match="max_message_size"):
        Broker(max_message_size=1)
    with pytest.raises(nsqflow.ConfigError, match="msg_timeout=-1"):
        Broker(msg_timeout=-1)


@pytest.mark.parametrize("option", ["tcp_address", "http_address"])
@pytest.mark.parametrize("address", ["", "/run/nsqd.sock", "127.0.0.1"])
def test_a_node_needs_a_port_for_tcp_and_one_for_http(option: str, address: str) -> None:
    with pytest.raises(nsqflow.ConfigError, match=f"{option}='{address}'"):
        Broker(**{option: address})  # type: ignore[arg-type]


@asynchronous
async def test_nodes_are_named_by_number() -> None:
    async with Broker() as broker:
        with pytest.raises(nsqflow.ConfigError, match="node=1"):
            await broker.stop_node(1)
        with pytest.raises(nsqflow.ConfigError, match="node 0 is running"):
            await broker.start_node(0)
        with pytest.raises(nsqflow.ConfigError, match="node='0'"):
            await broker.stop_node("0")  # type: ignore[arg-type]
        await broker.stop_node(0)
        with pytest.raises(nsqflow.ConfigError, match="node 0 is not running"):
            await broker.kill_node(0)


@asynchronous
async def test_operations_on_a_node_run_one_after_the_other() -> None:
    async with Broker() as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
        await asyncio.gather(
            broker.stop_node(0), broker.start_node(0), broker.stop_node(0), broker.start_node(0)
        )
        assert await consume(broker, "orders", 1) == [b"x"]
        await asyncio.gather(broker.kill_node(0), broker.start_node(0))
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"y")
        assert await consume(broker, "orders", 1) == [b"y"]


@asynchronous
async def test_a_node_whose_stop_was_cancelled_can_be_stopped_again() -> None:
    async with Broker() as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
        stopping = asyncio.create_task(broker.stop_node(0))
        await asyncio.sleep(0)  # it has started
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()
        await broker.stop_node(0)
        await broker.start_node(0)
        assert await consume(broker, "orders", 1) == [b"x"]


@asynchronous
async def test_a_broker_can_be_stopped_while_a_node_is_stopping() -> None:
    broker = Broker(nodes=2)
    await broker.start()
    await asyncio.gather(broker.stop_node(0), broker.stop(), broker.stop())
    await broker.stop()


@asynchronous
async def test_a_created_topic_survives_a_kill(tmp_path: Path) -> None:
    async with Broker(data_path=tmp_path) as broker:
        await broker.create_topic("orders")
        await broker.kill_node(0)
        await broker.start_node(0)
        async with admin.Nsqd(broker.nsqd_http_addresses[0]) as nsqd:
            assert [topic.name for topic in (await nsqd.stats()).topics] == ["orders"]


@asynchronous
async def test_partitions_are_refused_by_the_classic_dialect() -> None:
    async with Broker() as broker:
        with pytest.raises(nsqflow.ConfigError, match="partitions=2"):
            await broker.create_topic("orders", partitions=2)


@asynchronous
async def test_a_stopped_broker_leaves_no_threads_or_tasks(tmp_path: Path) -> None:
    threads = {*threading.enumerate()}
    tasks = asyncio.all_tasks()
    async with Broker(nodes=2, data_path=tmp_path) as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            await producer.publish("orders", b"x")
        assert await consume(broker, "orders", 1) == [b"x"]
    # The executor that opens the store belongs to the loop and ends with it.
    left = {each for each in {*threading.enumerate()} - threads if "asyncio" not in each.name}
    assert left == set()
    assert asyncio.all_tasks() == tasks


def test_a_background_broker_works_without_a_loop() -> None:
    before = {*threading.enumerate()}  # brokers of other tests may run
    with BackgroundBroker(nodes=2) as broker:
        broker.create_topic("orders")
        with blocking.Producer(broker.nsqd_addresses) as producer:
            producer.publish("orders", b"x")
        broker.stop_node(0)
        broker.start_node(0)
        broker.kill_node(1)
        broker.start_node(1)
    assert "nsqflow-broker" not in {thread.name for thread in {*threading.enumerate()} - before}


def test_a_background_broker_that_fails_to_start_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "nsqd-0").mkdir()
    (tmp_path / "nsqd-0" / "nsqd.db").write_text("no database" * 1000)
    before = {*threading.enumerate()}
    with pytest.raises(nsqflow.NsqError, match="nsqd-0"):
        BackgroundBroker(data_path=tmp_path).start()
    assert "nsqflow-broker" not in {thread.name for thread in {*threading.enumerate()} - before}


def test_a_background_broker_must_be_started_before_it_is_used() -> None:
    broker = BackgroundBroker()
    uses: list[Callable[[], None]] = [
        lambda: broker.create_topic("orders"),
        lambda: broker.stop_node(0),
        lambda: broker.fail_next("PUB", "E_PUB_FAILED"),
        broker.drop_connections,
        lambda: broker.slow(1),
    ]
    for use in uses:
        with pytest.raises(nsqflow.LocalProtocolError, match="not running"):
            use()
    broker.stop()  # does nothing


def test_a_background_broker_can_be_stopped_twice_but_not_started_twice() -> None:
    broker = BackgroundBroker()
    broker.start()
    try:
        with pytest.raises(nsqflow.LocalProtocolError, match="has been started already"):
            broker.start()
        broker.create_topic("orders")
    finally:
        broker.stop()
    broker.stop()
    with pytest.raises(nsqflow.LocalProtocolError, match="not running"):
        broker.create_topic("orders")


def test_a_background_broker_keeps_its_messages_over_a_restart() -> None:
    broker = BackgroundBroker()
    with broker, blocking.Producer(broker.nsqd_addresses) as producer:
        producer.publish("orders", b"x")
    with broker, blocking.Consumer("orders", "ch", nsqd=broker.nsqd_addresses) as consumer:
        message = next(iter(consumer))
        assert message.body == b"x"
        message.finish()
