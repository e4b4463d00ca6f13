"""What a query reports of its backlog, and what it must not claim to know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.lag import BatchSummary, describe_backlogs
from nsqflow.spark.source.offsets import make_key
from nsqflow.spark.spool.slot_format import PartitionTotals

SECOND = 10**9
A, B = make_key("orders", "a:4150"), make_key("orders", "b:4150")


def backlog(nsqd: str = "a:4150", **counts: Any) -> ChannelBacklog:
    return ChannelBacklog(topic="orders", nsqd=nsqd, **counts)


def totals(oldest: float, newest: float, rows: int = 1) -> PartitionTotals:
    return PartitionTotals(rows=rows, oldest=int(oldest * SECOND), newest=int(newest * SECOND))


# --- the batch before ---------------------------------------------------------------------------


def test_the_lag_is_that_of_the_key_that_is_farthest_behind() -> None:
    last = BatchSummary(seq=7, totals={A: totals(90, 99), B: totals(10, 40)}, planned_at=100.0)
    assert (last.lag(A), last.lag(B)) == (10.0, 90.0)
    described = last.describe()
    assert described["lag_seconds"] == 90.0
    assert (described["seq"], described["rows"]) == (7, 2)
    assert described["oldest"] == "1970-01-01T00:00:10.000000Z"
    assert described["newest"] == "1970-01-01T00:01:39.000000Z"


def test_a_timestamp_keeps_its_microseconds() -> None:
    moment = PartitionTotals(rows=1, oldest=1_700_000_000_123_456_789, newest=1)
    described = BatchSummary(seq=1, totals={A: moment}, planned_at=0.0).describe()
    assert described["oldest"] == "2023-11-14T22:13:20.123456Z"


def test_a_clock_that_is_ahead_makes_no_negative_lag() -> None:
    assert BatchSummary(seq=1, totals={A: totals(5, 9)}, planned_at=3.0).lag(A) == 0.0


@pytest.mark.parametrize(
    "last",
    [
        BatchSummary(seq=1, totals={A: totals(5, 9)}),  # planned by an earlier release
        BatchSummary(seq=1, totals={A: PartitionTotals(rows=3)}, planned_at=10.0),
        BatchSummary(seq=1, totals={A: PartitionTotals()}, planned_at=10.0),
        BatchSummary(seq=1, planned_at=10.0),
    ],
)
def test_a_lag_that_is_unknown_is_null_not_zero(last: BatchSummary) -> None:
    assert last.describe()["lag_seconds"] is None
    assert last.lag(A) is None
    assert describe_backlogs([backlog(depth=1)], {}, last)["lag_seconds"] is None


def test_totals_of_partitions_add_up_to_the_extremes() -> None:
    assert totals(5, 9) + totals(3, 4) == totals(3, 9, rows=2)
    assert totals(5, 9) + PartitionTotals(duplicates=1) == PartitionTotals(
        rows=1, duplicates=1, oldest=5 * SECOND, newest=9 * SECOND
    )


# --- the backlog --------------------------------------------------------------------------------


def test_what_remains_is_the_backlog_less_the_plan_of_each_key() -> None:
    backlogs = [backlog(depth=10, topic_depth=2), backlog("b:4150", depth=5)]
    found = describe_backlogs(backlogs, {A: [4, 4], B: [9], "gone|c:1": [7]}, None)
    assert (found["backlog"], found["remaining"]) == (17, 4)
    assert [found["places"][key]["remaining"] for key in (A, B)] == [4, 0]


def test_a_query_that_has_caught_up_has_nothing_remaining() -> None:
    found = describe_backlogs([backlog(depth=10)], {A: [10]}, None)
    assert (found["backlog"], found["remaining"]) == (10, 0)


def test_messages_that_no_task_can_get_are_named_apart() -> None:
    found = describe_backlogs(
        [
            ChannelBacklog(topic="orders", nsqd="a:4150", depth=10, topic_depth=1, paused=True),
            ChannelBacklog(
                topic="orders", nsqd="b:4150", depth=3, topic_depth=4, topic_paused=True
            ),
            backlog("c:4150", deferred=5, in_flight=6),
        ],
        {},
        None,
    )
    assert (found["backlog"], found["paused"]) == (3, 15)
    assert (found["deferred"], found["in_flight"]) == (5, 6)
    assert [place["paused"] for place in found["places"].values()] == [True, True, False]


def test_where_nothing_waits_there_is_no_lag() -> None:
    last = BatchSummary(seq=1, totals={A: totals(1, 2)}, planned_at=4.0)
    found = describe_backlogs([backlog(depth=1), backlog("b:4150")], {}, last)
    assert [place["lag_seconds"] for place in found["places"].values()] == [3.0, 0.0]
    assert found["lag_seconds"] == 3.0
    assert describe_backlogs([backlog()], {}, last)["lag_seconds"] == 0.0
    assert describe_backlogs([backlog()], {}, None)["lag_seconds"] == 0.0


def test_the_lag_of_messages_that_are_held_back_is_unknown() -> None:
    found = describe_backlogs([backlog(depth=5, paused=True), backlog("b:4150")], {}, None)
    assert [place["lag_seconds"] for place in found["places"].values()] == [None, 0.0]
    assert found["lag_seconds"] is None


def test_a_backlog_that_is_unknown_is_null_not_zero() -> None:
    found = describe_backlogs(None, {A: [5]}, None)
    assert found.pop("places") == {}
    assert set(found.values()) == {None}
    assert json.loads(json.dumps(found)) == found
