"""Servers that go while a batch is read, and partitions without a leader."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import DiscoveryError, NetworkError, NotLeaderError
from nsqflow.spark.source import leader, planner
from tests.fixtures.crashing import until
from tests.integration.spark.source.batches import BatchRun, in_order, numbers
from tests.integration.spark.source.clusters import (
    PARTITIONS,
    Start,
    follower_of,
    leader_of,
    publish,
)

SLOT = 20
COUNT = 300


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker(
        "redesigned",
        nodes=3,
        max_rdy_count=SLOT,
        repeat_messages=True,
        skip_unfinished=True,
        lose_moved_cursor=True,
        flap_time=0.5,
    ) as broker:
        yield broker


def send(producer: Producer, topic: str, count: int, first: int = 0) -> None:
    """Publish numbers to partition 0."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    producer.publish_many(topic, bodies, partition=0)


# --- in the middle of a batch -------------------------------------------------------------------


def _leader(broker: BackgroundBroker, cluster: RedesignedCluster, topic: str) -> int:
    return broker.nsqd_addresses.index(leader_of(cluster, topic, 0))


def _follower(broker: BackgroundBroker, cluster: RedesignedCluster, topic: str) -> int:
    return broker.nsqd_addresses.index(asyncio.run(follower_of(cluster, topic)))


EVENTS: dict[str, tuple[str, Callable[[BackgroundBroker, RedesignedCluster, str], int]]] = {
    "leader stopped": ("stop_node", _leader),
    "leader killed": ("kill_node", _leader),
    "follower stopped": ("stop_node", _follower),
    "follower killed": ("kill_node", _follower),
    "nsqlookupd stopped": ("stop_lookupd", lambda *_: 0),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("event", EVENTS)
def test_a_server_that_goes_while_a_batch_is_read_loses_and_repeats_nothing(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    ordered: bool,
) -> None:
    """It goes in one batch, and is back in a later one."""
    monkeypatch.setattr("nsqflow.spark.source.ordered_writer._MAX_MESSAGES", SLOT)
    broker.create_topic(topic, replicas=3, ordered=ordered)
    run = start()
    run.begin()
    send(producer, topic, COUNT)
    act, choose = EVENTS[event]
    server = choose(broker, cluster, topic)
    back = broker.start_lookupd if act == "stop_lookupd" else broker.start_node
    end = run.await_plan(100)
    (partition,) = run.partitions(end)
    taken = run.rows(partition)
    rows = [next(taken)]
    getattr(broker, act)(server)
    try:
        rows += taken
        run.commit(end)
        end = run.await_plan(100)
        (partition,) = run.partitions(end)
        taken = run.rows(partition)
        rows.append(next(taken))
    finally:
        back(server)
    rows += taken
    run.commit(end)
    rows += run.read_all(COUNT - len(rows))
    assert sorted(numbers(rows)) == [*range(COUNT)]
    assert not ordered or in_order(rows)


# --- without a leader ---------------------------------------------------------------------------


def test_a_partition_without_a_leader_is_read_when_it_has_one_again(
    broker: BackgroundBroker,
    producer: Producer,
    cluster: RedesignedCluster,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that finds none ends its part of the batch, without an error."""
    monkeypatch.setattr(leader, "LEADER_TIMEOUT", 0.5)
    broker.create_topic(topic)
    run = start()
    run.begin()
    send(producer, topic, 50)
    rows = run.batch(20)
    end = run.await_plan(20)
    node = _leader(broker, cluster, topic)
    broker.kill_node(node)
    try:
        assert run.read(end) == []
        run.commit(end)
        assert run.plan() == run.start
        assert run.reader.reportLatestOffset()["unreachable"] == {
            f"partition 0 of {topic}": "it has no leader now"
        }
    finally:
        broker.start_node(node)
    rows += run.read_all(30)
    assert sorted(numbers(rows)) == [*range(50)]


def test_a_partition_that_had_no_leader_when_the_query_began_begins_where_the_others_did(
    broker: BackgroundBroker,
    producer: Producer,
    cluster: RedesignedCluster,
    topic: str,
    start: Start,
) -> None:
    """It is none that was added, which would be read from its first message."""
    broker.create_topic(topic, PARTITIONS)
    publish(producer, topic, COUNT)
    node = _leader(broker, cluster, topic)
    broker.kill_node(node)
    run = start(startingPosition="latest")
    try:
        run.begin()
        run.restart()
        assert run.plan() == run.start
    finally:
        broker.start_node(node)
    until(lambda: run.plan() == run.start and not unreachable(run))
    publish(producer, topic, COUNT, first=COUNT)
    assert sorted(numbers(run.read_all(COUNT))) == [*range(COUNT, 2 * COUNT)]
    assert run.plan() == run.start


def unreachable(run: BatchRun) -> dict[str, str]:
    found: dict[str, str] = run.reader.reportLatestOffset()["unreachable"]
    return found


def test_a_query_that_lost_its_spool_waits_for_the_leader_that_says_where_to_go_on(
    broker: BackgroundBroker,
    producer: Producer,
    cluster: RedesignedCluster,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nsqflow.spark.source.offset_search.LEADER_TIMEOUT", 0.5)
    broker.create_topic(topic, PARTITIONS)
    run = start()
    run.begin()
    publish(producer, topic, COUNT)
    rows = run.read_all(COUNT)
    producer.publish(topic, b"%d" % (2 * COUNT), partition=1)
    rows += run.batch()  # which knows nothing of the other partitions
    run.close()
    shutil.rmtree(run.given["spoolLocation"])
    node = _leader(broker, cluster, topic)
    broker.kill_node(node)
    try:
        run.restart(failOnDataLoss="false")
        with pytest.raises(DiscoveryError, match=r"partition 0 of .* has no leader now"):
            run.plan()
    finally:
        broker.start_node(node)
    run.restart()
    publish(producer, topic, COUNT, first=COUNT)
    rows += run.read_all(COUNT)
    assert sorted(numbers(rows)) == [*range(2 * COUNT + 1)]
    assert run.plan() == run.start


@pytest.mark.parametrize("in_batch", [False, True])
def test_available_now_fails_if_a_partition_has_no_leader(
    broker: BackgroundBroker,
    producer: Producer,
    cluster: RedesignedCluster,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    in_batch: bool,
) -> None:
    monkeypatch.setattr(leader, "LEADER_TIMEOUT", 0.5)
    monkeypatch.setattr(planner, "_LATE", 0.5)
    broker.create_topic(topic, PARTITIONS)
    broker.create_channel(topic, "spark")
    publish(producer, topic, COUNT)
    run = start(available_now=True, msgTimeout="1s")
    end = run.plan(40) if in_batch else run.start
    node = _leader(broker, cluster, topic)
    broker.kill_node(node)
    rows = []
    try:
        with pytest.raises(NetworkError, match="not everything can be read"):
            while in_batch or (end := run.plan(40)) != run.start:
                rows += run.read(end)
                run.commit(end)
                in_batch = False
    finally:
        broker.start_node(node)
    assert len(rows) < COUNT
    run.restart()
    rows += run.read_now()
    assert sorted(numbers(rows)) == [*range(COUNT)]


@pytest.mark.parametrize("seconds", [2.0, 60.0])
def test_available_now_does_not_end_as_long_as_a_leader_refuses_readers(
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    broker: BackgroundBroker,
    producer: Producer,
    seconds: float,
) -> None:
    """nsqlookupd names it, and its statistics say what waits; but it lost a follower."""
    monkeypatch.setattr(leader, "LEADER_TIMEOUT", 0.3)
    monkeypatch.setattr(planner, "_LATE", 3.0)
    broker.create_topic(topic, replicas=2)
    run = start(available_now=True, msgTimeout="2s")
    broker.create_channel(topic, "spark")
    send(producer, topic, 50)
    refused_until = monotonic() + seconds

    connect = leader.connect_leader

    def refuse(*given: object, **more: object) -> object:
        if monotonic() < refused_until:
            raise NotLeaderError("E_FAILED_ON_NOT_LEADER", "the topic is not led here")
        return connect(*given, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(leader, "connect_leader", refuse)
        if seconds > 10:
            with pytest.raises(NetworkError, match="partition 0 has no leader that takes readers"):
                run.read_now()
        else:
            assert sorted(numbers(run.read_now())) == [*range(50)]
