"""Channels of a redesigned cluster over HTTP: who creates them where, pausing, moving, ordering.

The leading nsqd of each partition has them; nsqlookupd creates only those of topics on which
consumers may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.broker.asking import DONE, Answer, refused
from tests.conformance.driver import wait_until
from tests.conformance.redesigned.http_driver import (
    CHANNEL,
    TOPIC,
    Cluster,
    refused_in_envelope,
)
from tests.conformance.redesigned.wire import Wire, code_of, fin

LEADER, SLAVE = 0, 1
NOT_HERE = refused(404, "E_TOPIC_NOT_EXIST")
NO_CHANNEL = refused(404, "CHANNEL_NOT_FOUND")
PLACE = f"topic={TOPIC}&partition=0&channel={CHANNEL}"
UNKNOWN = f"topic={TOPIC}&partition=0&channel=none"
SUB = f"SUB {TOPIC} {CHANNEL} 0"


@pytest.fixture
def servers() -> Iterator[Cluster]:
    """A topic with two partitions: node 0 leads one, node 1 the other, node 2 none."""
    with Cluster() as cluster:
        cluster.create(partitions=2)
        yield cluster


@pytest.fixture
def registering() -> Iterator[Cluster]:
    """The same without automatic channels."""
    with Cluster() as cluster:
        cluster.create(partitions=2, disable_channel_auto_create=True)
        yield cluster


def connected(cluster: Cluster, node: int = 0) -> Wire:
    return Wire(cluster.broker.nsqd_addresses[node])


def channels(cluster: Cluster, partition: str = "", number: int = LEADER) -> list[str]:
    query = f"topic={TOPIC}" + f"&partition={partition}" * bool(partition)
    answer = cluster.lookupd(f"GET /channels?{query}", number).json()
    assert [*answer] == ["channels"]
    return sorted(answer["channels"])


# On nsqd


def test_a_channel_belongs_to_one_partition_and_both_nsqlookupd_know_it(servers: Cluster) -> None:
    for _ in range(2):  # the second time it is there already
        servers.create_channel()
    servers.create_channel(1, 1, "audit")
    for number in (LEADER, SLAVE):
        assert channels(servers, "", number) == ["audit", CHANNEL]
        assert channels(servers, "0", number) == [CHANNEL]
        assert channels(servers, "1", number) == ["audit"]
        assert channels(servers, "7", number) == []
        named = servers.lookupd(f"GET /lookup?topic={TOPIC}", number).json()["channels"]
        assert sorted(named) == ["audit", CHANNEL]
    assert servers.lookupd("GET /channels?topic=none").json() == {"channels": []}


def test_a_subscription_creates_its_channel_in_its_partition_alone(servers: Cluster) -> None:
    with connected(servers) as client:
        client.subscribe(SUB)
        assert (channels(servers, "0"), channels(servers, "1")) == ([CHANNEL], [])


CREATIONS: dict[str, tuple[int, str, Answer]] = {
    "without a partition": (1, f"topic={TOPIC}&channel={CHANNEL}", DONE),
    "on a node without a copy": (2, PLACE, NOT_HERE),
    "in a partition of another node": (1, PLACE, NOT_HERE),
    "in an unknown partition": (0, f"topic={TOPIC}&partition=7&channel={CHANNEL}", NOT_HERE),
    "in an unknown topic": (0, f"topic=none&partition=0&channel={CHANNEL}", NOT_HERE),
    "under a bad name": (
        *(0, f"topic={TOPIC}&partition=0&channel=a$b"),
        refused(400, "INVALID_ARG_CHANNEL"),
    ),
    "without a name": (0, f"topic={TOPIC}&partition=0", refused(400, "MISSING_ARG_CHANNEL")),
    "without a topic": (0, f"partition=0&channel={CHANNEL}", refused(400, "MISSING_ARG_TOPIC")),
}


@pytest.mark.parametrize("v1", [True, False], ids=["v1", "envelope"])
@pytest.mark.parametrize("creation", CREATIONS.values(), ids=CREATIONS)
def test_a_channel_is_created_where_its_partition_is_led_or_refused_in_one_form(
    servers: Cluster, creation: tuple[int, str, Answer], v1: bool
) -> None:
    node, query, answer = creation
    assert servers.nsqd(f"POST /channel/create?{query}", node=node, v1=v1) == answer
    assert channels(servers) == ([CHANNEL] if answer == DONE else [])


@pytest.mark.parametrize("verb", ["create", "delete", "empty", "setoffset"])
def test_a_follower_changes_no_channel(verb: str) -> None:
    with Cluster() as cluster:
        cluster.create(replicas=2)
        cluster.create_channel()
        answer = cluster.nsqd(f"POST /channel/{verb}?{PLACE}", b"msgcount:0", node=1)
        assert answer == refused(400, "E_FAILED_ON_NOT_LEADER")


def test_a_node_creates_no_topic(servers: Cluster) -> None:
    assert servers.nsqd("POST /topic/create?topic=new") == refused(404, "NOT_FOUND")


def test_deleting_a_channel_ends_the_connections_of_its_consumers(servers: Cluster) -> None:
    with connected(servers) as client:
        client.subscribe(SUB)
        for _ in range(2):  # the second time it is absent
            assert servers.nsqd(f"POST /channel/delete?{PLACE}") == DONE
        client.expect_closed()
    assert channels(servers) == []


def test_a_paused_channel_delivers_nothing_until_it_goes_on(servers: Cluster) -> None:
    with connected(servers) as client:
        client.subscribe(SUB)
        assert servers.nsqd(f"POST /channel/pause?{PLACE}") == DONE
        assert servers.channel_stats()["paused"] is True
        servers.publish(b"x")
        stats = servers.channel_stats()
        assert (stats["depth"], stats["in_flight_count"]) == (1, 0)
        assert servers.nsqd(f"POST /channel/unpause?{PLACE}") == DONE
        assert client.bodies(1) == [b"x"]


def test_an_emptied_channel_goes_on_at_the_end(servers: Cluster) -> None:
    servers.create_channel()
    servers.publish(b"a", b"b")
    assert servers.channel_stats()["depth"] == 2
    assert servers.nsqd(f"POST /channel/empty?{PLACE}") == DONE
    assert servers.channel_stats()["depth"] == 0
    servers.publish(b"c")
    with connected(servers) as client:
        client.subscribe(SUB)
        assert client.bodies(1) == [b"c"]


@pytest.mark.parametrize("verb", ["pause", "unpause", "empty", "setoffset", "setorder"])
def test_what_is_done_to_an_absent_channel_is_refused(servers: Cluster, verb: str) -> None:
    answer = servers.nsqd(f"POST /channel/{verb}?{UNKNOWN}&order=true", b"msgcount:0")
    assert answer == NO_CHANNEL


def test_an_ephemeral_channel_is_gone_after_its_last_client(servers: Cluster) -> None:
    with connected(servers) as client:
        client.subscribe(f"SUB {TOPIC} passing#ephemeral 0")
        assert channels(servers) == ["passing#ephemeral"]
    wait_until(lambda: channels(servers) == [])


# Moving a channel

POSITIONS = {
    "virtual_queue:330": 10,
    "virtual_queue:335": 11,  # between two messages: the next one
    "virtual_queue:0": 0,
    "virtual_queue:-1": 0,
    "virtual_queue:9999": 20,
    "msgcount:5": 4,  # counted from 1
    "msgcount:1": 0,
    "msgcount:0": 0,
    "msgcount:-1": 0,
    "msgcount:21": 20,
    "timestamp:0": 0,
    "timestamp:99999999999": 20,  # the future, and milliseconds taken for seconds
    "timestamp:1794831101222": 20,
    "special:-1": 20,
}


@pytest.mark.parametrize(("position", "first"), POSITIONS.items())
def test_a_channel_is_moved_to_a_position(servers: Cluster, position: str, first: int) -> None:
    servers.create_channel()
    servers.publish(*(b"s%02d" % number for number in range(20)))  # of 33 bytes each
    moved = servers.nsqd(f"POST /channel/setoffset?{PLACE}", position.encode())
    assert moved == DONE
    assert servers.channel_stats()["depth"] == 20 - first


INVALID = {
    "timestamp:-1": (500, "Invalid timestamp -1"),
    "special:0": (500, "not supported offset type"),
    "count:0": (400, "invalid consume offset:count:0"),
    "": (406, "MSG_EMPTY"),
}


@pytest.mark.parametrize(("position", "answer"), INVALID.items(), ids=repr)
def test_a_position_that_there_is_not_is_refused(
    servers: Cluster, position: str, answer: tuple[int, str]
) -> None:
    servers.create_channel()
    servers.publish(b"x")
    found = servers.nsqd(f"POST /channel/setoffset?{PLACE}", position.encode())
    assert found == refused(*answer)
    assert servers.channel_stats()["depth"] == 1


def test_finished_messages_come_again_from_the_partition_that_the_request_names() -> None:
    with Cluster(nodes=1) as cluster:
        cluster.create(partitions=2, multipart=True)
        for number in (0, 1):
            cluster.create_channel(partition=number)
            cluster.publish(b"a%d" % number, b"b%d" % number, partition=number)
        with connected(cluster) as client:
            client.subscribe(f"SUB {TOPIC} {CHANNEL} 1", rdy=2)
            assert client.bodies(2, finish=True) == [b"a1", b"b1"]
            query = f"topic={TOPIC}&partition=1&channel={CHANNEL}"
            assert cluster.nsqd(f"POST /channel/setoffset?{query}", b"msgcount:1") == DONE
            again = [client.message() for _ in range(2)]
        assert [(each.body, each.attempts) for each in again] == [(b"a1", 1), (b"b1", 1)]


def test_a_channel_that_is_moved_first_delivers_the_message_that_nsqd_had_read_ahead(
    servers: Cluster,
) -> None:
    servers.create_channel()
    servers.publish(b"a", b"b", b"c", b"d")
    with connected(servers) as client:
        client.subscribe(SUB)
        [taken] = [client.message()]
        assert servers.nsqd(f"POST /channel/setoffset?{PLACE}", b"msgcount:1") == DONE
        client.rdy(9)
        assert (taken.body, client.bodies(4)) == (b"a", [b"b", b"a", b"c", b"d"])


# Ordering


def test_setorder_lets_an_ordered_channel_of_an_ordinary_topic_deliver_several(
    servers: Cluster,
) -> None:
    with connected(servers) as client:
        client.subscribe(f"SUB_ORDERED {TOPIC} {CHANNEL} 0", rdy=0)
    servers.publish(*(b"%d" % number for number in range(5)))
    with connected(servers) as client:
        client.subscribe(SUB, rdy=5)
        client.message()
        assert servers.channel_stats()["in_flight_count"] == 1
    assert servers.nsqd(f"POST /channel/setorder?{PLACE}&order=false") == DONE
    with connected(servers) as client:
        client.subscribe(SUB, rdy=5)
        assert sorted(client.bodies(5)) == [b"%d" % number for number in range(5)]


def test_setorder_wants_true_or_false(servers: Cluster) -> None:
    servers.create_channel()
    answer = servers.nsqd(f"POST /channel/setorder?{PLACE}&order=maybe")
    assert answer == refused(400, "INVALID_OPTION")


# On nsqlookupd: topics without automatic channels


def test_only_the_leading_nsqlookupd_registers_channels(registering: Cluster) -> None:
    with connected(registering) as client:
        answer = client.ask(f"{SUB}\n".encode())
        assert code_of(answer) == "E_SUB_CHANNEL_NOT_REGISTERED"
        client.expect_closed()
    for verb in ("create", "delete"):
        assert registering.nsqd(f"POST /channel/{verb}?{PLACE}").status == 403
    create = f"POST /channel/create?topic={TOPIC}&channel={CHANNEL}"
    assert registering.lookupd(create, SLAVE) == refused(400, "Not nsqlookup leader")
    assert registering.lookupd(create) == DONE
    assert registering.lookupd(create) == refused(400, f"channel {CHANNEL} already registered")
    for number in (0, 1):
        with connected(registering, number) as client:
            client.subscribe(f"SUB {TOPIC} {CHANNEL} {number}")


def test_consumers_of_a_registered_channel_end_with_it(registering: Cluster) -> None:
    place = f"topic={TOPIC}&channel={CHANNEL}"
    assert registering.lookupd(f"POST /channel/create?{place}") == DONE
    with connected(registering, 0) as first, connected(registering, 1) as second:
        first.subscribe(SUB)
        second.subscribe(f"SUB {TOPIC} {CHANNEL} 1")
        delete = f"POST /channel/delete?{place}"
        assert registering.lookupd(delete, SLAVE) == refused(400, "Not nsqlookup leader")
        assert registering.lookupd(delete) == DONE
        first.expect_closed()
        second.expect_closed()
        assert registering.lookupd(delete) == refused(400, f"channel {CHANNEL} not registered")


def test_nsqlookupd_creates_and_deletes_no_channel_of_an_ordinary_topic(servers: Cluster) -> None:
    servers.create_channel()
    place = f"topic={TOPIC}&channel="
    text = f"channel auto create NOT disabled in topic {TOPIC}"
    assert servers.lookupd(f"POST /channel/create?{place}new") == refused(400, text)
    assert servers.lookupd(f"POST /channel/delete?{place}{CHANNEL}") == DONE  # it says
    assert channels(servers) == [CHANNEL]


# Topics without a channel


def test_a_topic_without_a_channel_is_not_named_to_producers_where_that_is_configured() -> None:
    text = "Topic has no channel, should init at least one for the new topic"
    with Cluster(allow_write_without_channels=False) as cluster:
        cluster.create(partitions=2)
        for number in (LEADER, SLAVE):
            path = f"GET /lookup?topic={TOPIC}&access=w"
            assert cluster.lookupd(path, number) == refused(404, text)
            assert cluster.lookupd(path, number, v1=False) == refused_in_envelope(text)
            assert cluster.leaders("r", number) == {"0": 0, "1": 1}
        cluster.create_channel()
        assert cluster.leaders("w") == {"0": 0}
        cluster.create_channel(1, 1)
        assert cluster.leaders("w") == cluster.leaders("w", SLAVE) == {"0": 0, "1": 1}


def test_by_default_a_topic_without_a_channel_is_written_to(servers: Cluster) -> None:
    assert servers.leaders("w") == {"0": 0, "1": 1}


def unfinished(stats: dict[str, Any]) -> tuple[int, int]:
    return stats["depth"], stats["in_flight_count"]


def test_what_a_consumer_finishes_is_seen_at_once(servers: Cluster) -> None:
    with connected(servers) as client:
        client.subscribe(SUB, rdy=2)
        servers.publish(b"a", b"b")
        messages = [client.message() for _ in range(2)]
        assert unfinished(servers.channel_stats()) == (2, 2)
        client.send(fin(messages[1].id))
        wait_until(lambda: unfinished(servers.channel_stats()) == (2, 1))
        client.send(fin(messages[0].id))
        wait_until(lambda: unfinished(servers.channel_stats()) == (0, 0))
