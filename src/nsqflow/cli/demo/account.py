"""The account of the demo: what was published against what Spark reads from the files."""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.cli.demo.site import Sum
from nsqflow.cli.demo.visits import Visits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqflow.pipelines.running import Batch


@dataclass(frozen=True, slots=True)
class Row:
    """A view as the archive has it; times are in seconds since the epoch."""

    n: int
    ms: int
    at: float
    """When it was made."""
    archived: float
    """When its batch began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where all messages are."""

    published: int
    archived: int
    dead_lettered: int
    lost: int
    """What was published and is in no file."""
    duplicated: int
    """What is in the files once more than it was published."""
    altered: int
    """What is in a file and was never published like this."""
    summed: int
    """The views in the sums that came back to NSQ."""

    @property
    def is_right(self) -> bool:
        """Whether every message is where it belongs, once, and the sums add up."""
        wrong = self.lost or self.duplicated or self.altered
        return not wrong and self.summed == self.archived


def take_account(
    visits: Visits, rows: Sequence[Row], dead: Sequence[bytes], sums: Iterable[Sum]
) -> Account:
    """Compare what was made with what was found."""
    views, letters = Counter(row.n for row in rows), Counter(dead)
    made, broken = range(visits.good), Counter(visits.broken)
    known = sum(views[n] > 0 for n in made)
    duplicated = sum(times - 1 for n, times in views.items() if n in made)
    strange = sum(times for n, times in views.items() if n not in made)
    # That the numbers are right does not say that what belongs to them is.
    altered = known == len(views) == visits.good and not duplicated
    altered = altered and sum(row.ms for row in rows) != visits.sum_ms
    return Account(
        published=visits.total,
        archived=len(rows),
        dead_lettered=len(dead),
        lost=visits.good - known + (broken - letters).total(),
        duplicated=duplicated + _surplus(letters, broken),
        altered=strange + int(altered) + sum(n for one, n in letters.items() if one not in broken),
        summed=sum(one.views for one in sums),
    )


def _surplus(found: Counter[bytes], made: Counter[bytes]) -> int:
    return sum(max(0, times - made[one]) for one, times in found.items() if one in made)


def read_archive(spark: SparkSession, folder: Path) -> list[Row]:
    """All that Spark finds in the archive."""
    frame = spark.read.parquet(str(folder)).selectExpr(
        "n", "ms", "unix_micros(at) AS at", "unix_micros(archived) AS archived"
    )
    columns = frame.toArrow().to_pydict()
    return [
        Row(n, ms, at / 1e6, archived / 1e6)
        for n, ms, at, archived in zip(
            columns["n"], columns["ms"], columns["at"], columns["archived"], strict=True
        )
    ]


def read_dead(spark: SparkSession, folder: Path) -> list[bytes]:
    """All dead letters."""
    frame = spark.read.schema("body STRING").json(str(folder))
    return [base64.b64decode(row.body) for row in frame.collect()]


def latencies(rows: Iterable[Row], batches: Sequence[Batch]) -> list[tuple[float, float]]:
    """When each view was made, and how long it took until its batch was in the archive."""
    ends = sorted((_seconds(batch.at), _seconds(batch.at) + batch.seconds) for batch in batches)
    starts = [start for start, _ in ends]
    found = []
    for row in rows:
        place = bisect_right(starts, row.archived) - 1
        if place >= 0:
            found.append((row.at, ends[place][1] - row.at))
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
