"""Where a stream begins with partitions of the redesigned NSQ, on our broker."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing

import pytest

from nsqflow.broker import BackgroundBroker
from nsqflow.errors import ConfigError, DataLossError
from nsqflow.spark.options import parse_stream
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.beginning import Beginning
from nsqflow.spark.source.progress import ReadProgress
from tests.integration.spark.source.table_reads import TOPIC, TableRead, now, publish

CHANNEL = "spark"


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", 3) as broker:
        broker.create_topic(TOPIC, partitions=2, replicas=2)
        yield broker


class Begun:
    """What a query knows of its partitions when it has begun with them."""

    def __init__(
        self, broker: BackgroundBroker, position: str, progress: ReadProgress | None = None
    ) -> None:
        given = {
            "lookupd": ",".join(broker.lookupd_addresses),
            "topic": TOPIC,
            "channel": CHANNEL,
            "spoolLocation": "/spool",  # not used here
            "startingPosition": position,
        }
        self.progress = progress or ReadProgress()
        with closing(BacklogMonitor(options := parse_stream(given))) as monitor:
            monitor.create()
            backlogs = monitor.poll()
            self.new = Beginning(monitor, options).begin(self.progress, backlogs)
            self.backlogs: dict[str, ChannelBacklog] = {each.key: each for each in monitor.poll()}

    @property
    def bases(self) -> list[int]:
        """The offsets at which the partitions begin."""
        return [each.coverage.base for _, each in sorted(self.progress.states.items())]

    @property
    def cursors(self) -> list[int]:
        """Where the channel is in the partitions."""
        return [each.cursor for _, each in sorted(self.backlogs.items())]


def offsets(broker: BackgroundBroker, partition: int) -> list[int]:
    """The offsets of all messages of a partition, and its end."""
    rows = TableRead(broker, mode="range").rows()
    here = [row for row in rows if row["partition"] == partition]
    return [*(row["offset"] for row in here), here[-1]["offset"] + here[-1]["size"]]


def test_a_query_begins_with_what_waits_in_the_channel(broker: BackgroundBroker) -> None:
    publish(broker, range(10), partition=0)
    Begun(broker, "existing")  # makes the channel, at the end
    publish(broker, range(10, 20), partition=0)
    begun = Begun(broker, "existing")
    assert begun.new
    assert begun.bases == begun.cursors == [offsets(broker, 0)[10], 0]
    assert not Begun(broker, "existing", begun.progress).new


def test_earliest_and_latest_move_the_channel(broker: BackgroundBroker) -> None:
    publish(broker, range(10), partition=0)
    begun = Begun(broker, "earliest")
    assert begun.bases == begun.cursors == [0, 0]
    begun = Begun(broker, "latest")
    assert begun.bases == begun.cursors == [offsets(broker, 0)[-1], 0]


@pytest.mark.parametrize("later", [10, 0])
def test_a_time_is_the_offset_of_the_first_message_from_then_on(
    broker: BackgroundBroker, later: int
) -> None:
    publish(broker, range(30), partition=0)
    time = now()
    publish(broker, range(30, 30 + later), partition=0)
    begun = Begun(broker, time)
    assert begun.bases == begun.cursors == [offsets(broker, 0)[30], 0]
    assert all(each.coverage.since > 10**18 for each in begun.progress.states.values())


def test_a_time_before_all_messages_is_the_first_one(broker: BackgroundBroker) -> None:
    publish(broker, range(30))
    assert Begun(broker, "timestamp:0").bases == [0, 0]


def test_offsets_are_those_of_messages(broker: BackgroundBroker) -> None:
    publish(broker, range(10), partition=0)
    places = offsets(broker, 0)
    for given, expected in [
        (places[3], places[3]),
        (places[3] + 1, places[4]),
        (places[9] + 1, places[10]),
        (places[10], places[10]),
    ]:
        begun = Begun(broker, json.dumps({TOPIC: {"0": given}}))
        assert begun.bases == begun.cursors == [expected, 0]


def test_an_offset_beyond_the_end_is_refused(broker: BackgroundBroker) -> None:
    publish(broker, range(10), partition=0)
    with pytest.raises(
        ConfigError, match="startingPosition has offset 9999 for partition 0 of 'or"
    ):
        Begun(broker, json.dumps({TOPIC: {"0": 9999}}))


def test_a_partition_that_is_new_to_a_query_is_read_from_its_first_message(
    broker: BackgroundBroker,
) -> None:
    begun = Begun(broker, "latest")
    publish(broker, range(10))
    del begun.progress.states[f"{TOPIC}|1"]
    begun = Begun(broker, "latest", begun.progress)
    assert begun.new
    assert begun.bases == [0, 0]
    assert begun.cursors == [0, 0]


def test_a_query_whose_progress_is_lost_goes_on_where_the_channel_is(
    broker: BackgroundBroker,
) -> None:
    Begun(broker, "latest")
    publish(broker, range(10), partition=0)
    cursors = Begun(broker, "latest").cursors
    given = {"lookupd": broker.lookupd_addresses[0], "topic": TOPIC, "channel": CHANNEL}
    options = parse_stream(given | {"spoolLocation": "/spool"})
    progress = ReadProgress()
    with closing(BacklogMonitor(options)) as monitor:
        Beginning(monitor, options).go_on(progress)
    states = sorted(progress.states.items())
    assert [each.coverage.base for _, each in states] == cursors


def test_what_the_server_has_removed_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    with BackgroundBroker("redesigned", 1, max_memory=200_000) as broker:
        broker.create_topic(TOPIC)
        publish(broker, range(400))
        time = "timestamp:1"
        for _ in range(5):  # without a channel all of it may go
            publish(broker, range(400))
        with pytest.raises(
            DataLossError, match=r"keeps nothing before offset \d+, and what it had"
        ):
            TableRead(broker, mode="range", startingPosition=time)
        with pytest.raises(
            DataLossError, match=r"keeps nothing before offset \d+, and offset 1 is"
        ):
            TableRead(broker, mode="range", startingPosition=json.dumps({TOPIC: {"0": 1}}))
        with caplog.at_level(logging.WARNING):
            read = TableRead(broker, mode="range", startingPosition=time, failOnDataLoss="false")
        rows, everything = read.rows(), TableRead(broker, mode="range").rows()
        assert rows == everything
        assert 0 < len(rows) < 2400
        assert rows[0]["offset"] > 0
        assert any("is gone; continuing without them" in text for text in caplog.messages)
