"""Leaders and followers that stop, die, come back and move, step by step as clients see it."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine.engine import TimerHeap
from nsqflow.broker.redesigned.engine.leadership import (
    ClusterObserver,
    ClusterTimes,
    LookupdElection,
)
from nsqflow.broker.redesigned.engine.partition import Hazards, Writes
from tests.unit.broker.redesigned.engine.cluster_parts import TIMES, Lab
from tests.unit.broker.redesigned.engine.parts import NOW, SECOND

NOT_LEADER, NOT_WRITABLE = "E_FAILED_ON_NOT_LEADER", "E_FAILED_ON_NOT_WRITABLE"


def test_a_killed_leader_of_three_is_replaced_when_it_is_missed() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    consumer = lab.subscribe(partition)
    lab.publish(partition, b"a")
    lab.leadership.kill_node(0, lab.now)
    assert lab.observer.gone == [consumer]
    assert (partition.leader, partition.writable) == (None, False)
    assert lab.publish(partition, node=1) == NOT_LEADER
    lab.wait(20.9)
    assert (partition.leader, partition.writable) == (None, False)
    lab.wait(0.1)
    assert (partition.leader, partition.in_sync, partition.writable) == (1, [1, 2], True)
    assert lab.publish(partition, b"b") == "OK"
    lab.subscribe(partition)
    assert lab.attempts(partition) == [(b"a", 1), (b"b", 1)]


def test_a_killed_leader_of_two_is_replaced_for_reading_alone() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.leadership.kill_node(0, lab.now)
    lab.wait(21)
    assert (partition.leader, partition.writable) == (1, False)
    assert lab.publish(partition) == NOT_LEADER
    lab.leadership.start_node(0, lab.now)
    assert lab.publish(partition) == NOT_WRITABLE
    lab.wait(2)
    assert lab.publish(partition) == "OK"
    assert partition.in_sync == [1, 0]


def test_a_killed_leader_of_one_is_back_when_its_node_is() -> None:
    lab = Lab()
    partition = lab.create()
    lab.publish(partition, b"a")
    partition.channel("c")
    lab.leadership.kill_node(0, lab.now)
    lab.wait(30)
    assert (partition.leader, partition.writable) == (None, False)
    lab.leadership.start_node(0, lab.now)
    lab.wait(2)
    assert (partition.leader, partition.writable) == (0, True)
    assert partition.log.read(0).body == b"a"


def test_without_a_delay_for_elections_a_leader_is_replaced_at_the_next_tick() -> None:
    lab = Lab(times=ClusterTimes())
    partition = lab.create(replica=3)
    lab.leadership.kill_node(0, lab.now)
    lab.wait(0)
    assert partition.leader == 1


def test_publishes_wait_for_a_killed_follower_of_two_then_fail() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    consumer = lab.subscribe(partition)
    lab.leadership.kill_node(1, lab.now)
    assert partition.writable
    assert lab.publish(partition) == "waits"
    assert lab.publish(partition, batch=True) == "waits"
    lab.wait(12)
    assert lab.results == [NOT_LEADER, "E_MPUB_FAILED"]
    assert partition.log.end == 0
    assert lab.publish(partition) == NOT_LEADER
    assert lab.observer.gone == [consumer]
    assert (partition.leader, partition.writable, partition.subscribable) == (0, False, False)
    assert partition.pub_failed_count == 2
    lab.wait(80)
    assert (partition.leader, partition.writable, partition.subscribable) == (0, False, True)
    lab.leadership.start_node(1, lab.now)
    lab.wait(2)
    assert lab.publish(partition) == "OK"


def test_publishes_wait_for_a_killed_follower_of_three_then_fail_until_it_is_missed() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    consumer = lab.subscribe(partition)
    lab.leadership.kill_node(2, lab.now)
    assert lab.publish(partition) == "waits"
    lab.wait(12)
    assert lab.results == [NOT_WRITABLE]
    assert lab.publish(partition) == NOT_WRITABLE
    assert not partition.writable
    lab.wait(9)
    assert lab.publish(partition) == "OK"
    assert lab.observer.gone == []
    assert consumer in partition.channels["c"].subscribers


def test_a_follower_that_is_back_in_time_lets_publishes_go_on() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.leadership.kill_node(1, lab.now)
    assert lab.publish(partition) == "waits"
    lab.leadership.start_node(1, lab.now)
    assert lab.results == ["OK"]
    assert partition.log.end == 1
    lab.wait(100)
    assert lab.publish(partition) == "OK"


def test_a_killed_leader_answers_no_publish_that_waits_for_a_follower() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    lab.leadership.kill_node(2, lab.now)
    assert lab.publish(partition) == "waits"
    lab.leadership.kill_node(0, lab.now)
    lab.wait(30)
    assert lab.results == []
    assert (partition.leader, partition.log.end) == (1, 0)


def test_both_followers_killed_are_no_majority() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    lab.leadership.kill_node(1, lab.now)
    lab.leadership.kill_node(2, lab.now)
    lab.wait(12)
    assert lab.publish(partition) == NOT_LEADER
    lab.leadership.start_node(2, lab.now)
    lab.wait(2)
    assert partition.in_sync == [0, 2]
    assert lab.publish(partition) == "OK"


def test_a_stopped_leader_hands_over() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    consumer = lab.subscribe(partition)
    lab.leadership.stop_node(0, lab.now)
    assert lab.publish(partition) == NOT_WRITABLE
    assert lab.observer.gone == []
    lab.wait(1)
    assert lab.observer.gone == [consumer]
    assert lab.observer.nodes_left == [0]
    assert (partition.leader, partition.in_sync) == (1, [1, 2])
    assert lab.publish(partition) == "OK"
    assert lab.publish(partition, node=0) == NOT_LEADER


def test_a_stopped_leader_of_one_leaves_nothing_behind() -> None:
    lab = Lab()
    partition = lab.create()
    lab.leadership.stop_node(0, lab.now)
    lab.wait(1)
    assert (partition.leader, partition.in_sync) == (None, [0])
    assert lab.publish(partition, node=0) == NOT_LEADER


def test_a_stopped_follower_of_three_disturbs_nothing() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    lab.subscribe(partition)
    lab.leadership.stop_node(1, lab.now)
    assert lab.publish(partition) == "OK"
    lab.wait(1)
    assert lab.publish(partition) == "OK"
    assert (partition.in_sync, lab.observer.gone) == ([0, 2], [])


def test_a_stopped_follower_of_two_ends_writing_and_not_reading() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.subscribe(partition)
    lab.leadership.stop_node(1, lab.now)
    for _ in range(30):
        assert lab.publish(partition) == NOT_WRITABLE
        lab.wait(1)
    assert (partition.leader, lab.observer.gone) == (0, [])


def test_a_node_that_joins_again_stops_writes_for_a_moment() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    consumer = lab.subscribe(partition)
    lab.leadership.stop_node(2, lab.now)
    lab.wait(1)
    lab.leadership.start_node(2, lab.now)
    assert lab.publish(partition) == NOT_WRITABLE
    assert (partition.named, partition.writable) == (True, False)
    lab.wait(2)
    assert lab.publish(partition) == "OK"
    assert partition.in_sync == [0, 1, 2]
    assert consumer in partition.channels["c"].subscribers


def test_a_node_without_the_last_messages_does_not_lead() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.leadership.kill_node(1, lab.now)
    lab.wait(12)
    lab.leadership.kill_node(0, lab.now)
    lab.leadership.start_node(1, lab.now)
    lab.wait(100)
    assert (partition.leader, partition.in_sync) == (None, [0])
    lab.leadership.start_node(0, lab.now)
    lab.wait(2)
    assert (partition.leader, partition.in_sync) == (0, [0, 1])
    assert partition.writable


def test_a_leader_moves_alive() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    consumer = lab.subscribe(partition, rdy=1)
    lab.publish(partition, b"a", b"b")
    lab.attempts(partition)
    settled: list[bool] = []
    partition.settled.append(lambda: settled.append(True))
    lab.leadership.move_leader(partition, 1, lab.now)
    assert lab.publish(partition) == NOT_WRITABLE
    assert (partition.leader, partition.writable, settled) == (0, False, [])
    lab.wait(1)
    assert lab.observer.gone == [consumer]
    assert settled == [True]
    assert lab.publish(partition, node=0) == NOT_LEADER
    assert lab.publish(partition, b"c", node=1) == "OK"
    lab.subscribe(partition)
    assert lab.attempts(partition) == [(b"a", 1), (b"b", 1), (b"c", 1)]


def test_a_leader_can_move_to_a_node_without_a_copy() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.leadership.move_leader(partition, 2, lab.now)
    lab.wait(1)
    assert (partition.leader, partition.replicas, partition.in_sync) == (2, [2, 1], [2, 1])
    lab.leadership.move_leader(partition, 2, lab.now)  # to itself
    lab.wait(1)
    assert (partition.leader, partition.writable) == (2, True)


def test_a_move_is_not_lost_when_something_else_happens() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    lab.leadership.stop_node(2, lab.now)
    lab.wait(1)
    lab.leadership.move_leader(partition, 1, lab.now)
    lab.leadership.start_node(2, lab.now)
    lab.wait(2)
    assert (partition.leader, partition.writable) == (1, True)


def test_a_replica_that_is_still_joining_can_take_over() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    lab.leadership.stop_node(2, lab.now)
    lab.wait(1)
    lab.leadership.start_node(2, lab.now)
    lab.leadership.move_leader(partition, 2, lab.now)
    lab.wait(1)
    assert (partition.leader, partition.replicas) == (2, [0, 1, 2])
    assert (sorted(partition.in_sync), partition.writable) == ([0, 1, 2], True)


def test_a_move_to_a_node_that_dies_does_not_happen() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    lab.leadership.move_leader(partition, 1, lab.now)
    lab.leadership.kill_node(1, lab.now)
    lab.wait(30)
    assert (partition.leader, partition.in_sync) == (0, [0, 2])
    lab.leadership.kill_node(0, lab.now)
    lab.leadership.move_leader(partition, 2, lab.now)
    lab.wait(30)
    assert partition.leader == 2


def test_a_node_that_joins_while_it_stops_leaves_nevertheless() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.leadership.stop_node(1, lab.now)
    lab.leadership.settle(partition, lab.now)
    assert partition.in_sync == [0, 1]
    lab.wait(1)
    assert partition.in_sync == [0]
    assert lab.publish(partition) == NOT_WRITABLE


def test_an_elected_leader_may_be_named_before_it_leads() -> None:
    times = ClusterTimes(election_delay=SECOND, flap_time=2 * SECOND)
    lab = Lab(times=times)
    partition = lab.create(replica=3)
    lab.leadership.kill_node(0, lab.now)
    seen = []
    for _ in range(4):
        seen.append((partition.leader, partition.named, partition.subscribable, partition.writes))
        lab.wait(1)
    assert seen == [
        (None, True, True, Writes.REFUSED),
        (1, True, False, Writes.REFUSED),
        (1, False, False, Writes.REFUSED),
        (1, True, True, Writes.OPEN),
    ]


def test_a_plan_is_void_after_the_next_event() -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    lab.leadership.kill_node(0, lab.now)
    lab.wait(10)
    lab.leadership.start_node(0, lab.now)
    lab.wait(2)
    assert (partition.leader, partition.in_sync) == (0, [0, 1, 2])
    lab.wait(20)
    assert partition.leader == 0


def test_a_killed_node_that_leads_and_follows_nothing_changes_nothing() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.leadership.kill_node(2, lab.now)
    lab.wait(30)
    assert lab.publish(partition) == "OK"
    lab.leadership.kill_node(1, lab.now)
    lab.wait(30)
    lab.leadership.kill_node(1, lab.now)  # it is not in sync any more
    assert partition.in_sync == [0]


# What a change of leaders does to channels


def switched(lab: Lab, *, crash: bool = False) -> None:
    """Let node 1 lead."""
    if crash:
        lab.leadership.kill_node(0, lab.now)
        lab.wait(21)
    else:
        [partition] = lab.cluster.topics["t"].partitions
        lab.leadership.move_leader(partition, 1, lab.now)
        lab.wait(1)


@pytest.mark.parametrize("crash", [False, True])
def test_cursor_and_finished_messages_survive_a_change(crash: bool) -> None:
    lab = Lab()
    partition = lab.create(replica=3)
    consumer = lab.subscribe(partition, rdy=3)
    lab.publish(partition, b"a", b"b", b"c", b"d")
    lab.attempts(partition)
    channel = partition.channels["c"]
    for number in (2, 4):
        channel.finish(consumer, [number.to_bytes(8, "big") + bytes(8)])
    switched(lab, crash=crash)
    lab.subscribe(partition)
    assert lab.attempts(partition) == [(b"b", 1), (b"d", 1)]


def test_an_ephemeral_channel_ends_with_its_leader() -> None:
    lab = Lab()
    partition = lab.create(replica=2)
    lab.subscribe(partition, "c#ephemeral")
    switched(lab)
    assert partition.channels == {}


@pytest.mark.parametrize("ordered", [False, True])
def test_on_request_a_channel_that_never_finished_is_skipped(ordered: bool) -> None:
    lab = Lab(hazards=Hazards(skip_unfinished=True))
    partition = lab.create(replica=3)
    consumer = lab.subscribe(partition, "began", rdy=1)
    lab.subscribe(partition, "never", rdy=1)
    lab.publish(partition, b"a", b"b")
    partition.channels["never"].order(ordered)
    lab.attempts(partition)
    lab.finish(partition, consumer)
    switched(lab)
    lab.subscribe(partition, "never")
    assert lab.attempts(partition) == []
    lab.subscribe(partition, "began")
    assert lab.attempts(partition) == [(b"b", 1)]


def test_nothing_is_skipped_where_the_same_node_leads_again() -> None:
    lab = Lab(hazards=Hazards(skip_unfinished=True))
    partition = lab.create()
    lab.subscribe(partition)
    lab.publish(partition, b"a")
    lab.leadership.kill_node(0, lab.now)
    lab.leadership.start_node(0, lab.now)
    lab.wait(2)
    lab.subscribe(partition)
    assert lab.attempts(partition) == [(b"a", 1)]


@pytest.mark.parametrize("lost", [False, True])
def test_on_request_a_cursor_that_was_moved_back_is_lost(lost: bool) -> None:
    lab = Lab(hazards=Hazards(lose_moved_cursor=lost))
    partition = lab.create(replica=2)
    consumer = lab.subscribe(partition)
    lab.publish(partition, b"a", b"b", b"c")
    lab.attempts(partition)
    lab.finish(partition, consumer)
    partition.channels["c"].move(0)
    switched(lab)
    lab.subscribe(partition)
    assert len(lab.attempts(partition)) == (0 if lost else 3)


def test_on_request_ordered_messages_are_repeated() -> None:
    lab = Lab(hazards=Hazards(repeat_messages=True))
    partition = lab.create(replica=2, ordered=True)
    partition.channel("c").order(True)
    lab.subscribe(partition, positioned=True)
    lab.subscribe(partition, "plain", rdy=0)
    lab.publish(partition, b"a")
    [(_, frame)] = lab.cluster.deliver(lab.now)
    switched(lab)
    assert lab.observer.sent == [frame]  # by the old leader, before it closes
    lab.subscribe(partition)
    assert lab.attempts(partition) == [(b"a", 1), (b"a", 1)]


def test_a_killed_leader_repeats_nothing() -> None:
    lab = Lab(hazards=Hazards(repeat_messages=True))
    partition = lab.create(replica=3, ordered=True)
    partition.channel("c").order(True)
    lab.subscribe(partition)
    lab.publish(partition, b"a")
    assert lab.attempts(partition) == [(b"a", 1)]
    lab.leadership.kill_node(0, lab.now)
    lab.wait(21)
    assert lab.observer.sent == []
    lab.subscribe(partition)
    assert lab.attempts(partition) == [(b"a", 1), (b"a", 1)]


def test_an_observer_need_not_listen() -> None:
    lab = Lab(times=TIMES)
    lab.leadership.observer = ClusterObserver()
    partition = lab.create(replica=2)
    lab.subscribe(partition)
    lab.leadership.stop_node(0, lab.now)
    lab.wait(1)
    assert partition.leader == 1


# Which nsqlookupd leads.


def test_the_first_nsqlookupd_that_starts_leads() -> None:
    election = LookupdElection(2, TimerHeap(), 18 * SECOND)
    election.started(1)
    election.started(0)
    assert (election.leader, election.listed) == (1, [0, 1])
    assert election.leads(1)
    assert not election.leads(0)


def test_another_nsqlookupd_leads_a_while_after_the_leading_one_stopped() -> None:
    timers = TimerHeap()
    election = LookupdElection(2, timers, 18 * SECOND)
    election.started(0)
    election.started(1)
    election.stopped(0, NOW)
    assert (election.leader, election.listed) == (0, [0, 1])
    assert not election.leads(0)
    timers.tick(NOW + 17 * SECOND)
    assert election.leader == 0
    timers.tick(NOW + 18 * SECOND)
    assert (election.leader, election.listed) == (1, [1])
    election.started(0)
    assert (election.leader, election.listed) == (1, [0, 1])


def test_an_nsqlookupd_that_is_back_in_time_is_not_missed() -> None:
    timers = TimerHeap()
    election = LookupdElection(2, timers, 18 * SECOND)
    election.started(0)
    election.started(1)
    election.stopped(0, NOW)
    election.started(0)
    timers.tick(NOW + 18 * SECOND)
    assert (election.leader, election.listed) == (0, [0, 1])


def test_an_nsqlookupd_that_does_not_lead_is_missed_without_an_election() -> None:
    timers = TimerHeap()
    election = LookupdElection(2, timers, 18 * SECOND)
    election.started(0)
    election.started(1)
    election.stopped(1, NOW)
    timers.tick(NOW + 18 * SECOND)
    assert (election.leader, election.listed) == (0, [0])
    election.stopped(0, NOW + 18 * SECOND)
    timers.tick(NOW + 36 * SECOND)
    assert (election.leader, election.listed) == (None, [])
