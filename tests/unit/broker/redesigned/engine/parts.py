"""A partition with a channel, consumers that count what they get, and a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsqflow.broker.engine.engine import TimerHeap
from nsqflow.broker.redesigned.engine.channel import PartitionChannel
from nsqflow.broker.redesigned.engine.log import PartitionLog
from nsqflow.broker.redesigned.engine.subscriber import DeliverySettings, PartitionSubscriber
from nsqflow.protocol import Layout, Message
from nsqflow.protocol.frames import FrameDecoder, MessageRun
from nsqflow.protocol.messages import MessageBatch, message_id

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
TIMEOUT = 60 * SECOND


def decode(data: bytes, layout: Layout) -> list[Message]:
    """The messages in frames, as a client reads them."""
    if not data:
        return []
    decoder = FrameDecoder()
    decoder.buffer.feed(data)
    run = decoder.next()
    assert isinstance(run, MessageRun)
    assert decoder.next() is None
    return MessageBatch(run.data, run.bounds, run.headers, layout).messages()


class Workbench:
    """One channel of one partition, without a cluster."""

    def __init__(self, *, partition: int = 0, extended: bool = False, **settings: Any) -> None:
        self.now = NOW
        self.log = PartitionLog(partition, extended=extended)
        self.timers = TimerHeap()
        self.dirty: dict[PartitionChannel, None] = {}
        self.channel = self.new_channel("c", **settings)

    def new_channel(self, name: str, **settings: Any) -> PartitionChannel:
        return PartitionChannel(
            name,
            self.log,
            self.timers,
            DeliverySettings(**settings),
            lambda channel: self.dirty.update({channel: None}),
        )

    def publish(self, *bodies: bytes, headers: Sequence[bytes] | None = None) -> None:
        self.log.append(bodies, self.now, headers=headers)

    def subscribe(self, rdy: int = 1, **options: Any) -> PartitionSubscriber:
        subscriber = PartitionSubscriber(None, options.pop("msg_timeout", TIMEOUT), **options)
        subscriber.rdy = rdy
        self.channel.add(subscriber)
        return subscriber

    def messages(self) -> list[tuple[PartitionSubscriber, Message]]:
        """All that is delivered now."""
        got = []
        while True:
            self.dirty.clear()
            given = self.channel.deliver(self.now)
            for subscriber, data in given:
                layout = Layout(self.log.extended, subscriber.positioned)
                got += [(subscriber, message) for message in decode(data, layout)]
            if not self.dirty:
                return got

    def bodies(self) -> list[bytes]:
        return [message.body for _, message in self.messages()]

    def attempts(self) -> list[tuple[bytes, int]]:
        return [(message.body, message.attempts) for _, message in self.messages()]

    def id(self, index: int) -> bytes:
        return message_id(self.log.base_id + index, 0)

    def finish(self, subscriber: PartitionSubscriber, *indexes: int) -> list[str]:
        """Finish messages; return why some could not be."""
        failed = self.channel.finish(subscriber, [self.id(index) for index in indexes])
        return [reason for _, reason in failed]

    def requeue(self, subscriber: PartitionSubscriber, index: int, delay: int = 0) -> None:
        self.channel.requeue(subscriber, self.id(index), delay, self.now)

    def touch(self, subscriber: PartitionSubscriber, index: int) -> None:
        self.channel.touch(subscriber, self.id(index), self.now)

    def wait(self, duration: int) -> None:
        self.now += duration
        self.timers.tick(self.now)
