"""What the tests of the source share: queries that keep their batches, and rivals on the channel.

query = read_now(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path)
assert query.numbers() == [*range(10)]

with running(stream(spark, options), tmp_path) as query:
    published(nsqd, topic, 10)
    query.await_rows(10)
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqflow.admin import ChannelStats
from nsqflow.admin.stats import parse_stats
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from nsqflow.spark.source.pull import PullSubscription
from nsqflow.spark.spool.dedup import split_ids
from tests.fixtures.servers import PATIENCE, Nsqd
from tests.fixtures.spark import SPARK_PATIENCE, published

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CHANNEL = "spark"


def new_topic() -> str:
    """A unique topic."""
    return f"t{uuid4().hex[:16]}"


def options_of(folder: Path, topic: str, /, *nsqd: Nsqd, **more: str | None) -> dict[str, str]:
    """The options of a read that has a spool in ``folder``; None takes one away."""
    options = {
        "topic": topic,
        "channel": CHANNEL,
        "nsqd": ",".join(server.tcp_address for server in nsqd),
        "nsqdHttp": ",".join(server.http_address for server in nsqd),
        "spoolLocation": str(folder / "spool"),
    } | more
    return {name: value for name, value in options.items() if value is not None}


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """A stream of NSQ."""
    return spark.readStream.format("nsq").options(**options).load()


def table(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """A batch read of NSQ."""
    return spark.read.format("nsq").options(**options).load()


def numbers(rows: Iterable[Row]) -> list[int]:
    """The numbers that ``published`` put into the bodies, sorted."""
    return sorted(int(row.body[:10]) for row in rows)


class Query:
    """A streaming query that keeps what it reads, batch by batch; its checkpoint is in ``folder``.

    ``before`` is called in each batch, when that has been planned and nothing of it is read.
    """

    def __init__(
        self,
        frame: DataFrame,
        folder: Path,
        before: Callable[[], object] = lambda: None,
        **trigger: Any,
    ) -> None:
        self.batches: list[list[Row]] = []
        self._before = before
        self._news = threading.Condition()
        writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        if trigger:
            writer = writer.trigger(**trigger)
        self.spark_query = _start(writer.foreachBatch(self._take))

    @property
    def rows(self) -> list[Row]:
        """The rows of all batches so far."""
        return [row for batch in self.batches for row in batch]

    @property
    def sizes(self) -> list[int]:
        """How many rows each batch had."""
        return [*map(len, self.batches)]

    def numbers(self) -> list[int]:
        """The numbers in the bodies of all rows."""
        return numbers(self.rows)

    def await_rows(self, count: int) -> None:
        """Wait until ``count`` rows have arrived."""
        self.until(lambda: len(self.rows) >= count)

    def await_batches(self, count: int) -> None:
        """Wait until there were ``count`` batches."""
        self.until(lambda: len(self.batches) >= count)

    def until(self, done: Callable[[], object]) -> None:
        """Wait until something holds, while the query runs."""
        deadline = time.monotonic() + SPARK_PATIENCE
        while not done():
            assert self.spark_query.isActive, self.spark_query.exception()
            assert time.monotonic() < deadline, f"it has not come to it: {self.sizes}"
            with self._news:
                self._news.wait(0.02)

    def await_end(self) -> None:
        """Wait until it has ended well."""
        assert self.spark_query.awaitTermination(int(SPARK_PATIENCE)), "it has not ended"

    def failure(self) -> str:
        """Wait until it has failed, and return what Spark says of it."""
        from pyspark.errors import StreamingQueryException

        try:
            self.await_end()
        except StreamingQueryException as error:
            return str(error)
        raise AssertionError(f"it has not failed: {self.sizes}")

    def progress(self) -> list[dict[str, Any]]:
        """Spark's account of each batch."""
        return [json.loads(each.json) for each in self.spark_query.recentProgress]

    def plan(self, batch: int = -1) -> dict[str, list[int]]:
        """For each key what the shares of a batch were planned to have."""
        plan: dict[str, list[int]] = self.progress()[batch]["sources"][0]["endOffset"]["plan"]
        return plan

    def stop(self) -> None:
        """End it; what it was doing is undone."""
        self.spark_query.stop()

    def _take(self, frame: DataFrame, _: int) -> None:
        self._before()
        rows = frame.collect()
        with self._news:
            self.batches.append(rows)
            self._news.notify_all()


def _start(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query; again if Spark's Python came too late, which has ten seconds anywhere."""
    deadline = time.monotonic() + SPARK_PATIENCE
    while True:
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            assert time.monotonic() < deadline, "it has not begun"
            time.sleep(0.02)
        error = query.exception()
        too_late = error is not None and "failed to connect back" in str(error)
        if not too_late or time.monotonic() > deadline:
            return query


def read_now(frame: DataFrame, folder: Path) -> Query:
    """Read what is there, and return when all of it is read."""
    query = Query(frame, folder, availableNow=True)
    query.await_end()
    return query


@contextlib.contextmanager
def running(
    frame: DataFrame, folder: Path, before: Callable[[], object] = lambda: None, **trigger: Any
) -> Iterator[Query]:
    """A query that runs as long as the block does."""
    query = Query(frame, folder, before, **trigger)
    try:
        yield query
    finally:
        query.stop()


# --- the other side -----------------------------------------------------------------------------


class Rival:
    """Another consumer of the channel, which takes messages on request."""

    def __init__(self, nsqd: Nsqd, topic: str, msg_timeout: float | None = None) -> None:
        self._link = connect(
            nsqd.tcp_address, Access(), topic=topic, channel=CHANNEL, msg_timeout=msg_timeout
        )
        self._pull = PullSubscription(self._link, threading.Event())

    def take(self, count: int) -> bytes:
        """Take ``count`` messages; return their ids."""
        self._pull.set_rdy(count)
        chunk = self._pull.next_chunk(count, PATIENCE, PATIENCE)
        assert chunk.count == count
        return chunk.ids()

    def finish(self, ids: bytes) -> None:
        """Finish them, and take no more."""
        self._pull.set_rdy(0)
        self._pull.finish(ids)

    def requeue(self, ids: bytes) -> None:
        """Give them back, and take no more."""
        self._pull.set_rdy(0)
        self._pull.requeue(split_ids(ids))

    def close(self) -> None:
        """Be gone; what was taken and not answered comes back when its time is over."""
        self._link.close()


def waiting(nsqd: Nsqd, topic: str, count: int, *, first: int = 0) -> None:
    """Publish, and wait until all is in the channel: in between it is in no count of nsqd's."""
    post(nsqd, "/topic/create", topic)
    post(nsqd, "/channel/create", topic)
    depth = channel_stats(nsqd, topic).depth
    published(nsqd, topic, count, first=first)
    _await_channel(nsqd, topic, lambda stats: stats.depth >= depth + count)


def await_depth(nsqd: Nsqd, topic: str, depth: int) -> None:
    """Wait until nsqd has carried into the channel what was published."""
    _await_channel(nsqd, topic, lambda stats: stats.depth == depth)


def await_answers(nsqd: Nsqd, topic: str) -> None:
    """Wait until nothing is in flight; unanswered messages time out."""
    _await_channel(nsqd, topic, lambda stats: not stats.in_flight_count)


def _await_channel(nsqd: Nsqd, topic: str, holds: Callable[[ChannelStats], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds(stats := channel_stats(nsqd, topic)):
        assert time.monotonic() < deadline, stats
        time.sleep(0.01)


def channel_stats(nsqd: Nsqd, topic: str) -> ChannelStats:
    """What nsqd counts of the channel."""
    status, body = nsqd.ask(f"/stats?format=json&topic={topic}&channel={CHANNEL}")
    assert status == 200
    (found,) = parse_stats(json.loads(body)).topics[0].channels
    return found


def post(nsqd: Nsqd, path: str, topic: str) -> None:
    """Have nsqd do something with the topic, or with the channel."""
    channel = f"&channel={CHANNEL}" if path.startswith("/channel") else ""
    assert nsqd.ask(f"{path}?topic={topic}{channel}", "POST")[0] == 200


@contextlib.contextmanager
def connected(
    spark: SparkSession, folder: Path, nsqd: Nsqd, topic: str, **more: str
) -> Iterator[Mapping[str, Any]]:
    """What nsqd says of a task that waits for the last message of its share."""
    waiting(nsqd, topic, 3)
    options = options_of(folder, topic, nsqd, idleTimeout="30s", msgTimeout="59s") | more
    with contextlib.closing(Rival(nsqd, topic)) as rival:

        def tasks() -> list[Mapping[str, Any]]:
            return [one for one in channel_stats(nsqd, topic).clients if one["message_count"] == 2]

        with running(stream(spark, options), folder, lambda: rival.finish(rival.take(1))) as query:
            query.until(tasks)
            yield tasks()[0]
            published(nsqd, topic, 1)
            query.await_rows(3)
            assert query.sizes == [3]


def await_looks(query: Query, nsqd: Nsqd, topic: str, count: int = 3) -> None:
    """Wait until the driver has seen how things are, a few times."""

    def looks() -> int:
        # nsqd's log has the driver's questions; the tests' own don't mention its memory.
        return sum("include_mem=false" in line and topic in line for line in nsqd.log)

    enough = looks() + count
    query.until(lambda: looks() >= enough)
