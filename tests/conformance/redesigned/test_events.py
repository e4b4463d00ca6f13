"""What clients of a redesigned cluster see, in order, when a leader moves, stops or dies.

Each test is a row of what was measured on the real servers; how long a state lasts is an option
here. /lookup is asked with access=r and access=w.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.broker.asking import DONE, OK, refused
from tests.conformance.redesigned.event_driver import (
    ENDED,
    NOT_LEADER,
    NOT_WRITABLE,
    STORED,
    SUB,
    WINDOW,
    Publisher,
    Watch,
    check_delivery,
    consumer,
    meanwhile,
    try_to_subscribe,
)
from tests.conformance.redesigned.http_driver import TOPIC, Cluster
from tests.conformance.redesigned.wire import batch, code_of, data_of, fin, pub
from tests.fixtures.servers import PATIENCE

FIRST, SECOND = {"0": 0}, {"0": 1}
NONE: dict[str, int] = {}
LONG = 3600.0  # seconds: nothing that takes as long happens during a test


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three nodes that all have the topic, which the first leads; parameters are options."""
    with Cluster(**getattr(request, "param", {})) as cluster:
        cluster.create(replicas=3)
        yield cluster


def options(**values: float) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("servers", [values], indirect=True, ids=[""])


def connected(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def lookups(cluster: Cluster) -> Watch:
    """Watch what each nsqlookupd names to consumers and producers."""
    return Watch(
        r=lambda: cluster.leaders("r"),
        w=lambda: cluster.leaders("w"),
        slave_r=lambda: cluster.leaders("r", 1),
        slave_w=lambda: cluster.leaders("w", 1),
    )


def move_by_lookupd(cluster: Cluster) -> None:
    query = f"topic={TOPIC}&partition=0&move_leader=true"
    names = f"move_from={cluster.distributed_id(0)}&move_to={cluster.distributed_id(1)}"
    assert cluster.lookupd(f"POST /topic/partition/move?{query}&{names}") == DONE


def move_by_broker(cluster: Cluster) -> None:
    cluster.broker.move_leader(TOPIC, 0, 1)


@options(move_delay=WINDOW)
@pytest.mark.parametrize("move", [move_by_lookupd, move_by_broker])
def test_a_leader_that_moves_is_not_writable_then_not_leader(
    servers: Cluster, move: Callable[[Cluster], None]
) -> None:
    with Publisher(servers) as producer, consumer(servers) as held:
        watch = Watch(
            producer=producer.publish,
            r=lambda: servers.leaders("r"),
            w=lambda: servers.leaders("w"),
        )
        watch.look()
        held.message()
        with meanwhile(move, servers):
            watch.until("producer", NOT_LEADER)
        assert watch.seen["producer"] == [STORED, NOT_WRITABLE, NOT_LEADER]
        assert watch.seen["r"] == [FIRST, SECOND]
        assert watch.seen["w"] == [FIRST, NONE, SECOND]
        held.expect_closed()
        with Publisher(servers, 1) as other:
            assert other.publish() == STORED
            check_delivery(servers, 1, producer.acknowledged + other.acknowledged)


@options(move_delay=WINDOW)
def test_publishes_over_http_are_refused_alike_while_a_leader_moves(servers: Cluster) -> None:
    path = f"POST /pub?topic={TOPIC}&partition=0"
    watch = Watch(answer=lambda: servers.nsqd(path, b"x"))
    watch.look()
    with meanwhile(move_by_broker, servers):
        watch.until("answer", refused(400, NOT_LEADER))
    assert watch.seen["answer"] == [OK, refused(400, NOT_WRITABLE), refused(400, NOT_LEADER)]


@options(move_delay=WINDOW)
def test_a_leader_that_is_stopped_is_not_writable_and_then_gone(servers: Cluster) -> None:
    with Publisher(servers) as producer, consumer(servers) as held:
        watch = Watch(producer=producer.publish, r=lambda: servers.leaders("r"))
        watch.look()
        held.message()
        with meanwhile(servers.broker.stop_node, 0):
            watch.until("producer", ENDED)
        assert watch.seen["producer"][:2] == [STORED, NOT_WRITABLE]
        # One publish may come between the new leader and the end of the old one.
        assert {*watch.seen["producer"][2:]} <= {NOT_LEADER, ENDED}
        assert watch.seen["r"] == [FIRST, SECOND]
        assert servers.leaders("w") == servers.leaders("w", 1) == SECOND
        held.expect_closed()
        with Publisher(servers, 1) as other:
            assert other.publish() == STORED
            check_delivery(servers, 1, producer.acknowledged + other.acknowledged)


@options(election_delay=WINDOW)
def test_a_leader_that_is_killed_is_replaced_after_a_while(servers: Cluster) -> None:
    with Publisher(servers) as producer, consumer(servers) as held:
        assert producer.publish() == STORED
        stale = held.message()
        watch = lookups(servers)
        watch.look()
        servers.broker.kill_node(0)
        assert producer.publish() == ENDED
        held.expect_closed()
        for name in ("slave_w", "slave_r", "w", "r"):
            watch.until(name, SECOND)
        # No answer after the kill names the dead leader.
        assert {
            name: seen for name, seen in watch.seen.items() if seen != [FIRST, NONE, SECOND]
        } == {}
        with Publisher(servers, 1) as other:
            assert other.publish() == STORED
            with consumer(servers, 1, rdy=0) as late:
                assert code_of(late.ask(fin(stale.id))) == "E_FIN_FAILED"
                late.rdy(1)
                assert late.message().body == stale.body
            check_delivery(servers, 1, producer.acknowledged + other.acknowledged)


@options(election_delay=WINDOW, flap_time=2 * WINDOW)
def test_after_a_crash_nsqlookupd_names_the_new_leader_forgets_it_and_names_it_again(
    servers: Cluster,
) -> None:
    watch = Watch(w=lambda: servers.leaders("w"), r=lambda: servers.leaders("r"))
    watch.look()
    servers.broker.kill_node(0)
    watch.until("r", SECOND)
    assert try_to_subscribe(servers, 1) == NOT_LEADER
    with Publisher(servers, 1) as producer:
        assert producer.publish() == NOT_LEADER
        watch.until("w", SECOND)
        assert watch.seen["r"] == [FIRST, NONE, SECOND, NONE, SECOND]
        assert watch.seen["w"] == [FIRST, NONE, SECOND]
        assert producer.publish() == STORED
    assert try_to_subscribe(servers, 1) == STORED


def test_with_two_replicas_a_killed_leader_stops_writing_until_it_is_back() -> None:
    with Cluster(election_delay=WINDOW, rejoin_delay=WINDOW) as cluster:
        cluster.create(replicas=2)
        with Publisher(cluster) as producer, consumer(cluster) as held:
            assert producer.publish() == STORED
            held.message()
            watch = lookups(cluster)
            watch.look()
            cluster.broker.kill_node(0)
            watch.until("r", SECOND)
            watch.until("slave_r", SECOND)
            held.expect_closed()
        assert watch.seen["r"] == watch.seen["slave_r"] == [FIRST, NONE, SECOND]
        assert watch.seen["w"] == watch.seen["slave_w"] == [FIRST, NONE]
        with Publisher(cluster, 1) as other:
            check_delivery(cluster, 1, producer.acknowledged)
            writes = Watch(producer=other.publish, w=lambda: cluster.leaders("w"))
            writes.look()
            cluster.broker.start_node(0)
            writes.until("producer", STORED)
            assert writes.seen["producer"] == [NOT_LEADER, NOT_WRITABLE, STORED]
            assert writes.seen["w"] == [NONE, SECOND]
            check_delivery(cluster, 1, producer.acknowledged + other.acknowledged)


def test_with_two_replicas_publishes_wait_for_a_killed_follower_and_are_refused() -> None:
    with Cluster(follower_timeout=WINDOW, resubscribe_delay=WINDOW) as cluster:
        cluster.create(replicas=2)
        held = consumer(cluster)
        with held, Publisher(cluster) as producer, Publisher(cluster) as other:
            assert producer.publish() == STORED
            held.message()
            cluster.broker.kill_node(1)
            producer.send(pub(TOPIC, b"lost"))
            other.send(batch(f"MPUB {TOPIC} 0", b"lost", b"too"))
            # They are asked later and answer before.
            assert cluster.leaders("r") == cluster.leaders("w") == FIRST
            assert not producer.answered
            assert not other.answered
            assert producer.result() == NOT_LEADER
            text = data_of(other.frame(), 1)
            assert text.startswith(b"E_MPUB_FAILED pub timeout while pop wait")
            assert producer.publish() == NOT_LEADER  # at once
            held.expect_closed()
        assert (cluster.leaders("r"), cluster.leaders("w")) == (FIRST, NONE)
        [stats] = cluster.stats()
        assert (stats["is_leader"], stats["message_count"]) == (False, 1)
        assert cluster.stats(f"topic={TOPIC}&leaderOnly=true") == []
        subscription = Watch(answer=lambda: try_to_subscribe(cluster, 0))
        subscription.look()
        subscription.until("answer", STORED)
        assert subscription.seen["answer"] == [NOT_LEADER, STORED]
        check_delivery(cluster, 0, producer.acknowledged)


def test_a_follower_that_is_back_in_time_lets_the_publishes_succeed_that_wait() -> None:
    with Cluster(follower_timeout=LONG) as cluster:
        cluster.create(replicas=2)
        with consumer(cluster, rdy=2) as held, Publisher(cluster) as producer:
            cluster.broker.kill_node(1)
            producer.send(pub(TOPIC, b"late"))
            with meanwhile(cluster.publish, b"too"):  # over HTTP
                assert cluster.leaders("w") == FIRST
                assert not producer.answered
                cluster.broker.start_node(1)
                assert producer.result() == STORED
            assert sorted(held.bodies(2)) == [b"late", b"too"]


def test_a_killed_leader_answers_no_publish_that_waits_for_a_follower() -> None:
    with Cluster(follower_timeout=LONG) as cluster:
        cluster.create(replicas=3)
        with Publisher(cluster) as producer, Publisher(cluster) as other:
            cluster.broker.kill_node(2)
            producer.send(pub(TOPIC, b"lost"))
            other.send(batch(f"MPUB {TOPIC} 0", b"lost", b"too"))
            assert cluster.leaders("w") == FIRST
            cluster.broker.kill_node(0)
            assert (producer.result(), other.result()) == (ENDED, ENDED)
        watch = lookups(cluster)
        watch.look()
        watch.until("r", SECOND)
        assert [each["message_count"] for each in cluster.stats(node=1)] == [0]


def test_with_three_replicas_a_killed_follower_is_given_up_and_consumers_go_on(
    servers: Cluster,
) -> None:
    with consumer(servers, rdy=2500) as held, Publisher(servers) as producer:
        servers.broker.kill_node(2)
        watch = Watch(producer=producer.publish)
        watch.look()
        watch.until("producer", STORED)
        assert servers.leaders("w") == FIRST
        assert held.bodies(len(producer.acknowledged)) == producer.acknowledged


@options(rejoin_delay=WINDOW)
def test_a_node_that_rejoins_makes_the_leader_not_writable_for_a_while(servers: Cluster) -> None:
    servers.broker.kill_node(2)
    with consumer(servers, rdy=2500) as held, Publisher(servers) as producer:
        watch = Watch(
            producer=producer.publish,
            w=lambda: servers.leaders("w"),
            r=lambda: servers.leaders("r"),
        )
        watch.look()
        watch.until("producer", STORED)
        for seen in watch.seen.values():
            del seen[:-1]
        servers.broker.start_node(2)
        watch.until("producer", STORED, NOT_WRITABLE, STORED)
        assert watch.seen == {
            "producer": [STORED, NOT_WRITABLE, STORED],
            "w": [FIRST, NONE, FIRST],
            "r": [FIRST],
        }
        assert held.bodies(len(producer.acknowledged)) == producer.acknowledged


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_partition_with_one_replica_is_back_with_its_node_and_its_messages(end: str) -> None:
    with Cluster() as cluster:
        cluster.create()
        cluster.create_channel()
        with Publisher(cluster) as producer:
            assert producer.publish() == STORED
        if end == "stop":
            cluster.broker.stop_node(0)
        else:
            cluster.broker.kill_node(0)
        watch = lookups(cluster)
        watch.look()
        assert watch.seen == {name: [NONE] for name in watch.seen}
        cluster.broker.start_node(0)
        watch.until("w", FIRST)
        check_delivery(cluster, 0, producer.acknowledged)


@options(election_delay=LONG, lookup_delay=LONG)
def test_without_a_leader_the_leading_nsqlookupd_keeps_producers_waiting_and_no_others(
    servers: Cluster,
) -> None:
    servers.broker.kill_node(0)
    with connected(servers.broker.lookupd_addresses[0]) as waiting:
        waiting.sendall(f"GET /lookup?topic={TOPIC}&access=w HTTP/1.0\r\n\r\n".encode())
        # They are asked later and answer before; and the cluster can be stopped meanwhile.
        assert servers.leaders("r") == servers.leaders("w", 1) == NONE
        assert servers.leaders("r", 1) == NONE
        assert not select.select([waiting], [], [], 0)[0]


def test_a_deleted_topic_ends_its_consumers_and_its_producers_with_the_next_publish(
    servers: Cluster,
) -> None:
    with consumer(servers) as held, Publisher(servers) as producer:
        assert servers.lookupd(f"POST /topic/delete?topic={TOPIC}&partition=**") == DONE
        held.expect_closed()
        assert producer.publish() == "E_TOPIC_NOT_EXIST"
        producer.expect_closed()


@options(new_topic_delay=WINDOW)
def test_a_new_topic_is_unknown_at_first_to_the_leading_nsqlookupd_and_to_its_nodes(
    servers: Cluster,
) -> None:
    with Publisher(servers) as producer:
        watch = Watch(
            w=lambda: servers.leaders("w"),
            r=lambda: servers.leaders("r"),
            slave_w=lambda: servers.leaders("w", 1),
            topics=lambda: servers.lookupd("GET /topics").json()["topics"],
            producer=producer.publish,
        )
        watch.look()
        assert try_to_subscribe(servers, 0, SUB) == NOT_LEADER
        watch.until("w", FIRST)
        assert watch.seen == {
            "w": [NONE, FIRST],
            "r": [NONE, FIRST],
            "slave_w": [FIRST],
            "topics": [[], [TOPIC]],
            "producer": [NOT_LEADER, STORED],
        }


@options(lookupd_election_delay=WINDOW)
def test_a_leading_nsqlookupd_that_is_gone_only_delays_changes(servers: Cluster) -> None:
    def named() -> list[str]:
        answer = servers.lookupd("GET /listlookup", 1).json()
        return [
            answer["lookupdleader"]["HttpPort"],
            *(each["HttpPort"] for each in answer["lookupdnodes"]),
        ]

    def create() -> tuple[int, bytes]:
        query = "topic=new&partition_num=1&replicator=1"
        answer = servers.lookupd(f"POST /topic/create?{query}", 1)
        return answer.status, answer.body

    first, second = (each.split(":")[1] for each in servers.broker.lookupd_addresses)
    refusal = 400, b'{"message":"E_FAILED_ON_NOT_LEADER"}'
    with consumer(servers, rdy=2500) as held, Publisher(servers) as producer:
        watch = Watch(
            create=create,
            named=named,
            r=lambda: servers.leaders("r", 1),
            w=lambda: servers.leaders("w", 1),
            producer=producer.publish,
        )
        watch.look()
        servers.broker.stop_lookupd(0)
        watch.until("create", (200, b""))
        assert watch.seen == {
            "create": [refusal, (200, b"")],
            "named": [[first, first, second], [second, second]],
            "r": [FIRST],
            "w": [FIRST],
            "producer": [STORED],
        }
        assert held.bodies(len(producer.acknowledged)) == producer.acknowledged
    servers.broker.start_lookupd(0)  # on its old port; it follows now
    assert servers.lookupd("GET /listlookup").json() == servers.lookupd("GET /listlookup", 1).json()
    assert named() == [second, first, second]
    assert servers.leaders("w") == FIRST
