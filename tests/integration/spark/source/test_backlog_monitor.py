"""The survey on real daemons: what they have, what becomes of them, what they are given."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nsqflow import admin
from nsqflow.blocking import Consumer, Producer
from nsqflow.errors import ConfigError, DiscoveryError, NetworkError
from nsqflow.spark.server_options import Access
from nsqflow.spark.source import backlog_monitor, topic_lookup
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import HANG, ScriptedLookupd
from tests.fixtures.servers import (
    PATIENCE,
    Nsqd,
    Nsqlookupd,
    Server,
    start_nsqd,
    start_nsqlookupd,
)
from tests.unit.spark.source.monitors import CHANNEL, options


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked once a second is asked at every look."""
    monkeypatch.setattr(topic_lookup, "INTERVAL", 0)
    monkeypatch.setattr(backlog_monitor, "INTERVAL", 0)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Two nsqd that no nsqlookupd knows."""
    with (
        start_nsqd(tmp_path_factory.mktemp("nsqd")) as first,
        start_nsqd(tmp_path_factory.mktemp("nsqd")) as second,
    ):
        yield [first, second]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Data paths for several nsqd."""
    made = [tmp_path / name for name in "abc"]
    for folder in made:
        folder.mkdir()
    return made


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


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for other processes, which do their part in their own time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def look_until(
    subject: BacklogMonitor, fits: Callable[[list[ChannelBacklog]], object]
) -> list[ChannelBacklog]:
    """Look until what is seen fits."""
    seen: list[ChannelBacklog] = []

    def poll() -> object:
        seen[:] = subject.poll()
        return fits(seen)

    wait_until(poll)
    return seen


def places(backlogs: Sequence[ChannelBacklog]) -> list[tuple[str, str]]:
    return [(backlog.topic, backlog.nsqd) for backlog in backlogs]


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, bodies)


def order(server: Server, path: str, **query: str) -> None:
    """Have a daemon do something, over HTTP."""
    text = "&".join(f"{name}={value}" for name, value in query.items())
    status, answer = server.ask(f"{path}?{text}", "POST")
    assert status == 200, answer


def channels_of(nsqd: Nsqd) -> dict[str, list[str]]:
    """Its topics, and the channels of each."""
    stats: Any = json.loads(nsqd.ask("/stats?format=json")[1])
    return {
        topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]]
        for topic in stats["topics"]
    }


def questions_to(nsqd: Nsqd) -> list[str]:
    """From which address each question about its stats has come."""
    mark = f"/ping?{uuid4()}"
    nsqd.ask(mark)
    nsqd.await_log(f"GET {re.escape(mark)}")  # what was asked before is in the log by now
    matches = (re.search(r"GET /stats\S* \((\S+)\)", line) for line in nsqd.log)
    return [match[1] for match in matches if match]


def start_again(nsqd: Nsqd, data_path: Path) -> Nsqd:
    """Start an nsqd that was stopped where it was before."""
    where = [f"-tcp-address={nsqd.tcp_address}", f"-http-address={nsqd.http_address}"]
    return start_nsqd(data_path, options=where)


# --- what is counted


def test_topic_and_channel_are_created_on_every_nsqd_that_is_named(two: list[Nsqd]) -> None:
    with surveying("sv_new", "sv_other", nsqd=two) as subject:
        subject.create()
        seen = subject.poll()
    assert places(seen) == sorted(
        (topic, nsqd.tcp_address) for topic in ("sv_new", "sv_other") for nsqd in two
    )
    assert seen == sorted(seen, key=lambda backlog: backlog.key)
    assert all(backlog.exists and not backlog.available for backlog in seen)
    for nsqd in two:
        assert channels_of(nsqd)["sv_new"] == channels_of(nsqd)["sv_other"] == [CHANNEL]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"ordered": True}, "ordered=true is invalid: 'orders' is a classic topic"),
        ({"starting_position": "earliest"}, "startingPosition='earliest' is invalid: 'orders' is"),
    ],
)
def test_what_only_the_redesigned_nsq_can_is_refused_for_an_nsqd_that_is_named(
    two: list[Nsqd], asked: dict[str, Any], problem: str
) -> None:
    with (
        closing(BacklogMonitor(replace(options("orders", nsqd=two), **asked))) as monitor,
        pytest.raises(ConfigError, match=f"^{re.escape(problem)}"),
    ):
        monitor.create()


def test_the_counters_of_nsqd_are_read(two: list[Nsqd]) -> None:
    nsqd = two[0]
    with surveying("sv_counts", nsqd=[nsqd]) as subject:
        subject.create()
        publish(nsqd, "sv_counts", b"one", b"three", b"four")
        with Consumer("sv_counts", CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=2) as consumer:
            first, second = next(consumer), next(consumer)
            (seen,) = look_until(subject, lambda seen: seen[0].in_flight == 2)
            assert (seen.depth, seen.message_count, seen.message_bytes) == (1, 3, 12)
            consumer.pause()
            first.requeue(delay=60)
            second.finish()
            (seen,) = look_until(subject, lambda seen: seen[0].deferred)
            assert (seen.requeues, seen.deferred) == (1, 1)


def test_paused_topics_and_channels_are_reported(two: list[Nsqd]) -> None:
    nsqd = two[0]
    with surveying("sv_paused", nsqd=[nsqd]) as subject:
        subject.create()
        order(nsqd, "/topic/pause", topic="sv_paused")
        publish(nsqd, "sv_paused", b"held back")
        (seen,) = subject.poll()
        assert (seen.topic_paused, seen.paused, seen.topic_depth) == (True, False, 1)
        order(nsqd, "/channel/pause", topic="sv_paused", channel=CHANNEL)
        order(nsqd, "/topic/unpause", topic="sv_paused")
        (seen,) = look_until(subject, lambda seen: seen[0].depth)
        assert (seen.topic_paused, seen.paused, seen.topic_depth) == (False, True, 0)


def test_the_first_channel_gets_all_messages_of_its_topic(two: list[Nsqd]) -> None:
    nsqd = two[0]
    publish(nsqd, "sv_early", b"one", b"two")
    with surveying("sv_early", nsqd=[nsqd]) as subject:
        (first,) = subject.poll()
        assert (first.exists, first.available) == (False, 2)
        (second,) = look_until(subject, lambda seen: seen[0].depth == 2)
        assert (second.exists, second.topic_depth) == (True, 0)


def test_many_topics_are_read_in_one_answer(two: list[Nsqd]) -> None:
    nsqd = two[1]
    topics = [f"sv_many{number}" for number in range(6)]
    with surveying("sv_stranger", nsqd=[nsqd]) as other:
        other.create()
    publish(nsqd, topics[3], b"one")
    with surveying(*topics, nsqd=[nsqd]) as subject:
        subject.create()
        seen = look_until(subject, lambda seen: seen[3].depth == 1)
        assert [backlog.topic for backlog in seen] == topics
        before = questions_to(nsqd)
        subject.poll()
        assert len(questions_to(nsqd)) == len(before) + 1


def test_the_connection_is_kept_between_polls(two: list[Nsqd]) -> None:
    nsqd = two[1]
    with surveying("sv_kept", nsqd=[nsqd]) as subject:
        subject.create()
        before = questions_to(nsqd)
        for _ in range(5):
            subject.poll()
        clients = questions_to(nsqd)[len(before) :]
    assert len(clients) == 5
    assert len(set(clients)) == 1


def test_a_deleted_channel_is_created_again_and_reported(two: list[Nsqd]) -> None:
    nsqd = two[0]
    with surveying("sv_deleted", nsqd=[nsqd]) as subject:
        subject.create()
        order(nsqd, "/channel/delete", topic="sv_deleted", channel=CHANNEL)
        assert [backlog.exists for backlog in subject.poll()] == [False]
        assert [backlog.exists for backlog in subject.poll()] == [True]
        order(nsqd, "/topic/delete", topic="sv_deleted")
        assert [backlog.exists for backlog in subject.poll()] == [False]
        assert channels_of(nsqd)["sv_deleted"] == [CHANNEL]


# --- nsqd that come and go


def test_an_nsqd_that_is_gone_is_left_out_until_it_is_back(
    two: list[Nsqd], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nsqflow.spark")
    with (
        start_nsqd(tmp_path) as nsqd,
        surveying("sv_gone", nsqd=[nsqd, two[0]]) as subject,
    ):
        subject.create()
        publish(nsqd, "sv_gone", b"kept on disk")
        assert len(look_until(subject, lambda seen: sum(each.depth for each in seen) == 1)) == 2
        caplog.clear()
        nsqd.stop()
        for _ in range(3):
            assert places(subject.poll()) == [("sv_gone", two[0].tcp_address)]
        assert list(subject.unreachable) == [nsqd.tcp_address]
        assert nsqd.http_address in subject.unreachable[nsqd.tcp_address]
        with start_again(nsqd, tmp_path):
            seen = look_until(subject, lambda seen: len(seen) == 2)
            assert sum(backlog.depth for backlog in seen) == 1
            assert all(backlog.exists for backlog in seen)
            assert subject.unreachable == {}
    name = re.escape(nsqd.tcp_address)
    gone, back = caplog.messages
    assert re.match(rf"nsqd {name} does not answer: ", gone)
    assert re.match(rf"nsqd {name} answers again", back)


def test_an_nsqd_that_restarts_between_two_polls_is_still_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_nsqd(tmp_path) as nsqd, surveying("sv_again", nsqd=[nsqd]) as subject:
        subject.create()
        nsqd.stop()
        with start_again(nsqd, tmp_path):
            assert len(subject.poll()) == 1
    assert caplog.messages == []


def test_if_no_nsqd_can_be_asked_all_of_them_are_named(folders: list[Path]) -> None:
    with (
        start_nsqd(folders[0]) as first,
        start_nsqd(folders[1]) as second,
        surveying("sv_none", nsqd=[first, second]) as subject,
    ):
        subject.create()
        first.stop()
        second.stop()
        with pytest.raises(NetworkError, match="no nsqd is reachable") as caught:
            subject.poll()
        assert first.http_address in str(caught.value)
        assert second.http_address in str(caught.value)
        with start_again(first, folders[0]):
            assert len(subject.poll()) == 1, "without other servers, they are asked at once"


@asynchronous
async def test_an_nsqd_that_hangs_delays_a_poll_no_longer_than_the_timeout(
    two: list[Nsqd],
) -> None:
    async with ScriptedLookupd({"/stats": HANG}) as hanging:
        nsqd, http = [two[0], "127.0.0.1:1"], [two[0].http_address, hanging.address]
        poll = partial(look_once, "sv_hangs", timeout=0.2, nsqd=nsqd, http=http)
        seen, unreachable = await asyncio.to_thread(poll)
        await hanging.connections[0].ended()
    assert places(seen) == [("sv_hangs", two[0].tcp_address)]
    assert unreachable == {"127.0.0.1:1": "127.0.0.1:1: no answer within 0.2 s"}


def test_nothing_is_left_open(two: list[Nsqd], nsqlookupd: Nsqlookupd) -> None:
    before = len(os.listdir("/dev/fd"))
    for settings in ({"nsqd": two}, {"lookupd": [nsqlookupd]}):
        with surveying("sv_closed", **settings) as subject:
            subject.create()
            subject.poll()
            assert len(os.listdir("/dev/fd")) > before
        subject.close()
    assert len(os.listdir("/dev/fd")) == before


# --- nsqlookupd


@pytest.mark.usefixtures("in_a_hurry")
def test_answers_of_several_nsqlookupd_are_merged(folders: list[Path]) -> None:
    with (
        start_nsqlookupd() as here,
        start_nsqlookupd() as there,
        start_nsqd(folders[0], lookupd=[here, there]) as first,
        start_nsqd(folders[1], lookupd=[there]) as second,
        start_nsqd(folders[2], lookupd=[here]) as third,
        surveying("sv_found", lookupd=[here, there]) as subject,
    ):
        publish(first, "sv_found", b"one")
        publish(second, "sv_found", b"two", b"three")
        publish(third, "sv_elsewhere", b"four")
        seen = look_until(subject, lambda seen: sum(each.depth for each in seen) == 3)
        depths = {backlog.nsqd: backlog.depth for backlog in seen}
        assert depths == {first.tcp_address: 1, second.tcp_address: 2}
        assert channels_of(third) == {"sv_elsewhere": []}, "who has not got the topic is let be"


@pytest.mark.usefixtures("in_a_hurry")
def test_a_topic_without_nsqd_gets_its_channel_before_its_first_message(tmp_path: Path) -> None:
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd,
        surveying("sv_later", lookupd=[lookupd]) as subject,
    ):
        subject.create()
        assert subject.poll() == []
        assert channels_of(nsqd) == {}
        publish(nsqd, "sv_later", b"the first")
        assert channels_of(nsqd) == {"sv_later": [CHANNEL]}
        (seen,) = look_until(subject, lambda seen: seen and seen[0].depth)
        assert (seen.depth, seen.exists) == (1, True)


@pytest.mark.usefixtures("in_a_hurry")
def test_an_nsqd_that_comes_later_gets_the_channel(folders: list[Path]) -> None:
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(folders[0], lookupd=[lookupd]) as first,
        surveying("sv_joined", lookupd=[lookupd]) as subject,
    ):
        publish(first, "sv_joined", b"one")
        look_until(subject, bool)
        with start_nsqd(folders[1]) as second:
            publish(second, "sv_joined", b"two")  # before nsqlookupd knows it
            asyncio.run(introduce(second, lookupd))
            seen = look_until(subject, lambda seen: len(seen) == 2)
            news = {backlog.nsqd: backlog.exists for backlog in seen}
            assert news[second.tcp_address] is False
            look_until(subject, lambda seen: [each.depth for each in seen] == [1, 1])


async def introduce(nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
    """Make an nsqd that is running known to nsqlookupd."""
    async with admin.Nsqd(nsqd.http_address) as api:
        await api.set_config("nsqlookupd_tcp_addresses", [lookupd.tcp_address])


@pytest.mark.usefixtures("in_a_hurry")
def test_a_topic_that_was_deleted_on_its_nsqd_stays_deleted(tmp_path: Path) -> None:
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd,
        surveying("sv_dropped", lookupd=[lookupd]) as subject,
    ):
        publish(nsqd, "sv_dropped", b"one")
        look_until(subject, bool)
        order(nsqd, "/topic/delete", topic="sv_dropped")
        look_until(subject, lambda seen: not seen)
        assert (subject.poll(), subject.unreachable) == ([], {})
        assert channels_of(nsqd) == {}


def test_a_deleted_topic_is_not_polled_every_time(tmp_path: Path) -> None:
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd,
        surveying("sv_dropped", lookupd=[lookupd]) as subject,
    ):
        publish(nsqd, "sv_dropped", b"one")
        wait_until(lambda: b"tcp_port" in lookupd.ask("/lookup?topic=sv_dropped")[1])
        assert len(subject.poll()) == 1
        order(nsqd, "/topic/delete", topic="sv_dropped")
        began = time.monotonic()
        for _ in range(20):
            assert subject.poll() == []
        questions_to(nsqd)  # brings the log up to date
        tries = sum("404 POST /channel/create" in line for line in nsqd.log)
        assert 1 <= tries <= 1 + (time.monotonic() - began)


@pytest.mark.usefixtures("in_a_hurry")
def test_a_healthy_nsqd_is_polled_without_nsqlookupd(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd,
        surveying("sv_kept", lookupd=[lookupd]) as subject,
    ):
        publish(nsqd, "sv_kept", b"one")
        look_until(subject, bool)
        lookupd.stop()
        for _ in range(3):
            assert len(subject.poll()) == 1
        (message,) = caplog.messages
        assert message.startswith(f"nsqlookupd {lookupd.http_address} does not answer: ")
        where = [f"-http-address={lookupd.http_address}"]
        with start_nsqlookupd(options=where) as forgetful:  # on another TCP port: nsqd stays away
            look_until(subject, lambda _: any("GET /lookup" in line for line in forgetful.log))
            assert len(subject.poll()) == 1
            nsqd.stop()
            look_until_gone(subject)
            # nsqlookupd forgets it at once: the query misses it for a while.
            why = "nsqlookupd does not name it any more"
            assert subject.unreachable == {nsqd.tcp_address: why}
            with monkeypatch.context() as patch:
                patch.setattr(backlog_monitor, "_VANISHED", 0.0)
                assert subject.unreachable == {}


@pytest.mark.usefixtures("in_a_hurry")
def test_an_nsqd_that_comes_back_with_another_http_port_is_asked_there(tmp_path: Path) -> None:
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd,
        surveying("sv_moved", lookupd=[lookupd]) as subject,
    ):
        publish(nsqd, "sv_moved", b"one")
        look_until(subject, bool)
        nsqd.stop()
        where = [f"-tcp-address={nsqd.tcp_address}"]
        with start_nsqd(tmp_path, lookupd=[lookupd], options=where) as moved:
            port = moved.http_address.rpartition(":")[2].encode()
            wait_until(lambda: port in lookupd.ask("/lookup?topic=sv_moved")[1])
            assert [backlog.depth for backlog in subject.poll()] == [1]
            assert subject.unreachable == {}


def look_until_gone(subject: BacklogMonitor) -> None:
    """Poll until no server is left to ask; the first time it is an error."""
    with pytest.raises(NetworkError):
        subject.poll()
    look_until(subject, lambda seen: not seen)


def test_nsqlookupd_is_asked_once_a_second_at_most(tmp_path: Path) -> None:
    with (
        start_nsqlookupd() as lookupd,
        surveying("sv_often", lookupd=[lookupd]) as subject,
    ):
        began = time.monotonic()
        for _ in range(50):
            subject.poll()
        lookupd.ask("/ping?marked")
        lookupd.await_log("GET /ping.marked")
        asked = sum("GET /lookup" in line for line in lookupd.log)
        assert 1 <= asked <= 1 + (time.monotonic() - began)


def test_if_no_nsqlookupd_can_be_asked_all_are_named_without_their_passwords() -> None:
    with start_nsqlookupd() as first, start_nsqlookupd() as second:
        pass
    addresses = [f"http://me:secret@{first.http_address}", second.http_address]
    with surveying("sv_lost", lookupd=addresses) as subject:
        for call in (subject.poll, subject.create, subject.empty):
            with pytest.raises(DiscoveryError, match="no nsqlookupd is reachable") as caught:
                call()
            assert first.http_address in str(caught.value)
            assert second.http_address in str(caught.value)
            assert "secret" not in str(caught.value)


@asynchronous
async def test_an_nsqd_without_an_http_api_is_reported(two: list[Nsqd]) -> None:
    host, port = two[0].tcp_address.split(":")
    node = {"broadcast_address": host, "tcp_port": int(port), "http_port": 0}
    answer = json.dumps({"channels": [], "producers": [node]}).encode()
    async with ScriptedLookupd({"/lookup": (200, answer)}) as lookupd:
        with pytest.raises(NetworkError, match=f"{two[0].tcp_address} has no usable HTTP API"):
            await asyncio.to_thread(look_once, "sv_mute", lookupd=[lookupd.address])


# --- patterns


@pytest.mark.usefixtures("in_a_hurry")
def test_a_pattern_takes_the_topics_of_the_nsqd_that_fit_as_a_whole(tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd, surveying(pattern="sv_[ab]", nsqd=[nsqd]) as subject:
        subject.create()
        assert subject.poll() == []
        publish(nsqd, "sv_a", b"one")
        publish(nsqd, "sv_ab", b"no")
        publish(nsqd, "no_sv_a", b"no")
        assert [(each.topic, each.available) for each in subject.poll()] == [("sv_a", 1)]
        publish(nsqd, "sv_b", b"two")
        assert [each.topic for each in subject.poll()] == ["sv_a", "sv_b"]
        assert channels_of(nsqd)["sv_ab"] == []
        order(nsqd, "/topic/delete", topic="sv_a")
        assert [each.topic for each in subject.poll()] == ["sv_b"]
        assert "sv_a" not in channels_of(nsqd)


@pytest.mark.usefixtures("in_a_hurry")
def test_a_pattern_takes_the_topics_that_nsqlookupd_knows(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_lookup, "_MAX_LOOKUPS", 2)
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(folders[0], lookupd=[lookupd]) as first,
        start_nsqd(folders[1], lookupd=[lookupd]) as second,
        surveying(pattern="sv_.", lookupd=[lookupd]) as subject,
    ):
        subject.create()
        assert subject.poll() == []
        topics = [f"sv_{letter}" for letter in "abcdef"]
        for topic in [*topics, "sv_ab", "other"]:
            publish(first, topic, b"one")
        look_until(subject, lambda seen: [each.topic for each in seen] == topics)
        publish(second, "sv_a", b"two")
        publish(second, "sv_f", b"two")
        seen = look_until(subject, lambda seen: len(seen) == 8)
        assert {each.topic for each in seen if each.nsqd == second.tcp_address} == {"sv_a", "sv_f"}
        assert channels_of(first)["sv_ab"] == channels_of(first)["other"] == []


def test_the_topics_of_an_nsqd_are_listed_once_a_second_at_most(tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd, surveying(pattern="sv_.", nsqd=[nsqd]) as subject:
        began = time.monotonic()
        for _ in range(50):
            assert subject.poll() == []
        assert 1 <= len(questions_to(nsqd)) <= 1 + (time.monotonic() - began)


# --- https


def test_nsqd_is_asked_over_https_with_the_certificates_of_the_options(
    nsqd: Nsqd, certificates: Certificates, tmp_path: Path
) -> None:
    http = [f"https://{nsqd.https_address}"]
    trusting = Access(tls_ca_file=str(certificates.ca))
    with surveying("sv_https", nsqd=[nsqd], http=http, access=trusting) as subject:
        subject.create()
        publish(nsqd, "sv_https", b"one")
        look_until(subject, lambda seen: seen[0].depth == 1)
    with pytest.raises(NetworkError, match="CERTIFICATE_VERIFY_FAILED"):
        look_once("sv_https", nsqd=[nsqd], http=http)
    missing = Access(tls_ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match="tlsCaFile"):
        look_once("sv_https", nsqd=[nsqd], http=http, access=missing)


@pytest.mark.usefixtures("in_a_hurry")
def test_an_nsqd_that_requires_tls_is_asked_over_https_automatically(
    certificates: Certificates, tmp_path: Path
) -> None:
    access = Access(tls=True, tls_ca_file=str(certificates.ca))
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(
            tmp_path, tls=certificates, lookupd=[lookupd], options=["-tls-required=true"]
        ) as nsqd,
        surveying("sv_tls", lookupd=[lookupd], access=access) as subject,
    ):
        with Producer(nsqd.tcp_address, tls=access.ssl_context()) as producer:
            producer.publish("sv_tls", b"one")
        look_until(subject, lambda seen: seen and seen[0].depth == 1)


def test_an_nsqd_that_requires_tls_no_longer_is_asked_where_it_was_at_first(
    certificates: Certificates, tmp_path: Path
) -> None:
    access = Access(tls_ca_file=str(certificates.ca))
    required = ["-tls-required=true"]
    with (
        start_nsqd(tmp_path, tls=certificates, options=required) as nsqd,
        surveying("sv_plain", nsqd=[nsqd], access=access) as subject,
    ):
        subject.create()
        nsqd.stop()
        with start_again(nsqd, tmp_path):
            with pytest.raises(NetworkError, match="https://"):
                subject.poll()
            assert [backlog.exists for backlog in subject.poll()] == [True]


# --- emptying


def test_a_channel_is_emptied_of_all_that_was_before(two: list[Nsqd]) -> None:
    for nsqd in two:
        publish(nsqd, "sv_latest", b"old", b"older")
    with surveying("sv_latest", nsqd=two) as subject:
        subject.empty()
        seen = subject.poll()
        assert [(each.depth, each.topic_depth, each.exists) for each in seen] == [(0, 0, True)] * 2
        publish(two[0], "sv_latest", b"new")
        look_until(subject, lambda seen: sum(backlog.depth for backlog in seen) == 1)


def test_what_a_paused_topic_holds_cannot_be_thrown_away(
    two: list[Nsqd], caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = two[0]
    with surveying("sv_stays", nsqd=[nsqd]) as subject:
        subject.create()
        order(nsqd, "/topic/pause", topic="sv_stays")
        publish(nsqd, "sv_stays", b"old")
        subject.empty()
        assert [backlog.topic_depth for backlog in subject.poll()] == [1]
    (message,) = caplog.messages
    assert message.startswith(f"sv_stays|{nsqd.tcp_address}: 1 older messages may follow")
