"""What comes of the demo: an account, a chart, and what to try next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.cli.demo.account import (
    Account,
    latencies,
    read_archive,
    read_dead,
    take_account,
)
from nsqflow.cli.demo.chart import Line, draw, per_second, quantile_per_second, spread
from nsqflow.cli.screen import emit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqflow.cli.demo.progress import Progress

_NEXT = """
Try next:
  nsqflow broker                   an NSQ to play with; then, in another terminal:
  nsqflow run {pipeline}
  nsqflow pub views hello          a dead letter for it
  nsqflow stat                     what waits where
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
        agrees = "as many as archived" if account.summed == account.archived else "WRONG"
        rows = [
            ("published", account.published, ""),
            ("archived", account.archived, f"{files['archive']}, in {self.median:.1f} s (median)"),
            ("dead-lettered", account.dead_lettered, files["dead_letters"]),
            ("lost", account.lost, ""),
            ("duplicated", account.duplicated, ""),
            ("altered", account.altered, ""),
            ("summed", account.summed, f"by page, back in NSQ: {agrees}"),
        ]
        for name, number, more in rows:
            print(f"{name:<14} {number:>9,}   {more}".rstrip())
        print(f"\nThroughput and latency: {files['chart']}")
        print(_NEXT.format(**files), end="")

    def tell_json(self) -> None:
        """Print it for programs."""
        account = asdict(self.account) | {"right": self.account.is_right}
        emit(account | {"median_seconds": round(self.median, 3)} | self.files)


def make_report(spark: SparkSession, progress: Progress, folder: Path) -> Report:
    """Read the files, compare them with what was published, and draw the chart."""
    site = progress.site
    rows = read_archive(spark, folder / "archive")
    dead = read_dead(spark, folder / "dead-letters")
    account = take_account(site.visits, rows, dead, site.sums.values())
    delays = [
        (at - site.begun, delay) for at, delay in latencies(rows, progress.batches["archive"])
    ]
    (folder / "chart.svg").write_text(_chart(account, delays, site.seconds))
    ordered = sorted(delay for _, delay in delays)
    return Report(account, ordered[len(ordered) // 2] if ordered else 0.0, folder)


def _chart(account: Account, delays: list[tuple[float, float]], least: float) -> str:
    ends = [at + delay for at, delay in delays]
    seconds = int(max([least, *ends])) + 1
    return draw(
        f"nsqflow demo: {account.published:,} messages, {account.lost:,} lost, "
        f"{account.duplicated:,} duplicated",
        [
            Line("published", "#1f77b4", per_second((at for at, _ in delays), seconds)),
            Line("archived", "#2ca02c", per_second(spread(ends, 0.0), seconds)),
        ],
        [
            Line("median", "#ff7f0e", quantile_per_second(delays, 0.5, seconds)),
            Line("99%", "#d62728", quantile_per_second(delays, 0.99, seconds)),
        ],
        seconds,
    )
