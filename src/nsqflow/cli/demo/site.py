"""The web site of the demo: an NSQ in this process, who publishes to it, and who reads results.

All of it runs in an event loop on a thread of its own, beside Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from nsqflow.admin import Nsqd
from nsqflow.broker import Broker
from nsqflow.cli.demo.visits import Visits, due
from nsqflow.client.consumer import Consumer
from nsqflow.client.producer import Producer

TOPIC = "views"
RESULTS = "views.by_page"

_PAUSE = 0.05  # seconds between two publishings
_AT_ONCE = 5000  # messages
_MOST_WAITING = 100_000  # messages; more would fill the broker's memory
_LOOK = 0.25  # seconds between two looks at the queues
_THREAD_PATIENCE = 30.0  # seconds for it to start and to end


@dataclass(frozen=True, slots=True)
class Sum:
    """What Spark has found out about a page in a window of time."""

    since: str
    page: str
    views: int
    slow: int
    p95: int


class Site:
    """A broker with a topic of page views; it is read while visitors come and go.

    What is public may be read from any thread; ``visits`` once it is over.
    """

    def __init__(self, rate: float, seconds: float, seed: int) -> None:
        self.visits = Visits(seed)
        self.seconds = seconds
        self.published = 0
        """How many messages nsqd has taken."""
        self.begun = 0.0
        """When the first visitor came, in seconds since the epoch; 0 before."""
        self.left = 0
        """How many messages the channels together have yet to get rid of."""
        self.sums: Mapping[tuple[str, str], Sum] = {}
        """The results that came back, by window and page."""
        self.error: BaseException | None = None
        """Why it ended before its time."""
        self._rate = rate
        self._most = 0  # messages that the fullest channel has
        self._servers: dict[str, list[str]] = {}
        self._open = asyncio.Event()
        self._over = asyncio.Event()
        self._closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="nsqflow-demo", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._ready.result(_THREAD_PATIENCE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(self._closing)
        self._thread.join(_THREAD_PATIENCE)

    def servers(self) -> Mapping[str, list[str]]:
        """Where the broker is."""
        return self._servers

    def open(self) -> None:
        """Let visitors in."""
        self._tell(self._open)

    @property
    def is_over(self) -> bool:
        """Whether the last visitor has gone, and all is published."""
        return self._over.is_set()

    def _tell(self, event: asyncio.Event) -> None:
        if self._loop is None:  # nobody waits for it yet
            event.set()
            return
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(event.set)

    # --- on the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with Broker() as broker, Producer(broker.nsqd_addresses) as producer:
            self._servers = {
                "nsqd": broker.nsqd_addresses,
                "nsqd_http": broker.nsqd_http_addresses,
            }
            await broker.create_topic(TOPIC)
            async with (
                Consumer(RESULTS, "screen", nsqd=broker.nsqd_addresses) as consumer,
                Nsqd(broker.nsqd_http_addresses[0]) as nsqd,
            ):
                self._ready.set_result(None)
                tasks = [
                    asyncio.create_task(part)
                    for part in (
                        self._publish(producer),
                        self._read_results(consumer),
                        self._look(nsqd),
                        self._closing.wait(),
                    )
                ]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                for task in tasks:
                    if not task.cancelled():
                        task.result()

    async def _publish(self, producer: Producer) -> None:
        await self._open.wait()
        self.begun, begun = time.time(), time.monotonic()
        while self.published < (last := due(self.seconds, self._rate)):
            now = min(last, due(time.monotonic() - begun, self._rate))
            if self._most < _MOST_WAITING:
                await self._publish_some(producer, min(_AT_ONCE, now - self.published))
            await asyncio.sleep(_PAUSE)
        self._over.set()
        await self._closing.wait()

    async def _publish_some(self, producer: Producer, count: int) -> None:
        bodies = self.visits.make(count, time.time())
        await producer.publish_many(TOPIC, bodies)
        self.published += count

    async def _read_results(self, consumer: Consumer) -> None:
        async for batch in consumer.batches(size=1000, max_wait=0.1):
            sums = dict(self.sums)
            for message in batch:
                one = _sum(json.loads(message.body))
                known = sums.get((one.since, one.page))
                # They grow, and may come twice or in another order.
                if known is None or known.views <= one.views:
                    sums[one.since, one.page] = one
            self.sums = sums
            batch.finish()

    async def _look(self, nsqd: Nsqd) -> None:
        while True:
            stats = await nsqd.stats(TOPIC, include_clients=False)
            waiting = [
                channel.depth + channel.in_flight_count + channel.deferred_count
                for topic in stats.topics
                for channel in topic.channels
            ]
            self.left, self._most = sum(waiting), max(waiting, default=0)
            await asyncio.sleep(_LOOK)


def _sum(row: Mapping[str, Any]) -> Sum:
    return Sum(row["since"], row["page"], row["views"], row["slow"], row["p95"])
