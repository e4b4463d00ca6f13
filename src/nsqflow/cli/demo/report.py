"""What comes of the demo: an account, a chart, and what to try next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.cli.demo.account import Account, latencies, read_archive, read_dead, take_account
from nsqflow.cli.demo.chart import Line, draw, per_second, quantile_per_second, spread
from nsqflow.cli.screen import emit, note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqflow.cli.demo.progress import Progress

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
class Report:
    """The account, how long a view took to the archive, and where everything is."""

    account: Account
    median: float
    folder: Path

    @property
    def files(self) -> dict[str, str]:
        """What there is to be looked at."""
        names = {
            "archive": "archive",
            "dead_letters": "dead-letters",
            "chart": "chart.svg",
            "pipeline": "pipeline.toml",
        }
        return {what: str(self.folder / name) for what, name in names.items()}

    def tell(self) -> None:
        """Print it for people."""
        account, files = self.account, self.files
        agrees = f"{account.missummed:,} of them WRONG" if account.missummed else "all right"
        rows = [
            ("published", account.published, ""),
            ("archived", account.archived, f"{files['archive']}, in {self.median:.1f} s (median)"),
            ("dead-lettered", account.dead_lettered, files["dead_letters"]),
            ("lost", account.lost, ""),
            ("duplicated", account.duplicated, ""),
            ("altered", account.altered, ""),
            ("left in NSQ", account.left, ""),
            ("summed up", account.summed, f"by page and window, back through NSQ: {agrees}"),
        ]
        for name, number, more in rows:
            print(f"{name:<14} {number:>9,}   {more}".rstrip())
        print(f"\nThroughput and latency: {files['chart']}")
        pipeline = shlex.quote(files["pipeline"])
        print(_NEXT.format(nsqflow=shlex.quote(_command()), pipeline=pipeline), end="")

    def tell_json(self) -> None:
        """Print it for programs."""
        account = asdict(self.account) | {"right": self.account.is_right}
        emit(account | {"median_seconds": round(self.median, 3)} | self.files)


def make_report(spark: SparkSession, progress: Progress, folder: Path) -> Report:
    """Read the files, compare them with what was published, and draw the chart."""
    site = progress.site
    rows = read_archive(spark, folder / "archive")
    dead = read_dead(spark, folder / "dead-letters")
    account = take_account(site.visits, rows, dead, site.sums.values(), site.left)
    delays = [
        (at - site.begun, delay) for at, delay in latencies(rows, progress.batches["archive"])
    ]
    published = [(at - site.begun, count) for at, count in site.visits.moments]
    save(folder / "chart.svg", _chart(account, published, delays))
    ordered = sorted(delay for _, delay in delays)
    return Report(account, ordered[len(ordered) // 2] if ordered else 0.0, folder)


def save(path: Path, picture: str) -> None:
    """Write a picture; that it can't be is no reason to keep the account back."""
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        note(f"{path}: {error.strerror}")


def _chart(
    account: Account, published: list[tuple[float, int]], delays: list[tuple[float, float]]
) -> str:
    ends = [at + delay for at, delay in delays]
    seconds = int(max([0.0, *ends, *(at for at, _ in published)])) + 1
    return draw(
        f"nsqflow demo: {account.published:,} messages, {account.lost:,} lost, "
        f"{account.duplicated:,} duplicated",
        [
            Line("published", "#1f77b4", per_second(published, seconds)),
            Line("archived", "#2ca02c", per_second(spread(ends, 0.0), seconds)),
        ],
        [
            Line("median", "#ff7f0e", quantile_per_second(delays, 0.5, seconds)),
            Line("99%", "#d62728", quantile_per_second(delays, 0.99, seconds)),
        ],
        seconds,
    )


def _command() -> str:
    """How ``nsqflow`` is called from here: it need not be on the PATH."""
    ours = Path(sys.executable).parent / "nsqflow"
    if not ours.exists() or shutil.which("nsqflow") == str(ours):
        return "nsqflow"
    return min(str(ours), os.path.relpath(ours), key=len)
