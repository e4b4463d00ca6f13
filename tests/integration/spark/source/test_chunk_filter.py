"""The chunk filter: each message becomes a row, is finished without one, or goes back."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from nsqflow.admin.stats import parse_stats
from nsqflow.spark.spool.slot_format import PartitionTotals
from tests.fixtures.servers import Nsqd
from tests.unit.spark.source.filtering import Bench
from tests.unit.spark.spool_rows import chunk_of, message, numbers_of


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("spool"))


def numbers(ids: set[bytes] | list[bytes]) -> list[int]:
    return sorted(map(int, ids))


def test_exhausted_messages_are_published_as_dead_letters_and_finished(
    tmp_path: Path, nsqd: Nsqd
) -> None:
    dead = f"dead{uuid4().hex[:16]}"
    bench = Bench(tmp_path, nsqd.tcp_address)
    sorting = bench.sorting(maxAttempts="2", deadLetterTopic=dead)
    attempts = {3: 3, 20: 1, 21: 2, 22: 3, 23: 9}  # the first is in the spool
    chunk = chunk_of(message(number, each) for number, each in attempts.items())
    found = sorting.filter(chunk, PartitionTotals())
    assert numbers_of(found.rows) == [20, 21]
    assert numbers(found.finished) == [3, 22, 23]
    assert numbers(found.settled) == [3]
    assert (found.totals.dead_lettered, found.totals.duplicates) == (2, 1)
    (dead_letters,) = parse_stats(
        json.loads(nsqd.ask(f"/stats?format=json&topic={dead}")[1])
    ).topics
    assert dead_letters.message_count == 2
