"""The parts of the demo that need no Spark."""

from __future__ import annotations

import json
import re
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
from nsqflow.cli.demo.cluster_workload import ClusterWorkload
from nsqflow.cli.demo.display import DemoProgress, LineDisplay, render, sparkline
from nsqflow.cli.demo.report import (
    ArchivedView,
    DeadLetter,
    Reconciliation,
    after_warm_up,
    latencies,
    reconcile,
    warm_up_end,
)
from nsqflow.cli.demo.workload import (
    RESULTS,
    PageSummary,
    PageViews,
    PartitionRow,
    Workload,
    due,
)
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
        self.dead = [*map(DeadLetter, sorted(broken))]
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


class OrderedLedger(Ledger):
    """The same, of an ordered topic: users are in partitions, in the order of their views."""

    repeated: frozenset[bytes] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.rows = [
            row._replace(
                user=f"u{row.n % 7}", partition=row.n % 7 % 3, offset=10 * row.n, row=row.n
            )
            for row in self.rows
        ]

    def account(self) -> Reconciliation:
        return reconcile(
            self.page_views,
            self.rows,
            self.dead,
            self.sums,
            self.left,
            ordered=True,
            repeated=self.repeated,
        )

    def wrong(self) -> dict[str, int]:
        out_of_order = self.account().out_of_order
        assert out_of_order is not None
        if not out_of_order:
            return super().wrong()
        assert not self.account().is_right
        return {"out of order": out_of_order}

    def copy(self, index: int, *, offset: int) -> None:
        """Have the files hold a view once more; the summaries count it too."""
        row = self.rows[index]._replace(offset=offset, row=offset)
        self.rows.append(row)
        self.sums = [replace(one, views=one.views + (one.page == row.page)) for one in self.sums]


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
    ledger.dead.append(DeadLetter(b"?"))
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


def test_a_report_of_an_ordered_topic_is_right_if_everything_ascends() -> None:
    ledger = OrderedLedger()
    assert ledger.wrong() == {}
    ledger.rows.reverse()  # files are read in any order
    assert ledger.wrong() == {}
    assert (ledger.account().out_of_order, ledger.account().stored_twice) == (0, 0)
    assert Ledger().account().out_of_order is None


def test_a_report_counts_two_views_that_were_swapped_in_a_file() -> None:
    ledger = OrderedLedger()
    one, other = ledger.rows[0], ledger.rows[21]  # of the same user
    ledger.rows[0], ledger.rows[21] = one._replace(row=other.row), other._replace(row=one.row)
    assert ledger.wrong()["out of order"] >= 2


def test_a_report_counts_a_view_of_a_later_batch_that_was_published_earlier() -> None:
    ledger = OrderedLedger()
    ledger.rows = [row._replace(archived=8.0 + row.n // 100) for row in ledger.rows]
    assert ledger.wrong() == {}
    ledger.rows[7] = ledger.rows[7]._replace(archived=99.0)
    assert ledger.wrong() == {"out of order": 1}


def test_a_report_counts_views_of_a_user_that_were_published_in_the_wrong_order() -> None:
    ledger = OrderedLedger()
    one, other = ledger.rows[0], ledger.rows[7]
    ledger.rows[0] = one._replace(offset=other.offset, row=other.row)
    ledger.rows[7] = other._replace(offset=one.offset, row=one.row)
    assert ledger.wrong() == {"out of order": 1}  # positions ascend, views do not


def test_a_lost_view_is_not_out_of_order() -> None:
    ledger = OrderedLedger()
    gone = ledger.rows.pop(500)
    ledger.sums = [replace(one, views=one.views - (one.page == gone.page)) for one in ledger.sums]
    assert ledger.wrong() == {"lost": 1}


def test_what_nsqd_stored_twice_is_counted_apart_from_what_was_duplicated() -> None:
    ledger = OrderedLedger()
    ledger.copy(5, offset=20_000)
    assert ledger.wrong() == {"duplicated": 1}  # not by an uncertain publish
    ledger.repeated = frozenset([json.dumps({"n": ledger.rows[5].n}).encode(), ledger.dead[0].body])
    ledger.dead.append(ledger.dead[0]._replace(partition=1, offset=7))
    assert ledger.wrong() == {}
    assert ledger.account().stored_twice == 2
    ledger.dead.append(ledger.dead[0])  # at the same place
    assert ledger.wrong() == {"duplicated": 1}


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


def read_all(workload: Workload, count: int) -> list[bytes]:
    """Return the next messages of the topic, in their order within each partition."""
    bodies: list[bytes] = []
    with Consumer("views", "test", lookupd=workload.servers["lookupd"]) as consumer:
        for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                return bodies
    raise AssertionError(len(bodies))


def stored_in(workload: Workload) -> int:
    """Return how many messages the partitions have."""
    return sum(row.messages for row in workload.partitions)


def test_a_cluster_publishes_on_while_the_leader_of_a_partition_is_killed() -> None:
    with ClusterWorkload(rate=200, seconds=2, seed=1) as workload:
        workload._call(workload._broker.create_channel("views", "test"))
        workload.open()
        until(lambda: workload.is_over and len(workload.notes) == 2)
        bodies = read_all(workload, workload.published)
        until(lambda: workload.left == 0)
        partitions = [*workload.partitions]
    assert workload.error is None
    assert workload.published == workload.page_views.total == due(2, 200)
    killed, led = workload.notes
    (address,) = re.findall(r"killed nsqd (\S+), the leader of partition 0$", killed)
    assert re.search(r"nsqd \S+ leads partition 0, \d+\.\d s later$", led)
    assert sum(row.messages for row in partitions) >= due(2, 200)
    assert address not in [row.leader for row in partitions]
    users: dict[str, int] = {}
    broken = {*workload.page_views.broken}
    for view in (json.loads(body) for body in bodies if body not in broken):
        assert view["n"] > users.get(view["user"], -1) or workload.repeated
        users[view["user"]] = view["n"]


def test_messages_whose_publish_is_uncertain_are_published_again_and_known() -> None:
    with ClusterWorkload(rate=500, seconds=0.5, seed=1) as workload:
        broker = workload._broker
        workload._call(broker.create_channel("views", "test"))
        broker.slow(2.0)
        workload.open()
        until(lambda: stored_in(workload) > 0)
        assert not workload.published
        workload._loop.call_soon_threadsafe(broker.drop_connections)  # before the answer is sent
        broker.slow(0)
        until(lambda: workload.is_over)
        until(lambda: stored_in(workload) > workload.published)
        found = Counter(read_all(workload, stored_in(workload)))
    assert workload.error is None
    assert len(found) == workload.published
    twice = {body for body, times in found.items() if times > 1}
    assert twice
    assert twice <= workload.repeated


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


def test_screen_and_lines_show_the_leaders_and_what_has_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.console import Console

    workload = ClusterWorkload(rate=1000, seconds=20, seed=1)
    workload.partitions = [PartitionRow(0, "", 700, 20), PartitionRow(1, "127.0.0.1:4150", 800, 5)]
    workload.notes = ["after 10.0 s: killed nsqd 127.0.0.1:4152, the leader of partition 0"]
    progress = DemoProgress(workload, ["archive"])
    console = Console(width=100, record=True)
    with console.capture() as shown:
        console.print(render(progress))
    assert workload.notes[0] in shown.get()
    assert re.search(r"0 +none now +700 +20", shown.get())
    assert re.search(r"1 +127\.0\.0\.1:4150 +800 +5", shown.get())
    lines = LineDisplay()
    for _ in range(2):
        lines.show(progress)
    assert capsys.readouterr().out.count(workload.notes[0]) == 1


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
