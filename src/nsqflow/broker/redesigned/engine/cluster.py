"""A cluster: its topics, and publishing to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsqflow.broker.engine.engine import TimerHeap
from nsqflow.broker.engine.queue import MemoryBudget
from nsqflow.broker.redesigned.engine.channel import Given, PartitionChannel
from nsqflow.broker.redesigned.engine.leadership import ClusterTimes, Leadership
from nsqflow.broker.redesigned.engine.partition import (
    Hazards,
    Partition,
    Publication,
    Refused,
)
from nsqflow.broker.redesigned.engine.subscriber import DeliverySettings
from nsqflow.protocol.lookup import TopicMeta
from nsqflow.protocol.messages import Receipt


class ClusterRefusal(Exception):
    """A request to change the cluster is refused, in nsqlookupd's words."""


class ClusterTopic:
    """A topic."""

    def __init__(self, name: str, meta: TopicMeta, partitions: Sequence[Partition]) -> None:
        self.name = name
        self.meta = meta
        self.partitions = partitions
        self.registered_channels: list[str] = []
        """The channels of a topic without automatic channels."""
        self.ready = False
        """Its nodes have registered it with nsqlookupd."""

    @property
    def channels(self) -> list[str]:
        """The channels of all partitions."""
        return [*dict.fromkeys(name for each in self.partitions for name in each.channels)]


class ReplicatedCluster:
    """All nodes and topics."""

    def __init__(
        self,
        nodes: int,
        *,
        times: ClusterTimes | None = None,
        hazards: Hazards | None = None,
        settings: DeliverySettings | None = None,
        max_memory: int = 256 * 1024 * 1024,
    ) -> None:
        self.topics: dict[str, ClusterTopic] = {}
        self.hazards = hazards or Hazards()
        self.timers = TimerHeap()
        self.leadership = Leadership(
            nodes, self.partitions, self.timers, times or ClusterTimes(), self.hazards
        )
        self.memory = MemoryBudget(max_memory)
        self._settings = settings or DeliverySettings()
        self._drop_at = max_memory // 4  # from which size on finished messages are dropped
        self._dirty_channels: dict[PartitionChannel, None] = {}

    def partitions(self) -> Iterator[Partition]:
        """Return all partitions."""
        return (each for topic in self.topics.values() for each in topic.partitions)

    # Time and delivery

    def tick(self, now: int) -> None:
        """Run the timers that are due."""
        self.timers.tick(now)

    @property
    def next_at(self) -> int | None:
        """The time of the next timer."""
        return self.timers.next_at

    @property
    def has_work(self) -> bool:
        """Whether ``deliver`` may have something to deliver."""
        return bool(self._dirty_channels)

    def deliver(self, now: int) -> Given:
        """Put messages in flight; return which subscriber gets which frames."""
        awake, self._dirty_channels = self._dirty_channels, {}
        return [given for each in awake if not each.deleted for given in each.deliver(now)]

    # Topics

    def create_topic(self, name: str, meta: TopicMeta, now: int) -> ClusterTopic:
        """Create a topic, or return it if it is the same; raise ``ClusterRefusal``."""
        if (topic := self.topics.get(name)) is not None:
            if topic.meta != meta:
                raise ClusterRefusal("already exist")
            return topic
        partitions = [
            Partition(
                name,
                number,
                meta,
                nodes,
                self.timers,
                self._settings,
                self.memory,
                self._mark_dirty,
            )
            for number, nodes in enumerate(self._place(meta))
        ]
        topic = self.topics[name] = ClusterTopic(name, meta, partitions)
        if delay := self.leadership.times.new_topic_delay:
            for partition in partitions:
                partition.elect(partition.replicas[0], self.hazards)
                partition.subscribable = False  # it does not know yet
            self.timers.at(now + delay, self._begin, topic)
        else:
            self._begin(topic, now)
        return topic

    def delete_topic(self, name: str, now: int) -> None:
        """Delete a topic; raise ``ClusterRefusal`` if it does not exist."""
        topic = self.topics.pop(name, None)
        if topic is None:
            raise ClusterRefusal("Key not found")
        for partition in topic.partitions:
            self.leadership.forget(partition, now)
            partition.close()

    def register_channel(self, topic: ClusterTopic, name: str) -> None:
        """Create a channel of a topic without automatic channels, in every partition."""
        topic.registered_channels.append(name)
        for partition in topic.partitions:
            partition.channel(name)

    def unregister_channel(self, topic: ClusterTopic, name: str) -> None:
        """Delete such a channel."""
        topic.registered_channels.remove(name)
        for partition in topic.partitions:
            self.delete_channel(partition, name)

    def delete_channel(self, partition: Partition, name: str) -> None:
        """Delete a channel of one partition, if there is one."""
        self.leadership.close([(each, b"") for each in partition.delete_channel(name)])

    # Publishing and subscribing

    def find(self, node: int, topic: str, number: int | None) -> Partition:
        """Return a partition of which a node has a copy, by default one that it leads.

        Raises ``Refused`` if there is none.
        """
        found = self.topics.get(topic)
        for partition in found.partitions if found is not None else ():
            wanted = partition.leader == node if number is None else partition.number == number
            if wanted and node in partition.replicas:
                return partition
        raise Refused("E_TOPIC_NOT_EXIST")

    def publish(
        self, node: int, partition: Partition, publication: Publication, now: int
    ) -> Receipt | None:
        """Publish to a partition; raise ``Refused``; None if the result is known later."""
        self.check_leader(node, partition)
        size, used = publication.memory, self.memory.used
        if used > self._drop_at or used + size > self.memory.limit:
            self._check_memory(publication, size)
        return partition.publish(publication, now)

    def check_leader(self, node: int, partition: Partition) -> None:
        """Raise ``Refused`` if a node does not lead a partition."""
        if partition.leader != node or not partition.subscribable:
            raise Refused("E_FAILED_ON_NOT_LEADER")

    # Private methods

    def _begin(self, topic: ClusterTopic, now: int) -> None:
        if self.topics.get(topic.name) is topic:  # else it was deleted before it was ready
            topic.ready = True
            for partition in topic.partitions:
                self.leadership.settle(partition, now)

    def _place(self, meta: TopicMeta) -> list[list[int]]:
        """Return the nodes of each partition, the leader first: those that lead least."""
        led = [each.leader for each in self.partitions()]
        running = [node for node, alive in enumerate(self.leadership.alive) if alive]
        nodes = sorted(running, key=lambda node: (led.count(node), node))
        several = meta.ordered or meta.multi_part  # one node may have several of its partitions
        count, replicas = meta.partition_num, meta.replica
        if len(nodes) < replicas or (not several and len(nodes) < count * replicas):
            raise ClusterRefusal("ErrType:9 ErrCode:1 : No node is available for topic")
        step = 1 if several else replicas
        return [
            [nodes[(number * step + each) % len(nodes)] for each in range(replicas)]
            for number in range(count)
        ]

    def _check_memory(self, publication: Publication, size: int) -> None:
        """Drop finished messages; raise ``Refused`` if there is still no space."""
        for partition in self.partitions():
            partition.drop_finished()
        used, limit = self.memory.used, self.memory.limit
        self._drop_at = max(limit // 4, used + limit // 16)
        if used + size > limit:
            raise Refused(
                "E_MPUB_FAILED" if publication.batch else "E_PUB_FAILED",
                f"{size} bytes beside {used} of at most {limit} in memory (max-memory)",
            )

    def _mark_dirty(self, channel: PartitionChannel) -> None:
        self._dirty_channels[channel] = None
