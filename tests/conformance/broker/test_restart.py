"""What an nsqd that is stopped in peace still knows when it is started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.broker.asking import DONE, ask
from tests.conformance.broker.dialogue import MAGIC, OK, Client, sized
from tests.conformance.driver import stats_of, wait_until
from tests.fixtures.servers import Kind, start_nsqd


@pytest.fixture(autouse=True)
def disk(server_kind: Kind) -> None:
    if server_kind == "memory":
        pytest.skip("it has no disk")


def test_messages_come_back_wherever_they_were(server_kind: Kind, tmp_path: Path) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as nsqd, Client(nsqd, MAGIC) as client:
        client.publish("without", b"in a topic without a channel")
        client.publish("with", b"in flight", b"in a channel")
        client.subscribe("with")
        before = client.message()
        client.say(b"DPUB with 60000\n" + sized(b"deferred"))
        client.expect(OK)
        wait_until(lambda: stats_of(nsqd, "with")["channels"][0]["deferred_count"] == 1)
        nsqd.stop()
        client.expect_end()
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        assert stats_of(nsqd, "without")["depth"] == 1
        with Client(nsqd, MAGIC) as client:
            client.subscribe("without")
            assert client.message().body == b"in a topic without a channel"
        with Client(nsqd, MAGIC) as client:
            client.subscribe("with", ready=10)
            messages = {message.body: message for message in (client.message(), client.message())}
        after = messages[b"in flight"]
        assert (after.id, after.timestamp) == (before.id, before.timestamp)
        assert (before.attempts, after.attempts) == (1, 2)
        assert messages[b"in a channel"].attempts == 1


def test_what_was_finished_stays_finished(server_kind: Kind, tmp_path: Path) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as nsqd, Client(nsqd, MAGIC) as client:
        client.publish("t", b"done", b"left")
        client.subscribe("t")
        client.finish(client.message())
        client.message()
    with start_nsqd(tmp_path, kind=server_kind) as nsqd, Client(nsqd, MAGIC) as client:
        client.subscribe("t", ready=10)
        assert client.message().body == b"left"
        client.expect_nothing()


def test_topics_channels_and_pauses_come_back_but_nothing_ephemeral(
    server_kind: Kind, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        for topic in ("plain", "paused", "passing%23ephemeral"):
            assert ask(nsqd, f"POST /topic/create?topic={topic}") == DONE
        for channel in ("plain", "paused", "passing%23ephemeral"):
            assert ask(nsqd, f"POST /channel/create?topic=plain&channel={channel}") == DONE
        assert ask(nsqd, "POST /topic/pause?topic=paused") == DONE
        assert ask(nsqd, "POST /channel/pause?topic=plain&channel=paused") == DONE
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        topics = ask(nsqd, "GET /stats?format=json").json()["topics"]
    assert [(topic["topic_name"], topic["paused"]) for topic in topics] == [
        ("paused", True),
        ("plain", False),
    ]
    channels = topics[1]["channels"]
    assert [(channel["channel_name"], channel["paused"]) for channel in channels] == [
        ("paused", True),
        ("plain", False),
    ]


def test_what_was_deleted_does_not_come_back(server_kind: Kind, tmp_path: Path) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        with Client(nsqd, MAGIC) as client:
            client.publish("gone", b"x")
            client.publish("kept", b"x")
        assert ask(nsqd, "POST /channel/create?topic=kept&channel=gone") == DONE
        assert ask(nsqd, "POST /channel/delete?topic=kept&channel=gone") == DONE
        assert ask(nsqd, "POST /topic/delete?topic=gone") == DONE
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        topics = ask(nsqd, "GET /stats?format=json").json()["topics"]
        assert [(topic["topic_name"], topic["channels"]) for topic in topics] == [("kept", [])]


def test_more_messages_than_memory_holds_all_come(server_kind: Kind, tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(200)]
    options = ["-mem-queue-size=5"]
    with (
        start_nsqd(tmp_path, kind=server_kind, options=options) as nsqd,
        Client(nsqd, MAGIC) as client,
    ):
        client.publish("t", *bodies)
        stats = stats_of(nsqd, "t")
        assert stats["depth"] == 200
        assert 0 < stats["backend_depth"] <= 195
        client.subscribe("t", ready=100)
        first = [client.message() for _ in range(100)]
        client.finish(*first)
        wait_until(lambda: stats_of(nsqd, "t")["channels"][0]["clients"][0]["finish_count"] == 100)
    with (
        start_nsqd(tmp_path, kind=server_kind, options=options) as nsqd,
        Client(nsqd, MAGIC) as client,
    ):
        client.subscribe("t", ready=200)
        rest = [client.message() for _ in range(100)]
    assert sorted(message.body for message in (*first, *rest)) == sorted(bodies)
