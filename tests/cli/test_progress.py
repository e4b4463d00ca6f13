"""How the progress of a pipeline is counted and shown, without Spark."""

import json
from pathlib import Path
from typing import Any

import pytest

from nsqflow.cli.progress import JsonView, Tally, View, open_view
from nsqflow.pipelines.pipeline import Pipeline, load_pipeline
from nsqflow.pipelines.running import Batch

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

    def __init__(self, *batches: Batch) -> None:
        self._batches = [*batches]

    def news(self) -> list[Batch]:
        news, self._batches = self._batches, []
        return news


def batch(sink: str, number: int, messages: int, **more: Any) -> Batch:
    at = "2026-01-31T10:00:00.000Z"
    others: dict[str, Any] = {"seconds": 0.5, "backlog": None} | more
    return Batch(sink=sink, batch=number, at=at, messages=messages, **others)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "views.toml").write_text(TEXT)
    return load_pipeline(tmp_path / "views.toml")


def show(view: View, *batches: Batch) -> None:
    queries: Any = Queries(*batches)
    view.show(queries)


def test_each_batch_is_a_line_and_the_sums_come_last(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_view(pipeline, as_json=False) as view:
        capsys.readouterr()
        show(view, batch("archive", 0, 1200, backlog=1500), batch("copy", 0, 1))
        show(view, batch("archive", 1, 300))
    assert capsys.readouterr().out.splitlines() == [
        "archive: batch 0, 1,200 messages in 0.5 s, 1,500 waited",
        "copy: batch 0, 1 message in 0.5 s",
        "archive: batch 1, 300 messages in 0.5 s",
        "archive: 1,500 messages in 2 batches",
        "copy: 1 message in 1 batch",
    ]


def test_programs_get_an_object_for_each_event(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_view(pipeline, as_json=True) as view:
        assert isinstance(view, JsonView)
        show(view, batch("copy", 7, 20, backlog=20))
        view.stopping("SIGTERM")
        view.failed({"archive": "no space"})
    start, *others = map(json.loads, capsys.readouterr().out.splitlines())
    assert (start["event"], start["pipeline"]) == ("start", "views")
    assert others == [
        {
            "event": "batch",
            "sink": "copy",
            "batch": 7,
            "at": "2026-01-31T10:00:00.000Z",
            "messages": 20,
            "seconds": 0.5,
            "backlog": 20,
        },
        {"event": "stop", "signal": "SIGTERM"},
        {"event": "failure", "sink": "archive", "reason": "no space"},
        {
            "event": "end",
            "sinks": {
                "archive": {"batches": 0, "messages": 0},
                "copy": {"batches": 1, "messages": 20},
            },
        },
    ]


def test_a_run_that_could_not_begin_has_no_sums(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="no Java"), open_view(pipeline, as_json=False):
        raise OSError("no Java")
    assert "messages" not in capsys.readouterr().out


def test_the_table_has_what_is_left_behind_a_batch() -> None:
    tally = Tally()
    assert tally.cells() == [0, 0, None, None, None]
    tally.add(batch("archive", 0, 100, backlog=250))
    batches, messages, rate, left, took = tally.cells()
    assert (batches, messages, left, took) == (1, 100, 150, "0.5 s")
    assert isinstance(rate, float)
    assert 0 < rate <= 200
    tally.add(batch("archive", 1, 200, backlog=150))
    assert tally.cells()[3] == 0


def test_the_rate_is_that_of_the_last_batches() -> None:
    tally = Tally()
    tally.add(batch("archive", 0, 10**9, seconds=1e-6))
    for number in range(1, 11):
        tally.add(batch("archive", number, 1))
    _, messages, rate, *_ = tally.cells()
    assert messages == 10**9 + 10
    assert isinstance(rate, float)
    assert rate <= 9 / 0.001
