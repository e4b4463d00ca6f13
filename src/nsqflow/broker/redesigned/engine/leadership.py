"""Which node leads which partition, which nsqlookupd leads, and how that changes.

An event (a node is killed, a leader is to move) changes the state of partitions at once and plans
when each *settles*: then replicas that are gone leave, those that are back join, a leader is
elected if there is none, and publishes are taken if a majority of the replicas is in sync. A later
event replaces the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nsqflow.broker.engine.engine import TimerHeap
from nsqflow.broker.redesigned.engine.partition import Hazards, Partition, Writes
from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber


class ClusterObserver:
    """Receives notifications from a cluster; a subclass overrides what it needs."""

    def closed(self, subscribers: Sequence[tuple[PartitionSubscriber, bytes]]) -> None:
        """Called when subscribers are to be closed, after they were sent these bytes."""

    def left(self, node: int) -> None:
        """Called when a node that is stopping leads nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTimes:
    """How long changes take, in nanoseconds."""

    election_delay: int = 0
    """Until a node that was killed is missed."""
    follower_timeout: int = 0
    """How long publishes wait for a follower that was killed."""
    move_delay: int = 0
    """How long publishes are refused while a leader moves."""
    rejoin_delay: int = 0
    """How long publishes are refused while a replica joins."""
    flap_time: int = 0
    """How long nsqlookupd names an elected leader, then not, before it leads."""
    resubscribe_delay: int = 0
    """How long a leader that has lost its majority refuses consumers."""
    new_topic_delay: int = 0
    """Until a new topic is known and writable."""


class Leadership:
    """The nodes, and the changes of leaders; ``partitions`` returns all partitions."""

    def __init__(
        self,
        nodes: int,
        partitions: Callable[[], Iterable[Partition]],
        timers: TimerHeap,
        times: ClusterTimes,
        hazards: Hazards,
    ) -> None:
        self.alive = [True] * nodes
        """Whether each node runs."""
        self.observer = ClusterObserver()
        self.times = times
        self._partitions = partitions
        self._timers = timers
        self._hazards = hazards

    # Events

    def move_leader(self, partition: Partition, node: int, now: int) -> None:
        """Let another node lead; one without a copy gets that of the leader."""
        partition.target = node
        partition.set_writes(Writes.DISABLED, now)
        self._plan(partition, now + self.times.move_delay, self.settle)

    def start_node(self, node: int, now: int) -> None:
        """Start a node; it joins its partitions again."""
        self.alive[node] = True
        for partition in self._partitions_on(node):
            back = node in partition.in_sync
            if partition.leader is None and not back:
                continue  # only a node that has everything can lead
            if back and partition.writes is Writes.STALLED and not self._missing(partition):
                self.settle(partition, now)
                continue
            if partition.leader is not None:
                partition.set_writes(Writes.DISABLED, now)
            self._plan(partition, now + self.times.rejoin_delay, self.settle)

    def stop_node(self, node: int, now: int) -> None:
        """Stop a node as SIGTERM does; ``left`` reports when others lead its partitions."""
        for partition in self._partitions_on(node):
            if partition.leader == node:
                partition.set_writes(Writes.DISABLED, now)
                partition.generation += 1
            else:
                self._leave_in_sync(partition, node, now)
        self._timers.at(now + self.times.move_delay, self._leave, node)

    def kill_node(self, node: int, now: int) -> None:
        """End a node as ``kill -9`` does: the others notice later."""
        self.alive[node] = False
        for partition in self._partitions_on(node):
            if partition.leader == node:
                partition.stalled.clear()  # what is dead neither answers nor repeats anything
                partition.set_writes(Writes.REFUSED, now)
                self.close(partition.depose(Hazards()))
                self._plan(partition, now + self.times.election_delay, self._elect_after_crash)
            elif node in partition.in_sync and partition.writes is Writes.OPEN:
                partition.writes = Writes.STALLED
                self._plan(partition, now + self.times.follower_timeout, self._give_up_follower)

    def forget(self, partition: Partition, now: int) -> None:
        """Depose the leader of a partition for good, as its topic is deleted."""
        partition.generation += 1
        partition.set_writes(Writes.REFUSED, now)
        self.close(partition.depose(Hazards()))
        self._run_settled(partition)

    # Results

    def settle(self, partition: Partition, now: int, short: Writes = Writes.REFUSED) -> None:
        """End a change; without a majority, writes are as ``short`` says."""
        partition.generation += 1
        self._move_to_target(partition)
        self._elect(partition)
        partition.named = partition.subscribable = True
        if partition.leader is not None:
            partition.in_sync += [
                node
                for node in partition.replicas
                if self.alive[node] and node not in partition.in_sync
            ]
        enough = partition.leader is not None and partition.has_quorum(len(partition.in_sync))
        partition.set_writes(Writes.OPEN if enough else short, now)
        self._run_settled(partition)

    def close(self, subscribers: Sequence[tuple[PartitionSubscriber, bytes]]) -> None:
        """Report subscribers that are to be closed."""
        if subscribers:
            self.observer.closed(subscribers)

    # Private methods

    def _leave(self, node: int, now: int) -> None:
        self.alive[node] = False
        for partition in self._partitions_on(node):
            if partition.leader == node:
                self.settle(partition, now, short=Writes.DISABLED)
            else:  # it may have joined again meanwhile
                self._leave_in_sync(partition, node, now)
        self.observer.left(node)

    def _leave_in_sync(self, partition: Partition, node: int, now: int) -> None:
        """Let a follower go that says so; the last replica in sync stays what it is."""
        if node in partition.in_sync and len(partition.in_sync) > 1:
            partition.in_sync.remove(node)
            if partition.writable and not partition.has_quorum(len(partition.in_sync)):
                partition.set_writes(Writes.DISABLED, now)

    def _give_up_follower(self, partition: Partition, now: int) -> None:
        gone = self._missing(partition)
        if partition.has_quorum(len(partition.in_sync) - len(gone)):
            partition.set_writes(Writes.DISABLED, now)
            late = max(self.times.election_delay - self.times.follower_timeout, 0)
            self._plan(partition, now + late, self.settle)
            return
        partition.in_sync = [each for each in partition.in_sync if each not in gone]
        partition.set_writes(Writes.REFUSED, now)
        leader = partition.leader
        assert leader is not None  # else the plan would be another
        self.close(partition.depose(Hazards()))
        partition.elect(leader, Hazards())
        partition.subscribable = False
        self._plan(partition, now + self.times.resubscribe_delay, self.settle)

    def _elect_after_crash(self, partition: Partition, now: int) -> None:
        """Elect a leader; with ``flap_time``, nsqlookupd names it too early and forgets it."""
        if not self.times.flap_time:
            self.settle(partition, now)
            return
        self._elect(partition)
        partition.subscribable = False
        half = self.times.flap_time // 2

        def forget(partition: Partition, now: int) -> None:
            partition.named = False
            self._plan(partition, now + half, self.settle)

        self._plan(partition, now + half, forget)

    def _elect(self, partition: Partition) -> None:
        """Drop replicas that are gone; elect a leader if there is none that runs."""
        running = [node for node in partition.in_sync if self.alive[node]]
        partition.in_sync = running or partition.in_sync
        if partition.leader is not None and not self.alive[partition.leader]:
            self.close(partition.depose(self._hazards))
        if partition.leader is None and running:
            leader = next(node for node in partition.replicas if node in running)
            partition.elect(leader, self._hazards)

    def _move_to_target(self, partition: Partition) -> None:
        target, partition.target = partition.target, None
        leader = partition.leader
        if target is None or leader is None or target == leader or not self.alive[target]:
            return
        if target not in partition.replicas:
            for nodes in (partition.replicas, partition.in_sync):
                nodes[nodes.index(leader)] = target
        elif target not in partition.in_sync:
            partition.in_sync.append(target)
        self.close(partition.depose(self._hazards))
        partition.elect(target, self._hazards)

    def _plan(self, partition: Partition, at: int, act: Callable[[Partition, int], None]) -> None:
        partition.generation += 1
        generation = partition.generation

        def run(partition: Partition, now: int) -> None:
            if partition.generation == generation:
                act(partition, now)

        self._timers.at(at, run, partition)

    def _run_settled(self, partition: Partition) -> None:
        waiting, partition.settled = partition.settled, []
        for call in waiting:
            call()

    def _missing(self, partition: Partition) -> list[int]:
        return [node for node in partition.in_sync if not self.alive[node]]

    def _partitions_on(self, node: int) -> list[Partition]:
        return [each for each in self._partitions() if node in each.replicas]


class LookupdElection:
    """Which nsqlookupd leads; the others answer lookups and change nothing.

    They are numbers. ``delay`` is in nanoseconds.
    """

    def __init__(self, members: int, timers: TimerHeap, delay: int) -> None:
        self.leader: int | None = None
        """The one that all name as leading; after it stopped, until another is elected."""
        self.listed: list[int] = []
        """Those that are listed as members; one that stopped, until then too."""
        self._running = [False] * members
        self._timers = timers
        self._delay = delay

    def leads(self, member: int) -> bool:
        """Return whether it runs and leads."""
        return self.leader == member and self._running[member]

    def started(self, member: int) -> None:
        """Add a member; it leads if no other does."""
        self._running[member] = True
        if member not in self.listed:
            self.listed = sorted([*self.listed, member])
        if self.leader is None:
            self.leader = member

    def stopped(self, member: int, now: int) -> None:
        """Note that a member stopped; the others notice it later."""
        self._running[member] = False
        self._timers.at(now + self._delay, self._notice, member)

    def _notice(self, member: int, now: int) -> None:
        if self._running[member]:
            return  # it is back
        self.listed = [each for each in self.listed if each != member]
        if self.leader == member:
            self.leader = next((each for each in self.listed if self._running[each]), None)
