"""The demo's workload on a cluster of the redesigned NSQ, one of whose leaders is killed.

The page views of a user have the user as their key, so they are in one partition, in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Self

from nsqflow.admin import RedesignedCluster
from nsqflow.admin.partition import PartitionStats
from nsqflow.admin.redesigned import PartitionedTopic
from nsqflow.broker import Broker
from nsqflow.cli.demo.workload import RESULTS, TOPIC, PartitionRow, Workload
from nsqflow.errors import NsqError, PrecedingPublishFailed, PublishUncertain, RequestTimeout

_CLIENT_LOGGER = logging.getLogger("nsqflow.client")

PARTITIONS = 3
_NODES = 3
_REPLICAS = 3  # with two, the loss of a node ends publishing
_ELECTION_DELAY = 2.0  # seconds; a real cluster takes 20 to 35, and more
_VICTIM = 0  # the partition whose leader is killed

_NOT_SENT = (PrecedingPublishFailed, RequestTimeout)

KeyedMessage = tuple[bytes, bytes]


class ClusterWorkload(Workload):
    """Three nodes with an ordered topic; the leader of a partition is killed in the middle."""

    def __enter__(self) -> Self:
        # The notes say which connections are lost.
        self._level = _CLIENT_LOGGER.level
        if not _CLIENT_LOGGER.isEnabledFor(logging.DEBUG):
            _CLIENT_LOGGER.setLevel(logging.ERROR)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            _CLIENT_LOGGER.setLevel(self._level)

    def open(self) -> None:
        """Start publishing, and plan the end of a leader."""
        super().open()
        self._call(self._run(self._kill_leader()))

    # --- on the thread --------------------------------------------------------------------------

    async def _start_broker(self) -> None:
        self._broker = Broker("redesigned", _NODES, election_delay=_ELECTION_DELAY)
        await self._stack.enter_async_context(self._broker)
        self.servers = {"lookupd": self._broker.lookupd_addresses}
        self._cluster = RedesignedCluster(lookupd=self._broker.lookupd_addresses)
        await self._broker.create_topic(TOPIC, PARTITIONS, _REPLICAS, ordered=True)
        await self._broker.create_topic(RESULTS, replicas=_REPLICAS)
        await self._broker.create_channel(RESULTS, "screen")

    async def _publish_some(self, count: int) -> None:
        """Publish messages; return when all are stored, so that those of a user stay in order."""
        waiting = self.page_views.make_keyed(count, time.time())
        while waiting:
            waiting = await self._publish_all(waiting)
        self.published += count

    async def _publish_all(self, messages: Sequence[KeyedMessage]) -> list[KeyedMessage]:
        """Return those that must be published again, in their order.

        If it is unknown whether one was stored, it may be stored twice then. What waited after it
        in its partition was not sent, or it would come before it.
        """
        sent = [self._producer.send(TOPIC, body, key=key) for key, body in messages]
        again: list[KeyedMessage] = []
        for message, result in zip(
            messages, await asyncio.gather(*sent, return_exceptions=True), strict=True
        ):
            if not isinstance(result, BaseException):
                continue
            if isinstance(result, PublishUncertain):
                self.repeated |= {message[1]}
            elif not isinstance(result, _NOT_SENT):
                raise result
            again.append(message)
        return again

    async def _kill_leader(self) -> None:
        await asyncio.sleep(self.seconds / 2)
        leader = (await self._cluster.topic(TOPIC)).leaders[_VICTIM]
        await self._broker.kill_node(self._broker.nsqd_addresses.index(leader.address))
        killed = time.monotonic()
        self._note(f"killed nsqd {leader.address}, the leader of partition {_VICTIM}")
        while True:
            found = await self._look_up()
            if found is not None and (now := found.leaders.get(_VICTIM)) not in (None, leader):
                break
            await asyncio.sleep(0.05)
        assert now is not None
        seconds = time.monotonic() - killed
        self._note(f"nsqd {now.address} leads partition {_VICTIM}, {seconds:.1f} s later")

    def _note(self, text: str) -> None:
        self.notes = [*self.notes, f"after {time.time() - self.begun:.1f} s: {text}"]

    async def _read_stats(self) -> list[int] | None:
        topic = await self._look_up()
        if topic is None:
            return None
        try:
            stats = await self._cluster.stats(TOPIC)
        except NsqError:  # a leader has just gone
            stats = []
        self.partitions = _states(topic, stats, self.partitions)
        if len(stats) < PARTITIONS:
            return None
        return [*_depths(stats).values()]

    async def _look_up(self) -> PartitionedTopic | None:
        try:
            return await self._cluster.topic(TOPIC)
        except NsqError:
            return None


def _depths(stats: Iterable[PartitionStats]) -> dict[str, int]:
    """Return how many messages are left in each channel, in all partitions together."""
    depths: defaultdict[str, int] = defaultdict(int)
    for partition in stats:
        for channel in partition.channels:
            depths[channel.name] += channel.depth + channel.delayed_count
    return depths


def _states(
    topic: PartitionedTopic, stats: Iterable[PartitionStats], before: Iterable[PartitionRow]
) -> list[PartitionRow]:
    """Return the partitions; the numbers of one without a leader are those that it had before."""
    known = {state.number: (state.messages, state.waiting) for state in before}
    for each in stats:
        waiting = max((channel.depth for channel in each.channels), default=0)
        known[each.partition] = each.message_count, waiting
    states = []
    for number in range(topic.meta.partition_num):
        leader = topic.leaders.get(number)
        messages, waiting = known.get(number, (0, 0))
        states.append(PartitionRow(number, leader.address if leader else "", messages, waiting))
    return states
