"""Creates the channels of a pipeline's sinks before the first of them is read.

Messages that a topic received before it had a channel go to the first channel that is created, and
only to that one. The topic is paused until all channels exist, so that every sink gets them. In the
redesigned NSQ a channel begins at the end of its partition (``partition_channels``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from nsqflow.admin import Nsqd, NsqdNode, TopicStats
from nsqflow.errors import NsqError
from nsqflow.pipelines.partition_channels import create_partition_channels
from nsqflow.pipelines.topics import look_up, make_cluster, redesigned_topics
from nsqflow.spark.options import SourceOptions

logger = logging.getLogger(__name__)


def create_channels(options: SourceOptions, channels: Sequence[str]) -> None:
    """Create channels on each nsqd that has the topics; register topics that no nsqd has.

    On an nsqd that does not answer, the queries create the channels later.
    """
    asyncio.run(_Channels(options, channels).create())


class _Channels:
    def __init__(self, options: SourceOptions, channels: Sequence[str]) -> None:
        self._options = options
        self._channels = channels
        self._pattern = re.compile(options.topic_pattern or "")
        self._cluster = make_cluster(options)

    async def create(self) -> None:
        cluster = self._cluster
        if cluster.lookupds:
            topics = await self._look_up()
        else:
            topics = dict.fromkeys(await cluster.nodes(), self._options.topics)
        for error in {str(error): error for error in cluster.errors}.values():
            logger.warning("nsqlookupd does not answer: %s", error)
        cluster.errors.clear()
        await cluster.for_each(topics, lambda node: self._create_on(node.http, topics[node]))
        for error in cluster.errors:
            logger.warning("%s; its channels are created when it answers", error)

    async def _look_up(self) -> dict[NsqdNode, tuple[str, ...]]:
        """Return the topics of each nsqd; register those that no nsqd has."""
        cluster, options = self._cluster, self._options
        answers = await look_up(cluster, options)
        redesigned = redesigned_topics(answers, options)
        if redesigned:
            await create_partition_channels(options, self._channels, redesigned, cluster)
        topics = tuple(topic for topic in answers if topic not in redesigned)
        nodes = {topic: answers[topic].producers for topic in topics}
        if missing := [topic for topic in topics if not nodes[topic]]:
            await cluster.register(missing, self._channels)
        known = {node.address: node for found in nodes.values() for node in found}
        return {
            cluster.node_of(known[address]): tuple(
                topic for topic in topics if address in {node.address for node in nodes[topic]}
            )
            for address in known
        }

    async def _create_on(self, nsqd: Nsqd, topics: Sequence[str]) -> None:
        known = {topic.name: topic for topic in (await nsqd.stats()).topics}
        # Without topics, the pattern selects existing ones.
        matching = topics or [name for name in known if self._pattern.fullmatch(name)]
        for topic in matching:
            await self._create_of(nsqd, topic, known.get(topic))

    async def _create_of(self, nsqd: Nsqd, name: str, topic: TopicStats | None) -> None:
        if topic is None:
            await nsqd.create_topic(name)
        elif topic.paused:
            logger.warning(
                "topic %s is paused: no message arrives until nsqflow unpause %s", name, name
            )
        alone = topic is None or not (topic.channels or topic.paused)
        async with _paused(nsqd, name) if alone else nullcontext():
            for channel in self._channels:
                await nsqd.create_channel(name, channel)


@asynccontextmanager
async def _paused(nsqd: Nsqd, topic: str) -> AsyncIterator[None]:
    await nsqd.pause_topic(topic)
    try:
        yield
    finally:
        try:
            await nsqd.unpause_topic(topic)
        except NsqError as error:
            logger.warning(
                "%s; topic %s stays paused until nsqflow unpause %s", error, topic, topic
            )
