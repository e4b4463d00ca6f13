"""Sorting: every message of a chunk becomes a row, is finished without one, or goes back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.admin.stats import parse_stats
from nsqflow.protocol import Message
from nsqflow.spark.local_store import LocalStore
from nsqflow.spark.offsets import ShareName, make_key
from nsqflow.spark.options import SourceOptions, parse_stream
from nsqflow.spark.seen import Seen
from nsqflow.spark.share import Share
from nsqflow.spark.slots import Slots, Totals
from nsqflow.spark.sorting import Sorted, Sorting
from tests.fixtures.servers import Nsqd
from tests.unit.spark.spool import chunk_of, message, numbers_of, write_slot


class Bench:
    """A share whose first batch has left messages 0 to 9 in the spool, in doubt."""

    def __init__(self, folder: Path, nsqd: str = "127.0.0.1:4150") -> None:
        self.nsqd = nsqd
        self._store = LocalStore(str(folder))
        self._key = make_key("orders", nsqd)
        write_slot(Slots(self._store, ShareName("gen", 1, self._key, 0).folder), 0, range(10))

    def sorting(self, budget: int = 1000, max_bytes: int | None = None, **more: str) -> Sorting:
        options = self.options(**more)
        share = Share(ShareName("gen", 2, self._key, 0), budget, max_bytes)
        everything = options.dedupe == "always"
        sorting = Sorting(
            share, options, Seen(self._store, "gen", self._key, everything=everything)
        )
        sorting.begin()
        return sorting

    def options(self, **more: str) -> SourceOptions:
        given = {"topic": "orders", "channel": "c", "nsqd": self.nsqd, "spoolLocation": "/spool"}
        return parse_stream(given | more)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("spool"))


def numbers(ids: set[bytes] | list[bytes]) -> list[int]:
    return sorted(map(int, ids))


def test_an_empty_chunk_is_nothing(bench: Bench) -> None:
    assert bench.sorting().sort(chunk_of([]), Totals()) == Sorted()


def test_what_is_new_becomes_rows(bench: Bench) -> None:
    found = bench.sorting().sort(chunk_of(map(message, range(100, 200))), Totals())
    assert numbers_of(found.rows) == [*range(100, 200)]
    assert found == Sorted(found.rows, gained=Totals(rows=100, bodies=1000))


# Messages 5 to 14, of which 5 to 9 are in the spool; nsqd says so of the first of them only.
AGAIN = [message(5, attempts=2), *map(message, range(6, 15))]


@pytest.mark.parametrize(
    ("dedupe", "messages", "rows"),
    [
        ("redelivered", AGAIN, range(10, 15)),
        ("redelivered", AGAIN[1:], range(6, 15)),
        ("always", AGAIN[1:], range(10, 15)),
        ("off", AGAIN, range(5, 15)),
    ],
)
def test_what_is_in_the_spool_is_dropped_as_far_as_it_is_looked_for(
    bench: Bench, dedupe: str, messages: list[Message], rows: Sequence[int]
) -> None:
    found = bench.sorting(dedupe=dedupe).sort(chunk_of(messages), Totals())
    dropped = [*range(15 - len(messages), rows[0])]
    assert numbers_of(found.rows) == [*rows]
    assert numbers(found.finished) == numbers(found.settled) == dropped
    assert found.gained.duplicates == len(dropped)


def test_what_stands_in_a_chunk_twice_is_one_row_and_not_finished_before_it(bench: Bench) -> None:
    chunk = chunk_of([message(20), message(21), message(20, attempts=2)])
    found = bench.sorting().sort(chunk, Totals())
    assert numbers_of(found.rows) == [20, 21]
    assert found.finished == found.settled == set()
    assert found.gained.duplicates == 1


def test_what_is_beyond_the_budget_goes_back(bench: Bench) -> None:
    found = bench.sorting(budget=12).sort(chunk_of(map(message, range(20, 30))), Totals(rows=5))
    assert numbers_of(found.rows) == [*range(20, 27)]
    assert numbers(found.excess) == [27, 28, 29]


@pytest.mark.parametrize(
    ("so_far", "sizes", "rows", "full"),
    [
        (Totals(), [10, 10, 10], 3, False),
        (Totals(), [50, 50, 10], 2, True),
        (Totals(), [60, 60], 1, True),
        (Totals(), [500, 10], 1, True),  # the first is taken, whatever its size
        (Totals(rows=1, bodies=90), [20, 10], 0, True),
        (Totals(rows=1, bodies=90), [10, 10], 1, True),
    ],
)
def test_a_share_takes_no_more_bytes_than_it_may(
    bench: Bench, so_far: Totals, sizes: list[int], rows: int, full: bool
) -> None:
    chunk = chunk_of(message(20 + place, size=size) for place, size in enumerate(sizes))
    found = bench.sorting(max_bytes=100).sort(chunk, so_far)
    assert numbers_of(found.rows) == [*range(20, 20 + rows)]
    assert numbers(found.excess) == [*range(20 + rows, 20 + len(sizes))]
    assert found.gained == Totals(rows=rows, bodies=sum(sizes[:rows]))
    assert found.full == full


def test_what_was_delivered_too_often_is_published_and_finished(tmp_path: Path, nsqd: Nsqd) -> None:
    dead = f"dead{uuid4().hex[:16]}"
    bench = Bench(tmp_path, nsqd.tcp_address)
    sorting = bench.sorting(maxAttempts="2", deadLetterTopic=dead)
    attempts = {3: 3, 20: 1, 21: 2, 22: 3, 23: 9}  # the first is in the spool
    chunk = chunk_of(message(number, each) for number, each in attempts.items())
    found = sorting.sort(chunk, Totals())
    assert numbers_of(found.rows) == [20, 21]
    assert numbers(found.finished) == [3, 22, 23]
    assert numbers(found.settled) == [3]
    assert (found.gained.dead_lettered, found.gained.duplicates) == (2, 1)
    (buried,) = parse_stats(json.loads(nsqd.ask(f"/stats?format=json&topic={dead}")[1])).topics
    assert buried.message_count == 2


deliveries = st.lists(
    st.builds(message, st.integers(0, 30), st.integers(1, 3), st.integers(2, 40)), max_size=30
)


@given(
    deliveries,
    st.sampled_from(["redelivered", "always", "off"]),
    st.integers(1, 40),
    st.none() | st.integers(1, 500),
)
def test_each_message_has_one_fate(
    bench: Bench, sent: list[Message], dedupe: str, budget: int, max_bytes: int | None
) -> None:
    if dedupe == "off":
        sent = [*{each.id: each for each in sent}.values()]
    elif all(each.attempts == 1 for each in sent):
        dedupe = "always"  # nsqd delivers nothing twice as if for the first time
    found = bench.sorting(budget, max_bytes, dedupe=dedupe).sort(chunk_of(sent), Totals())
    rows = numbers_of(found.rows)
    fates = [*rows, *map(int, found.finished), *map(int, found.excess)]
    assert sorted(fates) == sorted({int(each.id) for each in sent})
    assert len(rows) == found.gained.rows <= budget
    assert found.settled <= found.finished
    if dedupe != "off":
        assert {*rows}.isdisjoint(range(10))
    if max_bytes is not None and len(rows) > 1:
        assert found.gained.bodies <= max_bytes
    assert found.gained.rows + found.gained.duplicates + len(found.excess) == len(sent)
