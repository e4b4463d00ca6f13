"""The account of the demo: what was published against what Spark reads from the files."""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nsqflow.cli.demo.site import Sum
from nsqflow.cli.demo.visits import DIGEST, Visits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqflow.pipelines.running import Batch

_WINDOW = 5  # seconds, as in the pipeline


class Row(NamedTuple):
    """A view as the archive has it; times are in seconds since the epoch."""

    n: int
    digest: int
    page: str
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
    left: int
    """What NSQ has still to deliver, or to be told that it was."""
    summed: int
    """The views in the sums that came back through NSQ."""
    missummed: int
    """How many of these sums are not what the archive gives."""

    @property
    def is_right(self) -> bool:
        """Whether every message is where it belongs, once, and every sum is right."""
        return not (self.lost or self.duplicated or self.altered or self.left or self.missummed)


def take_account(
    visits: Visits, rows: Sequence[Row], dead: Sequence[bytes], sums: Iterable[Sum], left: int = 0
) -> Account:
    """Compare what was made with what was found."""
    made, broken = range(visits.good), Counter(visits.broken)
    views, letters = Counter(row.n for row in rows), Counter(dead)
    strange = sum(row.n not in made or row.digest != visits.digests[row.n] for row in rows)
    strange += sum(times for letter, times in letters.items() if letter not in broken)
    known = sum(n in made for n in views)
    counted = {(_seconds(one.since), one.page): one.views for one in sums}
    expected = Counter((_window(row.at), row.page) for row in rows)
    return Account(
        published=visits.total,
        archived=len(rows),
        dead_lettered=len(dead),
        lost=visits.good - known + (broken - letters).total(),
        duplicated=(
            sum(times - 1 for n, times in views.items() if n in made)
            + sum(max(0, letters[letter] - times) for letter, times in broken.items())
        ),
        altered=strange,
        left=left,
        summed=sum(counted.values()),
        missummed=sum(counted.get(place) != expected.get(place) for place in {*counted, *expected}),
    )


def read_archive(spark: SparkSession, folder: Path) -> list[Row]:
    """All that Spark finds in the archive."""
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
    return [Row(*values) for values in zip(*lists, strict=True)]


def read_dead(spark: SparkSession, folder: Path) -> list[bytes]:
    """All dead letters."""
    frame = spark.read.schema("body STRING").json(str(folder.absolute()))
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


def _window(at: float) -> float:
    return at // _WINDOW * _WINDOW


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
