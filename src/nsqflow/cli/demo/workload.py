"""The demo's workload: a broker, a publisher of page views, and a reader of results.

All of it runs in an event loop in a thread of its own, next to Spark.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from array import array
from collections.abc import Coroutine, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from zlib import crc32

from nsqflow.admin import Nsqd
from nsqflow.broker import Broker
from nsqflow.client.consumer.consumer import Consumer
from nsqflow.client.producer.producer import Producer

# The weight of each page, and its median duration in milliseconds.
_PAGES = {
    "/": (24, 90),
    "/search": (18, 240),
    "/product": (22, 120),
    "/cart": (7, 110),
    "/checkout": (3, 380),
    "/orders": (5, 210),
    "/login": (6, 140),
    "/profile": (3, 100),
    "/help": (4, 60),
    "/contact": (1, 70),
    "/blog": (6, 80),
    "/report": (1, 900),
}
_REFERRERS = (
    None,
    "https://search.example/",
    "https://news.example/today",
    "https://social.example/",
)
_USERS = 5000
_BROKEN = 0.01  # of all messages
_TURN = 10.0  # seconds for a cycle of traffic


DIGEST = "crc32(concat_ws('|', n, unix_millis(at), user, page, coalesce(referrer, ''), ms))"
"""The SQL expression that identifies the content of a view."""


class PageViews:
    """Generates messages, and keeps what is needed to verify each of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pages = tuple(_PAGES)
        self._weights = tuple(often for often, _ in _PAGES.values())
        self.digests = array("L")
        """The digest of each valid view, at index ``n``."""
        self.broken: list[bytes] = []
        self.moments: list[tuple[float, int]] = []
        """Pairs of a time and the number of messages generated then."""

    @property
    def good(self) -> int:
        """The number of valid messages."""
        return len(self.digests)

    @property
    def total(self) -> int:
        """The number of all messages."""
        return self.good + len(self.broken)

    def make(self, count: int, now: float) -> list[bytes]:
        """Generate ``count`` messages at ``now``, in seconds since the epoch."""
        return [body for _, body in self.make_keyed(count, now)]

    def make_keyed(self, count: int, now: float) -> list[tuple[bytes, bytes]]:
        """Do the same; return the key of each message, which is its user, and its body."""
        at_ms = int(now * 1000)
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        self.moments.append((now, count))
        return [self._make(at, at_ms) for _ in range(count)]

    def _make(self, at: str, at_ms: int) -> tuple[bytes, bytes]:
        pick = self._random
        (page,) = pick.choices(self._pages, self._weights)
        user = f"u{int(_USERS * pick.random() ** 2):04}"  # some users are more active
        view: dict[str, object] = {
            "n": self.good,
            "at": at,
            "user": user,
            "page": page,
            "referrer": pick.choice(_REFERRERS),
            # Most take about the same time, a few much longer.
            "ms": max(1, round(_PAGES[page][1] * pick.lognormvariate(0, 0.6))),
        }
        if pick.random() < _BROKEN:
            self.broken.append(self._break(view))
            return user.encode(), self.broken[-1]
        text = f"{view['n']}|{at_ms}|{user}|{page}|{view['referrer'] or ''}|{view['ms']}"
        self.digests.append(crc32(text.encode()))
        return user.encode(), json.dumps(view).encode()

    def _break(self, view: dict[str, object]) -> bytes:
        """Return a typical invalid message, with a unique number."""
        view["n"] = f"broken-{len(self.broken)}"
        match self._random.randrange(4):
            case 0:  # cut off
                return json.dumps(view).encode()[: self._random.randrange(40, 80)]
            case 1:  # a field of another type
                return json.dumps(view | {"ms": "fast"}).encode()
            case 2:  # not text
                return json.dumps(view).encode() + b"\xff\xfe"
            case _:  # not meant for this topic
                return b"GET /favicon.ico %d" % len(self.broken)


def due(seconds: float, rate: float) -> int:
    """Return how many messages are due after ``seconds``.

    Traffic rises to 1.5 times ``rate`` and falls to half of it.
    """
    turn = 2 * math.pi / _TURN
    return int(rate * (seconds + 0.5 / turn * (1 - math.cos(turn * seconds))))


TOPIC = "views"
RESULTS = "views.by_page"

_PAUSE = 0.05  # seconds between two publishings
_MAX_BATCH = 5000  # messages
_MAX_WAITING = 100_000  # messages; more would fill the broker's memory
_POLL_INTERVAL = 0.25  # seconds
_THREAD_TIMEOUT = 30.0  # seconds for it to start and to stop


@dataclass(frozen=True, slots=True)
class PageSummary:
    """What Spark computes about a page in a time window."""

    since: str
    page: str
    views: int
    slow: int
    p95: int


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of the topic, as the screen shows it."""

    number: int
    leader: str
    """The nsqd that leads it; empty if none does."""
    messages: int
    waiting: int
    """Messages that are left in the channel that has most of them."""


class Workload:
    """A broker with a topic of page views, a publisher and a reader of results.

    Public attributes may be read from any thread; ``page_views`` after the end.
    """

    def __init__(self, rate: float, seconds: float, seed: int) -> None:
        self.page_views = PageViews(seed)
        self.seconds = seconds
        self.published = 0
        """The number of messages that nsqd has accepted."""
        self.begun = 0.0
        """The time of the first message, in seconds since the epoch; 0 before."""
        self.left = 0
        """The number of messages that are left in the channels."""
        self.sums: Mapping[tuple[str, str], PageSummary] = {}
        """The results, by window and page."""
        self.is_over = False
        """Whether everything is published."""
        self.servers: Mapping[str, Sequence[str]] = {}
        """The addresses of the broker."""
        self.partitions: Sequence[PartitionRow] = ()
        """The partitions of a topic of the redesigned NSQ."""
        self.notes: Sequence[str] = ()
        """What has happened to the broker, in one line each."""
        self.repeated: Set[bytes] = frozenset()
        """Bodies that were published again, because it was unknown whether they were stored."""
        self.error: BaseException | None = None
        """Why publishing or reading ended early."""
        self._rate = rate
        self._most = 0  # messages in the longest channel
        self._stack = AsyncExitStack()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._call(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_THREAD_TIMEOUT)
            self._loop.close()

    def open(self) -> None:
        """Start publishing."""
        self._call(self._run(self._publish()))

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_THREAD_TIMEOUT)

    # --- on the thread --------------------------------------------------------------------------

    async def _start(self) -> None:
        enter = self._stack.enter_async_context
        await self._start_broker()
        nsqd, lookupd = (self.servers.get(kind, ()) for kind in ("nsqd", "lookupd"))
        self._producer = await enter(Producer(nsqd, lookupd=lookupd))
        consumer = await enter(Consumer(RESULTS, "screen", nsqd=nsqd, lookupd=lookupd))
        self._stack.push_async_callback(consumer.close, 0)  # results are not needed any more
        await self._run(self._read_results(consumer))
        await self._run(self._poll_stats())

    async def _start_broker(self) -> None:
        broker = await self._stack.enter_async_context(Broker())
        nsqd_http = broker.nsqd_http_addresses
        self.servers = {"nsqd": broker.nsqd_addresses, "nsqd_http": nsqd_http}
        await broker.create_topic(TOPIC)
        self._nsqd = await self._stack.enter_async_context(Nsqd(nsqd_http[0]))

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the end."""

        async def stop() -> None:
            task.cancel()
            await asyncio.wait([task])

        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._ended)
        self._stack.push_async_callback(stop)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.error = task.exception()

    async def _publish(self) -> None:
        self.begun, begun = time.time(), time.monotonic()
        while self.published < (last := due(self.seconds, self._rate)):
            now = min(last, due(time.monotonic() - begun, self._rate))
            if self._most < _MAX_WAITING:
                await self._publish_some(min(_MAX_BATCH, now - self.published))
            await asyncio.sleep(_PAUSE)
        self.is_over = True

    async def _publish_some(self, count: int) -> None:
        bodies = self.page_views.make(count, time.time())
        await self._producer.publish_many(TOPIC, bodies)
        self.published += count

    async def _read_results(self, consumer: Consumer) -> None:
        async for batch in consumer.batches(size=1000, max_wait=0.1):
            sums = dict(self.sums)
            for message in batch:
                one = _sum(json.loads(message.body))
                known = sums.get((one.since, one.page))
                # They grow, and may arrive twice or out of order.
                if known is None or known.views <= one.views:
                    sums[one.since, one.page] = one
            self.sums = sums
            batch.finish()

    async def _poll_stats(self) -> None:
        while True:
            waiting = await self._read_stats()
            if waiting is not None:
                self.left, self._most = sum(waiting), max(waiting, default=0)
            await asyncio.sleep(_POLL_INTERVAL)

    async def _read_stats(self) -> list[int] | None:
        """Return how many messages are left in each channel; None if that is unknown now."""
        stats = await self._nsqd.stats(TOPIC, include_clients=False)
        return [
            channel.depth + channel.in_flight_count + channel.deferred_count
            for topic in stats.topics
            for channel in topic.channels
        ]


def _sum(row: Mapping[str, Any]) -> PageSummary:
    return PageSummary(row["since"], row["page"], row["views"], row["slow"], row["p95"])
