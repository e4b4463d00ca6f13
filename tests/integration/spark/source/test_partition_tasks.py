"""Tasks that die, stall, race and come too late while they read a partition.

The broker has slots of 20 messages, and the hazards of the real servers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import SourceInUseError, SpoolError
from nsqflow.spark.source import ordered_writer
from nsqflow.spark.source.partition_reader import PartitionReader
from nsqflow.spark.source.pull import PullSubscription
from nsqflow.spark.spool.slots import Slots
from tests.fixtures.crashing import until
from tests.integration.spark.source.batches import BatchRun, Row, in_order, numbers
from tests.integration.spark.source.clusters import Start

SLOT = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker(
        "redesigned",
        nodes=3,
        max_rdy_count=SLOT,
        repeat_messages=True,
        skip_unfinished=True,
        lose_moved_cursor=True,
    ) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_writer, "_MAX_MESSAGES", SLOT)


class Death(Exception):
    """A task dies."""


def failing(call: Callable[..., Any], number: int, act: Callable[[], None]) -> Callable[..., Any]:
    """Return ``call``, which acts after it has done its work for the ``number``-th time."""
    calls = 0

    def replacement(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        result = call(*given, **more)
        if calls == number:
            act()
        return result

    return replacement


def die() -> None:
    raise Death


def begun(run: BatchRun, producer: Producer, topic: str, count: int = 10) -> list[Row]:
    """Begin with a query, publish numbers, and read the first of them."""
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(200)])
    return run.batch(count)


def check_rest(run: BatchRun, rows: list[Row], *, ordered: bool) -> None:
    """Read what there is, and check that there is each number once."""
    rows += run.read_all(200 - len(rows))
    assert run.plan() == run.start
    assert sorted(numbers(rows)) == [*range(200)]
    assert not ordered or in_order(rows)


def in_flight(cluster: RedesignedCluster, topic: str) -> int:
    """Return how many messages the leader has delivered that are not answered."""
    (stats,) = asyncio.run(cluster.stats(topic))
    channel = stats.channel("spark")
    assert channel is not None
    return channel.in_flight_count


# --- tasks that die -----------------------------------------------------------------------------

STEPS = {
    "after its second slot": (Slots, "create", 2),
    "after its FINs": (PullSubscription, "barrier", 1),
    "before Spark has the rows": (PartitionReader, "_passed", 2),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_task_of_a_partition_that_dies_loses_and_repeats_nothing(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    ordered: bool,
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start(msgTimeout="1s")
    rows = begun(run, producer, topic)
    end = run.await_plan(100)
    owner, name, number = STEPS[step]
    with monkeypatch.context() as patch, pytest.raises(Death):
        patch.setattr(owner, name, failing(getattr(owner, name), number, die))
        run.read(end)
    rows += run.read(end)
    run.commit(end)
    check_rest(run, rows, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_query_whose_tasks_of_a_partition_died_goes_on_from_their_slots(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    ordered: bool,
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start(msgTimeout="1s")
    rows = begun(run, producer, topic)
    end = run.await_plan(150)
    (partition,) = run.partitions(end)
    written: list[bytes] = []
    for slots in range(1, 5):
        with monkeypatch.context() as patch, pytest.raises(Death):
            patch.setattr(Slots, "create", failing(Slots.create, 1, die))
            run.read_partition(partition)
        written = run.slots(partition)
        assert len(written) == slots
    run.restart()
    rows += run.read(end)
    assert run.slots(partition)[: len(written)] == written
    run.commit(end)
    check_rest(run, rows, ordered=ordered)


# --- tasks that stall ---------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_task_of_a_partition_that_stalls_beyond_msg_timeout_loses_and_repeats_nothing(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    before: bool,
    ordered: bool,
) -> None:
    """nsqd delivers its messages again, to the same task and to later ones."""
    broker.create_topic(topic, ordered=ordered)
    run = start(msgTimeout="1s", spoolRetentionBatches="1")
    rows = begun(run, producer, topic)
    timed_out: list[int] = []

    def stall() -> None:
        def timeouts() -> int:
            (stats,) = asyncio.run(cluster.stats(topic))
            channel = stats.channel("spark")
            assert channel is not None
            return channel.timeout_count

        first = timeouts()
        until(lambda: timeouts() > first)
        timed_out.append(timeouts())

    create = Slots.create

    def create_late(*given: Any) -> Any:
        if len(timed_out) < 2:
            stall()
        return create(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "create", create_late if before else failing(create, 2, stall))
        rows += run.batch(100)
    assert timed_out
    check_rest(run, rows, ordered=ordered)


# --- batches that are read in other ways than once and whole --------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_tasks_that_race_for_a_partition_read_the_same_rows(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start()
    rows = begun(run, producer, topic)
    for _ in range(2):
        end = run.await_plan(80)
        (partition,) = run.partitions(end)
        with ThreadPoolExecutor(3) as pool:
            first, *others = pool.map(run.read_partition, [partition] * 3)
        assert others == [first] * 2
        rows += first
        run.commit(end)
    check_rest(run, rows, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_partition_that_was_looked_into_is_read_whole_afterwards(
    broker: BackgroundBroker, producer: Producer, topic: str, start: Start, ordered: bool
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start()
    rows = begun(run, producer, topic)
    end = run.await_plan(100)
    (partition,) = run.partitions(end)
    look = run.rows(partition)
    few = [next(look) for _ in range(5)]
    look.close()  # type: ignore[attr-defined]
    found = run.read(end)
    assert found[:5] == few
    assert len(found) == 100
    run.commit(end)
    check_rest(run, rows + found, ordered=ordered)


# --- tasks that come too late -------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_a_task_of_a_partition_whose_batch_left_the_spool_takes_nothing(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    ordered: bool,
) -> None:
    broker.create_topic(topic, ordered=ordered)
    run = start(spoolRetentionBatches="1", idleTimeout="200ms")
    run.begin()
    producer.publish_many(topic, [b"%d" % number for number in range(200)])
    end = run.await_plan(10)
    (late,) = run.partitions(end)
    rows = run.read(end)
    run.commit(end)
    rows += run.batch(10)
    run.settle()
    with pytest.raises(SpoolError, match="this task comes too late"):
        run.read_partition(late)
    assert in_flight(cluster, topic) == 0
    check_rest(run, rows, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_task_of_a_partition_that_wakes_after_the_lease_was_taken_changes_nothing(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    ordered: bool,
) -> None:
    """On an ordered topic it may finish messages; the next batch reads them anyway."""
    broker.create_topic(topic, ordered=ordered)
    run = start(msgTimeout="20s", idleTimeout="200ms")
    rows = begun(run, producer, topic)
    end = run.await_plan(60)
    (stalled,) = run.partitions(end)
    create, reached, awake = Slots.create, threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def create_late(*given: Any) -> Any:
        if threading.current_thread().name == late_name:
            reached.set()
            awake.wait(60)
        return create(*given)

    def read_late() -> None:
        try:
            run.read_partition(stalled)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(Slots, "create", create_late)
    late_name = f"nsqflow-spark-{topic}|0"
    task = threading.Thread(target=read_late)
    task.start()
    assert reached.wait(60)
    late_name = ""
    run.restart()  # which takes the next number of the lease
    rows += run.read(end)
    run.commit(end)
    awake.set()
    task.join()
    # Of an ordered topic the slot of the other task is there: it has nothing to answer.
    assert [type(error) for error in errors] == ([] if ordered else [SourceInUseError])
    check_rest(run, rows, ordered=ordered)
