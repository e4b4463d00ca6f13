"""The demo's result: every message accounted for, a chart, and what to try next."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nsqflow.cli.demo.chart import Series, draw, per_second, quantile_per_second, spread
from nsqflow.cli.demo.workload import DIGEST, PageSummary, PageViews
from nsqflow.cli.terminal import print_err, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqflow.cli.demo.display import DemoProgress
    from nsqflow.pipelines.runner import BatchProgress


T = TypeVar("T")

Place = tuple[int, int]  # the partition and the offset of a message

_WINDOW = 5  # seconds, as in the pipeline
_POSITION = "partition INT, offset BIGINT"


class ArchivedView(NamedTuple):
    """A page view in the archive; times are in seconds since the epoch."""

    n: int
    digest: int
    page: str
    at: float
    """When it was made."""
    archived: float
    """When its batch began."""
    user: str = ""
    partition: int = -1
    offset: int = -1
    row: int = 0
    """Its place in its file, which has the rows of one batch and one partition."""


class DeadLetter(NamedTuple):
    """A message in the dead letters."""

    body: bytes
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What became of all messages."""

    published: int
    archived: int
    dead_lettered: int
    lost: int
    """Published, but in no file."""
    duplicated: int
    """In the files more often than published."""
    altered: int
    """In a file, but different from what was published."""
    left: int
    """Still in NSQ: not delivered, or not finished."""
    summed: int
    """Views in the summaries that came back through NSQ."""
    missummed: int
    """Summaries that differ from the archive."""
    out_of_order: int | None = None
    """In the archive before an earlier one of its partition or its user; None: without order."""
    stored_twice: int | None = None
    """Stored twice by nsqd: a publish was uncertain, and its retry a second one."""

    @property
    def is_right(self) -> bool:
        """Whether every message was found exactly once, and every summary is right."""
        return not (
            self.lost
            or self.duplicated
            or self.altered
            or self.left
            or self.missummed
            or self.out_of_order
        )


def reconcile(
    page_views: PageViews,
    rows: Sequence[ArchivedView],
    dead: Sequence[DeadLetter],
    sums: Iterable[PageSummary],
    left: int = 0,
    *,
    ordered: bool = False,
    repeated: Set[bytes] = frozenset(),
) -> Reconciliation:
    """Compare what was published with what was found.

    ``ordered`` messages have positions, which must ascend. ``repeated`` are the bodies that were
    published again, and may have been stored twice.
    """
    made, broken = range(page_views.good), {*page_views.broken}
    views = _positions((row.n, row.partition, row.offset) for row in rows)
    letters = _positions(dead)
    altered = sum(row.n not in made or row.digest != page_views.digests[row.n] for row in rows)
    altered += sum(letter.body not in broken for letter in dead)
    repeated_views = {json.loads(body)["n"] for body in repeated - broken}
    found = {n: places for n, places in views.items() if n in made}
    found_broken = {body: places for body, places in letters.items() if body in broken}
    twice = _count_stored_twice(found, repeated_views)
    twice += _count_stored_twice(found_broken, repeated)
    copies = sum(len(places) - 1 for places in (*found.values(), *found_broken.values()))
    counted = {(_seconds(one.since), one.page): one.views for one in sums}
    expected = Counter((_window(row.at), row.page) for row in rows)
    return Reconciliation(
        published=page_views.total,
        archived=len(rows),
        dead_lettered=len(dead),
        lost=page_views.total - len(found) - len(found_broken),
        duplicated=copies - twice,
        altered=altered,
        left=left,
        summed=sum(counted.values()),
        missummed=sum(counted.get(key) != expected.get(key) for key in {*counted, *expected}),
        out_of_order=count_out_of_order(rows) if ordered else None,
        stored_twice=twice if ordered else None,
    )


def count_out_of_order(rows: Iterable[ArchivedView]) -> int:
    """Return how many views come after a later one of their partition or of their user.

    Of a view that was stored twice, the second one is not compared with the user's others.
    """
    offsets: dict[int, int] = {}
    last: dict[str, int] = {}
    seen: set[int] = set()
    count = 0
    for row in sorted(rows, key=lambda row: (row.archived, row.row)):
        before = offsets.get(row.partition, -1)
        is_late = row.offset <= before
        offsets[row.partition] = max(before, row.offset)
        if row.n not in seen:
            is_late |= row.n < last.get(row.user, -1)
            last[row.user] = max(row.n, last.get(row.user, -1))
            seen.add(row.n)
        count += is_late
    return count


def _positions(found: Iterable[tuple[T, int, int]]) -> dict[T, list[Place]]:
    """Return the partitions and offsets at which each message was found."""
    places: defaultdict[T, list[Place]] = defaultdict(list)
    for message, partition, offset in found:
        places[message].append((partition, offset))
    return places


def _count_stored_twice(found: Mapping[T, Sequence[Place]], repeated: Set[T]) -> int:
    """Return how many copies of repeated messages were at positions of their own."""
    return sum(len({*places}) - 1 for message, places in found.items() if message in repeated)


def read_archive(spark: SparkSession, folder: Path, *, ordered: bool) -> list[ArchivedView]:
    """Read all views from the archive; ``ordered`` ones have positions."""
    schema = "n BIGINT, at TIMESTAMP, user STRING, page STRING, referrer STRING, ms INT"
    schema += ", archived TIMESTAMP" + f", {_POSITION}" * ordered
    frame = spark.read.schema(schema).parquet(str(folder.absolute()))
    columns = frame.selectExpr(
        "n",
        f"{DIGEST} AS digest",
        "page",
        "unix_micros(at) / 1000000D AS at",
        "unix_micros(archived) / 1000000D AS archived",
        *(("user", "partition", "offset", "_metadata.row_index") if ordered else ()),
    ).toArrow()
    lists = (column.to_pylist() for column in columns)
    return [ArchivedView(*values) for values in zip(*lists, strict=True)]


def read_dead(spark: SparkSession, folder: Path, *, ordered: bool) -> list[DeadLetter]:
    """Read all dead letters; ``ordered`` ones have positions."""
    schema = "body STRING" + f", {_POSITION}" * ordered
    frame = spark.read.schema(schema).json(str(folder.absolute()))
    return [DeadLetter(base64.b64decode(body), *place) for body, *place in frame.collect()]


def latencies(
    rows: Iterable[ArchivedView], batches: Sequence[BatchProgress]
) -> list[tuple[float, float]]:
    """Return for each view its time and the seconds until its batch was archived."""
    ends = sorted((_seconds(batch.at), _seconds(batch.at) + batch.seconds) for batch in batches)
    starts = [start for start, _ in ends]
    found = []
    for row in rows:
        index = bisect_right(starts, row.archived) - 1
        if index >= 0:
            found.append((row.at, ends[index][1] - row.at))
    return found


def warm_up_end(batches: Iterable[BatchProgress]) -> float | None:
    """Return when the first batch with messages was done, in seconds since the epoch.

    Until then Spark compiles the query and starts its Python workers, so latencies are not typical.
    """
    ends = [_seconds(batch.at) + batch.seconds for batch in batches if batch.messages]
    return min(ends, default=None)


def _window(at: float) -> float:
    return at // _WINDOW * _WINDOW


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


_NEXT = """
Try next:
  {nsqflow} broker
    runs an NSQ to play with, until Ctrl-C. Then, each in a terminal of its own:
  {nsqflow} run {pipeline}
  {nsqflow} stat
  {nsqflow} pub views hello
    which is a dead letter for it
"""

_NEXT_REDESIGNED = """
Try next:
  {nsqflow} broker --redesigned --nodes 3
    runs a cluster to play with, until Ctrl-C. Then, each in a terminal of its own, with
    NSQFLOW_LOOKUPD=127.0.0.1:4161:
  {nsqflow} create views --partitions 3 --replicas 3 --ordered
  {nsqflow} create views.by_page
  {nsqflow} run {pipeline}
"""


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The reconciliation, the median latency, and the paths of the results."""

    account: Reconciliation
    median: float
    """Median seconds from view to archive, after the warm-up."""
    folder: Path
    notes: tuple[str, ...] = ()
    """What has happened to the broker."""

    @property
    def files(self) -> dict[str, str]:
        """The paths of the results."""
        names = {
            "archive": "archive",
            "dead_letters": "dead-letters",
            "chart": "chart.svg",
            "pipeline": "pipeline.toml",
        }
        return {what: str(self.folder / name) for what, name in names.items()}

    def print(self) -> None:
        """Print the report for users."""
        account, files = self.account, self.files
        agrees = f"{account.missummed:,} of them WRONG" if account.missummed else "all right"
        archived = f"{files['archive']}, in {self.median:.1f} s (median after the warm-up)"
        rows = [
            ("published", account.published, ""),
            ("archived", account.archived, archived),
            ("dead-lettered", account.dead_lettered, files["dead_letters"]),
            ("lost", account.lost, ""),
            ("duplicated", account.duplicated, ""),
            ("altered", account.altered, ""),
            ("left in NSQ", account.left, ""),
            ("aggregated", account.summed, f"by page and window, back through NSQ: {agrees}"),
        ]
        if account.out_of_order is not None:
            order = "by partition and by user, over all batches"
            twice = "published twice: by the retry of a publish that was uncertain"
            rows.append(("out of order", account.out_of_order, order))
            rows.append(("stored twice", account.stored_twice or 0, twice))
        for name, number, more in rows:
            print(f"{name:<15} {number:>8,}   {more}".rstrip())
        for note in self.notes:
            print(note)
        print(f"\nThroughput and latency: {files['chart']}")
        pipeline = shlex.quote(files["pipeline"])
        following = _NEXT if account.out_of_order is None else _NEXT_REDESIGNED
        print(following.format(nsqflow=shlex.quote(_command()), pipeline=pipeline), end="")

    def print_json(self) -> None:
        """Print the report as JSON."""
        fields = asdict(self.account) | {"right": self.account.is_right}
        account = {name: value for name, value in fields.items() if value is not None}
        notes = {"notes": [*self.notes]} if self.notes else {}
        print_json(account | notes | {"median_seconds": round(self.median, 3)} | self.files)


def make_report(spark: SparkSession, progress: DemoProgress, folder: Path) -> DemoReport:
    """Read the files, compare them with what was published, and draw the chart."""
    workload = progress.workload
    ordered = bool(workload.partitions)
    account = reconcile(
        workload.page_views,
        rows := read_archive(spark, folder / "archive", ordered=ordered),
        read_dead(spark, folder / "dead-letters", ordered=ordered),
        workload.sums.values(),
        workload.left,
        ordered=ordered,
        repeated=workload.repeated,
    )
    batches = progress.batches["archive"]
    delays = [(at - workload.begun, delay) for at, delay in latencies(rows, batches)]
    published = [(at - workload.begun, count) for at, count in workload.page_views.moments]
    warm_up, steady = after_warm_up(
        delays, (warm_up_end(batches) or workload.begun) - workload.begun
    )
    save(folder / "chart.svg", _chart(account, published, delays, steady, warm_up))
    waits = sorted(delay for _, delay in steady)
    median = waits[len(waits) // 2] if waits else 0.0
    return DemoReport(account, median, folder, tuple(workload.notes))


def after_warm_up(
    delays: list[tuple[float, float]], warm_up: float
) -> tuple[float, list[tuple[float, float]]]:
    """Drop what was published during the warm-up, unless that is everything."""
    steady = [(at, delay) for at, delay in delays if at >= warm_up]
    return (warm_up, steady) if steady else (0.0, delays)


def save(path: Path, picture: str) -> None:
    """Write an image; a failure is only printed, so that the report follows."""
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        print_err(f"{path}: {error.strerror}")


def _chart(
    account: Reconciliation,
    published: list[tuple[float, int]],
    delays: list[tuple[float, float]],
    steady: list[tuple[float, float]],
    warm_up: float,
) -> str:
    ends = [at + delay for at, delay in delays]
    seconds = int(max([0.0, *ends, *(at for at, _ in published)])) + 1
    return draw(
        f"nsqflow demo: {account.published:,} messages, {account.lost:,} lost, "
        f"{account.duplicated:,} duplicated",
        [
            Series("published", "#1f77b4", per_second(published, seconds)),
            Series("archived", "#2ca02c", per_second(spread(ends, 0.0), seconds)),
        ],
        [
            Series("median", "#ff7f0e", quantile_per_second(steady, 0.5, seconds)),
            Series("99%", "#d62728", quantile_per_second(steady, 0.99, seconds)),
        ],
        seconds,
        warm_up,
    )


def _command() -> str:
    """Return how to call ``nsqflow``, which may not be on the PATH."""
    ours = Path(sys.executable).parent / "nsqflow"
    if not ours.exists() or shutil.which("nsqflow") == str(ours):
        return "nsqflow"
    return min(str(ours), os.path.relpath(ours), key=len)
