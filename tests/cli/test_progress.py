"""How the progress of a pipeline is counted and shown, without Spark."""

import json
from pathlib import Path
from typing import Any

import pytest

from nsqflow.cli.run_view import JsonView, SinkTotals, View, open_view, show_java
from nsqflow.pipelines.pipeline import Pipeline, load_pipeline
from nsqflow.pipelines.runner import BatchProgress

TEXT = """\
[source]
topic = "views"
nsqd = "127.0.0.1:4150"
[[sink]]
name = "archive"
format = "parquet"
path = "data"
[[sink]]
name = "copy"
format = "nsq"
topic = "out"
"""


class Queries:
    """What a view asks of queries that run."""

    def __init__(self, *batches: BatchProgress) -> None:
        self._batches = [*batches]

    def new_batches(self) -> list[BatchProgress]:
        news, self._batches = self._batches, []
        return news


def batch(sink: str, number: int, messages: int, **more: Any) -> BatchProgress:
    at = "2026-01-31T10:00:00.000Z"
    others: dict[str, Any] = {"seconds": 0.5, "backlog": None} | more
    return BatchProgress(sink=sink, batch=number, at=at, messages=messages, **others)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "views.toml").write_text(TEXT)
    return load_pipeline(tmp_path / "views.toml")


def show(view: View, *batches: BatchProgress) -> None:
    queries: Any = Queries(*batches)
    view.show(queries)


def test_each_batch_is_a_line_and_the_sums_come_last(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_view(pipeline, as_json=False) as view:
        capsys.readouterr()
        show(view, batch("archive", 0, 1200, rows=1190, remaining=300), batch("copy", 0, 1))
        show(view, batch("archive", 1, 300, rows=1))
    assert capsys.readouterr().out.splitlines() == [
        "archive: batch 0, 1,200 messages read, 1,190 rows written in 0.5 s, 300 remain",
        "copy: batch 0, 1 message read in 0.5 s",
        "archive: batch 1, 300 messages read, 1 row written in 0.5 s",
        "archive: 1,500 messages read, 1,191 rows written in 2 batches",
        "copy: 1 message read in 1 batch",
    ]


def test_programs_get_an_object_for_each_event(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_view(pipeline, as_json=True) as view:
        assert isinstance(view, JsonView)
        view.started("http://localhost:4040")
        show(view, batch("copy", 7, 20, rows=18, backlog=20, remaining=0, lag_seconds=1.5))
        view.stopping("SIGTERM")
        view.failed({"archive": "no space"})
    start, *others = map(json.loads, capsys.readouterr().out.splitlines())
    assert (start["event"], start["pipeline"]) == ("start", "views")
    assert others == [
        {"event": "spark", "ui": "http://localhost:4040"},
        {
            "event": "batch",
            "sink": "copy",
            "batch": 7,
            "at": "2026-01-31T10:00:00.000Z",
            "messages": 20,
            "rows": 18,
            "seconds": 0.5,
            "backlog": 20,
            "remaining": 0,
            "lag_seconds": 1.5,
        },
        {"event": "stop", "signal": "SIGTERM"},
        {"event": "failure", "sink": "archive", "reason": "no space"},
        {
            "event": "end",
            "sinks": {
                "archive": {"batches": 0, "messages": 0, "rows": 0},
                "copy": {"batches": 1, "messages": 20, "rows": 18},
            },
        },
    ]


def test_a_run_that_could_not_begin_has_no_sums(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="no Java"), open_view(pipeline, as_json=False):
        raise OSError("no Java")
    assert "messages" not in capsys.readouterr().out


def test_the_table_has_what_waits_after_a_batch() -> None:
    total = SinkTotals()
    assert total.cells() == [0, 0, 0, None, None, None]
    total.add(batch("archive", 0, 100, rows=90, remaining=150))
    batches, messages, rows, rate, left, took = total.cells()
    assert (batches, messages, rows, left, took) == (1, 100, 90, 150, "0.5 s")
    assert isinstance(rate, float)
    assert 0 < rate <= 200
    total.add(batch("archive", 1, 200, remaining=0))
    assert total.cells()[4] == 0


def test_rows_are_unknown_once_a_batch_does_not_count_them() -> None:
    total = SinkTotals()
    total.add(batch("archive", 0, 5, rows=5))
    total.add(batch("archive", 1, 5))
    total.add(batch("archive", 2, 5, rows=5))
    assert (total.messages, total.rows) == (15, None)
    assert total.cells()[2] is None


def test_the_address_of_sparks_ui_is_printed_if_there_is_one(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_view(pipeline, as_json=False) as view:
        capsys.readouterr()
        view.started(None)
        assert capsys.readouterr().out == ""
        view.started("http://localhost:4040")
        assert capsys.readouterr().out == "Spark UI http://localhost:4040\n"


def test_what_java_writes_is_escaped_and_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_java("OpenJDK warning: \x1b[2J\x9b")
    assert capsys.readouterr() == ("", "OpenJDK warning: \\x1b[2J\\x9b\n")


def test_the_rate_is_that_of_the_last_batches() -> None:
    total = SinkTotals()
    total.add(batch("archive", 0, 10**9, seconds=1e-6))
    for number in range(1, 11):
        total.add(batch("archive", number, 1))
    _, messages, _, rate, *_ = total.cells()
    assert messages == 10**9 + 10
    assert isinstance(rate, float)
    assert rate <= 9 / 0.001
