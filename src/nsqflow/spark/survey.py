"""The driver's eyes: which nsqd have messages for the query, and how many.

    survey = Survey(options)
    survey.create()
    for backlog in survey.look(): ...

It is for plain code, in one thread: its event loop runs while a call lasts. In between nothing
goes on, but connections stay open.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from time import monotonic

from nsqflow.errors import NetworkError
from nsqflow.protocol.lookup import Node, join_address
from nsqflow.spark.backlog import Backlog
from nsqflow.spark.directory import INTERVAL, Directory
from nsqflow.spark.gauge import Gauge
from nsqflow.spark.offsets import make_key
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.roll import Roll

__all__ = ["Backlog", "Survey"]

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0
_CREATING = 60.0  # seconds for all channels of one nsqd, of which there may be hundreds
_FLOWING = 10.0  # seconds for a topic's backlog to reach the channel that is to be emptied
_PAUSE = 0.02
_LAST_TURNS = 3  # of the loop: a transport that is aborted closes its socket one or two later


class Survey:
    """Looks after the topics of one query on all their nsqd."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.topic_pattern or "")
        self._tls = cache(options.access.http_context)
        servers = options.servers
        self._directory = Directory(options, self._tls) if servers.lookupd else None
        self._gauges = {
            nsqd: self._gauge(nsqd, http, options.topics)
            for nsqd, http in zip(servers.nsqd, servers.nsqd_http, strict=True)
        }
        self._roll = Roll("nsqd")
        self._lists_topics = bool(servers.nsqd and options.topic_pattern)
        self._creates_topics = bool(servers.nsqd and options.topics)
        self._listing_due = 0.0
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._gone: set[str] = set()
        self._closed = False

    @property
    def unreachable(self) -> dict[str, str]:
        """The nsqd that did not answer when they were asked last, and why."""
        return dict(self._roll.missing)

    def take_gone(self) -> set[str]:
        """Give the keys whose topic was found to be deleted since this was asked last."""
        gone, self._gone = self._gone, set()
        return gone

    def look(self, timeout: float = _TIMEOUT) -> list[Backlog]:
        """Give the backlogs of all topics on all nsqd that can be asked, sorted by their keys.

        Each server has ``timeout`` seconds to answer. A channel that is missing is created at
        once. Raises ``DiscoveryError`` or ``NetworkError`` if nobody can be asked.
        """
        return self._runner.run(self._look(timeout))

    def create(self) -> None:
        """Create the channel wherever the topics are, or will be.

        An nsqd that was named itself gets the topics, too. A topic that no nsqd has yet is
        announced to nsqlookupd.
        """
        self._runner.run(self._create())

    def empty(self) -> None:
        """Create the channel, and throw away what it has on every nsqd that can be asked."""
        self._runner.run(self._empty())

    def close(self) -> None:
        """Close all connections."""
        if not self._closed:
            self._closed = True
            self._runner.run(self._close())
            self._runner.close()

    # Private methods

    async def _look(self, timeout: float) -> list[Backlog]:
        if self._directory is not None:
            if await self._directory.refresh(timeout):
                self._take_in(self._directory.places)
            if not self._gauges:
                self._directory.check()
        readings = await self._read(timeout)
        created = await self._create_missing(readings)
        if self._gauges and len(self._roll.missing) == len(self._gauges):
            reasons = "; ".join(self._roll.missing.values())
            raise NetworkError(f"no nsqd can be asked: {reasons}")
        found = chain(*readings.values(), *created.values())
        return sorted(found, key=lambda backlog: backlog.key)

    async def _create(self) -> None:
        await self._look(_TIMEOUT)
        if self._directory is None:
            return
        known = {topic for gauge in self._gauges.values() for topic in gauge.topics}
        for topic in self._options.topics:
            if topic not in known:
                await self._directory.register(topic, self._options.channel, _TIMEOUT)

    async def _empty(self) -> None:
        await self._create()
        await self._await_flow()
        for backlog in await self._look(_TIMEOUT):
            await self._gauges[backlog.nsqd].empty(backlog.topic)

    async def _await_flow(self) -> None:
        """Wait until the topics have passed on to the channel what they had."""
        deadline = monotonic() + _FLOWING
        calm, held = 0, list[Backlog]()
        while calm < 2 and monotonic() < deadline:  # twice: one more may have been on its way
            await asyncio.sleep(_PAUSE)
            held = [backlog for backlog in await self._look(_TIMEOUT) if backlog.topic_depth]
            calm = calm + 1 if all(backlog.topic_paused for backlog in held) else 0
        for backlog in held:
            logger.warning(
                "%s: %d older messages may follow, the topic has not passed them on yet",
                backlog.key,
                backlog.topic_depth,
            )

    async def _close(self) -> None:
        for gauge in self._gauges.values():
            gauge.close()
        if self._directory is not None:
            self._directory.close()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    def _take_in(self, places: Mapping[str, Collection[Node]]) -> None:
        """Have the nsqd be those that nsqlookupd names, and those that are well without it.

        An nsqlookupd that has just been started knows nobody yet.
        """
        named: dict[str, set[str]] = {}
        for topic, nodes in places.items():
            for node in nodes:
                self._place(node)
                named.setdefault(node.address, set()).add(topic)
        for nsqd, gauge in [*self._gauges.items()]:
            if nsqd in self._roll.missing:
                gauge.topics.clear()
            gauge.topics |= named.get(nsqd, set())
            if not gauge.topics:
                gauge.close()
                del self._gauges[nsqd]
        self._roll.keep(self._gauges)

    def _place(self, node: Node) -> None:
        http = join_address(node.broadcast_address, node.http_port)
        before = self._gauges.get(node.address)
        if before is None:
            self._gauges[node.address] = self._gauge(node.address, http)
        elif before.http != http:
            before.close()
            self._gauges[node.address] = self._gauge(node.address, http, before.topics)

    def _gauge(self, nsqd: str, http: str, topics: Iterable[str] = ()) -> Gauge:
        return Gauge(nsqd, http, self._options.channel, self._tls, topics)

    async def _read(self, timeout: float) -> dict[str, list[Backlog]]:
        """Ask all nsqd what they have, and at times which topics; gives what each one said."""
        listing = self._lists_topics and monotonic() >= self._listing_due
        if listing:
            self._listing_due = monotonic() + INTERVAL
        questions = {
            nsqd: partial(self._read_one, gauge, listing)
            for nsqd, gauge in self._gauges.items()
            if listing or gauge.topics
        }
        return await self._roll.ask(questions, timeout)

    async def _read_one(self, gauge: Gauge, listing: bool) -> list[Backlog]:
        if listing:
            gauge.topics = set(filter(self._pattern.fullmatch, await gauge.names()))
        return await gauge.read(gauge.topics)

    async def _create_missing(
        self, readings: Mapping[str, Collection[Backlog]]
    ) -> dict[str, list[Backlog]]:
        """Create the channels that are not there; gives their backlogs, by nsqd."""
        questions = {}
        for nsqd, found in readings.items():
            gauge = self._gauges[nsqd]
            if missing := gauge.topics - {backlog.topic for backlog in found}:
                questions[nsqd] = partial(self._create_on, gauge, missing)
        return await self._roll.ask(questions, _CREATING)

    async def _create_on(self, gauge: Gauge, topics: Collection[str]) -> list[Backlog]:
        channel = self._options.channel
        created = set()
        for topic in sorted(topics):
            if await gauge.create(topic, anew=self._creates_topics):
                logger.info("created channel %s of topic %s on %s", channel, topic, gauge.nsqd)
                created.add(topic)
            else:  # deleted since it was named; it may be named again
                gauge.topics.discard(topic)
                self._gone.add(make_key(topic, gauge.nsqd))
        return [replace(backlog, exists=False) for backlog in await gauge.read(created)]
