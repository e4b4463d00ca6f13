"""The channels of a pipeline, made all at once, before the first of them is read.

What a topic has got before it has a channel goes to the first that is made, and to that alone. So
that every sink gets it, the topic is paused until they are all there; nobody else can want it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import cache

from nsqflow.admin import Nsqd, TopicStats
from nsqflow.errors import NsqError
from nsqflow.http.client import parse_http_address
from nsqflow.protocol.lookup import join_address
from nsqflow.spark.directory import Directory
from nsqflow.spark.options import SourceOptions

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0


def create_channels(options: SourceOptions, channels: Sequence[str]) -> None:
    """Create channels wherever the topics of the options are, and announce them where they are not.

    An nsqd that can't be asked gets its channels from the queries, when it can be.
    """
    asyncio.run(_Channels(options, channels).create())


class _Channels:
    def __init__(self, options: SourceOptions, channels: Sequence[str]) -> None:
        self._options = options
        self._channels = channels
        self._pattern = re.compile(options.topic_pattern or "")
        self._tls = cache(options.access.http_context)

    async def create(self) -> None:
        if self._options.servers.nsqd:
            places = dict.fromkeys(self._options.servers.nsqd_http, self._options.topics)
        else:
            places = await self._look_up()
        done = [self._create_on(http, topics) for http, topics in places.items()]
        await asyncio.gather(*done)

    async def _look_up(self) -> dict[str, tuple[str, ...]]:
        """Which topics the nsqd have; those that none has are announced."""
        directory = Directory(self._options, self._tls)
        places: dict[str, tuple[str, ...]] = {}
        try:
            await directory.refresh(_TIMEOUT)
            directory.check()
            for topic, nodes in directory.places.items():
                for node in nodes:
                    http = join_address(node.broadcast_address, node.http_port)
                    places[http] = (*places.get(http, ()), topic)
                if not nodes:
                    for channel in self._channels:
                        await directory.register(topic, channel, _TIMEOUT)
        finally:
            directory.close()
        return places

    async def _create_on(self, http: str, topics: Sequence[str]) -> None:
        secure = parse_http_address(http).scheme == "https"
        try:
            async with Nsqd(http, tls=self._tls() if secure else None, timeout=_TIMEOUT) as nsqd:
                known = {topic.name: topic for topic in (await nsqd.stats()).topics}
                # A pattern has no topics of its own, but those that are there.
                matching = topics or [name for name in known if self._pattern.fullmatch(name)]
                for topic in matching:
                    await self._create_of(nsqd, topic, known.get(topic))
        except NsqError as error:
            logger.warning("%s; its channels are made when it can be asked", error)

    async def _create_of(self, nsqd: Nsqd, name: str, topic: TopicStats | None) -> None:
        if topic is None:
            await nsqd.create_topic(name)
        elif topic.paused:
            logger.warning(
                "topic %s is paused: nothing comes before nsqflow unpause %s", name, name
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
