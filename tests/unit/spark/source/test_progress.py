"""The progress of a query in its partitions: what it read, what it can read, what it has lost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.progress import CONFIRM_TIME, MAX_TRIES, LostRange, ReadProgress
from nsqflow.spark.source.rows import row_totals
from nsqflow.spark.spool.coverage import Coverage, RangeSet
from nsqflow.spark.spool.slot_format import PartitionTotals
from tests.unit.spark.source.position_rows import message, rows_at

KEY = "t|0"

# A partition of 10 messages of ten bytes, all of them in the channel.
FULL = ChannelBacklog(
    topic="t", nsqd="a:4150", partition=0, depth=10, message_count=10, message_bytes=100, end=100
)


def totals_of(*numbers: int) -> PartitionTotals:
    return row_totals(rows_at(map(message, numbers)))


def begun(base: int = 0, *, ordered: bool = False) -> ReadProgress:
    progress = ReadProgress()
    progress.begin(KEY, Coverage(base=base), ordered=ordered)
    return progress


def losses(progress: ReadProgress, backlog: ChannelBacklog, at: float = 0.0) -> list[LostRange]:
    """Return what is lost once it has shown for long enough."""
    assert progress.find_losses({KEY: backlog}, at) == []
    return progress.find_losses({KEY: backlog}, at + CONFIRM_TIME)


def test_a_key_of_the_classic_nsq_has_no_progress() -> None:
    progress = ReadProgress()
    classic = ChannelBacklog(topic="t", nsqd="a:4150", depth=3)
    progress.add(classic.key, totals_of(1))
    assert classic.key not in progress
    assert progress.coverage(classic.key) is None
    assert progress.unread(classic) == 3
    assert progress.find_losses({classic.key: classic}, 0.0) == []


def test_what_batches_read_adds_up() -> None:
    progress = begun()
    progress.add(KEY, totals_of(0, 1))
    progress.add(KEY, totals_of(3))
    coverage = progress.coverage(KEY)
    assert coverage is not None
    assert (coverage.resume, coverage.offsets) == (20, RangeSet(((0, 20), (30, 40))))
    assert coverage.newest == 1003
    assert progress.knows_topic("t")
    assert not progress.knows_topic("u")


def test_a_channel_that_is_beyond_what_was_read_has_more_than_its_depth() -> None:
    progress = begun()
    progress.add(KEY, totals_of(0, 1))
    skipped = replace(FULL, cursor=60, depth=4)
    assert progress.unread(skipped) == 4 + 4
    assert progress.unread(replace(skipped, cursor=20)) == 4
    assert progress.unread(replace(skipped, paused=True)) == 0


def test_a_partition_that_ends_before_what_was_read_was_created_again() -> None:
    progress = begun()
    progress.add(KEY, totals_of(*range(10)))
    (loss,) = losses(progress, replace(FULL, end=30))
    assert "created again" in loss.why
    progress.begin(KEY, loss.coverage, ordered=False)
    assert losses(progress, replace(FULL, end=30)) == []


def test_what_the_server_has_removed_is_lost_and_the_query_goes_on_after_it() -> None:
    progress = begun()
    progress.add(KEY, totals_of(0))
    (loss,) = losses(progress, replace(FULL, start=40))
    assert "removed what it had from offset 10 to 40" in loss.why
    assert loss.coverage.resume == 40
    assert loss.coverage.ids == totals_of(0).ids


def test_a_loss_that_shows_for_a_moment_only_is_none() -> None:
    """After a change of leaders the numbers may be wrong."""
    progress = begun()
    removed = replace(FULL, start=40)
    assert progress.find_losses({KEY: removed}, 0.0) == []
    assert progress.find_losses({KEY: FULL}, CONFIRM_TIME - 1) == []
    assert progress.find_losses({KEY: removed}, CONFIRM_TIME + 1) == []


def test_messages_that_are_never_delivered_count_as_lost_after_some_batches() -> None:
    progress = begun()
    progress.add(KEY, totals_of(5))
    stuck = replace(FULL, cursor=60)
    for _ in range(MAX_TRIES - 1):
        assert losses(progress, stuck) == []
        progress.add(KEY, totals_of(6))
    (loss,) = losses(progress, stuck)
    assert "nothing of what it had from offset 0 to 50" in loss.why
    assert loss.coverage.resume == 70


def test_a_batch_that_reads_on_shows_that_nothing_is_stuck() -> None:
    progress = begun()
    for number in range(MAX_TRIES + 1):
        progress.add(KEY, totals_of(number))
    assert losses(progress, replace(FULL, cursor=90)) == []


@given(
    st.dictionaries(
        st.sampled_from(["t|0", "t|1", "u|7"]),
        st.tuples(st.integers(0, 500), st.sets(st.integers(0, 40)), st.booleans()),
    )
)
def test_what_is_stored_is_read_again(given: dict[str, tuple[int, set[int], bool]]) -> None:
    progress = ReadProgress()
    for key, (base, numbers, ordered) in given.items():
        progress.begin(key, Coverage(base=base, first=base, since=base), ordered=ordered)
        progress.add(key, totals_of(*sorted(numbers)))
    assert ReadProgress.decode(progress.encode()).states == progress.states
