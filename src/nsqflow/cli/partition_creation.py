"""Creates a topic of the redesigned NSQ, or a channel in each of its partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from nsqflow.admin import AdminError, PartitionedTopic
from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.connect_check import subscribe
from nsqflow.cli.errors import CommandError
from nsqflow.cli.partition_table import LocatedPartition, find_topic_partitions, no_leader
from nsqflow.cli.terminal import count
from nsqflow.cli.topic_or_channel import TopicOrChannel
from nsqflow.protocol.commands import Sub, SubscribeMode
from nsqflow.protocol.lookup import TopicMeta

_NO_NODE = "No node is available"
_MORE_NSQD = (
    "an ordinary topic needs an nsqd for each copy of each partition: start more, or take fewer "
    "--partitions or --replicas; with --ordered or --multi-part an nsqd may have several partitions"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The options of a new topic; what is not given has its default."""

    partitions: int | None = None
    replicas: int | None = None
    ordered: bool = False
    extended: bool = False
    multi_part: bool = False
    registered_channels: bool = False
    retention_days: int | None = None

    @property
    def given(self) -> str:
        """The first option that is given; empty if none is."""
        options = {
            "--partitions": self.partitions,
            "--replicas": self.replicas,
            "--ordered": self.ordered,
            "--extended": self.extended,
            "--multi-part": self.multi_part,
            "--registered-channels": self.registered_channels,
            "--retention-days": self.retention_days,
        }
        return next((name for name, value in options.items() if value), "")

    def differs_from(self, meta: TopicMeta) -> bool:
        """Return whether a topic lacks what is given."""
        return (
            self.partitions not in (None, meta.partition_num)
            or self.replicas not in (None, meta.replica)
            or (self.ordered and not meta.ordered)
            or (self.extended and not meta.extend_support)
            or (self.multi_part and not meta.multi_part)
            or (self.registered_channels and not meta.disable_channel_auto_create)
        )


@dataclass(frozen=True, slots=True)
class CreatedPartition:
    """A partition, or a channel in it."""

    number: int
    leader: str | None
    """The TCP address of the nsqd that leads it; None if it is not known yet."""
    existed: bool


class PartitionCreator:
    """Creates a topic, or a channel of it."""

    def __init__(
        self, cluster: CliCluster, target: TopicOrChannel, settings: TopicSettings, wait: float
    ) -> None:
        self.topic_existed = False
        self.description = ""
        """Of the topic: how many partitions, and its settings."""
        self.note = ""
        """What else is to be done."""
        self._cluster = cluster
        self._target = target
        self._settings = settings
        self._wait = wait
        self._since: float | None = None
        self._writable = (0, 0)

    def progress(self, now: float) -> str:
        """Return what it waits for; empty if it does not."""
        if self._since is None:
            return ""
        writable, of = self._writable
        done = f" ({writable} of {count(of, 'partition')})" if of else ""
        waiting = f"waiting until topic {self._target.topic} is writable{done}"
        return f"{waiting}, {now - self._since:.0f} of {self._wait:g} s"

    async def create(self) -> list[CreatedPartition]:
        """Create what is missing; return all partitions."""
        cluster, name = self._cluster, self._target.topic
        topic = await cluster.partitioned_topic(name)
        self.topic_existed = topic is not None
        if topic is None:
            await self._create_topic()
        elif self._settings.differs_from(topic.meta):
            raise CommandError(
                f"topic {name} exists already, with {describe_topic(topic.meta)}",
                "its settings stay: leave the options out, or create another topic",
            )
        elif self._settings.retention_days is not None:
            # nsqlookupd does not report how long an existing topic keeps its messages.
            raise CommandError(
                f"--retention-days is for a new topic: topic {name} exists already",
                "its settings stay: leave it out, or create another topic",
            )
        # One that was created a moment ago has no leaders yet.
        if self._wait and (topic is None or not topic.leaders):
            await self._await_writable()
        topic = await cluster.redesigned().topic(name)
        self.description = describe_topic(topic.meta)
        if self._target.channel is None:
            await self._look_for_channels(topic)
            partitions = range(topic.meta.partition_num)
            leaders = {number: node.address for number, node in topic.leaders.items()}
            existed = self.topic_existed
            return [CreatedPartition(each, leaders.get(each), existed) for each in partitions]
        return await self._create_channel(topic, self._target.channel)

    # Private methods

    async def _create_topic(self) -> None:
        settings = self._settings
        try:
            await self._cluster.redesigned().create_topic(
                self._target.topic,
                partitions=settings.partitions or 1,
                replicas=settings.replicas or 1,
                ordered=settings.ordered,
                extended=settings.extended,
                multi_part=settings.multi_part,
                registered_channels=settings.registered_channels,
                retention_days=settings.retention_days,
            )
        except AdminError as error:
            if _NO_NODE not in error.message:
                raise
            text = f"topic {self._target.topic} can't be created: {error.message}"
            raise CommandError(text, _MORE_NSQD) from error

    async def _await_writable(self) -> None:
        def report(writable: int, of: int) -> None:
            self._writable = (writable, of)

        self._since = time.monotonic()
        try:
            name = self._target.topic
            await self._cluster.redesigned().await_writable(name, self._wait, report)
        except TimeoutError:
            state = "exists" if self.topic_existed else "was created"
            raise CommandError(
                f"topic {self._target.topic} {state}, and is not writable after {self._wait:g} s",
                f"a cluster may take two minutes: the same command{self._but} waits again; "
                "'nsqflow doctor' looks for a reason",
            ) from None
        finally:
            self._since = None

    @property
    def _but(self) -> str:
        """What to leave out of the command once the topic exists."""
        return "" if self._settings.retention_days is None else " without --retention-days"

    async def _look_for_channels(self, topic: PartitionedTopic) -> None:
        """Note that a topic takes no publishes before it has a channel, if that is so."""
        if not topic.channels and await self._cluster.lacks_channel(topic.name):
            self.note = (
                f"topic {topic.name} takes no publishes until it has a channel: 'nsqflow create "
                f"{topic.name} CHANNEL' creates one"
            )

    async def _create_channel(
        self, topic: PartitionedTopic, channel: str
    ) -> list[CreatedPartition]:
        partitions = (await find_topic_partitions(self._cluster, topic)).partitions
        missing = [each for each in partitions if not each.has_channel(channel)]
        registered = topic.meta.disable_channel_auto_create
        lost = [each.number for each in missing if each.stats is None]
        if lost and not registered:
            raise no_leader(topic.name, lost)
        if missing and topic.meta.ordered and not registered:
            await self._subscribe(missing, channel)
        elif missing:
            await self._cluster.redesigned().create_channel(topic.name, channel)
        return [
            CreatedPartition(each.number, each.leader, each not in missing) for each in partitions
        ]

    async def _subscribe(self, partitions: Iterable[LocatedPartition], channel: str) -> None:
        """Create an ordered channel as a consumer does, without asking for messages.

        A channel that was created over HTTP, and ordered later, repeats its first message.
        """

        async def one(each: LocatedPartition) -> None:
            name, number = each.topic.name, each.number
            assert each.leader is not None  # which was checked
            sub = Sub(name, channel, number, SubscribeMode.ORDERED)
            extended = each.topic.meta.extend_support
            await subscribe(self._cluster.servers, each.leader, sub, extended=extended)

        # One that fails must not leave the others half done.
        for result in await asyncio.gather(*map(one, partitions), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result


def describe_topic(meta: TopicMeta) -> str:
    """Return the settings of a topic as text."""
    flags = {
        "ordered": meta.ordered,
        "extended": meta.extend_support,
        "multi-part": meta.multi_part,
        "registered channels": meta.disable_channel_auto_create,
    }
    sizes = [count(meta.partition_num, "partition"), count(meta.replica, "replica")]
    return ", ".join([*sizes, *(name for name, wanted in flags.items() if wanted)])
