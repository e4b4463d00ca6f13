"""Moves a channel of the redesigned NSQ to a position (the option ``start_from``).

A seek moves the channel's cursor on the leader of each partition. A change of leaders may undo
it, so after each one the consumer checks the position, and if it is ahead of what the consumer
has finished, moves it back there. It is never moved forward: other consumers of the
channel may not have finished what lies before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nsqflow.address import map_address
from nsqflow.admin.partition import PartitionApi
from nsqflow.client.config import ClientConfig
from nsqflow.client.consumer.connections import Endpoint
from nsqflow.client.message import FIN, Message
from nsqflow.client.position import Position
from nsqflow.errors import ConfigError

logger = logging.getLogger(__name__)


class PartitionProgress:
    """Up to which offset of a partition everything was finished; pure."""

    def __init__(self, offset: int) -> None:
        self._end = offset  # of the last message that was received
        self._unfinished: dict[int, int] = {}  # offsets and sizes

    @property
    def resume(self) -> int:
        """The offset from which on not everything is finished."""
        return min(self._unfinished, default=self._end)

    def received(self, offset: int, size: int) -> None:
        """Record a message."""
        self._unfinished[offset] = size
        self._end = max(self._end, offset + size)

    def finished(self, offset: int) -> None:
        """Record that a message is finished."""
        self._unfinished.pop(offset, None)


class ChannelSeeker:
    """Moves a channel to its start, and back there after a change of leaders."""

    def __init__(
        self, topic: str, channel: str, start: Position | dict[int, Position], config: ClientConfig
    ) -> None:
        self._topic = topic
        self._channel = channel
        self._start = start
        self._config = config
        self._progress: dict[int, PartitionProgress] = {}
        self._leaders: dict[int, str] = {}  # on which the channel is where it should be

    async def seek(self, endpoint: Endpoint, *, create: bool) -> None:
        """Move the channel of a partition if that is due; ``create`` it before.

        Raises ``AdminError`` or ``NetworkError``; then the seek is due again.
        """
        partition = endpoint.partition
        assert partition is not None
        if self._leaders.get(partition) == endpoint.nsqd:
            return
        start = self._start.get(partition) if isinstance(self._start, dict) else self._start
        if start is None:
            return
        address = map_address(endpoint.http, self._config.address_map)
        async with PartitionApi(address, timeout=self._config.dial_timeout) as api:
            if create:
                await api.create_partition_channel(self._topic, partition, self._channel)
            if partition not in self._progress:
                await api.set_offset(self._topic, partition, self._channel, start)
                now_at = await self._cursor(api, partition)
                self._progress[partition] = PartitionProgress(now_at)
                self._log(partition, f"starts at offset {now_at} ({start})")
            else:
                await self._move_back(api, partition)
        self._leaders[partition] = endpoint.nsqd

    def lost(self, partition: int) -> None:
        """Check a partition's channel again before it is read: its leader may change."""
        self._leaders.pop(partition, None)

    def received(self, messages: Iterable[Message]) -> None:
        """Record messages of partitions that have sought."""
        for message in messages:
            progress = self._progress_of(message)
            if progress is not None and message.offset is not None:
                progress.received(message.offset, message.size or 0)

    def answered(self, messages: Iterable[Message]) -> None:
        """Record which of the messages were finished."""
        for message in messages:
            progress = self._progress_of(message)
            if progress is not None and message.offset is not None and message.answer is FIN:
                progress.finished(message.offset)

    # Private methods

    def _progress_of(self, message: Message) -> PartitionProgress | None:
        return None if message.partition is None else self._progress.get(message.partition)

    async def _cursor(self, api: PartitionApi, partition: int) -> int:
        position = await api.position(self._topic, partition, self._channel)
        if position is None:
            raise ConfigError(
                f"channel {self._channel!r} does not exist in partition {partition} of "
                f"{self._topic!r}: create it through nsqlookupd first"
            )
        return position.cursor

    async def _move_back(self, api: PartitionApi, partition: int) -> None:
        resume = self._progress[partition].resume
        cursor = await self._cursor(api, partition)
        if cursor > resume:
            position = Position("virtual_queue", resume)
            await api.set_offset(self._topic, partition, self._channel, position)
            self._log(partition, f"is moved back from offset {cursor} to {resume}")

    def _log(self, partition: int, what: str) -> None:
        logger.info("%s/%s: partition %d %s", self._topic, self._channel, partition, what)
