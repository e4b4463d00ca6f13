"""The demo's result: every message accounted for, a chart, and what to try next."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nsqflow.cli.demo.chart import Series, draw, per_second, quantile_per_second, spread
from nsqflow.cli.demo.workload import DIGEST, PageSummary, PageViews
from nsqflow.cli.terminal import print_err, print_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqflow.cli.demo.display import DemoProgress
    from nsqflow.pipelines.runner import BatchProgress


_WINDOW = 5  # seconds, as in the pipeline


class ArchivedView(NamedTuple):
    """A page view in the archive; times are in seconds since the epoch."""

    n: int
    digest: int
    page: str
    at: float
    """When it was made."""
    archived: float
    """When its batch began."""


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

    @property
    def is_right(self) -> bool:
        """Whether every message was found exactly once, and every summary is right."""
        return not (self.lost or self.duplicated or self.altered or self.left or self.missummed)


def reconcile(
    page_views: PageViews,
    rows: Sequence[ArchivedView],
    dead: Sequence[bytes],
    sums: Iterable[PageSummary],
    left: int = 0,
) -> Reconciliation:
    """Compare what was published with what was found."""
    made, broken = range(page_views.good), Counter(page_views.broken)
    views, dead_letters = Counter(row.n for row in rows), Counter(dead)
    altered = sum(row.n not in made or row.digest != page_views.digests[row.n] for row in rows)
    altered += sum(times for letter, times in dead_letters.items() if letter not in broken)
    known = sum(n in made for n in views)
    counted = {(_seconds(one.since), one.page): one.views for one in sums}
    expected = Counter((_window(row.at), row.page) for row in rows)
    return Reconciliation(
        published=page_views.total,
        archived=len(rows),
        dead_lettered=len(dead),
        lost=page_views.good - known + (broken - dead_letters).total(),
        duplicated=(
            sum(times - 1 for n, times in views.items() if n in made)
            + sum(max(0, dead_letters[letter] - times) for letter, times in broken.items())
        ),
        altered=altered,
        left=left,
        summed=sum(counted.values()),
        missummed=sum(counted.get(key) != expected.get(key) for key in {*counted, *expected}),
    )


def read_archive(spark: SparkSession, folder: Path) -> list[ArchivedView]:
    """Read all views from the archive."""
    schema = "n BIGINT, at TIMESTAMP, user STRING, page STRING, referrer STRING, ms INT"
    frame = spark.read.schema(f"{schema}, archived TIMESTAMP").parquet(str(folder.absolute()))
    columns = frame.selectExpr(
        "n",
        f"{DIGEST} AS digest",
        "page",
        "unix_micros(at) / 1000000D AS at",
        "unix_micros(archived) / 1000000D AS archived",
    ).toArrow()
    lists = (column.to_pylist() for column in columns)
    return [ArchivedView(*values) for values in zip(*lists, strict=True)]


def read_dead(spark: SparkSession, folder: Path) -> list[bytes]:
    """Read the bodies of all dead letters."""
    frame = spark.read.schema("body STRING").json(str(folder.absolute()))
    return [base64.b64decode(row.body) for row in frame.collect()]


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


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The reconciliation, the median latency, and the paths of the results."""

    account: Reconciliation
    median: float
    """Median seconds from view to archive, after the warm-up."""
    folder: Path

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
        for name, number, more in rows:
            print(f"{name:<14} {number:>9,}   {more}".rstrip())
        print(f"\nThroughput and latency: {files['chart']}")
        pipeline = shlex.quote(files["pipeline"])
        print(_NEXT.format(nsqflow=shlex.quote(_command()), pipeline=pipeline), end="")

    def print_json(self) -> None:
        """Print the report as JSON."""
        account = asdict(self.account) | {"right": self.account.is_right}
        print_json(account | {"median_seconds": round(self.median, 3)} | self.files)


def make_report(spark: SparkSession, progress: DemoProgress, folder: Path) -> DemoReport:
    """Read the files, compare them with what was published, and draw the chart."""
    workload = progress.workload
    rows = read_archive(spark, folder / "archive")
    dead = read_dead(spark, folder / "dead-letters")
    account = reconcile(workload.page_views, rows, dead, workload.sums.values(), workload.left)
    batches = progress.batches["archive"]
    delays = [(at - workload.begun, delay) for at, delay in latencies(rows, batches)]
    published = [(at - workload.begun, count) for at, count in workload.page_views.moments]
    warm_up, steady = after_warm_up(
        delays, (warm_up_end(batches) or workload.begun) - workload.begun
    )
    save(folder / "chart.svg", _chart(account, published, delays, steady, warm_up))
    ordered = sorted(delay for _, delay in steady)
    return DemoReport(account, ordered[len(ordered) // 2] if ordered else 0.0, folder)


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
