"""The channels of a pipeline in the partitions of a redesigned cluster, before anything is read."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import ConfigError
from nsqflow.pipelines import partition_channels
from nsqflow.pipelines.channels import create_channels
from nsqflow.pipelines.pipeline import load_pipeline
from nsqflow.pipelines.topics import topic_error
from nsqflow.spark.options import SourceOptions, parse_stream
from tests.fixtures.servers import PATIENCE, start_nsqd, start_nsqlookupd

CHANNELS = ["c.a", "c.b", "c.c"]


def options_of(folder: Path, broker: BackgroundBroker, **options: str) -> SourceOptions:
    lookupd = ",".join(broker.lookupd_addresses)
    given = {"channel": "c.a", "spoolLocation": str(folder), "lookupd": lookupd}
    return parse_stream(given | options)


def channels(broker: BackgroundBroker, topic: str) -> list[list[str]]:
    """The channels of each partition."""
    cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
    partitions = asyncio.run(cluster.stats(topic))
    return [sorted(channel.name for channel in each.channels) for each in partitions]


@pytest.mark.parametrize("ordered", [False, True])
def test_every_partition_gets_all_channels(
    nsq_redesigned_broker: BackgroundBroker, tmp_path: Path, *, ordered: bool
) -> None:
    nsq_redesigned_broker.create_topic("orders", partitions=3, replicas=1, ordered=ordered)
    nsq_redesigned_broker.create_topic("other")
    create_channels(options_of(tmp_path, nsq_redesigned_broker, topicPattern="ord.*"), CHANNELS)
    assert channels(nsq_redesigned_broker, "orders") == [CHANNELS] * 3
    assert channels(nsq_redesigned_broker, "other") == [[]]


def test_nsqlookupd_creates_channels_where_consumers_create_none(
    nsq_redesigned_broker: BackgroundBroker, tmp_path: Path
) -> None:
    cluster = RedesignedCluster(lookupd=nsq_redesigned_broker.lookupd_addresses)
    asyncio.run(
        cluster.create_topic("orders", partitions=2, registered_channels=True, wait=PATIENCE)
    )
    create_channels(options_of(tmp_path, nsq_redesigned_broker, topic="orders"), CHANNELS)
    assert channels(nsq_redesigned_broker, "orders") == [CHANNELS] * 2


@pytest.mark.nsq_redesigned_broker(nodes=3, election_delay=1.0)
def test_a_partition_whose_leader_was_killed_gets_its_channels_from_the_next(
    nsq_redesigned_broker: BackgroundBroker, tmp_path: Path
) -> None:
    nsq_redesigned_broker.create_topic("orders", partitions=3, replicas=3, ordered=True)
    nsq_redesigned_broker.kill_node(1)
    create_channels(options_of(tmp_path, nsq_redesigned_broker, topic="orders"), CHANNELS)
    assert channels(nsq_redesigned_broker, "orders") == [CHANNELS] * 3


def test_a_partition_without_a_leader_is_reported(
    nsq_redesigned_broker: BackgroundBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_channels, "_TIMEOUT", 0.0)
    nsq_redesigned_broker.create_topic("orders", partitions=3, replicas=1)
    nsq_redesigned_broker.kill_node(1)
    with caplog.at_level(logging.WARNING):
        create_channels(options_of(tmp_path, nsq_redesigned_broker, topic="orders"), CHANNELS)
    assert channels(nsq_redesigned_broker, "orders") == [CHANNELS] * 2
    (text,) = [each.getMessage() for each in caplog.records if "orders|" in each.getMessage()]
    assert text.endswith(": no leader answers; its channels are created when one does")


def error_of(folder: Path, lookupd: str, options: str = "") -> str | None:
    path = folder / "p.toml"
    path.write_text(
        f'source = {{ topic = "orders", lookupd = "{lookupd}", options = {{ {options} }} }}\n'
        'sink = [{ name = "out", format = "console" }]\n'
    )
    error = topic_error(load_pipeline(path, servers=dict))
    return None if error is None else str(error).removeprefix(f"{path}:")


def test_a_missing_topic_is_named_with_the_command_that_creates_it(
    nsq_redesigned_broker: BackgroundBroker, tmp_path: Path
) -> None:
    lookupd = nsq_redesigned_broker.lookupd_addresses[0]
    missing = (
        "topic 'orders' does not exist in the redesigned NSQ, where publishing creates none: "
        "nsqflow create orders --partitions N"
    )
    assert error_of(tmp_path, lookupd) == f"1: source: {missing}"
    with pytest.raises(ConfigError, match=f"^{missing}$"):
        create_channels(options_of(tmp_path, nsq_redesigned_broker, topic="orders"), CHANNELS)
    nsq_redesigned_broker.create_topic("orders")
    assert error_of(tmp_path, lookupd, 'ordered = true, startingPosition = "earliest"') is None


def test_a_missing_topic_of_a_sink_is_named_too(
    nsq_redesigned_broker: BackgroundBroker, tmp_path: Path
) -> None:
    nsq_redesigned_broker.create_topic("orders")
    path = tmp_path / "p.toml"
    lookupd = nsq_redesigned_broker.lookupd_addresses[0]
    path.write_text(
        f'source = {{ topic = "orders", lookupd = "{lookupd}" }}\n'
        'sink = [{ name = "out", format = "console" },\n'
        '{ name = "copy", format = "nsq", topic = "copies" }]\n'
    )
    pipeline = load_pipeline(path)
    assert str(topic_error(pipeline)).startswith(
        f"{path}:2: sink.copy: topic 'copies' does not exist in the redesigned NSQ, "
    )
    nsq_redesigned_broker.create_topic("copies")
    assert topic_error(pipeline) is None


def test_an_nsqd_of_the_redesigned_nsq_is_found_through_nsqlookupd_only(
    nsq_redesigned_broker: BackgroundBroker, tmp_path: Path
) -> None:
    nsqd, http = nsq_redesigned_broker.nsqd_addresses, nsq_redesigned_broker.nsqd_http_addresses
    path = tmp_path / "p.toml"
    path.write_text(
        f'source = {{ topic = "orders", nsqd = "{nsqd[0]}", nsqd_http = "{http[0]}" }}\n'
        'sink = [{ name = "out", format = "console" }]\n'
    )
    text = f"{path}:1: source: nsqd {nsqd[0]} is one of the redesigned NSQ \\(version .*-HA.*\\): "
    assert re.match(f"{text}give lookupd", str(topic_error(load_pipeline(path))))


def test_a_classic_topic_cannot_be_read_in_order_and_need_not_exist(tmp_path: Path) -> None:
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd:
        assert error_of(tmp_path, lookupd.http_address) is None
        assert nsqd.ask("/topic/create?topic=orders", "POST")[0] == 200
        assert error_of(tmp_path, lookupd.http_address) is None
        assert error_of(tmp_path, lookupd.http_address, "ordered = true") == (
            "1: source.options.ordered: ordered=true is invalid: 'orders' is a classic topic, "
            "without order"
        )


def test_servers_that_do_not_answer_are_another_error(tmp_path: Path) -> None:
    assert error_of(tmp_path, "127.0.0.1:1") is None
