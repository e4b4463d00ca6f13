"""Partitions in which the channel can't be created, for a while or at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import (
    AdminError,
    AuthFailedError,
    NetworkError,
    NotLeaderError,
    NsqError,
    UnauthorizedError,
)
from nsqflow.spark.source import leader, planner
from nsqflow.spark.source.partition_monitor import PartitionMonitor
from tests.integration.spark.source.batches import BatchRun, numbers
from tests.integration.spark.source.clusters import Start

REFUSED = NotLeaderError("E_FAILED_ON_NOT_LEADER", "the topic is not led here")


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", nodes=3) as broker:
        yield broker


def refuse(monkeypatch: pytest.MonkeyPatch, times: int, error: NsqError = REFUSED) -> list[str]:
    """Refuse to create the channel of an ordered partition; return the keys that were asked for."""
    subscribe, asked = leader.subscribe_once, list[str]()

    def replacement(key: str, *given: object) -> None:
        asked.append(key)
        if len(asked) <= times:
            raise error
        subscribe(key, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(f"{PartitionMonitor.__module__}.subscribe_once", replacement)
    return asked


def unreachable(run: BatchRun) -> dict[str, str]:
    found: dict[str, str] = run.reader.reportLatestOffset()["unreachable"]
    return found


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize(
    "error",
    [UnauthorizedError("E_UNAUTHORIZED", "no"), AuthFailedError("E_AUTH_FAILED", "no")],
    ids=str,
)
def test_a_query_that_may_not_create_the_channel_fails(
    broker: BackgroundBroker,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    error: NsqError,
    available_now: bool,
) -> None:
    broker.create_topic(topic, ordered=True)
    refuse(monkeypatch, 1, error)
    with pytest.raises(type(error)):
        start(available_now=available_now).plan()


def test_a_leader_that_creates_no_channel_is_reported_and_warned_of_once(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker.create_topic(topic, ordered=True)
    asked = refuse(monkeypatch, 8)
    run = start()
    with caplog.at_level(logging.WARNING):
        run.begin()
        while len(asked) < 8:
            assert run.plan() == run.start
            assert unreachable(run) == {f"partition 0 of {topic}": f"it has no channel: {REFUSED}"}
    assert [each for each in caplog.messages if "NOT_LEADER" in each] == [
        f"leader of {topic}|0 does not answer: {REFUSED}"
    ]
    assert run.plan() == run.start
    assert unreachable(run) == {}
    producer.publish(topic, b"1")
    assert numbers(run.read_all(1)) == [1]


def test_available_now_waits_for_a_leader_that_creates_no_channel_yet(
    broker: BackgroundBroker,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.create_topic(topic, ordered=True)
    producer.publish_many(topic, [b"0", b"1", b"2"])
    refuse(monkeypatch, 8)
    run = start(available_now=True, startingPosition="earliest")
    assert numbers(run.read_now()) == [0, 1, 2]


def test_available_now_fails_if_a_leader_creates_no_channel(
    broker: BackgroundBroker, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "_LATE", 0.1)
    broker.create_topic(topic, ordered=True)
    refuse(monkeypatch, 10**6)
    run = start(available_now=True, startingPosition="earliest", msgTimeout="1s")
    with pytest.raises(
        NetworkError, match=r"not everything can be read.* it has no channel: E_FAI"
    ):
        run.read_now()


@pytest.mark.parametrize(
    "error", [NetworkError("connection refused"), AdminError(400, "Not nsqlookup leader")], ids=str
)
def test_a_channel_is_registered_once_nsqlookupd_can(
    broker: BackgroundBroker,
    cluster: RedesignedCluster,
    producer: Producer,
    topic: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    error: NsqError,
) -> None:
    asyncio.run(cluster.create_topic(topic, registered_channels=True, wait=20))
    create, asked = RedesignedCluster.create_channel, list[str]()

    async def fail(self: RedesignedCluster, name: str, channel: str) -> None:
        asked.append(name)
        if len(asked) <= 4:
            raise error
        await create(self, name, channel)

    monkeypatch.setattr(RedesignedCluster, "create_channel", fail)
    run = start()
    run.begin()
    while len(asked) <= 4:
        assert unreachable(run) == {f"partition 0 of {topic}": f"it has no channel: {error}"}
        assert run.plan() == run.start
    producer.publish(topic, b"1")
    assert numbers(run.read_all(1)) == [1]
