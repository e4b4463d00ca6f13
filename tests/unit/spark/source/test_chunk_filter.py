"""The chunk filter: each message becomes a row, is finished without one, or goes back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.protocol import Message
from nsqflow.spark.source.chunk_filter import FilteredChunk
from nsqflow.spark.spool.slot_format import PartitionTotals
from tests.unit.spark.source.filtering import Bench
from tests.unit.spark.spool_rows import chunk_of, message, numbers_of


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("spool"))


def numbers(ids: set[bytes] | list[bytes]) -> list[int]:
    return sorted(map(int, ids))


def test_an_empty_chunk_has_no_rows(bench: Bench) -> None:
    assert bench.sorting().filter(chunk_of([]), PartitionTotals()) == FilteredChunk()


def test_new_messages_become_rows(bench: Bench) -> None:
    found = bench.sorting().filter(chunk_of(map(message, range(100, 200))), PartitionTotals())
    assert numbers_of(found.rows) == [*range(100, 200)]
    assert found == FilteredChunk(found.rows, totals=found.totals)
    assert (found.totals.rows, found.totals.bodies) == (100, 1000)
    assert (found.totals.oldest, found.totals.newest) == (100_000, 199_000)


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
def test_messages_in_the_spool_are_dropped_as_dedupe_says(
    bench: Bench, dedupe: str, messages: list[Message], rows: Sequence[int]
) -> None:
    found = bench.sorting(dedupe=dedupe).filter(chunk_of(messages), PartitionTotals())
    dropped = [*range(15 - len(messages), rows[0])]
    assert numbers_of(found.rows) == [*rows]
    assert numbers(found.finished) == numbers(found.settled) == dropped
    assert found.totals.duplicates == len(dropped)


def test_a_message_that_is_twice_in_a_chunk_is_one_row_and_finished_after_it(bench: Bench) -> None:
    chunk = chunk_of([message(20), message(21), message(20, attempts=2)])
    found = bench.sorting().filter(chunk, PartitionTotals())
    assert numbers_of(found.rows) == [20, 21]
    assert found.finished == found.settled == set()
    assert found.totals.duplicates == 1


def test_messages_beyond_the_budget_are_requeued(bench: Bench) -> None:
    found = bench.sorting(budget=12).filter(
        chunk_of(map(message, range(20, 30))), PartitionTotals(rows=5)
    )
    assert numbers_of(found.rows) == [*range(20, 27)]
    assert numbers(found.excess) == [27, 28, 29]


@pytest.mark.parametrize(
    ("so_far", "sizes", "rows", "full"),
    [
        (PartitionTotals(), [10, 10, 10], 3, False),
        (PartitionTotals(), [50, 50, 10], 2, True),
        (PartitionTotals(), [60, 60], 1, True),
        (PartitionTotals(), [500, 10], 1, True),  # the first is taken, whatever its size
        (PartitionTotals(rows=1, bodies=90), [20, 10], 0, True),
        (PartitionTotals(rows=1, bodies=90), [10, 10], 1, True),
    ],
)
def test_a_partition_takes_no_more_bytes_than_it_may(
    bench: Bench, so_far: PartitionTotals, sizes: list[int], rows: int, full: bool
) -> None:
    chunk = chunk_of(message(20 + place, size=size) for place, size in enumerate(sizes))
    found = bench.sorting(max_bytes=100).filter(chunk, so_far)
    assert numbers_of(found.rows) == [*range(20, 20 + rows)]
    assert numbers(found.excess) == [*range(20 + rows, 20 + len(sizes))]
    assert (found.totals.rows, found.totals.bodies) == (rows, sum(sizes[:rows]))
    assert found.full == full


deliveries = st.lists(
    st.builds(message, st.integers(0, 30), st.integers(1, 3), st.integers(2, 40)), max_size=30
)


@given(
    deliveries,
    st.sampled_from(["redelivered", "always", "off"]),
    st.integers(1, 40),
    st.none() | st.integers(1, 500),
)
def test_each_message_has_exactly_one_result(
    bench: Bench, sent: list[Message], dedupe: str, budget: int, max_bytes: int | None
) -> None:
    if dedupe == "off":
        sent = [*{each.id: each for each in sent}.values()]
    elif all(each.attempts == 1 for each in sent):
        dedupe = "always"  # nsqd delivers nothing twice as if for the first time
    found = bench.sorting(budget, max_bytes, dedupe=dedupe).filter(
        chunk_of(sent), PartitionTotals()
    )
    rows = numbers_of(found.rows)
    fates = [*rows, *map(int, found.finished), *map(int, found.excess)]
    assert sorted(fates) == sorted({int(each.id) for each in sent})
    assert len(rows) == found.totals.rows <= budget
    assert found.settled <= found.finished
    if dedupe != "off":
        assert {*rows}.isdisjoint(range(10))
    if max_bytes is not None and len(rows) > 1:
        assert found.totals.bodies <= max_bytes
    assert found.totals.rows + found.totals.duplicates + len(found.excess) == len(sent)
