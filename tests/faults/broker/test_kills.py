"""nsqd is killed repeatedly and loses no acknowledged message."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from nsqflow import Consumer, Producer, admin
from nsqflow.client.options import ClientOptions, ConsumerOptions
from nsqflow.errors import NsqError
from tests.faults.broker.ledger import DeliveryLedger, PublishLedger, body_of, number_of
from tests.faults.cluster import Member
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import start_nsqd

MESSAGES = 200_000
KILLS = 7  # and one more at the end
TOPIC, EARLY, LATE = "killed", "early", "late"
MSG_TIMEOUT = 5  # seconds
MAX_REDELIVERED = 1000  # finished messages delivered again: at most two batches

FAST_RECONNECT = ClientOptions(reconnect_delay=0.02, max_reconnect_delay=0.05)
READER = ConsumerOptions(
    max_in_flight=1000,
    max_attempts=0,
    max_backoff_duration=0,
    reconnect_delay=0.02,
    max_reconnect_delay=0.05,
)


class Publishers:
    """Publish in every way until ``MESSAGES`` are acknowledged."""

    def __init__(self, address: str, ledger: PublishLedger, random: Random) -> None:
        self._ledger = ledger
        self._random = random
        self._producers = [Producer(address, **FAST_RECONNECT) for _ in range(4)]
        self._progress = asyncio.Condition()

    async def work(self) -> None:
        """Publish everything and close."""
        many, more, singles, later = self._producers
        try:
            await asyncio.gather(
                self._repeat(self._publish_batch, many),
                self._repeat(self._publish_batch, more),
                self._repeat(self._publish_singles, singles),
                self._repeat(self._publish_later, later),
            )
        finally:
            for producer in self._producers:
                await producer.close()

    async def reach(self, count: int) -> None:
        """Wait until ``count`` messages are acknowledged."""
        async with self._progress:
            await self._progress.wait_for(lambda: len(self._ledger.acknowledged) >= count)

    async def _repeat(
        self, publish: Callable[[Producer], Awaitable[None]], producer: Producer
    ) -> None:
        while len(self._ledger.acknowledged) < MESSAGES:
            await publish(producer)
            async with self._progress:
                self._progress.notify_all()

    async def _publish_batch(self, producer: Producer) -> None:
        numbers = self._ledger.open(self._random.randrange(1, 1000))
        started = time.monotonic()
        try:
            await producer.publish_many(TOPIC, map(body_of, numbers))
        except NsqError as error:
            self._ledger.fail(numbers, error, started)
        else:
            self._ledger.accept(numbers, started)

    async def _publish_singles(self, producer: Producer) -> None:
        await asyncio.gather(*(self._publish(producer) for _ in range(100)))

    async def _publish_later(self, producer: Producer) -> None:
        delays = [self._random.uniform(0.01, 3) for _ in range(20)]
        await asyncio.gather(*(self._publish(producer, delay) for delay in delays))

    async def _publish(self, producer: Producer, delay: float | None = None) -> None:
        numbers = self._ledger.open(1)
        started = time.monotonic()
        try:
            await producer.publish(TOPIC, body_of(numbers[0]), delay=delay)
        except NsqError as error:
            self._ledger.fail(numbers, error, started)
        else:
            self._ledger.accept(numbers, started)


async def read(consumer: Consumer, reading: DeliveryLedger) -> None:
    """Finish most messages and requeue some."""
    async for batch in consumer.batches(size=500, max_wait=0.05):
        for message in batch:
            number = number_of(message.body)
            reading.deliver(number)
            if number % 20 == 0 and reading.deliveries[number] == 1:
                message.requeue(0.5, backoff=False)
            else:
                message.finish()
                reading.finish(number, received=message.deadline - MSG_TIMEOUT)


async def unanswered(nsqd: admin.Nsqd) -> int:
    """Return the number of messages of the topic that are not finished."""
    (topic,) = (await nsqd.stats(TOPIC, include_clients=False)).topics
    return topic.depth + sum(
        channel.depth + channel.in_flight_count + channel.deferred_count
        for channel in topic.channels
    )


@asynchronous
async def test_kills_at_any_moment_lose_no_acknowledged_message(tmp_path: Path) -> None:
    seed = int(os.environ.get("NSQFLOW_SEED", time.time_ns() % 10**6))
    print(f"NSQFLOW_SEED={seed}")
    random = Random(seed)
    options = ["-mem-queue-size=2000", f"-msg-timeout={MSG_TIMEOUT}s"]
    member = Member("nsqd", lambda own: start_nsqd(tmp_path, kind="ours", options=[*options, *own]))
    ledger, early, late = PublishLedger(), DeliveryLedger(), DeliveryLedger()
    consumers = {
        name: Consumer(TOPIC, name, nsqd=member.tcp_address, **READER) for name in (EARLY, LATE)
    }
    nsqd = admin.Nsqd(member.http_address)
    began = time.monotonic()

    async def kill() -> None:
        await member.end(crash=True)
        early.killed(ledger)
        await member.start()
        early.restarted()

    try:
        await member.start()
        await nsqd.create_topic(TOPIC)
        await nsqd.create_channel(TOPIC, EARLY)
        publishers = Publishers(member.tcp_address, ledger, random)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read(consumers[EARLY], early))
            publishing = group.create_task(publishers.work())
            late_since = 0.0
            for turn, count in enumerate(sorted(random.sample(range(MESSAGES), KILLS))):
                await publishers.reach(count)
                await asyncio.sleep(random.uniform(0, 0.05))
                await kill()
                # Every other time, messages queue up.
                (consumers[EARLY].resume if turn % 2 else consumers[EARLY].pause)()
                if turn == KILLS // 2:
                    await nsqd.create_channel(TOPIC, LATE)
                    await nsqd.pause_channel(TOPIC, LATE)
                    late_since = time.monotonic()
            await publishing
            published = time.monotonic()
            await kill()

            (topic,) = (await nsqd.stats(TOPIC)).topics
            depths = {each.name: each.depth + each.deferred_count for each in topic.channels}
            assert {each.name: each.paused for each in topic.channels} == {EARLY: False, LATE: True}
            group.create_task(read(consumers[LATE], late))
            await nsqd.unpause_channel(TOPIC, LATE)
            consumers[EARLY].resume()
            while await unanswered(nsqd):  # noqa: ASYNC110  (nsqd has no event for it)
                await asyncio.sleep(0.05)
            for consumer in consumers.values():
                await consumer.close()
            await reading
    finally:
        for consumer in consumers.values():
            await consumer.close(0)
        await nsqd.close()
        member.retire()

    ended = time.monotonic()
    print(
        f"{member.life - 1} kills; {ended - began:.1f} s, {published - began:.1f} to publish;"
        f" of {ledger.count:,} messages {len(ledger.acknowledged):,} were acknowledged,"
        f" {len(ledger.uncertain):,} uncertain, {len(ledger.refused):,} refused;"
        f" came again: {sum(early.deliveries.values()) - len(early.deliveries):,},"
        f" though settled: {early.returned.total():,} of {len(early.settled):,};"
        f" left after the last kill: {depths}"
    )
    acknowledged = set(ledger.acknowledged)
    since = {number for number, started in ledger.acknowledged.items() if started > late_since}
    assert not acknowledged - early.finished
    assert not since - late.finished
    assert since
    assert not ledger.refused & early.deliveries.keys()
    assert early.settled
    assert early.returned.total() <= MAX_REDELIVERED
    assert early.finished <= acknowledged | ledger.uncertain
