"""The survey on real daemons: what they have, what becomes of them, what they are given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from nsqflow.errors import ConfigError, DiscoveryError, NetworkError
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import ScriptedLookupd
from tests.unit.spark.source.monitors import CHANNEL, options


@contextmanager
def surveying(*topics: str, **settings: Any) -> Iterator[BacklogMonitor]:
    """A survey with these options, closed at the end."""
    with closing(BacklogMonitor(options(*topics, **settings))) as subject:
        yield subject


def look_once(
    *topics: str, timeout: float = 5, **settings: Any
) -> tuple[list[ChannelBacklog], Any]:
    """Look; gives what is seen, and who can't be asked."""
    with surveying(*topics, **settings) as subject:
        return subject.poll(timeout), subject.unreachable


# --- what is counted


@asynchronous
async def test_each_number_is_where_it_belongs() -> None:
    channel = {
        "channel_name": CHANNEL,
        "depth": 1,
        "in_flight_count": 2,
        "deferred_count": 3,
        "requeue_count": 4,
        "timeout_count": 5,
        "message_count": 90,
        "paused": True,
    }
    topic = {
        "topic_name": "sv_each",
        "depth": 6,
        "message_count": 7,
        "message_bytes": 8,
        "paused": False,
        "channels": [{"channel_name": "other", "depth": 91}, channel],
    }
    answer = json.dumps(
        {"start_time": 10, "topics": [topic, {"topic_name": "other", "depth": 92}]}
    ).encode()
    async with ScriptedLookupd({"/stats": (200, answer)}) as nsqd:
        poll = partial(look_once, "sv_each", nsqd=["127.0.0.1:1"], http=[nsqd.address])
        seen, _ = await asyncio.to_thread(poll)
    expected = ChannelBacklog(
        topic="sv_each",
        nsqd="127.0.0.1:1",
        depth=1,
        topic_depth=6,
        in_flight=2,
        deferred=3,
        requeues=4,
        timeouts=5,
        started=10.0,
        channel_count=90,
        message_count=7,
        message_bytes=8,
        paused=True,
        topic_paused=False,
        exists=True,
    )
    assert seen == [expected]
    assert expected.key == "sv_each|127.0.0.1:1"


# --- nsqd that come and go


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, b"it burns"), "/stats: 500 it burns"),
        ((403, b'{"message":"TLS_REQUIRED","https_port":0}'), "/stats: 403 .*TLS_REQUIRED"),
        ((403, b'["FORBIDDEN"]'), "/stats: 403 .*FORBIDDEN"),
        ((200, b"hello"), "/stats: 200 no stats"),
        ((200, b"[]"), "/stats: 200 no stats"),
        ((200, b'{"topics":7}'), "/stats: 200 no stats: topics is 7"),
    ],
)
@asynchronous
async def test_an_unusable_answer_is_reported_with_its_reason(
    answer: tuple[int, bytes], reason: str
) -> None:
    async with ScriptedLookupd({"/stats": answer}) as broken:
        poll = partial(look_once, "sv_odd", nsqd=["127.0.0.1:1"], http=[broken.address])
        with pytest.raises(NetworkError, match=f"{broken.address}{reason}"):
            await asyncio.to_thread(poll)


# --- nsqlookupd


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b'{"producers":7}', "producers"),
        (b"hello", "not JSON"),
    ],
)
@asynchronous
async def test_an_unusable_answer_of_nsqlookupd_is_reported(answer: bytes, reason: str) -> None:
    async with ScriptedLookupd({"/lookup": (200, answer)}) as lookupd:
        with pytest.raises((ConfigError, DiscoveryError), match=reason):
            await asyncio.to_thread(look_once, "sv_odd", lookupd=[lookupd.address])


@pytest.mark.parametrize("answer", [(500, b'{"topics":[]}'), (200, b"[]"), (200, b"hello")])
@asynchronous
async def test_an_unusable_list_of_topics_is_reported(answer: tuple[int, bytes]) -> None:
    async with ScriptedLookupd({"/topics": answer}) as lookupd:
        with pytest.raises(DiscoveryError, match=f"{lookupd.address}: status .* no list of topics"):
            await asyncio.to_thread(look_once, pattern="sv_.*", lookupd=[lookupd.address])
