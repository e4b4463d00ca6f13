"""The channels of a pipeline on real servers: every sink gets what the topic had before."""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nsqflow.pipelines.channels import create_channels
from nsqflow.spark.options import SourceOptions, parse_stream
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd, start_nsqlookupd
from tests.fixtures.spark import published

CHANNELS = ["c.a", "c.b", "c.c"]


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex[:16]}"


def options_of(folder: Path, **options: str) -> SourceOptions:
    return parse_stream({"channel": "c.a", "spoolLocation": str(folder), **options})


def directly(folder: Path, topic: str, *http: str) -> SourceOptions:
    """Options with the HTTP addresses of nsqd; TCP is not used here."""
    return options_of(folder, topic=topic, nsqd=",".join(http), nsqdHttp=",".join(http))


def stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    (found,) = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])["topics"]
    return dict(found)


def depths(nsqd: Nsqd, topic: str) -> dict[str, int]:
    return {one["channel_name"]: one["depth"] for one in stats(nsqd, topic)["channels"]}


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nsqd carries messages into channels in its own time


def test_all_channels_get_what_the_topic_had_before_the_first(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    published(nsqd, topic, 5)
    create_channels(directly(tmp_path, topic, nsqd.http_address), CHANNELS)
    until(lambda: depths(nsqd, topic) == dict.fromkeys(CHANNELS, 5))
    assert not stats(nsqd, topic)["paused"]


def test_a_missing_topic_is_created_with_its_channels(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    create_channels(directly(tmp_path, topic, nsqd.http_address), CHANNELS)
    assert depths(nsqd, topic).keys() == {*CHANNELS}
    assert not stats(nsqd, topic)["paused"]


def test_a_topic_with_consumers_is_not_paused_for_new_channels(
    nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    published(nsqd, topic, 1, channel="billing")
    create_channels(directly(tmp_path, topic, nsqd.http_address), CHANNELS)
    assert depths(nsqd, topic).keys() == {"billing", *CHANNELS}
    assert not [line for line in nsqd.log if f"/topic/pause?topic={topic}" in line]


def test_a_topic_that_was_paused_before_stays_paused_and_is_reported(
    nsqd: Nsqd, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published(nsqd, topic, 1)
    assert nsqd.ask(f"/topic/pause?topic={topic}", "POST")[0] == 200
    create_channels(directly(tmp_path, topic, nsqd.http_address), CHANNELS)
    assert stats(nsqd, topic)["paused"]
    assert depths(nsqd, topic) == dict.fromkeys(CHANNELS, 0)
    warning = f"topic {topic} is paused: no message arrives until nsqflow unpause {topic}"
    assert warning in caplog.text


def test_an_nsqd_that_is_down_is_reported_and_delays_no_other(
    nsqd: Nsqd, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = directly(tmp_path, topic, "127.0.0.1:1", nsqd.http_address)
    create_channels(options, CHANNELS)
    assert depths(nsqd, topic).keys() == {*CHANNELS}
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("127.0.0.1:1: ")
    assert record.getMessage().endswith("; its channels are created when it answers")


def test_topics_are_looked_up_and_those_without_nsqd_are_registered(
    topic: str, tmp_path: Path
) -> None:
    new = f"{topic}-new"
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd:
        published(nsqd, topic, 2)
        until(lambda: json.loads(lookupd.ask(f"/lookup?topic={topic}")[1]).get("producers"))
        options = options_of(tmp_path, topic=f"{topic},{new}", lookupd=lookupd.http_address)
        create_channels(options, CHANNELS)
        until(lambda: depths(nsqd, topic) == dict.fromkeys(CHANNELS, 2))
        answer = json.loads(lookupd.ask(f"/channels?topic={new}")[1])
        assert sorted(answer["channels"]) == CHANNELS


def test_a_pattern_selects_existing_topics(topic: str, tmp_path: Path) -> None:
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd:
        for name in (f"{topic}-x", f"{topic}-y", "other"):
            published(nsqd, name, 1)
        until(lambda: len(json.loads(lookupd.ask("/topics")[1])["topics"]) == 3)
        pattern = f"{topic}-.*"
        options = options_of(tmp_path, topicPattern=pattern, lookupd=lookupd.http_address)
        create_channels(options, CHANNELS)
        until(lambda: depths(nsqd, f"{topic}-x") == dict.fromkeys(CHANNELS, 1))
        until(lambda: depths(nsqd, f"{topic}-y") == dict.fromkeys(CHANNELS, 1))
        assert depths(nsqd, "other") == {}
