"""The parts of the demo that need no Spark."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.blocking import Consumer, Producer
from nsqflow.cli.demo.chart import Series, draw, per_second, quantile_per_second, spread
from nsqflow.cli.demo.display import DemoProgress, render, sparkline
from nsqflow.cli.demo.report import (
    ArchivedView,
    Reconciliation,
    after_warm_up,
    latencies,
    reconcile,
    warm_up_end,
)
from nsqflow.cli.demo.workload import RESULTS, PageSummary, PageViews, Workload, due
from nsqflow.pipelines.runner import BatchProgress
from tests.cli.commands import InProcess
from tests.fixtures.crashing import until

SVG = "{http://www.w3.org/2000/svg}"


# --- visits -------------------------------------------------------------------------------------


def test_one_view_in_a_hundred_is_broken_and_all_others_are_complete() -> None:
    page_views = PageViews(seed=1)
    bodies = page_views.make(20_000, now=1e9)
    assert len(bodies) == page_views.total == 20_000
    assert 100 < len(page_views.broken) < 300
    broken = {*page_views.broken}
    views = [json.loads(body) for body in bodies if body not in broken]
    assert [view["n"] for view in views] == [*range(page_views.good)]
    assert sum(count for _, count in page_views.moments) == 20_000
    assert {view["at"] for view in views} == {"2001-09-09T01:46:40.000+00:00"}
    assert len({view["page"] for view in views}) == 12


def test_no_broken_view_is_like_another_or_can_be_read_as_one() -> None:
    page_views = PageViews(seed=2)
    page_views.make(50_000, now=1e9)
    assert Counter(page_views.broken).most_common(1)[0][1] == 1
    for body in page_views.broken:
        with pytest.raises((ValueError, AssertionError)):
            view = json.loads(body)
            assert isinstance(view["n"], int)


@given(st.floats(0, 3600), st.floats(0, 1), st.floats(1, 1e5))
def test_traffic_rises_and_falls_but_never_turns_back(at: float, more: float, rate: float) -> None:
    assert 0 <= due(at, rate) <= due(at + more, rate) <= due(at, rate) + 1.5 * rate * more + 1


def test_whole_turns_of_traffic_have_the_rate_on_the_average() -> None:
    assert due(20.0, 1000) == 20_000


# --- the account --------------------------------------------------------------------------------


class Ledger:
    """What a workload has published, and files that are right; tests spoil them."""

    def __init__(self) -> None:
        self.page_views = PageViews(seed=3)
        bodies = self.page_views.make(1000, now=7.0)
        broken = {*self.page_views.broken}
        self.rows = [
            ArchivedView(n, self.page_views.digests[n], json.loads(body)["page"], 7.0, 8.0)
            for n, body in enumerate(body for body in bodies if body not in broken)
        ]
        self.dead = sorted(broken)
        pages = Counter(row.page for row in self.rows)
        self.sums = [PageSummary(SINCE, page, views, 0, 0) for page, views in pages.items()]
        self.left = 0

    def account(self) -> Reconciliation:
        return reconcile(self.page_views, self.rows, self.dead, self.sums, self.left)

    def wrong(self) -> dict[str, int]:
        """What is not as it should be."""
        account = self.account()
        names = ("lost", "duplicated", "altered", "left", "missummed")
        wrong = {name: number for name in names if (number := getattr(account, name))}
        assert account.is_right == (not wrong)
        return wrong


SINCE = "1970-01-01T01:00:05.000+01:00"


def test_a_report_is_right_if_each_message_was_found_once() -> None:
    ledger = Ledger()
    assert ledger.wrong() == {}
    account = ledger.account()
    assert (account.published, account.archived) == (1000, ledger.page_views.good)
    assert account.dead_lettered == len(ledger.page_views.broken) > 0
    assert account.summed == account.archived


def test_a_report_counts_lost_messages() -> None:
    ledger = Ledger()
    del ledger.dead[0]
    gone = ledger.rows.pop()
    assert ledger.wrong() == {"lost": 2, "missummed": 1}
    ledger.sums = [replace(one, views=one.views - (one.page == gone.page)) for one in ledger.sums]
    assert ledger.wrong() == {"lost": 2}


def test_a_report_counts_duplicated_messages() -> None:
    ledger = Ledger()
    ledger.rows += [ledger.rows[5], ledger.rows[5]]
    ledger.dead.append(ledger.dead[0])
    assert ledger.wrong() == {"duplicated": 3, "missummed": 1}


def test_one_that_is_lost_and_another_that_is_doubled_do_not_make_up_for_each_other() -> None:
    ledger = Ledger()
    first = ledger.rows[0]
    twin = next(n for n, row in enumerate(ledger.rows) if n and row.page == first.page)
    ledger.rows[twin] = first
    assert ledger.account().archived == ledger.page_views.good
    assert ledger.wrong() == {"lost": 1, "duplicated": 1}


def test_a_report_counts_messages_that_were_never_published() -> None:
    ledger = Ledger()
    ledger.dead.append(b"?")
    ledger.rows[3] = ledger.rows[3]._replace(digest=ledger.rows[4].digest)
    assert ledger.wrong() == {"altered": 2}
    ledger.rows.append(ArchivedView(ledger.page_views.good, 0, "/", 7.0, 8.0))
    assert ledger.wrong() == {"altered": 3, "missummed": 1}


def test_a_report_is_wrong_if_one_summary_is_though_the_total_is_right() -> None:
    ledger = Ledger()
    one, other, *rest = ledger.sums
    ledger.sums = [replace(one, views=one.views + 1), replace(other, views=other.views - 1), *rest]
    assert ledger.account().summed == ledger.page_views.good
    assert ledger.wrong() == {"missummed": 2}
    ledger.sums = [replace(one, since="1970-01-01T00:00:10Z"), other, *rest]
    assert ledger.wrong() == {"missummed": 2}


def test_a_report_is_wrong_while_messages_are_left_in_nsq() -> None:
    ledger = Ledger()
    ledger.left = 1
    assert ledger.wrong() == {"left": 1}


def test_a_view_is_in_the_archive_when_its_batch_has_ended() -> None:
    batches = [
        BatchProgress(sink="archive", batch=n, at=at, messages=1, seconds=1.5, backlog=0)
        for n, at in enumerate(["1970-01-01T00:00:10.000Z", "1970-01-01T00:00:12.000Z"])
    ]
    times = [(9.0, 10.25), (10.5, 12.25), (9.0, 8.0)]
    rows = [ArchivedView(n, 0, "/", at, archived) for n, (at, archived) in enumerate(times)]
    assert latencies(rows, batches) == [(9.0, 2.5), (10.5, 3.0)]


# --- the chart ----------------------------------------------------------------------------------


def test_a_chart_counts_by_the_second_and_has_quantiles() -> None:
    moments = [(0.1, 4), (0.9, 1), (2.0, 1), (-1.0, 1), (3.0, 1)]
    assert per_second(moments, 3) == [(0.5, 5), (1.5, 0), (2.5, 1)]
    points = [(0.5, float(n)) for n in range(100)]
    assert quantile_per_second(points, 0.5, 2) == [(0.5, 50.0)]
    assert quantile_per_second(points, 1.0, 2) == [(0.5, 99.0)]
    assert spread([2.0, 2.0, 4.0], 0.0) == [(0.5, 1), (1.5, 1), (3.0, 1)]


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(0, 1e6)), max_size=20))
def test_a_chart_is_a_picture_with_every_point_in_it(points: list[tuple[float, float]]) -> None:
    lines = [Series("a & b", "#111", points), Series("c", "#222", [])]
    picture = ET.fromstring(draw("1 < 2", lines, lines, 60))
    width, height = int(picture.attrib["width"]), int(picture.attrib["height"])
    drawn = picture.findall(f"{SVG}polyline")
    assert [line.attrib["points"].count(",") for line in drawn] == [len(points), 0] * 2
    for line in drawn:
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert "1 < 2" in texts


def test_the_axes_of_a_chart_have_titles() -> None:
    picture = ET.fromstring(draw("title", [], [], 10))
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert texts.count("seconds since the first message") == 2
    assert {"messages per second", "seconds"} <= {*texts}
    assert "warm-up" not in texts


def test_latency_is_drawn_from_the_end_of_the_warm_up_on() -> None:
    start = datetime.fromisoformat("1970-01-01T00:00:10.000Z").timestamp()
    # The first batch of a query is empty.
    batches = [replace(batch_of(0), seconds=0.5), replace(batch_of(9), seconds=4.0)]
    assert warm_up_end(batches) == start + 4.0
    assert warm_up_end(batches[:1]) is None
    delays = [(0.5, 3.5), (3.9, 2.0), (4.0, 1.0), (7.0, 1.5)]
    warm_up, steady = after_warm_up(delays, 4.0)
    assert (warm_up, steady) == (4.0, [(4.0, 1.0), (7.0, 1.5)])
    picture = ET.fromstring(draw("title", [], [Series("median", "#111", steady)], 10, warm_up))
    (band,) = [part for part in picture.findall(f"{SVG}rect") if "x" in part.attrib]
    (line,) = picture.findall(f"{SVG}polyline")
    first = float(line.attrib["points"].split(",")[0])
    assert first == float(band.attrib["x"]) + float(band.attrib["width"])
    assert "warm-up" in [text.text for text in picture.findall(f"{SVG}text")]


def test_a_run_that_is_all_warm_up_is_drawn_as_a_whole() -> None:
    delays = [(0.5, 3.5), (2.0, 2.0)]
    assert after_warm_up(delays, 4.0) == (0.0, delays)
    assert after_warm_up([], 4.0) == (0.0, [])


# --- the workload and its screen ----------------------------------------------------------------


def test_a_workload_publishes_page_views_and_reads_the_results() -> None:
    with Workload(rate=1000, seconds=0.5, seed=1) as workload:
        progress = DemoProgress(workload, ["archive"])
        assert not workload.is_over
        assert workload.published == 0
        workload.open()
        until(lambda: workload.is_over)
        assert workload.published == workload.page_views.total == due(0.5, 1000)
        assert not progress.is_done()
        progress.add(batch_of(workload.published))
        assert progress.is_done()
        sums = [
            {"since": "1", "page": "/", "views": views, "slow": 1, "p95": 5} for views in (3, 7, 3)
        ]
        with Producer(workload.servers["nsqd"]) as producer:
            producer.publish_many(RESULTS, [json.dumps(row).encode() for row in sums])
        until(lambda: workload.sums == {("1", "/"): PageSummary("1", "/", 7, 1, 5)})
    assert workload.error is None


def test_a_workload_that_fails_has_the_error() -> None:
    with Workload(rate=1000, seconds=60, seed=1) as workload:
        with Producer(workload.servers["nsqd"]) as producer:
            producer.publish(RESULTS, b"no JSON")
        until(lambda: workload.error is not None)
    assert isinstance(workload.error, ValueError)


def test_a_workload_is_closed_while_it_publishes() -> None:
    with Workload(rate=1000, seconds=3600, seed=1) as workload:
        workload.open()
        until(lambda: workload.published > 0)
    assert workload.error is None
    assert not workload._thread.is_alive()


def batch_of(messages: int) -> BatchProgress:
    at = "1970-01-01T00:00:10.000Z"
    return BatchProgress(sink="archive", batch=1, at=at, messages=messages, seconds=1.25, backlog=3)


def test_the_screen_shows_rates_waiting_messages_batch_times_and_slow_pages() -> None:
    from rich.console import Console

    workload = Workload(rate=1000, seconds=20, seed=1)
    progress = DemoProgress(workload, ["archive", "dead"])
    workload.sums = {
        (since, page): PageSummary(since, page, 10, 1, p95)
        for since, page, p95 in (("1", "/old", 9999), ("2", "/fast", 20), ("2", "/slow", 4000))
    }
    progress.mark(now=0.0)
    workload.published = 3000
    progress.add(batch_of(500))
    progress.mark(now=2.0)
    console = Console(width=100, record=True)
    with console.capture() as shown:
        console.print(render(progress))
    text = shown.get()
    assert "3,000 published, 1,500 a second" in text
    assert " ".join(text.split("archive")[1].split()[:5]) == "500 250 2,500 1.2 s"
    assert text.index("/slow") < text.index("/fast")
    assert "4,000 ms" in text
    assert "/old" not in text


def test_bars_are_as_high_as_their_numbers() -> None:
    assert sparkline([0, 4, 8, 2]) == " ▄█▂"
    assert sparkline([]) == ""
    assert sparkline([0.0]) == " "


# --- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--seconds", "0"], "0.0 is not in the range 1<=x<=3600"),
        (["--rate", "x"], "'x' is not a valid int"),
        (["--seconds", "3000"], "--seconds 3000 at --rate 2000: more than 1,000,000 messages"),
        (["--folder", "a[b"], "a[b': [ is not allowed there"),
        (["--picture", "no/where.svg"], "--picture 'no/where.svg': there is no such folder"),
    ],
)
def test_a_wrong_option_is_an_error_and_no_folder_is_made(
    words: list[str], error: str, nsqflow: InProcess, empty_folder: Path
) -> None:
    done = nsqflow("demo", *words)
    assert (done.code, done.out) == (2, "")
    assert error in done.err
    assert len(done.err.splitlines()) == 1
    assert [*empty_folder.iterdir()] == []


def test_a_workload_that_is_too_fast_waits_for_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqflow.cli.demo.workload._MAX_WAITING", 1000)
    with Workload(rate=50_000, seconds=1, seed=1) as workload:
        address = workload.servers["nsqd"]
        with Consumer("views", "slow", nsqd=address, max_in_flight=500) as consumer:
            workload.open()
            until(lambda: workload.left >= 1000)
            taken = 0
            for batch in consumer.batches(size=500):
                taken += len(batch)
                batch.finish()
                if taken >= due(1, 50_000):
                    break
        until(lambda: workload.is_over and workload.left == 0)
    assert taken == due(1, 50_000) == workload.published
    assert workload.error is None


def test_a_file_in_place_of_the_folder_is_an_error(nsqflow: InProcess, empty_folder: Path) -> None:
    (empty_folder / "nsqflow-demo").touch()
    done = nsqflow("demo")
    assert (done.code, done.out) == (1, "")
    assert done.err == "nsqflow: nsqflow-demo: File exists\n"
