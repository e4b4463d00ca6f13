"""The parts of the demo that need no Spark."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.blocking import Consumer, Producer
from nsqflow.cli.demo.account import Account, Row, latencies, take_account
from nsqflow.cli.demo.chart import Line, draw, per_second, quantile_per_second, spread
from nsqflow.cli.demo.live import render, sparkline
from nsqflow.cli.demo.progress import Progress
from nsqflow.cli.demo.site import RESULTS, Site, Sum
from nsqflow.cli.demo.visits import Visits, due
from nsqflow.pipelines.running import Batch
from tests.cli.commands import Here
from tests.fixtures.crashing import until

SVG = "{http://www.w3.org/2000/svg}"


# --- visits -------------------------------------------------------------------------------------


def test_one_view_in_a_hundred_is_broken_and_all_others_are_complete() -> None:
    visits = Visits(seed=1)
    bodies = visits.make(20_000, now=1e9)
    assert len(bodies) == visits.total == 20_000
    assert 100 < len(visits.broken) < 300
    broken = {*visits.broken}
    views = [json.loads(body) for body in bodies if body not in broken]
    assert [view["n"] for view in views] == [*range(visits.good)]
    assert sum(count for _, count in visits.moments) == 20_000
    assert {view["at"] for view in views} == {"2001-09-09T01:46:40.000+00:00"}
    assert len({view["page"] for view in views}) == 12


def test_no_broken_view_is_like_another_or_can_be_read_as_one() -> None:
    visits = Visits(seed=2)
    visits.make(50_000, now=1e9)
    assert Counter(visits.broken).most_common(1)[0][1] == 1
    for body in visits.broken:
        with pytest.raises((ValueError, AssertionError)):
            view = json.loads(body)
            assert isinstance(view["n"], int)


@given(st.floats(0, 3600), st.floats(0, 1), st.floats(1, 1e5))
def test_traffic_rises_and_falls_but_never_turns_back(at: float, more: float, rate: float) -> None:
    assert 0 <= due(at, rate) <= due(at + more, rate) <= due(at, rate) + 1.5 * rate * more + 1


def test_whole_turns_of_traffic_have_the_rate_on_the_average() -> None:
    assert due(20.0, 1000) == 20_000


# --- the account --------------------------------------------------------------------------------


class Books:
    """What a site has published, and files that are right; tests spoil them."""

    def __init__(self) -> None:
        self.visits = Visits(seed=3)
        bodies = self.visits.make(1000, now=7.0)
        broken = {*self.visits.broken}
        self.rows = [
            Row(n, self.visits.digests[n], json.loads(body)["page"], 7.0, 8.0)
            for n, body in enumerate(body for body in bodies if body not in broken)
        ]
        self.dead = sorted(broken)
        pages = Counter(row.page for row in self.rows)
        self.sums = [Sum(SINCE, page, views, 0, 0) for page, views in pages.items()]
        self.left = 0

    def account(self) -> Account:
        return take_account(self.visits, self.rows, self.dead, self.sums, self.left)

    def wrong(self) -> dict[str, int]:
        """What is not as it should be."""
        account = self.account()
        names = ("lost", "duplicated", "altered", "left", "missummed")
        wrong = {name: number for name in names if (number := getattr(account, name))}
        assert account.is_right == (not wrong)
        return wrong


SINCE = "1970-01-01T01:00:05.000+01:00"


def test_an_account_is_right_if_each_message_is_where_it_belongs_once() -> None:
    books = Books()
    assert books.wrong() == {}
    account = books.account()
    assert (account.published, account.archived) == (1000, books.visits.good)
    assert account.dead_lettered == len(books.visits.broken) > 0
    assert account.summed == account.archived


def test_an_account_tells_what_was_lost() -> None:
    books = Books()
    del books.dead[0]
    gone = books.rows.pop()
    assert books.wrong() == {"lost": 2, "missummed": 1}
    books.sums = [replace(one, views=one.views - (one.page == gone.page)) for one in books.sums]
    assert books.wrong() == {"lost": 2}


def test_an_account_tells_what_is_there_more_than_once() -> None:
    books = Books()
    books.rows += [books.rows[5], books.rows[5]]
    books.dead.append(books.dead[0])
    assert books.wrong() == {"duplicated": 3, "missummed": 1}


def test_one_that_is_lost_and_another_that_is_doubled_do_not_make_up_for_each_other() -> None:
    books = Books()
    first = books.rows[0]
    twin = next(n for n, row in enumerate(books.rows) if n and row.page == first.page)
    books.rows[twin] = first
    assert books.account().archived == books.visits.good
    assert books.wrong() == {"lost": 1, "duplicated": 1}


def test_an_account_tells_what_nobody_has_published() -> None:
    books = Books()
    books.dead.append(b"?")
    books.rows[3] = books.rows[3]._replace(digest=books.rows[4].digest)
    assert books.wrong() == {"altered": 2}
    books.rows.append(Row(books.visits.good, 0, "/", 7.0, 8.0))
    assert books.wrong() == {"altered": 3, "missummed": 1}


def test_an_account_is_wrong_if_a_sum_is_though_the_total_is_not() -> None:
    books = Books()
    one, other, *rest = books.sums
    books.sums = [replace(one, views=one.views + 1), replace(other, views=other.views - 1), *rest]
    assert books.account().summed == books.visits.good
    assert books.wrong() == {"missummed": 2}
    books.sums = [replace(one, since="1970-01-01T00:00:10Z"), other, *rest]
    assert books.wrong() == {"missummed": 2}


def test_an_account_is_wrong_while_nsq_has_something_left() -> None:
    books = Books()
    books.left = 1
    assert books.wrong() == {"left": 1}


def test_a_view_is_in_the_archive_when_its_batch_has_ended() -> None:
    batches = [
        Batch(sink="archive", batch=n, at=at, messages=1, seconds=1.5, backlog=0)
        for n, at in enumerate(["1970-01-01T00:00:10.000Z", "1970-01-01T00:00:12.000Z"])
    ]
    times = [(9.0, 10.25), (10.5, 12.25), (9.0, 8.0)]
    rows = [Row(n, 0, "/", at, archived) for n, (at, archived) in enumerate(times)]
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
    lines = [Line("a & b", "#111", points), Line("c", "#222", [])]
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


# --- the site and its screen --------------------------------------------------------------------


def test_a_site_publishes_what_its_visitors_do_and_reads_what_comes_back() -> None:
    with Site(rate=1000, seconds=0.5, seed=1) as site:
        progress = Progress(site, ["archive"])
        assert not site.is_over
        assert site.published == 0
        site.open()
        until(lambda: site.is_over)
        assert site.published == site.visits.total == due(0.5, 1000)
        assert not progress.is_done()
        progress.add(batch_of(site.published))
        assert progress.is_done()
        sums = [
            {"since": "1", "page": "/", "views": views, "slow": 1, "p95": 5} for views in (3, 7, 3)
        ]
        with Producer(site.servers()["nsqd"]) as producer:
            producer.publish_many(RESULTS, [json.dumps(row).encode() for row in sums])
        until(lambda: site.sums == {("1", "/"): Sum("1", "/", 7, 1, 5)})
    assert site.error is None


def test_a_site_that_fails_says_so() -> None:
    with Site(rate=1000, seconds=60, seed=1) as site:
        with Producer(site.servers()["nsqd"]) as producer:
            producer.publish(RESULTS, b"no JSON")
        until(lambda: site.error is not None)
    assert isinstance(site.error, ValueError)


def test_a_site_is_closed_while_visitors_come() -> None:
    with Site(rate=1000, seconds=3600, seed=1) as site:
        site.open()
        until(lambda: site.published > 0)
    assert site.error is None
    assert not site._thread.is_alive()


def batch_of(messages: int) -> Batch:
    at = "1970-01-01T00:00:10.000Z"
    return Batch(sink="archive", batch=1, at=at, messages=messages, seconds=1.25, backlog=3)


def test_the_screen_shows_rates_waiting_messages_batch_times_and_slow_pages() -> None:
    from rich.console import Console

    site = Site(rate=1000, seconds=20, seed=1)
    progress = Progress(site, ["archive", "dead"])
    site.sums = {
        (since, page): Sum(since, page, 10, 1, p95)
        for since, page, p95 in (("1", "/old", 9999), ("2", "/fast", 20), ("2", "/slow", 4000))
    }
    progress.mark(now=0.0)
    site.published = 3000
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
def test_a_wrong_option_is_told_and_no_folder_is_made(
    words: list[str], error: str, nsqflow: Here, nowhere: Path
) -> None:
    done = nsqflow("demo", *words)
    assert (done.code, done.out) == (2, "")
    assert error in done.err
    assert len(done.err.splitlines()) == 1
    assert [*nowhere.iterdir()] == []


def test_a_site_that_is_too_fast_waits_for_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqflow.cli.demo.site._MOST_WAITING", 1000)
    with Site(rate=50_000, seconds=1, seed=1) as site:
        address = site.servers()["nsqd"]
        with Consumer("views", "slow", nsqd=address, max_in_flight=500) as consumer:
            site.open()
            until(lambda: site.left >= 1000)
            taken = 0
            for batch in consumer.batches(size=500):
                taken += len(batch)
                batch.finish()
                if taken >= due(1, 50_000):
                    break
        until(lambda: site.is_over and site.left == 0)
    assert taken == due(1, 50_000) == site.published
    assert site.error is None


def test_a_file_in_the_place_of_the_folder_is_told(nsqflow: Here, nowhere: Path) -> None:
    (nowhere / "nsqflow-demo").touch()
    done = nsqflow("demo")
    assert (done.code, done.out) == (1, "")
    assert done.err == "nsqflow: nsqflow-demo/1: Not a directory\n"
