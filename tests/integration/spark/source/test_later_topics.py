"""Topics that a query finds later, and those that have no leader when it begins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from nsqflow.spark.source.partition_monitor import PartitionMonitor
from tests.fixtures.crashing import until
from tests.integration.spark.source.batches import BatchRun, numbers
from tests.integration.spark.source.clusters import Start, leader_of


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", nodes=3, skip_unfinished=True) as broker:
        yield broker


def send(producer: Producer, topic: str, count: int, first: int = 0) -> None:
    """Publish numbers to partition 0."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    producer.publish_many(topic, bodies, partition=0)


@pytest.mark.parametrize("position", ["existing", "latest", "earliest"])
@pytest.mark.parametrize("open_batch", [False, True])
def test_a_topic_that_was_created_while_the_query_was_stopped_is_read_from_its_first_message(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    position: str,
    open_batch: bool,
) -> None:
    """Also if a batch that was planned before runs first."""
    broker.create_topic(f"{topic}-a")
    run = start(topic=None, topicPattern=f"{topic}-.*", startingPosition=position)
    run.begin()
    send(producer, f"{topic}-a", 10)
    end = run.await_plan()
    rows = [] if open_batch else run.read(end)
    if not open_batch:
        run.commit(end)
    run.close()
    broker.create_topic(f"{topic}-b")
    send(producer, f"{topic}-b", 50, first=10)
    run.restart()
    if open_batch:
        rows += run.read(end)
        run.commit(end)
    rows += run.read_all(60 - len(rows))
    assert sorted(numbers(rows)) == [*range(60)]


def test_a_topic_whose_leader_answers_only_after_its_channel_is_created_is_read_from_the_first(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.create_topic(f"{topic}-a")
    run = start(topic=None, topicPattern=f"{topic}-.*")
    run.begin()
    create, read_one = PartitionMonitor.create, PartitionMonitor._read_one
    created: list[str] = []

    async def create_and_lose(monitor: PartitionMonitor, keys: set[str]) -> None:
        await create(monitor, keys)
        created.extend(keys)

        async def read_nothing(*_: object) -> list[object]:
            monkeypatch.setattr(PartitionMonitor, "_read_one", read_one)
            return []

        monkeypatch.setattr(PartitionMonitor, "_read_one", read_nothing)

    monkeypatch.setattr(PartitionMonitor, "create", create_and_lose)
    broker.create_topic(f"{topic}-b")
    send(producer, f"{topic}-b", 50)
    assert sorted(numbers(run.read_all(50))) == [*range(50)]
    assert created == [f"{topic}-b|0"]


def test_an_empty_topic_that_was_found_before_the_query_stopped_is_not_skipped(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start
) -> None:
    """What is known of it is stored with the next batch only."""
    broker.create_topic(f"{topic}-a")
    run = start(topic=None, topicPattern=f"{topic}-.*", startingPosition="latest")
    run.begin()
    send(producer, f"{topic}-a", 1)
    assert numbers(run.batch()) == [0]
    broker.create_topic(f"{topic}-b")
    until(lambda: run.plan() == run.start and f"{topic}-b|0" in progress_of(run))
    run.close()
    send(producer, f"{topic}-b", 50, first=1)
    run.restart()
    assert sorted(numbers(run.read_all(50))) == [*range(1, 51)]


def progress_of(run: BatchRun) -> set[str]:
    return {*run.reader._planner._partitions.progress.states}


def test_a_topic_that_had_no_leader_when_the_query_began_begins_where_the_others_did(
    broker: BackgroundBroker,
    producer: Producer,
    cluster: RedesignedCluster,
    topic: str,
    start: Start,
) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        broker.create_topic(name)
        send(producer, name, 10)
    leaders = {name: broker.nsqd_addresses.index(leader_of(cluster, name, 0)) for name in names}
    lost = next(name for name in names if leaders[name] != leaders[names[0]])
    broker.kill_node(leaders[lost])
    run = start(topic=f"{names[0]},{lost}", startingPosition="latest")
    try:
        run.begin()
        run.restart()
        assert run.plan() == run.start
    finally:
        broker.start_node(leaders[lost])
    until(lambda: run.plan() == run.start and lost not in str(unreachable(run)))
    send(producer, lost, 10, first=10)
    assert sorted(numbers(run.read_all(10))) == [*range(10, 20)]
    assert run.plan() == run.start


def unreachable(run: BatchRun) -> dict[str, str]:
    found: dict[str, str] = run.reader.reportLatestOffset()["unreachable"]
    return found
