"""nsqlookupd over HTTP: every endpoint, and what it returns of registered nsqd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.broker.asking import (
    DONE,
    PONG,
    Question,
    ask,
    check,
    questions,
    refused,
)
from tests.conformance.broker.peers import PEER, Registrant
from tests.conformance.driver import wait_until
from tests.fixtures.servers import Kind, Nsqlookupd, start_nsqlookupd

NOT_FOUND = refused(404, "NOT_FOUND")
BAD_REQUEST = refused(400, "INVALID_REQUEST")
ONLY_GET = refused(405, "METHOD_NOT_ALLOWED", allow="GET, OPTIONS")
ONLY_POST = refused(405, "METHOD_NOT_ALLOWED", allow="OPTIONS, POST")
MISSING_TOPIC = refused(400, "MISSING_ARG_TOPIC")
MISSING_CHANNEL = refused(400, "MISSING_ARG_CHANNEL")
MISSING_NODE = refused(400, "MISSING_ARG_NODE")
BAD_TOPIC = refused(400, "INVALID_ARG_TOPIC")
BAD_CHANNEL = refused(400, "INVALID_ARG_CHANNEL")
NO_TOPIC = refused(404, "TOPIC_NOT_FOUND")
NO_CHANNEL = refused(404, "CHANNEL_NOT_FOUND")

QUESTIONS: dict[str, Question] = {
    "ping": ("GET /ping", None, PONG),
    "POST instead of GET": ("POST /lookup?topic={topic}", None, ONLY_GET),
    "GET instead of POST": ("GET /topic/create?topic={topic}", None, ONLY_POST),
    "an unknown path": ("GET /nothing", None, NOT_FOUND),
    "a path of the redesigned NSQ": ("GET /listlookup", None, NOT_FOUND),
    "a path of nsqd": ("POST /pub?topic={topic}", b"x", NOT_FOUND),
    "look up no topic": ("GET /lookup", None, MISSING_TOPIC),
    "look up a topic that is not there": ("GET /lookup?topic={topic}", None, NO_TOPIC),
    "look up a bad topic": ("GET /lookup?topic=a$b", None, NO_TOPIC),
    "look up an empty topic": ("GET /lookup?topic=", None, NO_TOPIC),
    "look up with a bad query": ("GET /lookup?topic=%zz", None, BAD_REQUEST),
    "channels of no topic": ("GET /channels", None, MISSING_TOPIC),
    "channels with a bad query": ("GET /channels?topic=%zz", None, BAD_REQUEST),
    "create a topic": ("POST /topic/create?topic={topic}", None, DONE),
    "create no topic": ("POST /topic/create", None, MISSING_TOPIC),
    "create a bad topic": ("POST /topic/create?topic=a$b", None, BAD_TOPIC),
    "create a topic of 64 letters": ("POST /topic/create?topic=" + "t" * 64, None, DONE),
    "create a topic of 65 letters": ("POST /topic/create?topic=" + "t" * 65, None, BAD_TOPIC),
    "create a topic with a bad query": ("POST /topic/create?topic=%zz", None, BAD_REQUEST),
    "delete no topic": ("POST /topic/delete", None, MISSING_TOPIC),
    "delete a topic that is not there": ("POST /topic/delete?topic={topic}", None, DONE),
    "delete a bad topic": ("POST /topic/delete?topic=a$b", None, DONE),
    "delete with a bad query": ("POST /topic/delete?topic=%zz", None, BAD_REQUEST),
    "create a channel": ("POST /channel/create?topic={topic}&channel=ch", None, DONE),
    "create no channel": ("POST /channel/create?topic={topic}", None, MISSING_CHANNEL),
    "create a channel of no topic": ("POST /channel/create?channel=ch", None, MISSING_TOPIC),
    "create a channel of a bad topic": ("POST /channel/create?topic=$&channel=ch", None, BAD_TOPIC),
    "create a bad channel": ("POST /channel/create?topic={topic}&channel=$", None, BAD_CHANNEL),
    "create a channel with a bad query": ("POST /channel/create?topic=%zz", None, BAD_REQUEST),
    "delete no channel": ("POST /channel/delete?topic={topic}", None, MISSING_CHANNEL),
    "delete a channel of no topic": ("POST /channel/delete?channel=ch", None, MISSING_TOPIC),
    "delete a bad channel": ("POST /channel/delete?topic={topic}&channel=$", None, BAD_CHANNEL),
    "delete a channel that is not there": (
        "POST /channel/delete?topic={topic}&channel=ch",
        None,
        NO_CHANNEL,
    ),
    "tombstone no topic": ("POST /topic/tombstone?node=a:1", None, MISSING_TOPIC),
    "tombstone no node": ("POST /topic/tombstone?topic={topic}", None, MISSING_NODE),
    "tombstone what is not there": (
        "POST /topic/tombstone?topic={topic}&node=a:1",
        None,
        DONE,
    ),
    "tombstone with a bad query": ("POST /topic/tombstone?topic=%zz", None, BAD_REQUEST),
}


@questions(QUESTIONS)
def test_questions(nsqlookupd: Nsqlookupd, topic: str, question: Question) -> None:
    check(nsqlookupd, topic, question)


@pytest.fixture
def peer(nsqlookupd: Nsqlookupd, topic: str) -> Iterator[Registrant]:
    """An nsqd with the topic and its channel "ch", as far as nsqlookupd knows."""
    with Registrant(nsqlookupd) as peer:
        peer.register(topic)
        peer.register(topic, "ch")
        yield peer


def producers_of(nsqlookupd: Nsqlookupd, topic: str) -> list[dict[str, Any]]:
    answer = ask(nsqlookupd, f"GET /lookup?topic={topic}").json()
    producers: list[dict[str, Any]] = answer["producers"]
    return producers


def node_of(nsqlookupd: Nsqlookupd, peer: Registrant) -> dict[str, Any]:
    nodes = ask(nsqlookupd, "GET /nodes").json()["producers"]
    [node] = [each for each in nodes if each["remote_address"] == peer.address]
    result: dict[str, Any] = node
    return result


def test_info(nsqlookupd: Nsqlookupd, version: str) -> None:
    assert ask(nsqlookupd, "GET /info").json() == {"version": version}


def test_lookup_lists_channels_and_producers(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    assert ask(nsqlookupd, f"GET /lookup?topic={topic}").json() == {
        "channels": ["ch"],
        "producers": [PEER | {"remote_address": peer.address}],
    }


def test_nodes_lists_the_topics_of_each(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    assert node_of(nsqlookupd, peer) == PEER | {
        "remote_address": peer.address,
        "tombstones": [False],
        "topics": [topic],
    }


def test_topics_and_channels_are_listed(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    answer = ask(nsqlookupd, "GET /topics").json()
    assert list(answer) == ["topics"]
    assert topic in answer["topics"]
    peer.register(topic, "other")
    answer = ask(nsqlookupd, f"GET /channels?topic={topic}").json()
    assert list(answer) == ["channels"]
    assert sorted(answer["channels"]) == ["ch", "other"]
    assert ask(nsqlookupd, f"GET /channels?topic={topic}none").json() == {"channels": []}


def test_debug_lists_all_registrations(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    registrations = ask(nsqlookupd, "GET /debug").json()
    for key in (f"topic:{topic}:", f"channel:{topic}:ch", "client::"):
        [entry] = [each for each in registrations[key] if each["id"] == peer.address]
        assert entry.pop("last_update") > 1_600_000_000_000_000_000
        assert entry.pop("tombstoned_at") < 0  # the zero of Go's time, in nanoseconds
        assert entry == PEER | {"id": peer.address, "tombstoned": False}


def test_ping_is_noted(nsqlookupd: Nsqlookupd, peer: Registrant) -> None:
    def last_update() -> int:
        producers = ask(nsqlookupd, "GET /debug").json()["client::"]
        [entry] = [each for each in producers if each["id"] == peer.address]
        updated: int = entry["last_update"]
        return updated

    before = last_update()
    peer.request(b"PING\n")
    assert last_update() > before


def test_an_nsqd_that_leaves_is_forgotten_but_its_topics_are_not(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    with Registrant(nsqlookupd) as peer:
        peer.register(topic, "ch")
        peer.register(topic, "passing#ephemeral")
        assert len(producers_of(nsqlookupd, topic)) == 1
    wait_until(lambda: producers_of(nsqlookupd, topic) == [])
    answer = ask(nsqlookupd, f"GET /lookup?topic={topic}").json()
    assert sorted(answer["channels"]) == ["ch", "passing#ephemeral"]


def test_a_topic_that_is_unregistered_takes_its_channels_along(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    peer.unregister(topic)
    assert producers_of(nsqlookupd, topic) == []
    registrations = ask(nsqlookupd, "GET /debug").json()
    assert f"topic:{topic}:" not in registrations  # keys without producers are left out
    assert f"channel:{topic}:ch" not in registrations


def test_a_channel_that_is_unregistered_is_still_listed_unless_it_is_ephemeral(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    peer.register(topic, "passing#ephemeral")
    peer.unregister(topic, "ch")
    peer.unregister(topic, "passing#ephemeral")
    answer = ask(nsqlookupd, f"GET /lookup?topic={topic}").json()
    assert answer["channels"] == ["ch"]
    assert len(answer["producers"]) == 1


def test_an_ephemeral_topic_that_is_unregistered_is_gone(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    peer.register(f"{topic}#ephemeral")
    path = f"GET /lookup?topic={topic}%23ephemeral"
    assert ask(nsqlookupd, path).status == 200
    peer.unregister(f"{topic}#ephemeral")
    assert ask(nsqlookupd, path) == NO_TOPIC


def test_a_topic_can_be_created_by_hand(nsqlookupd: Nsqlookupd, topic: str) -> None:
    assert ask(nsqlookupd, f"POST /topic/create?topic={topic}") == DONE
    path = f"GET /lookup?topic={topic}"
    assert ask(nsqlookupd, path).json() == {"channels": [], "producers": []}
    assert ask(nsqlookupd, f"POST /channel/create?topic={topic}&channel=ch") == DONE
    assert ask(nsqlookupd, path).json() == {"channels": ["ch"], "producers": []}
    assert ask(nsqlookupd, f"POST /channel/delete?topic={topic}&channel=ch") == DONE
    assert ask(nsqlookupd, path).json() == {"channels": [], "producers": []}
    assert ask(nsqlookupd, f"POST /topic/delete?topic={topic}") == DONE
    assert ask(nsqlookupd, path) == NO_TOPIC


def test_a_channel_created_by_hand_brings_its_topic(nsqlookupd: Nsqlookupd, topic: str) -> None:
    assert ask(nsqlookupd, f"POST /channel/create?topic={topic}&channel=ch") == DONE
    assert ask(nsqlookupd, f"GET /lookup?topic={topic}").json()["channels"] == ["ch"]


def test_a_topic_that_is_deleted_is_forgotten_with_its_channels(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    assert ask(nsqlookupd, f"POST /topic/delete?topic={topic}") == DONE
    assert ask(nsqlookupd, f"GET /lookup?topic={topic}") == NO_TOPIC
    assert ask(nsqlookupd, f"GET /channels?topic={topic}").json() == {"channels": []}
    assert node_of(nsqlookupd, peer)["topics"] == []


def test_a_tombstone_hides_a_producer_from_lookup_only(
    nsqlookupd: Nsqlookupd, topic: str, peer: Registrant
) -> None:
    path = f"POST /topic/tombstone?topic={topic}"
    assert ask(nsqlookupd, f"{path}&node=10.0.0.1:4150") == DONE  # that is its TCP port
    assert len(producers_of(nsqlookupd, topic)) == 1
    assert ask(nsqlookupd, f"{path}&node=10.0.0.1:4151") == DONE
    assert producers_of(nsqlookupd, topic) == []
    assert node_of(nsqlookupd, peer)["tombstones"] == [True]
    [entry] = ask(nsqlookupd, "GET /debug").json()[f"topic:{topic}:"]
    assert entry["tombstoned"] is True


def test_a_tombstone_and_a_silent_producer_have_their_time(server_kind: Kind, topic: str) -> None:
    options = ["-tombstone-lifetime=300ms", "-inactive-producer-timeout=1s"]
    with start_nsqlookupd(kind=server_kind, options=options) as server, Registrant(server) as peer:
        peer.register(topic)
        before = time.monotonic()
        ask(server, f"POST /topic/tombstone?topic={topic}&node=10.0.0.1:4151")
        while not producers_of(server, topic):
            peer.request(b"PING\n")
        assert time.monotonic() - before >= 0.3
        before = time.monotonic()
        peer.request(b"PING\n")
        wait_until(lambda: producers_of(server, topic) == [])
        assert time.monotonic() - before >= 1.0
        assert ask(server, "GET /nodes").json() == {"producers": []}
        peer.request(b"PING\n")
        assert len(producers_of(server, topic)) == 1
