"""Looking at what there is without making anything, and the error where a name is unknown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from nsqflow.errors import ConfigError
from nsqflow.spark.options import parse_batch
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.batch_reader import NsqBatchReader
from tests.fixtures.crashing import create_channel, until
from tests.fixtures.servers import Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd
from tests.fixtures.spark import published


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Nsqlookupd]:
    with start_nsqlookupd() as server:
        yield server


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    """An nsqd with a topic ``orders`` that has a channel ``spark``."""
    folder = tmp_path_factory.mktemp("nsqd")
    with start_nsqd(folder, lookupd=[lookupd]) as server:
        create_channel(server, "orders")
        published(server, "orders", 5)
        until(lambda: b"spark" in lookupd.ask("/channels?topic=orders")[1])
        yield server


@pytest.fixture(params=["nsqd", "lookupd"])
def servers(request: pytest.FixtureRequest, nsqd: Nsqd, lookupd: Nsqlookupd) -> dict[str, str]:
    if request.param == "lookupd":
        return {"lookupd": lookupd.http_address}
    return {"nsqd": nsqd.tcp_address, "nsqdHttp": nsqd.http_address}


def poll_existing(servers: dict[str, str], **options: str) -> list[ChannelBacklog]:
    with closing(BacklogMonitor(parse_batch({"mode": "peek"} | servers | options))) as monitor:
        return monitor.poll_existing()


def everything(nsqd: Nsqd, lookupd: Nsqlookupd) -> object:
    """All names that the servers know."""
    stats = json.loads(nsqd.ask("/stats?format=json")[1])["topics"]
    names = {one["topic_name"]: [each["channel_name"] for each in one["channels"]] for one in stats}
    return names, lookupd.ask("/topics"), lookupd.ask("/channels?topic=orders")


def test_an_existing_topic_is_found(servers: dict[str, str]) -> None:
    (backlog,) = poll_existing(servers, topic="orders", channel="spark")
    assert backlog.available == 5
    (backlog,) = poll_existing(servers, topicPattern="ord.*", channel="spark")
    assert backlog.available == 5


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            {"topic": "oders", "channel": "spark"},
            "topic 'oders' is unknown to {}; did you mean 'orders'? mode=peek creates nothing",
        ),
        (
            {"topic": "orders,xyz", "channel": "spark"},
            "topic 'xyz' is unknown to {}; there are the topics 'orders'; mode=peek creates",
        ),
        (
            {"topic": "orders", "channel": "sprak"},
            "channel 'sprak' of topic 'orders' is unknown to {}; did you mean 'spark'? mode=peek",
        ),
        (
            {"topic": "orders", "channel": "x"},
            "channel 'x' of topic 'orders' is unknown to {}; there are the channels 'spark'",
        ),
        (
            {"topicPattern": "xyz.*", "channel": "spark"},
            "topicPattern 'xyz.*' matches no topic with a channel 'spark' on {}; ",
        ),
        (
            {"topicPattern": "ord.*", "channel": "sparc"},
            "topicPattern 'ord.*' matches no topic with a channel 'sparc' on {}; did you mean 'spa",
        ),
    ],
)
def test_an_unknown_name_is_an_error_with_similar_names_and_nothing_is_created(
    servers: dict[str, str], nsqd: Nsqd, lookupd: Nsqlookupd, names: dict[str, str], said: str
) -> None:
    before = everything(nsqd, lookupd)
    with pytest.raises(ConfigError) as caught:
        poll_existing(servers, **names)
    start, _, rest = said.partition("{}")
    text = str(caught.value)
    assert text.startswith(start)
    asked, _, _ = text.removeprefix(start).partition("; ")
    assert rest in text
    first = f"nsqlookupd {lookupd.http_address}" if "lookupd" in servers else "nsqd "
    assert asked.startswith(first), text
    assert everything(nsqd, lookupd) == before


def test_a_topic_may_be_missing_on_some_nsqd(nsqd: Nsqd, tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as other:
        servers = {
            "nsqd": f"{nsqd.tcp_address},{other.tcp_address}",
            "nsqdHttp": f"{nsqd.http_address},{other.http_address}",
        }
        (backlog,) = poll_existing(servers, topic="orders", channel="spark")
        assert backlog.nsqd == nsqd.tcp_address
        assert json.loads(other.ask("/stats?format=json")[1])["topics"] == []


def test_an_nsqd_that_did_not_answer_is_named_with_the_unknown_topic(
    nsqd: Nsqd, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path) as other:
        servers = {
            "nsqd": f"{nsqd.tcp_address},{other.tcp_address}",
            "nsqdHttp": f"{nsqd.http_address},{other.http_address}",
        }
    topic = f"t{uuid4().hex}"
    with pytest.raises(
        ConfigError,
        match=f"topic '{topic}' is unknown to nsqd {nsqd.tcp_address}; .*; no answer "
        f"from {other.tcp_address}: ",
    ):
        poll_existing(servers, topic=topic, channel="spark")


@pytest.mark.parametrize("deleted", ["topic", "channel"])
def test_a_task_that_peeks_later_does_not_create_what_was_deleted(
    servers: dict[str, str], nsqd: Nsqd, lookupd: Nsqlookupd, deleted: str
) -> None:
    topic = f"t{uuid4().hex[:16]}"
    create_channel(nsqd, topic)
    published(nsqd, topic, 5)
    until(lambda: b"spark" in lookupd.ask(f"/channels?topic={topic}")[1])
    names = {"mode": "peek", "topic": topic, "channel": "spark"}
    reader = NsqBatchReader(parse_batch(names | servers))
    (share,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(share)) == 5
    more = "" if deleted == "topic" else "&channel=spark"
    assert nsqd.ask(f"/{deleted}/delete?topic={topic}{more}", "POST")[0] == 200
    with pytest.raises(ConfigError, match=f"^{deleted} .* is unknown to nsqd {nsqd.tcp_address}; "):
        list(reader.read(share))
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])["topics"]
    assert [one["channels"] for one in stats or []] == ([] if deleted == "topic" else [[]])
