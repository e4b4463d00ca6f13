"""Leaders move, and nodes are stopped and killed under load; then the ledger must balance.

Keyed producers publish to an ordered topic, one message of a key after the other, and others to an
ordinary topic; consumers of each read. First a leader moves every second, then nodes are stopped,
killed and started again, and so is the leading nsqlookupd. When time is up everything runs again,
the consumers empty the channels: what was acknowledged must have been consumed, and the messages
of a key in their order.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

from nsqflow import Consumer, Producer
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.client.events import ClientEvent
from nsqflow.client.message import Message
from nsqflow.errors import NsqError, PublishUncertain
from tests.faults.ledger import Account, Ledger, Result, body_of
from tests.faults.workers import BatchReader, CoroutineReader, HandlerError, Publisher, Reader

ORDERED, PLAIN, CHANNEL = "ordered", "plain", "workers"
NODES, PARTITIONS, REPLICAS = 3, 4, 3
KEYS = 24
MAX_IN_FLIGHT = 24
PATIENCE = 60.0  # seconds for all to be connected and the channels to be empty
CLOSE_TIMEOUT = 10.0

HASTE: dict[str, Any] = {
    "lookupd_poll_interval": 5.0,
    "lookupd_poll_timeout": 2.0,
    "dial_timeout": 2.0,
    "msg_timeout": 3.0,
}
_PARTITION = re.compile(r"partition (\d+)")

Report = Callable[[str], None]


@dataclass(frozen=True)
class RedesignedPlan:
    """What is to happen."""

    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"redesigned cluster for {self.seconds:g} s, seed {self.seed}"


class KeyOrder:
    """Checks that the messages of a key are handled in the order of their numbers."""

    def __init__(self) -> None:
        self.key_of: dict[int, bytes] = {}
        self.faults: list[str] = []
        self.repeated = 0
        self._last: dict[bytes, int] = {}

    def handled(self, number: int) -> None:
        """Note that a handler begins with a message; the last one of a key may come again."""
        key = self.key_of[number]
        last = self._last.get(key, -1)
        if number < last:
            self.faults.append(f"{number} of key {key!r} came after {last}")
        self.repeated += number == last
        self._last[key] = max(number, last)


@dataclass
class SwitchTimes:
    """How long a consumer takes from the lookup that names a new leader to its subscription."""

    seconds: list[float] = field(default_factory=list)
    _named: dict[str, float] = field(default_factory=dict)

    def on_event(self, event: ClientEvent) -> None:
        match = _PARTITION.search(event.text)
        if match is None:
            return
        if event.kind == "leader_changed":
            self._named[match[0]] = time.monotonic()
        elif event.kind == "connected" and (named := self._named.pop(match[0], None)) is not None:
            self.seconds.append(time.monotonic() - named)

    def __str__(self) -> str:
        if not self.seconds:
            return "no leader changed"
        middle, longest = median(self.seconds), max(self.seconds)
        return f"{len(self.seconds)} times, median {middle:.3f} s, longest {longest:.3f} s"


class OrderedReader(Reader):
    """A handler in order: each partition has one message at a time."""

    order: KeyOrder

    async def work(self) -> None:
        await self.consumer.run(self._handle, concurrency=2 * PARTITIONS, signals=False)

    async def _handle(self, message: Message) -> None:
        self.order.handled(int(message.body.partition(b":")[0]))
        with self._holding([message]) as seconds:
            await asyncio.sleep(seconds / 5)
            if self._random.random() < 0.005:
                raise HandlerError


class RedesignedCampaign:
    """All that happens while the cluster runs."""

    def __init__(
        self, plan: RedesignedPlan, broker: Broker, report: Report = lambda line: None
    ) -> None:
        self.ledger = Ledger()
        self.account = Account(str(plan), self.ledger)
        self.order = KeyOrder()
        self.switches = SwitchTimes()
        self._plan = plan
        self._broker = broker
        self._report_line = report
        self._random = Random(plan.seed)
        self._over = asyncio.Event()
        self._down: int | None = None  # the one node that is down
        self._cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)

    async def run(self) -> None:
        """Publish and consume while leaders change, then until nothing is left."""
        await self._broker.create_topic(ORDERED, PARTITIONS, REPLICAS, ordered=True)
        await self._broker.create_topic(PLAIN, PARTITIONS, REPLICAS)
        await self._broker.create_channel(PLAIN, CHANNEL)
        async with AsyncExitStack() as stack:
            readers = self._readers()
            for reader in readers:
                await stack.enter_async_context(reader.consumer)
            options: dict[str, Any] = {"publish_timeout": 10.0, **HASTE}
            lookupd = self._broker.lookupd_addresses
            producer = await stack.enter_async_context(Producer(lookupd=lookupd, **options))
            async with asyncio.TaskGroup() as group:
                for reader in readers:
                    group.create_task(reader.work())
                await self._await_connections(readers)  # the first SUB_ORDERED makes the channel
                await self._disturb(producer)
                await self._settle(readers)
                for reader in readers:
                    began = time.monotonic()
                    await reader.consumer.close()
                    self.account.closing[reader.name] = time.monotonic() - began, CLOSE_TIMEOUT
        for reader in readers:
            self.account.outstanding[reader.name] = reader.most, MAX_IN_FLIGHT
        self.account.other_faults += self.order.faults

    # Clients

    def _readers(self) -> list[Reader]:
        kinds: list[tuple[type[Reader], str, str]] = [
            (OrderedReader, "ordered 1", ORDERED),
            (OrderedReader, "ordered 2", ORDERED),
            (CoroutineReader, "coroutines", PLAIN),
            (BatchReader, "batches", PLAIN),
        ]
        readers = []
        for kind, name, topic in kinds:
            reader = kind(name, self._consumer(topic), self.ledger, self._fork())
            if isinstance(reader, OrderedReader):
                reader.order = self.order
            readers.append(reader)
        return readers

    def _consumer(self, topic: str) -> Consumer:
        return Consumer(
            topic,
            CHANNEL,
            lookupd=self._broker.lookupd_addresses,
            **HASTE,
            max_in_flight=MAX_IN_FLIGHT,
            max_attempts=0,
            default_requeue_delay=0.05,
            max_backoff_duration=0.1,
            on_event=self.switches.on_event,
        )

    async def _publish_key(self, producer: Producer, key: bytes, random: Random) -> None:
        while not self._over.is_set():
            await asyncio.sleep(random.uniform(0, 0.05))
            numbers = self.ledger.open()
            self.order.key_of[numbers[0]] = key
            try:
                await producer.publish(ORDERED, body_of(numbers[0]), key=key)
            except PublishUncertain:
                self.ledger.record(numbers, Result.UNCERTAIN)
            except NsqError:
                self.ledger.record(numbers, Result.REFUSED)
            else:
                self.ledger.record(numbers, Result.ACKNOWLEDGED)

    def _fork(self) -> Random:
        return Random(self._random.random())

    # What happens

    async def _disturb(self, producer: Producer) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(KEYS):
                group.create_task(self._publish_key(producer, b"key-%d" % number, self._fork()))
            for _ in range(4):
                worker = PlainPublisher(producer, PLAIN, self.ledger, self._fork(), None)
                group.create_task(worker.work(self._over))
            end = time.monotonic() + self._plan.seconds
            await self._move_leaders(end - self._plan.seconds / 2)
            await self._end_nodes(end)
            self._over.set()

    async def _move_leaders(self, until: float) -> None:
        """Move the leader of a partition every second."""
        while (left := until - time.monotonic()) > 0:
            self._report(f"moving leaders, {left:3.0f} s left")
            topic = self._random.choice([ORDERED, PLAIN])
            node = self._random.randrange(NODES)
            await self._broker.move_leader(topic, self._random.randrange(PARTITIONS), node)
            self.account.ends["leader"] += 1
            await asyncio.sleep(min(1.0, max(0.0, left)))

    async def _end_nodes(self, until: float) -> None:
        """Stop and kill one node after the other, and the leading nsqlookupd now and then."""
        while (left := until - time.monotonic()) > 0:
            self._report(f"ending nodes, {left:3.0f} s left")
            node = self._random.randrange(NODES)
            end = self._random.choice([self._broker.kill_node, self._broker.stop_node])
            await end(node)
            self.account.ends[f"node {node}"] += 1
            lookupd = self._random.randrange(2) if self._random.random() < 0.4 else None
            if lookupd is not None:
                await self._broker.stop_lookupd(lookupd)
                self.account.ends[f"nsqlookupd {lookupd}"] += 1
            await asyncio.sleep(self._random.uniform(0.5, 2.0))
            await self._broker.start_node(node)
            if lookupd is not None:
                await self._broker.start_lookupd(lookupd)
            await asyncio.sleep(self._random.uniform(0.5, 1.5))

    # How it ends

    async def _settle(self, readers: list[Reader]) -> None:
        """Wait until every consumer is at every partition, and nothing is left there."""
        try:
            await self._await_connections(readers)
            async with asyncio.timeout(PATIENCE):
                while await self._unfinished():
                    self._report("draining")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.account.other_faults.append(f"not settled in {PATIENCE:g} s")
            self.account.other_faults += [reader.consumer.explain() for reader in readers]

    async def _await_connections(self, readers: list[Reader]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not all(map(_is_connected, readers)):
                self._report("waiting for connections")
                await asyncio.sleep(0.05)

    async def _unfinished(self) -> int:
        unfinished = 0
        for topic in (ORDERED, PLAIN):
            with suppress(NsqError):
                stats = await self._cluster.stats(topic)
                channels = [each.channel(CHANNEL) for each in stats]
                if len(channels) == PARTITIONS:
                    unfinished += sum(each.depth for each in channels if each is not None)
                    continue
            unfinished += 1  # unknown
        return unfinished

    def _report(self, state: str) -> None:
        self._report_line(
            f"{self._plan}: {state}; published {self.ledger.published:,}, consumed "
            f"{len(self.ledger.consumed):,}"
        )


class PlainPublisher(Publisher):
    """Publishes without a delay, which the redesigned NSQ does not have."""

    async def _publish(self, delay: float | None, timeout: float | None) -> None:
        await super()._publish(None, timeout)


def _is_connected(reader: Reader) -> bool:
    connections = reader.consumer.stats().connections
    connected = Counter(each.partition for each in connections if each.connected)
    return len(connected) == PARTITIONS


async def run_redesigned_campaign(
    plan: RedesignedPlan, report: Report = lambda line: None
) -> RedesignedCampaign:
    """Carry out the plan; ``report`` is called with a line of progress."""
    before = asyncio.all_tasks()
    async with Broker("redesigned", NODES, repeat_messages=True) as broker:
        campaign = RedesignedCampaign(plan, broker, report)
        await campaign.run()
    left = asyncio.all_tasks() - before
    campaign.account.other_faults += [f"left at the end: {task}" for task in left]
    return campaign
