"""The planner: from what waits on real nsqd to the offsets of batches, without Spark."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest

from nsqflow.errors import ConfigError, DataLossError, NetworkError, SpoolError
from nsqflow.spark.options import parse_stream
from nsqflow.spark.source.offsets import Offset, make_key
from nsqflow.spark.source.planner import BatchPlanner
from nsqflow.spark.source.reader import NsqStreamReader
from nsqflow.spark.spool.layout import generation_marker, planned_marker
from nsqflow.spark.spool.slot_format import PartitionTotals, SlotFooter
from nsqflow.spark.spool.slots import Slots
from tests.fixtures.servers import ROOT, Nsqd, start_nsqd
from tests.spark.queries import post, waiting
from tests.unit.spark.spool_rows import rows_of

Plan = Callable[..., BatchPlanner]


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
def given(tmp_path: Path, nsqd: Nsqd, topic: str) -> dict[str, str]:
    """The options of a query."""
    return {
        "topic": topic,
        "channel": "spark",
        "nsqd": nsqd.tcp_address,
        "nsqdHttp": nsqd.http_address,
        "spoolLocation": str(tmp_path / "spool"),
    }


@pytest.fixture
def plan(given: dict[str, str]) -> Iterator[Plan]:
    """Makes the planning of a query, as each start of it does; the one before has ended."""
    planners: list[BatchPlanner] = []

    def make(**more: str) -> BatchPlanner:
        for planner in planners:
            planner.close()
        planners.append(BatchPlanner(parse_stream(given | more)))
        return planners[-1]

    yield make
    for planner in planners:
        planner.close()


def run(planner: BatchPlanner, end: Offset, rows: int | None = None) -> None:
    """Write to the spool what the tasks of a batch would: everything planned, or ``rows`` rows."""
    for share, budget in zip(
        end.partition_ids(), [n for each in end.plan.values() for n in each], strict=True
    ):
        count = budget if rows is None else rows
        totals = PartitionTotals(rows=count, requeued=1 if count else 0)
        footer = SlotFooter(writer="w", last=True, totals=totals)
        stored = rows_of(range(count)) if count else None
        Slots(planner.store, share.folder).create(0, stored, footer)


# --- offsets ------------------------------------------------------------------------------------


def test_where_there_is_nothing_the_first_offset_names_a_generation_and_stays(plan: Plan) -> None:
    planner = plan()
    first = planner.next(Offset(), 100)
    assert first.generation
    assert (first.seq, first.plan) == (0, {})
    assert planner.next(first, 100) is first
    assert planner.store.age(generation_marker(first.generation)) is not None


def test_a_plan_is_what_waits_up_to_the_limit(plan: Plan, nsqd: Nsqd, topic: str) -> None:
    waiting(nsqd, topic, 25)
    planner, key = plan(), make_key(topic, nsqd.tcp_address)
    end = planner.next(Offset(), 10)
    assert (end.seq, end.total, end.plan) == (1, 10, {key: [10]})
    assert plan().next(Offset(), None).plan == {key: [25]}
    assert plan(partitionsPerNsqd="3").next(Offset(), None).plan == {key: [9, 8, 8]}
    assert plan(maxMessagesPerPartition="10").next(Offset(), None).plan == {key: [9, 8, 8]}
    assert plan(maxBytesPerTrigger="1000").next(Offset(), 500).plan == {key: [5]}


def test_several_nsqd_share_the_limit_by_what_they_have(
    plan: Plan, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    with start_nsqd(tmp_path / "second") as second:
        waiting(nsqd, topic, 30)
        waiting(second, topic, 10)
        both = (nsqd, second)
        planner = plan(
            nsqd=",".join(each.tcp_address for each in both),
            nsqdHttp=",".join(each.http_address for each in both),
        )
        planned = planner.next(Offset(), 20).plan
    assert {key.partition("|")[2]: shares for key, shares in planned.items()} == {
        nsqd.tcp_address: [15],
        second.tcp_address: [5],
    }


def test_a_batch_is_marked_in_the_spool_before_its_offset_is_known(
    plan: Plan, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    planner = plan()
    end = planner.next(Offset(), 100)
    mark = bytes(planner.store.read(planned_marker(end.generation, end.seq)))
    assert Offset.decode(json.loads(mark)) == end
    about = json.loads(bytes(planner.store.read(generation_marker(end.generation))))
    assert about == {"channel": "spark", "topics": [topic], "pattern": "", "former_topics": []}


def test_batches_follow_one_another_in_one_generation(plan: Plan, nsqd: Nsqd, topic: str) -> None:
    waiting(nsqd, topic, 5)
    planner = plan()
    first = planner.next(Offset(), 3)
    run(planner, first)
    second = planner.next(first, 3)
    assert (second.generation, second.seq, second.total) == (first.generation, 2, 6)


def test_each_checkpoint_has_a_generation_of_its_own(plan: Plan) -> None:
    assert plan().next(Offset(), 1).generation != plan().next(Offset(), 1).generation


def test_a_restored_checkpoint_finds_its_batches_unchanged(
    plan: Plan, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    planner = plan()
    first = planner.next(Offset(), 2)
    run(planner, first)
    second = planner.next(first, 3)
    run(planner, second)
    assert plan().next(first, 100) == second


def test_a_plan_of_which_nothing_was_read_is_made_again(plan: Plan, nsqd: Nsqd, topic: str) -> None:
    waiting(nsqd, topic, 5)
    planner = plan()
    first = planner.next(Offset(), 2)
    run(planner, first)
    planner.next(first, 3)  # the driver dies before Spark has written it down
    waiting(nsqd, topic, 5)
    assert plan().next(first, 100).planned == 10


# --- what came of a batch -----------------------------------------------------------------------


def test_a_plan_that_brought_nothing_is_not_made_again_at_once(
    plan: Plan, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    planner = plan()
    first = planner.next(Offset(), 100)
    run(planner, first, rows=0)
    began = monotonic()
    while (second := planner.next(first, 100)) is first:
        pass  # each call takes its time
    assert monotonic() - began > 0.5
    assert second.seq == 2


def test_a_report_says_what_waits_and_what_came_of_the_last_batch(
    plan: Plan, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    planner, key = plan(), make_key(topic, nsqd.tcp_address)
    first = planner.next(Offset(), 3)
    report = planner.report()
    assert (report["backlog"], report["remaining"], report["last_batch"]) == (5, 2, {})
    assert (report["places"][key]["depth"], report["lag_seconds"]) == (5, None)
    assert report["unreachable"] == {}
    run(planner, first)
    planner.next(first, 3)
    last = planner.report()["last_batch"]
    assert (last["seq"], last["rows"], last["requeued"]) == (1, 3, 1)
    assert json.loads(json.dumps(planner.report())) == planner.report()


def test_the_page_on_monitoring_has_every_field_of_a_report(
    plan: Plan, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    planner, key = plan(), make_key(topic, nsqd.tcp_address)
    first = planner.next(Offset(), 3)
    run(planner, first)
    planner.next(first, 3)
    report = planner.report()
    page = (ROOT / "docs" / "spark-monitoring.md").read_text()
    table = page[page.index("| field |") : page.index("`numInputRows`")]
    fields = {*report, *report["last_batch"], *report["places"][key], "forgotten"} - {"seq"}
    assert fields <= {*re.findall(r"`(\w+)`", table)}


def test_what_no_server_has_said_is_unknown_in_a_report(plan: Plan) -> None:
    report = plan().report()
    assert [report[name] for name in ("backlog", "remaining", "lag_seconds")] == [None] * 3


def test_few_messages_are_held_back_after_the_first_batch(
    plan: Plan, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 1)
    planner = plan(minMessagesPerTrigger="3")
    first = planner.next(Offset(), 100)
    assert first.planned == 1
    run(planner, first)
    waiting(nsqd, topic, 1)
    assert planner.next(first, 100) is first
    waiting(nsqd, topic, 1)
    assert planner.next(first, 100).planned == 3


# --- available now ------------------------------------------------------------------------------


def test_what_comes_after_the_start_is_not_planned_for(plan: Plan, nsqd: Nsqd, topic: str) -> None:
    waiting(nsqd, topic, 5)
    planner = plan()
    planner.available_now()
    first = planner.next(Offset(), 3)
    waiting(nsqd, topic, 50)
    run(planner, first)
    second = planner.next(first, 3)
    assert (first.planned, second.planned) == (3, 2)
    run(planner, second)
    assert planner.next(second, 3) is second


def test_a_key_that_brings_nothing_twice_is_given_up(plan: Plan, nsqd: Nsqd, topic: str) -> None:
    waiting(nsqd, topic, 5)
    planner = plan()
    planner.available_now()
    offset = Offset()
    for _ in range(2):
        offset = planner.next(offset, 100)
        run(planner, offset, rows=0)
    assert planner.next(offset, 100) is offset
    assert offset.seq == 2


# --- servers that don't answer ------------------------------------------------------------------


def test_a_query_does_not_begin_without_any_nsqd(plan: Plan) -> None:
    with pytest.raises(NetworkError, match="no nsqd is reachable"):
        plan(nsqd="127.0.0.1:1", nsqdHttp="127.0.0.1:1").next(Offset(), 1)


def test_a_query_that_runs_waits_for_its_nsqd_to_come_back(
    plan: Plan, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data").mkdir()
    with start_nsqd(tmp_path / "data") as server:
        planner = plan(nsqd=server.tcp_address, nsqdHttp=server.http_address)
        first = planner.next(Offset(), 100)
    with caplog.at_level(logging.WARNING, "nsqflow.spark.source.planner"):
        assert planner.next(first, 100) is first
        assert planner.next(first, 100) is first
    assert [each.getMessage()[-14:] for each in caplog.records].count("; trying again") == 1
    same = [f"-tcp-address={server.tcp_address}", f"-http-address={server.http_address}"]
    with start_nsqd(tmp_path / "data", options=same) as server:
        waiting(server, topic, 5)
        while (second := planner.next(first, 100)) is first:
            pass  # an nsqd that failed is not asked for a while
    assert second.planned == 5


def test_available_now_fails_if_no_server_is_reachable(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with start_nsqd(tmp_path / "data") as server:
        planner = plan(nsqd=server.tcp_address, nsqdHttp=server.http_address)
        planner.available_now()
        first = planner.next(Offset(), 100)
    with pytest.raises(NetworkError, match="no nsqd is reachable"):
        planner.next(first, 100)


def test_an_unusable_spool_is_reported_first(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("not a folder")
    with pytest.raises(ConfigError, match="can't create an object"):
        plan().next(Offset(), 1)


# --- losses -------------------------------------------------------------------------------------


def test_a_channel_that_is_gone_is_a_loss(plan: Plan, nsqd: Nsqd, topic: str) -> None:
    planner = plan()
    first = planner.next(Offset(), 1)
    planner.next(first, 1)
    post(nsqd, "/channel/delete", topic)
    with pytest.raises(DataLossError, match=f"channel 'spark' of topic '{topic}' is gone from"):
        planner.next(first, 1)


def test_a_loss_that_is_accepted_is_a_warning(
    plan: Plan, nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    planner = plan(failOnDataLoss="false")
    first = planner.next(Offset(), 1)
    planner.next(first, 1)
    post(nsqd, "/channel/delete", topic)
    assert planner.next(first, 1) is first
    assert f"channel 'spark' of topic '{topic}' is gone" in caplog.text
    waiting(nsqd, topic, 1)
    assert planner.next(first, 1).planned == 1


def replay(planner: BatchPlanner, end: Offset) -> None:
    planner.claim(end.generation)
    planner.check_replay(end)


def test_a_batch_that_is_not_in_the_spool_any_more_is_a_loss(plan: Plan) -> None:
    end = Offset().next("gone", {"orders|127.0.0.1:4150": [7, 8]})
    with pytest.raises(
        DataLossError, match=r"nothing of batch 1 of generation gone: .* Up to 15 mess"
    ):
        replay(plan(), end)
    replay(plan(failOnDataLoss="false"), end)
    replay(plan(), end)  # it is there now


@pytest.mark.parametrize("content", [b"", b"[]", b'{"about": 1}', b"\xff"])
def test_a_mark_of_the_generation_that_is_damaged_is_a_warning(
    plan: Plan, nsqd: Nsqd, topic: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    planner = plan()
    first = planner.next(Offset(), 1)
    planner.store.write(generation_marker(first.generation), content)
    waiting(nsqd, topic, 1)
    assert plan().next(first, 1).planned == 1
    assert (
        f"{planner.store.location}/{generation_marker(first.generation)} is damaged and not used"
        in caplog.text
    )


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
def test_a_plan_that_is_damaged_is_named_with_what_can_be_done(
    plan: Plan, nsqd: Nsqd, topic: str, content: bytes
) -> None:
    waiting(nsqd, topic, 2)
    planner = plan()
    first = planner.next(Offset(), 1)
    run(planner, first)
    before = Offset(first.generation, first.seq - 1)
    mark = planned_marker(first.generation, first.seq)
    planner.store.write(mark, content)
    with pytest.raises(SpoolError, match=f"{mark} is damaged: .* Put the file back, or remove"):
        plan().next(before, 1)  # the checkpoint was taken back by a batch


def test_latest_throws_away_what_is_there_until_the_query_has_begun(
    plan: Plan, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    first = plan(startingPosition="latest").next(Offset(), 100)
    assert first.plan == {}
    waiting(nsqd, topic, 3)
    assert plan(startingPosition="latest").next(first, 100).planned == 3


# --- as Spark calls it --------------------------------------------------------------------------


def test_a_reader_plans_by_the_end_of_a_batch_alone(
    given: dict[str, str], nsqd: Nsqd, topic: str
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows

    waiting(nsqd, topic, 5)
    reader = NsqStreamReader(parse_stream(given | {"partitionsPerNsqd": "2"}))
    start = reader.initialOffset()
    assert start == reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadMaxRows(500_000)
    end = reader.latestOffset(start, ReadMaxRows(3))
    shares = [(each.value, vars(each)["budget"]) for each in reader.partitions(start, end)]
    assert [budget for _, budget in shares] == [2, 1]
    assert shares == [(each.value, vars(each)["budget"]) for each in reader.partitions({}, end)]
    assert reader.partitions(end, end) == []
    assert reader.latestOffset(start, ReadAllAvailable())["total"] == 5
    with pytest.raises(ConfigError, match="must be ReadMaxRows or ReadAllAvailable"):
        reader.latestOffset(start, ReadMaxFiles(1))
    reader.commit(end)
    reader.stop()
