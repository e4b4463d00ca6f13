"""The hazards that a change of leaders has on the real servers: on request, and off by default.

Messages of ordered channels are repeated, channels that have never finished a message go on at the
end, and a cursor that was moved back is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.conformance.broker.asking import DONE
from tests.conformance.driver import wait_until
from tests.conformance.redesigned.event_driver import SUB, SUB_ORDERED, consumer
from tests.conformance.redesigned.http_driver import CHANNEL, TOPIC, Cluster
from tests.conformance.redesigned.wire import code_of, fin

BODIES = [b"a", b"b", b"c"]


def move(cluster: Cluster) -> None:
    cluster.broker.move_leader(TOPIC, 0, 1)


def stop(cluster: Cluster) -> None:
    cluster.broker.stop_node(0)


def kill(cluster: Cluster) -> None:
    cluster.broker.kill_node(0)
    wait_until(lambda: cluster.leaders("w") == {"0": 1})


Change = Callable[[Cluster], None]

changes = pytest.mark.parametrize("change", [move, stop, kill])
lines = pytest.mark.parametrize("line", [SUB, SUB_ORDERED], ids=["plain", "ordered"])


@contextmanager
def cluster_of(line: str, **hazards: bool) -> Iterator[Cluster]:
    """A cluster whose first node leads the topic, with a channel for such a SUB."""
    with Cluster(election_delay=0.0, move_delay=0.0, **hazards) as cluster:
        cluster.create(replicas=3, orderedmulti=line == SUB_ORDERED)
        consumer(cluster, line=line, rdy=0).close()
        yield cluster


def received(cluster: Cluster, line: str, count: int, node: int = 1) -> list[bytes]:
    """Return what a consumer of a node gets, one message after the other."""
    found = []
    with consumer(cluster, node, line) as wire:
        for _ in range(count):
            message = wire.message(positioned=line == SUB_ORDERED)
            assert message.attempts == 1
            found.append(message.body)
            wire.send(fin(message.id))
    return found


def finish_first(cluster: Cluster, line: str) -> None:
    """Publish a message and finish it, so that the channel has begun."""
    cluster.publish(b"first")
    assert received(cluster, line, 1, node=0) == [b"first"]
    wait_until(lambda: cluster.channel_stats()["depth"] == 0)


@changes
def test_the_next_leader_of_an_ordered_channel_repeats_its_first_message(change: Change) -> None:
    with cluster_of(SUB_ORDERED, repeat_messages=True) as cluster:
        finish_first(cluster, SUB_ORDERED)
        cluster.publish(*BODIES)
        with consumer(cluster, line=SUB_ORDERED) as held:
            in_flight = held.message(positioned=True)
            change(cluster)
            if change is not kill:  # what is dead sends nothing
                assert held.message(positioned=True) == in_flight
            held.expect_closed()
        with consumer(cluster, 1, SUB_ORDERED) as wire:
            repeated = [wire.message(positioned=True) for _ in range(2)]
            assert repeated == [in_flight, in_flight]
            assert in_flight.attempts == 1
            wire.send(*(fin(each.id) for each in repeated))
            others = [wire.frame(), wire.frame()]
            [failed] = [each for each in others if each[7] == 1]
            assert code_of(failed) == "E_FIN_FAILED"
            [message] = [each for each in others if each[7] == 2]
            assert message.endswith(b"b")


@changes
@lines
def test_a_channel_that_has_never_finished_anything_is_skipped(change: Change, line: str) -> None:
    with cluster_of(line, skip_unfinished=True) as cluster:
        cluster.publish(*BODIES)
        with consumer(cluster, line=line) as held:
            held.frame()
            assert cluster.channel_stats()["depth"] == 3
            change(cluster)
            held.expect_closed()
        assert cluster.channel_stats(1)["depth"] == 0
        cluster.publish(b"later", node=1)
        assert received(cluster, line, 1) == [b"later"]


@lines
def test_a_channel_that_has_finished_something_is_not_skipped(line: str) -> None:
    with cluster_of(line, skip_unfinished=True) as cluster:
        finish_first(cluster, line)
        cluster.publish(*BODIES)
        move(cluster)
        assert received(cluster, line, 3) == BODIES


@changes
@lines
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "kept"])
def test_a_cursor_that_was_moved_back_is_lost_if_that_is_asked_for(
    change: Change, line: str, lost: bool
) -> None:
    with cluster_of(line, lose_moved_cursor=lost) as cluster:
        cluster.publish(*BODIES)
        assert received(cluster, line, 3, node=0) == BODIES
        wait_until(lambda: cluster.channel_stats()["depth"] == 0)
        place = f"topic={TOPIC}&partition=0&channel={CHANNEL}"
        assert cluster.nsqd(f"POST /channel/setoffset?{place}", b"msgcount:1") == DONE
        assert cluster.channel_stats()["depth"] == 3
        change(cluster)
        assert cluster.channel_stats(1)["depth"] == (0 if lost else 3)
        cluster.publish(b"later", node=1)
        expected = [b"later"] if lost else [*BODIES, b"later"]
        assert received(cluster, line, len(expected)) == expected


@changes
@lines
def test_without_hazards_everything_unfinished_comes_once_and_in_order(
    change: Change, line: str
) -> None:
    with cluster_of(line) as cluster:
        cluster.publish(*BODIES)
        with consumer(cluster, line=line) as held:
            held.frame()
            change(cluster)
            held.expect_closed()
        cluster.publish(b"later", node=1)
        assert received(cluster, line, 4) == [*BODIES, b"later"]
