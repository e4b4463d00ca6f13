"""Progress: reports from what Spark says of a batch and what the spool has of it."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from nsqflow.errors import ConfigError
from nsqflow.spark.listener import BatchReport, NsqListener, batch_reports
from nsqflow.spark.source.offsets import Offset, make_key
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.slot_format import FinConfirmation, PartitionTotals, SlotFooter
from nsqflow.spark.spool.slots import Slots
from tests.unit.spark.spool_rows import rows_of

KEY = make_key("orders", "127.0.0.1:4150")
START = Offset().next("gen", {KEY: [3]})
END = START.next("gen", {KEY: [5, 5]})


@pytest.fixture
def spool(tmp_path: Path) -> LocalStore:
    """A spool with two shares of a batch, as their tasks left them."""
    store = LocalStore(str(tmp_path))
    for share, rows in zip(END.partition_ids(), (4, 2), strict=True):
        slots = Slots(store, share.folder)
        totals = PartitionTotals(rows=rows, duplicates=1, dead_lettered=rows, requeued=1)
        slots.create(0, rows_of(range(rows)), SlotFooter(writer="w", last=True, totals=totals))
        slots.confirm("w", FinConfirmation(slots=[0], requeued=2))
    return store


def source(spool: LocalStore, **change: Any) -> dict[str, Any]:
    latest = {
        "backlog": 12,
        "remaining": 2,
        "paused": 3,
        "deferred": 4,
        "delayed": 1,
        "in_flight": None,
        "lag_seconds": 1.5,
        "last_batch": {"seq": 6, "rows": 9},
        "places": {KEY: {"depth": 12}},
        "unreachable": {"127.0.0.1:4152": "refused"},
        "spool": spool.location,
    }
    return {
        "description": "nsq",
        "startOffset": START.encode(),
        "endOffset": END.encode(),
        "latestOffset": latest,
        "numInputRows": 6,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    } | change


def progress(*sources: dict[str, Any], name: str | None = None) -> StreamingQueryProgress:
    texts = [
        each | {key: json.dumps(each[key]) for key in ("startOffset", "endOffset", "latestOffset")}
        for each in sources
    ]
    return StreamingQueryProgress.fromJson(
        {
            "id": "00000000-0000-0000-0000-000000000001",
            "runId": "00000000-0000-0000-0000-000000000002",
            "name": name,
            "timestamp": "2020-01-01T00:00:00.000Z",
            "batchId": 7,
            "batchDuration": 42,
            "durationMs": {},
            "eventTime": {},
            "numInputRows": 6,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
            "stateOperators": [],
            "sources": texts,
            "sink": {"description": "noop", "numOutputRows": 6},
            "observedMetrics": {},
        }
    )


def test_a_report_sums_the_totals_of_all_partitions(spool: LocalStore) -> None:
    (report,) = batch_reports(progress(source(spool), name="orders"))
    assert report == BatchReport(
        query="orders",
        batch=7,
        duration_ms=42,
        rows=6,
        pulled=14,
        duplicates=2,
        requeued=6,
        dead_lettered=6,
        spool_bytes=report.spool_bytes,
        lost=0,
        backlog=12,
        remaining=2,
        paused=3,
        deferred=4,
        delayed=1,
        in_flight=None,
        lag_seconds=1.5,
        last_batch={"seq": 6, "rows": 9},
        places={KEY: {"depth": 12}},
        unreachable={"127.0.0.1:4152": "refused"},
    )
    assert report.spool_bytes
    assert report.spool_bytes > rows_of(range(6)).nbytes


def test_a_query_without_a_name_is_reported_by_its_id(spool: LocalStore) -> None:
    (report,) = batch_reports(progress(source(spool)))
    assert report.query == "00000000-0000-0000-0000-000000000001"


def test_each_source_of_nsq_has_its_report_and_others_have_none(spool: LocalStore) -> None:
    kafka = source(spool, endOffset={"topic": {"0": 7}})
    number = source(spool, endOffset=7, startOffset=6)
    nothing = source(spool, latestOffset=None)
    reports = batch_reports(progress(kafka, source(spool), number, nothing, source(spool)))
    assert [report.rows for report in reports] == [6, 6]


def test_a_batch_without_anything_new_is_reported_without_rows(spool: LocalStore) -> None:
    (report,) = batch_reports(progress(source(spool, startOffset=END.encode())))
    assert (report.rows, report.pulled, report.spool_bytes, report.backlog) == (0, 0, 0, 12)


def test_counters_of_a_batch_that_is_not_in_the_spool_are_unknown(spool: LocalStore) -> None:
    spool.remove(END.partition_ids()[1].folder)
    (report,) = batch_reports(progress(source(spool)))
    assert (report.rows, report.spool_bytes, report.lost) == (None, None, None)
    assert (report.backlog, report.remaining, report.last_batch["rows"]) == (12, 2, 9)
    assert "rows unknown, " in str(report)


@pytest.mark.parametrize("location", ["/proc/1/nowhere", "gs://bucket/x", "s3://bucket/x"])
def test_where_the_spool_is_out_of_reach_the_rest_is_reported(
    spool: LocalStore, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    status = json.loads(json.dumps(source(spool)["latestOffset"])) | {"spool": location}
    (report,) = batch_reports(progress(source(spool, latestOffset=status)))
    assert (report.rows, report.remaining) == (None, 2)


def test_an_offset_of_a_newer_nsqflow_is_refused(spool: LocalStore) -> None:
    with pytest.raises(ConfigError, match="offset of version 2"):
        batch_reports(progress(source(spool, endOffset=END.encode() | {"v": 2})))


def test_a_report_is_one_line_of_numbers(spool: LocalStore) -> None:
    (report,) = batch_reports(progress(source(spool), name="orders"))
    assert str(report).startswith("orders batch 7: duration_ms 42, rows 6, pulled 14, ")
    assert "\n" not in str(report)
    assert KEY not in str(report)


def test_a_listener_keeps_logs_and_passes_on_each_report(
    spool: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[BatchReport] = []
    listener = NsqListener(heard.append)
    with caplog.at_level(logging.INFO, "nsqflow.spark.listener"):
        for _ in range(1001):
            listener.onQueryProgress(QueryProgressEvent(progress(source(spool))))
    assert len(heard) == len(caplog.records) == 1001
    assert [*listener.reports] == heard[1:]  # the last thousand


def test_every_total_that_counts_messages_is_among_the_counters() -> None:
    totals = PartitionTotals(
        rows=1,
        bytes=2,
        bodies=3,
        duplicates=4,
        requeued=5,
        dead_lettered=6,
        lost=7,
        oldest=8,
        newest=9,
    )
    named = totals.counters()
    assert named.pop("pulled") == 1 + 4 + 6
    assert named.pop("spool_bytes") == 2
    assert named == {name: value for name, value in asdict(totals).items() if name in named}
    assert len(named) == 5
