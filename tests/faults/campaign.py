"""Servers are stopped, or killed, and started again under load; then the ledger must balance.

    python -m tests.faults.campaign [SECONDS [SEED]]      (./dev chaos)

Producers publish numbered messages to all nsqd: directly, through nsqlookupd and over a network
that loses connections; consumers of each kind finish them. When time is up everything runs
again, the consumers empty the channel, and what was acknowledged must have been consumed. With
kill -9 nsqd itself loses what it had in memory; there each producer has an nsqd of its own, so
that we know whose a message was.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from nsqflow import Consumer, Producer
from nsqflow.client.options import ClientOptions
from tests.faults.cluster import Cluster, Member
from tests.faults.ledger import Account, Ledger
from tests.faults.load import measure_nsqd
from tests.faults.redesigned_campaign import (
    RedesignedCampaign,
    RedesignedPlan,
    run_redesigned_campaign,
)
from tests.faults.workers import (
    PUBLISH_TIMEOUT,
    BatchReader,
    CoroutineReader,
    LoopReader,
    Publisher,
    Reader,
    ThreadReader,
)
from tests.fixtures.loops import asynchronous
from tests.fixtures.proxy import Proxy

TOPIC, CHANNEL = "campaign", "workers"
MAX_IN_FLIGHT = 24
PUBLISHERS = 4  # of each producer
CLOSE_TIMEOUT = 10.0  # seconds; nothing is under way then, and every nsqd answers
PATIENCE = 60.0  # seconds for all to be connected and the channel to be empty

# Small enough for many restarts in a few seconds.
HASTE = ClientOptions(
    lookupd_poll_interval=0.3,
    lookupd_poll_timeout=1.0,
    reconnect_delay=0.05,
    max_reconnect_delay=0.5,
    dial_timeout=2.0,
    heartbeat_interval=1.0,
    output_buffer_timeout=0.025,
    msg_timeout=3.0,
)

Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is to happen; the same seed gives the same mishaps, though never the same timing."""

    seconds: float
    seed: int
    crash: bool = False
    """Servers end by kill -9, not by SIGTERM."""
    nsqds: int = 3
    lookupds: int = 2

    def __str__(self) -> str:
        how = "kill -9" if self.crash else "SIGTERM"
        return f"{how} for {self.seconds:g} s, seed {self.seed}"


async def run_campaign(plan: Plan, folder: Path, report: Report = lambda line: None) -> Account:
    """Carry out the plan; ``report`` is called with a line of progress."""
    before = asyncio.all_tasks()
    cluster = Cluster(folder, TOPIC, CHANNEL, plan.nsqds, plan.lookupds)
    async with cluster:
        campaign = Campaign(plan, cluster, report)
        await campaign.run()
    left = asyncio.all_tasks() - before
    campaign.account.other_faults += [f"left at the end: {task}" for task in left]
    return campaign.account


class Campaign:
    """All that happens while the servers are there."""

    def __init__(self, plan: Plan, cluster: Cluster, report: Report) -> None:
        self.ledger = Ledger()
        self.account = Account(str(plan), self.ledger)
        self._plan = plan
        self._cluster = cluster
        self._report_line = report
        self._random = Random(plan.seed)
        self._over = asyncio.Event()
        self._proxy = Proxy(cluster.nsqds[0].tcp_address)

    async def run(self) -> None:
        """Publish and consume while servers end and start, then until nothing is left."""
        async with AsyncExitStack() as stack:  # closes all even if something goes wrong here
            await stack.enter_async_context(self._proxy)
            producers = self._producers()
            readers = self._readers()
            for producer, _ in producers.values():
                await stack.enter_async_context(producer)
            for reader in readers:
                await stack.enter_async_context(reader.consumer)
            async with asyncio.TaskGroup() as group:
                for reader in readers:
                    group.create_task(reader.work())
                await self._disturb(producers)
                await self._settle(readers)
                for name, (producer, _) in producers.items():
                    await self._close(name, producer.close())
                for reader in readers:
                    await self._close(reader.name, reader.consumer.close())
        for reader in readers:
            self.account.outstanding[reader.name] = reader.most, MAX_IN_FLIGHT

    # Clients

    def _producers(self) -> dict[str, tuple[Producer, Member | None]]:
        nsqds = [member.tcp_address for member in self._cluster.nsqds]
        if self._plan.crash:
            return {
                f"producer of {member.name}": (self._producer(nsqd=member.tcp_address), member)
                for member in self._cluster.nsqds
            }
        return {
            "direct producer": (self._producer(nsqd=nsqds), None),
            "lookup producer": (self._producer(lookupd=self._lookupds()), None),
            # It can't turn to another nsqd, and now and then an answer is lost on the way.
            "shaky producer": (self._producer(nsqd=self._proxy.address), None),
        }

    def _producer(self, **servers: Any) -> Producer:
        return Producer(**servers, publish_timeout=PUBLISH_TIMEOUT, **HASTE)

    def _readers(self) -> list[Reader]:
        nsqds = [member.tcp_address for member in self._cluster.nsqds]
        kinds: list[tuple[type[Reader], str, dict[str, Any]]] = [
            (CoroutineReader, "coroutines", {"lookupd": self._lookupds()}),
            (BatchReader, "batches", {"lookupd": self._lookupds()}),
            (ThreadReader, "threads", {"nsqd": nsqds}),
            (LoopReader, "loop", {"nsqd": nsqds}),
        ]
        return [
            kind(name, self._consumer(**servers), self.ledger, self._fork())
            for kind, name, servers in kinds
        ]

    def _consumer(self, **servers: Any) -> Consumer:
        return Consumer(
            TOPIC,
            CHANNEL,
            **servers,
            **HASTE,
            max_in_flight=MAX_IN_FLIGHT,
            max_attempts=0,  # a restart counts as one, and there are many
            default_requeue_delay=0.1,
            max_backoff_duration=0.1,
        )

    def _lookupds(self) -> list[str]:
        return [member.http_address for member in self._cluster.lookupds]

    def _fork(self) -> Random:
        return Random(self._random.random())

    # What happens

    async def _disturb(self, producers: dict[str, tuple[Producer, Member | None]]) -> None:
        """Publish while servers come and go; afterwards all are up and every outcome is known."""
        async with asyncio.TaskGroup() as group:
            for producer, member in producers.values():
                for _ in range(PUBLISHERS):
                    worker = Publisher(producer, TOPIC, self.ledger, self._fork(), member)
                    group.create_task(worker.work(self._over))
            for member in [*self._cluster.nsqds, *self._cluster.lookupds]:
                group.create_task(self._restart(member, self._fork()))
            group.create_task(self._shake(self._fork()))
            end = time.monotonic() + self._plan.seconds
            while (left := end - time.monotonic()) > 0:
                self._report(f"{left:3.0f} s left")
                await asyncio.sleep(min(left, 0.5))
            self._over.set()

    async def _restart(self, member: Member, random: Random) -> None:
        while not await self._is_over(random.uniform(0.5, 3.0)):
            await self._cluster.end(member, crash=self._plan.crash)
            self.account.ends[member.name] += 1
            # While it is down, all that it had said before is read: whatever is acknowledged
            # after the next start was acknowledged by the next life.
            await asyncio.sleep(random.uniform(0.1, 1.0))
            await self._cluster.start(member)
            if member in self._cluster.lookupds and random.random() < 0.5:
                await self._cluster.register()

    async def _shake(self, random: Random) -> None:
        while not await self._is_over(random.uniform(0.2, 1.0)):
            self._proxy.reset() if random.random() < 0.5 else self._proxy.cut()
            self._proxy.delay = random.uniform(0, 0.03)

    async def _is_over(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()

    # How it ends

    async def _settle(self, readers: list[Reader]) -> None:
        """Wait until every consumer is back at every nsqd, and nothing is left there."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._cluster.register()
                while not all(map(self._is_connected, readers)):
                    self._report("waiting for connections")
                    await asyncio.sleep(0.05)
                # Three times: on its way from topic to channel a message is not counted.
                empty = 0
                while empty < 3:
                    empty = empty + 1 if not await self._cluster.unanswered() else 0
                    self._report("draining")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            held = await self._cluster.unanswered()
            self.account.other_faults.append(f"not settled in {PATIENCE:g} s: {held} held by nsqd")
            self.account.other_faults += [reader.consumer.explain() for reader in readers]

    def _is_connected(self, reader: Reader) -> bool:
        connections = reader.consumer.stats().connections
        return sum(connection.connected for connection in connections) == self._plan.nsqds

    async def _close(self, name: str, closing: Coroutine[Any, Any, object]) -> None:
        began = time.monotonic()
        await closing
        self.account.closing[name] = time.monotonic() - began, CLOSE_TIMEOUT

    def _report(self, state: str) -> None:
        ledger = self.ledger
        self._report_line(
            f"{self._plan}: {state}; published {ledger.published:,}, consumed "
            f"{len(ledger.consumed):,}, servers ended {self.account.ends.total()} times"
        )


def main() -> int:
    """Run the campaigns, then the load; 1 if anything was lost, or memory grew."""
    parser = argparse.ArgumentParser(prog="./dev chaos")
    parser.add_argument("seconds", nargs="?", type=float, default=60.0)
    parser.add_argument("seed", nargs="?", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    # Handlers fail on purpose, and servers are lost: that is expected here.
    logging.getLogger("nsqflow").setLevel(logging.CRITICAL)
    faults: list[str] = []
    for part, crash in ((2 / 3, False), (1 / 3, True)):
        account = _run_alone(Plan(round(options.seconds * part, 1), options.seed, crash))
        print(account, flush=True)
        faults += account.faults()
    campaign = _run_redesigned_alone(RedesignedPlan(options.seconds, options.seed))
    print(campaign.account)
    print(f"  new leader named to subscribed: {campaign.switches}", flush=True)
    faults += campaign.account.faults()
    figures = measure_nsqd(1_000_000)
    print(figures)
    return 1 if faults or figures.grows else 0


def _run_alone(plan: Plan) -> Account:
    accounts: list[Account] = []

    @asynchronous
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            accounts.append(await run_campaign(plan, Path(folder), _report_to_terminal))
        _report_to_terminal("")

    run()
    return accounts[0]


def _run_redesigned_alone(plan: RedesignedPlan) -> RedesignedCampaign:
    campaigns: list[RedesignedCampaign] = []

    @asynchronous
    async def run() -> None:
        campaigns.append(await run_redesigned_campaign(plan, _report_to_terminal))
        _report_to_terminal("")

    run()
    return campaigns[0]


def _report_to_terminal(line: str) -> None:
    """Replace the line before, on a terminal."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
