"""The broker with ``dialect="redesigned"``: options, nodes, nsqlookupd, its thread and fixture."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nsqflow
from nsqflow import admin, blocking
from nsqflow.broker import BackgroundBroker, Broker
from nsqflow.errors import ConfigError, LocalProtocolError
from tests.conformance.driver import wait_until
from tests.conformance.redesigned.http_driver import CHANNEL, TOPIC, ask
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE

pytest_plugins = ["pytester"]


def started(nodes: int = 3, **options: Any) -> BackgroundBroker:
    return BackgroundBroker("redesigned", nodes, **options)


def named(broker: BackgroundBroker, lookupd: int = 0) -> dict[str, Any]:
    """Return what an nsqlookupd names to producers of the topic."""
    path = f"GET /lookup?topic={TOPIC}&access=w"
    partitions: dict[str, Any] = ask(broker.lookupd_addresses[lookupd], path).json()["partitions"]
    return partitions


def leader(broker: BackgroundBroker, lookupd: int = 0) -> str:
    """Return the address of the node that leads partition 0 of the topic."""
    node = named(broker, lookupd)["0"]
    return f"{node['broadcast_address']}:{node['tcp_port']}"


def consume(broker: BackgroundBroker, count: int) -> list[bytes]:
    bodies = []
    with blocking.Consumer(TOPIC, CHANNEL, lookupd=broker.lookupd_addresses) as consumer:
        for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies


# Options


@pytest.mark.parametrize("kind", [Broker, BackgroundBroker])
def test_it_is_always_in_memory(kind: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_path=.* a redesigned Broker is always in memory"):
        kind(dialect="redesigned", data_path=tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"election_dely": 1}, "no option 'election_dely'; did you mean 'election_delay'"),
        ({"election_delay": -1}, "election_delay"),
        ({"repeat_messages": "perhaps"}, "repeat_messages"),
        ({"max_msg_sise": 1}, "no option 'max_msg_sise'; did you mean 'max_msg_size'"),
        ({"nodes": 0}, "nodes=0 is invalid"),
        ({"lookupd_tcp_address": ("127.0.0.1:4160",)}, "has its own nsqlookupd"),
    ],
    ids=str,
)
def test_invalid_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Broker("redesigned", **options)  # type: ignore[arg-type]  # what mypy would refuse


def test_options_of_a_cluster_are_not_for_the_classic_dialect() -> None:
    with pytest.raises(ConfigError, match="no option 'election_delay'"):
        Broker(election_delay=1)


# Nodes, leaders and nsqlookupd


@pytest.mark.parametrize(
    "change",
    [
        lambda broker: broker.move_leader("none", 0, 1),
        lambda broker: broker.move_leader(TOPIC, 1, 1),
        lambda broker: broker.move_leader(TOPIC, 0, 3),
        lambda broker: broker.stop_node(3),
        lambda broker: broker.start_node(0),
        lambda broker: broker.stop_lookupd(2),
        lambda broker: broker.start_lookupd(0),
        lambda broker: broker.create_channel("none", CHANNEL),
        lambda broker: broker.create_topic("new", 1, 4),
    ],
)
def test_changes_of_what_there_is_not_are_refused(
    change: Callable[[BackgroundBroker], None],
) -> None:
    with started() as broker:
        broker.create_topic(TOPIC, replicas=3)
        with pytest.raises(ConfigError):
            change(broker)
        assert leader(broker) == broker.nsqd_addresses[0]


@pytest.mark.parametrize("end", ["stop_node", "kill_node"])
def test_a_node_that_is_gone_neither_ends_again_nor_leads(end: str) -> None:
    with started() as broker:
        broker.create_topic(TOPIC, replicas=3)
        getattr(broker, end)(2)
        with pytest.raises(ConfigError, match="node 2 is not running"):
            getattr(broker, end)(2)
        with pytest.raises(ConfigError, match="node 2 is not running"):
            broker.move_leader(TOPIC, 0, 2)
        broker.start_node(2)
        broker.move_leader(TOPIC, 0, 2)
        assert leader(broker) == broker.nsqd_addresses[2]


@asynchronous
async def test_the_classic_dialect_has_no_leaders_and_one_nsqlookupd() -> None:
    async with Broker() as broker:
        for change in (
            broker.move_leader("orders", 0, 0),
            broker.stop_lookupd(0),
            broker.start_lookupd(0),
        ):
            with pytest.raises(ConfigError, match="dialect='redesigned'"):
                await change


def test_a_background_broker_moves_leaders_and_ends_and_starts_nsqlookupd() -> None:
    with started(lookupd_election_delay=0.0) as broker:
        broker.create_topic(TOPIC, replicas=3)
        broker.create_channel(TOPIC, CHANNEL)
        addresses = broker.lookupd_addresses
        with blocking.Producer(lookupd=addresses) as producer:
            producer.publish(TOPIC, b"a")
            broker.move_leader(TOPIC, 0, 1)
            assert leader(broker) == broker.nsqd_addresses[1]
            producer.publish(TOPIC, b"b")
            broker.stop_lookupd(0)
            assert leader(broker, 1) == broker.nsqd_addresses[1]
            with pytest.raises(ConfigError, match="nsqlookupd 0 is not running"):
                broker.stop_lookupd(0)
            producer.publish(TOPIC, b"c")
            broker.start_lookupd(0)
            assert broker.lookupd_addresses == addresses
            assert leader(broker) == leader(broker, 1)
        assert sorted(consume(broker, 3)) == [b"a", b"b", b"c"]


def test_a_stopped_cluster_can_be_started_again_with_its_messages() -> None:
    broker = started()
    with broker:
        broker.create_topic(TOPIC, replicas=3)
        broker.create_channel(TOPIC, CHANNEL)
        addresses = broker.nsqd_addresses, broker.lookupd_addresses
        with blocking.Producer(lookupd=broker.lookupd_addresses) as producer:
            producer.publish(TOPIC, b"a")
    with pytest.raises(LocalProtocolError, match="not running"):
        broker.move_leader(TOPIC, 0, 1)
    with broker:
        assert (broker.nsqd_addresses, broker.lookupd_addresses) == addresses
        assert consume(broker, 1) == [b"a"]


def test_a_stopped_cluster_leaves_no_threads() -> None:
    before = set(threading.enumerate())
    with started() as broker:
        broker.create_topic(TOPIC, replicas=3)
        broker.kill_node(0)
    assert set(threading.enumerate()) == before


LONG = 3600.0  # seconds: nothing that takes as long happens during a test


@asynchronous
async def test_a_cluster_can_be_stopped_while_a_node_is_stopping() -> None:
    broker = Broker("redesigned", 2, move_delay=LONG)
    await broker.start()
    await broker.create_topic(TOPIC, replicas=2)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(broker.stop_node(0), broker.stop(), broker.stop())
    await broker.stop()


@asynchronous
async def test_a_node_that_is_starting_while_the_cluster_is_stopped_is_stopped_too() -> None:
    broker = Broker("redesigned", 2)
    await broker.start()
    await broker.kill_node(0)
    await asyncio.gather(broker.start_node(0), broker.stop())
    with pytest.raises(LocalProtocolError, match="not running"):
        await broker.start_node(0)


@asynchronous
async def test_a_node_whose_stop_was_cancelled_goes_on_and_can_be_stopped_again() -> None:
    async with Broker("redesigned", 2) as broker:
        await broker.create_topic(TOPIC)
        stopping = asyncio.create_task(broker.stop_node(0))
        await asyncio.sleep(0)  # it has started
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()
        async with nsqflow.Producer(lookupd=broker.lookupd_addresses) as producer:
            await producer.publish(TOPIC, b"x")
        await broker.stop_node(0)
        await broker.start_node(0)


@asynchronous
async def test_what_waits_for_a_partition_ends_with_the_cluster() -> None:
    async with Broker("redesigned", 2, move_delay=LONG, new_topic_delay=LONG) as broker:
        creating = asyncio.create_task(broker.create_topic(TOPIC, replicas=2))
        await asyncio.sleep(0)  # it has started
        moving = asyncio.create_task(broker.move_leader(TOPIC, 0, 1))
        await asyncio.sleep(0)
    for task in (creating, moving):
        with pytest.raises(LocalProtocolError, match="stopped"):
            await task


@pytest.mark.parametrize("call", ["stop_node", "move_leader"])
def test_calls_of_other_threads_end_with_a_background_broker(call: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with started(move_delay=LONG) as broker:
            broker.create_topic(TOPIC, replicas=3)
            arguments = (0,) if call == "stop_node" else (TOPIC, 0, 1)
            under_way = pool.submit(getattr(broker, call), *arguments)
            wait_until(lambda: not named(broker))  # it has begun: publishes are refused
        if call == "stop_node":
            under_way.result(PATIENCE)
        else:
            with pytest.raises(LocalProtocolError, match="stopped"):
                under_way.result(PATIENCE)


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    digits = "1" * 5000
    with started(1) as broker:
        broker.create_topic(TOPIC)
        move = f"POST /topic/partition/move?topic={TOPIC}&partition={digits}"
        trace = f"POST /pubtrace?topic={TOPIC}&partition=0&trace_id={digits}"
        assert ask(broker.lookupd_addresses[0], move).status == 400
        assert ask(broker.nsqd_http_addresses[0], trace, b"x").status == 400


# The pytest fixture


def test_the_fixture_is_a_cluster_of_three(nsq_redesigned_broker: BackgroundBroker) -> None:
    broker = nsq_redesigned_broker
    assert (len(broker.nsqd_addresses), len(broker.lookupd_addresses)) == (3, 2)
    broker.create_topic(TOPIC, partitions=3)
    broker.create_channel(TOPIC, CHANNEL)
    with blocking.Producer(lookupd=broker.lookupd_addresses) as producer:
        for number in range(3):
            producer.publish(TOPIC, b"%d" % number, partition=number)
    assert sorted(consume(broker, 3)) == [b"0", b"1", b"2"]


@pytest.mark.nsq_redesigned_broker(nodes=2, max_msg_size=10, allow_write_without_channels=False)
def test_the_marker_sets_the_options_of_the_cluster(
    nsq_redesigned_broker: BackgroundBroker,
) -> None:
    broker = nsq_redesigned_broker
    assert len(broker.nsqd_addresses) == 2
    broker.create_topic(TOPIC)
    lookup = f"GET /lookup?topic={TOPIC}&access=w"
    assert ask(broker.lookupd_addresses[0], lookup).status == 404
    broker.create_channel(TOPIC, CHANNEL)
    address = broker.nsqd_http_addresses[broker.nsqd_addresses.index(leader(broker))]
    publish = f"POST /pub?topic={TOPIC}"
    answers = [ask(address, publish, b"x" * size).status for size in (10, 11)]
    assert answers == [200, 413]


def test_pytest_finds_the_fixture_by_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.nsq_redesigned_broker(nodes=2)
        def test_it(nsq_redesigned_broker):
            nsq_redesigned_broker.create_topic("orders", partitions=2)
            assert len(nsq_redesigned_broker.nsqd_addresses) == 2
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers")
    done.assert_outcomes(passed=1)


@asynchronous
async def test_a_cluster_is_administered_by_its_addresses() -> None:
    async with Broker("redesigned", 3) as broker:
        cluster = admin.RedesignedCluster(lookupd=broker.lookupd_addresses)
        await cluster.create_topic(TOPIC, replicas=3, wait=20)
        assert (await cluster.topic(TOPIC)).leaders[0].address in broker.nsqd_addresses
