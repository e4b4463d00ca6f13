"""A partition of a topic: its log and channels, the nodes that have it, and the one that leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

from nsqflow.broker.engine.engine import TimerHeap
from nsqflow.broker.engine.queue import MemoryBudget
from nsqflow.broker.redesigned.engine.channel import PartitionChannel
from nsqflow.broker.redesigned.engine.log import MESSAGE_OVERHEAD, PartitionLog
from nsqflow.broker.redesigned.engine.subscriber import DeliverySettings, PartitionSubscriber
from nsqflow.protocol.lookup import TopicMeta
from nsqflow.protocol.messages import Receipt


class Refused(Exception):
    """A publish or a subscription is refused: nsqd's code and text."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Writes(Enum):
    """How a leader takes publishes."""

    OPEN = "open"
    STALLED = "stalled"
    """They wait for a follower that has gone without a word."""
    DISABLED = "disabled"
    """They are refused, as the leader is moving or a replica is joining."""
    REFUSED = "refused"
    """They are refused, as there is no leader or too few replicas."""


_REFUSALS = {
    Writes.DISABLED: "E_FAILED_ON_NOT_WRITABLE",
    Writes.REFUSED: "E_FAILED_ON_NOT_LEADER",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazards:
    """What a change of leaders does to channels on real servers; each is off by default."""

    repeat_messages: bool = False
    """An ordered channel delivers messages twice."""
    skip_unfinished: bool = False
    """A channel that has never finished a message goes on at the end."""
    lose_moved_cursor: bool = False
    """A cursor that was moved back is where it was before."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Messages to be published."""

    bodies: Sequence[bytes] = field(repr=False)
    traces: Sequence[int] | None = None
    headers: Sequence[bytes] | None = field(default=None, repr=False)
    batch: bool = False
    """They are those of an MPUB."""
    done: Callable[[Receipt | Refused], None] = field(default=lambda result: None, repr=False)
    """Called with the result if it is not known at once."""

    @property
    def memory(self) -> int:
        """Approximate size in memory, once they are in the log."""
        return MESSAGE_OVERHEAD * len(self.bodies) + sum(
            map(len, chain(self.bodies, self.headers or ()))
        )


class Partition:
    """A partition. Nodes are numbers."""

    def __init__(
        self,
        topic: str,
        number: int,
        meta: TopicMeta,
        replicas: Sequence[int],
        timers: TimerHeap,
        settings: DeliverySettings,
        memory: MemoryBudget,
        mark_dirty: Callable[[PartitionChannel], None],
    ) -> None:
        self.topic = topic
        self.number = number
        self.meta = meta
        self.log = PartitionLog(number, extended=meta.extend_support)
        self.channels: dict[str, PartitionChannel] = {}
        self.replicas = [*replicas]
        """The nodes that have a copy, or will again."""
        self.in_sync = [*replicas]
        """Those of them that have everything that was acknowledged."""
        self.leader: int | None = None
        self.terms = 0
        """How many leaders were deposed."""
        self.writes = Writes.REFUSED
        self.named = True
        """nsqlookupd names the leader to consumers."""
        self.subscribable = True
        """The leader knows that it leads."""
        self.target: int | None = None
        """The node that is to lead from the next change on."""
        self.stalled: list[Publication] = []
        self.generation = 0
        """Counts what was planned: a plan of an older generation is void."""
        self.settled: list[Callable[[], None]] = []
        """Called once when no change is going on."""
        self.pub_failed_count = 0
        self._last_leader: int | None = None
        self._timers = timers
        self._settings = settings
        self._memory = memory
        self._mark_dirty = mark_dirty

    def __repr__(self) -> str:
        return f"Partition({self.topic!r}, {self.number})"

    @property
    def writable(self) -> bool:
        """Whether nsqlookupd names it to producers, and nsqd calls it led."""
        return self.leader is not None and self.writes in (Writes.OPEN, Writes.STALLED)

    def has_quorum(self, count: int) -> bool:
        """Return whether this number of replicas is enough for writing."""
        return count > self.meta.replica // 2

    # Publishing

    def publish(self, publication: Publication, now: int) -> Receipt | None:
        """Add messages, or raise ``Refused``; None if the result is known later."""
        if self.writes is Writes.OPEN:
            return self._append(publication, now)
        if self.writes is Writes.STALLED:
            self.stalled.append(publication)
            return None
        self.pub_failed_count += 1
        raise Refused(_REFUSALS[self.writes])

    def set_writes(self, writes: Writes, now: int) -> None:
        """Set how publishes are taken, and answer those that wait accordingly."""
        self.writes = writes
        stalled, self.stalled = self.stalled, []
        for publication in stalled:
            if self.writes is Writes.OPEN:
                publication.done(self._append(publication, now))
            elif self.writes is Writes.REFUSED and publication.batch:
                publication.done(Refused("E_MPUB_FAILED", "pub timeout while pop wait queue"))
            else:
                publication.done(Refused(_REFUSALS[self.writes]))
        self.pub_failed_count += 0 if self.writes is Writes.OPEN else len(stalled)

    def _append(self, publication: Publication, now: int) -> Receipt:
        before = self.log.memory
        receipt = self.log.append(publication.bodies, now, publication.traces, publication.headers)
        self._memory.used += self.log.memory - before
        for channel in self.channels.values():
            if channel.subscribers:
                self._mark_dirty(channel)
        return receipt

    # Channels

    def channel(self, name: str) -> PartitionChannel:
        """Return the channel of this name; create it at the end of the log if it is new."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = PartitionChannel(
                name, self.log, self._timers, self._settings, self._mark_dirty
            )
        return channel

    def delete_channel(self, name: str) -> list[PartitionSubscriber]:
        """Delete a channel, if there is one; return the subscribers that must be closed."""
        channel = self.channels.pop(name, None)
        if channel is None:
            return []
        channel.deleted = True
        return channel.close()

    def drop_finished(self) -> None:
        """Drop messages that no channel needs."""
        self._drop_before(
            min((each.oldest for each in self.channels.values()), default=self.log.end)
        )

    def close(self) -> None:
        """Drop all channels and messages, because the topic is deleted."""
        for name in [*self.channels]:
            self.delete_channel(name)
        self._drop_before(self.log.end)

    def _drop_before(self, index: int) -> None:
        before = self.log.memory
        self.log.drop_before(index)
        self._memory.used -= before - self.log.memory

    # Leaders

    def depose(self, hazards: Hazards) -> list[tuple[PartitionSubscriber, bytes]]:
        """Let the leader go: return the subscribers to be closed, and what to send them before.

        What was in flight or deferred is delivered again, by the next leader, as if for the first
        time.
        """
        closed: list[tuple[PartitionSubscriber, bytes]] = []
        for channel in [*self.channels.values()]:
            repeats = self._repeats(channel, hazards)
            again = [self._in_flight(each) if repeats else b"" for each in channel.subscribers]
            closed += zip(channel.close(), again, strict=True)
            channel.reader.reset(forget_finished=channel.ordered)
            if channel.ephemeral:
                self.delete_channel(channel.name)
        self._last_leader = self.leader
        self.leader = None
        self.terms += 1
        return closed

    def elect(self, node: int, hazards: Hazards) -> None:
        """Let a node lead."""
        self.leader = node
        if node == self._last_leader or self._last_leader is None:
            return  # it has its channels as they were
        for channel in self.channels.values():
            window = channel.reader.window
            if hazards.skip_unfinished and not channel.began:
                window.move(self.log.end)
            elif hazards.lose_moved_cursor and window.cursor < channel.reader.reached:
                window.move(channel.reader.reached)
            channel.reader.reset()
            channel.repeats = int(self._repeats(channel, hazards))

    def _in_flight(self, subscriber: PartitionSubscriber) -> bytes:
        """Return the frames that a subscriber has in flight."""
        encode, positioned = self.log.encode_one, subscriber.positioned
        return b"".join(
            encode(index, each.attempts, positioned=positioned)
            for index, each in subscriber.in_flight.items()
        )

    @staticmethod
    def _repeats(channel: PartitionChannel, hazards: Hazards) -> bool:
        return hazards.repeat_messages and channel.ordered
