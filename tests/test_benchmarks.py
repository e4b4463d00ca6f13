"""The benchmarks judge rightly, and their workers for our client still run."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import bench_clients
from benchmarks.against import (
    RevisionError,
    commit_of,
    environment_of,
    goals_of,
    sources_of,
    verdict,
)
from benchmarks.bench_broker import NAMES, STARTERS, WORKER, show_starts, time_start
from benchmarks.bench_clients import GOALS, TABLES, Entry, passed, scenarios_of, selected
from benchmarks.bench_spark import CEILING, ONE, delays_of, show_delays, whole_batches
from benchmarks.clients.worker import BODY, CHANNEL, Stopwatch
from benchmarks.nsq_tools import ToolRuns
from benchmarks.rounds import (
    ContenderFailed,
    Goal,
    Report,
    Sample,
    as_json,
    attainable,
    compare,
    judge,
    measure,
    rotated,
    show,
)
from benchmarks.runs import MAX_COUNT, ROOT, ClientRuns, Figures, next_count, read_figures
from benchmarks.spark_cpu import (
    Process,
    SparkSample,
    descendants,
    processes,
    show_cpu,
    taken,
    taken_below,
)
from benchmarks.spark_reads import rate_of
from benchmarks.topics import Topic
from tests.fixtures.servers import Kind, Nsqd, start_nsqd


def samples(**rates: list[float]) -> dict[str, list[Sample]]:
    return {name: [Sample(rate, 1.0) for rate in taken] for name, taken in rates.items()}


def test_a_ratio_is_taken_within_a_round_against_the_best_there() -> None:
    taken = samples(ours=[8, 30, 10], slow=[1, 10, 2], quick=[2, 5, 1])
    ratio = compare(Goal("ours", ("slow", "quick"), at_least=4), taken)
    assert (ratio.median, ratio.low, ratio.high) == (4, 3, 5)
    assert ratio.reached
    assert ratio.spread == pytest.approx(5 / 3)


def test_of_latencies_the_smallest_is_the_best() -> None:
    taken = {
        name: [Sample(1000, 1.0, p50=0.01, p99=p99)]
        for name, p99 in {"ours": 0.03, "slow": 0.06, "quick": 0.02}.items()
    }
    goal = Goal("ours", ("slow", "quick"), at_most=1.4, of="p99")
    ratio = compare(goal, taken)
    assert ratio.median == pytest.approx(1.5)
    assert not ratio.reached


def test_a_ratio_without_a_goal_is_only_shown(capsys: pytest.CaptureFixture[str]) -> None:
    taken = {"ours": sampler(iter([1.0] * 3)), "theirs": sampler(iter([4.0] * 3))}
    report = judge("test", taken, [Goal("ours", ("theirs",))], rounds=2)
    show(report)
    assert report.reached
    assert "ours: 0.25x theirs (0.25 to 0.25; no goal)" in capsys.readouterr().out


def test_each_round_starts_with_the_next_contender() -> None:
    orders = ["".join(rotated(["a", "b", "c"], number)) for number in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_a_goal_goes_on_with_the_peers_that_ran() -> None:
    goals = [Goal("ours", ("a", "b"), at_least=2), Goal("ours", ("b",)), Goal("b", ("a",))]
    assert list(attainable(goals, samples(ours=[1], a=[1]))) == [Goal("ours", ("a",), at_least=2)]


def sampler(rates: Iterator[float]) -> Callable[[], Sample]:
    return lambda: Sample(next(rates), 1.0)


def test_the_warm_up_does_not_count() -> None:
    report = judge("test", {"a": sampler(iter([99, 1, 2]))}, [], rounds=2)
    assert [sample.rate for sample in report.samples["a"]] == [1, 2]


def test_all_is_measured_once_more_if_the_rounds_disagree(
    capsys: pytest.CaptureFixture[str],
) -> None:
    samplers = {"a": sampler(iter([0, 1, 2, 0, 3, 3])), "b": sampler(iter([1.0] * 6))}
    report = judge("test", samplers, [Goal("a", ("b",), at_least=2)], rounds=2)
    assert [(ratio.low, ratio.high) for ratio in report.ratios] == [(3, 3)]
    assert "once more" in capsys.readouterr().err


def test_a_client_that_fails_is_left_out_and_shown_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> Sample:
        raise ContenderFailed("no legs")

    report = judge(
        "test", {"a": sampler(iter([1.0] * 3)), "b": fail}, [Goal("a", ("b",))], rounds=2
    )
    show(report)
    assert (list(report.samples), report.failures, report.ratios) == (["a"], {"b": "no legs"}, [])
    assert "failed: no legs" in capsys.readouterr().out
    assert json.loads(json.dumps(as_json(report)))["failures"] == {"b": "no legs"}


@pytest.mark.parametrize(
    ("failures", "verdict"),
    [
        ({}, True),
        ({"gnsq (gevent)": "hangs"}, True),
        ({"go-nsq (Go)": "hangs"}, False),
        ({"nsqflow (uvloop)": "hangs"}, False),
    ],
)
def test_only_a_python_peer_may_fail(failures: Mapping[str, str], verdict: bool) -> None:
    assert passed(Report("test", {}, dict(failures), [])) is verdict


def test_every_goal_is_about_rows_that_there_are() -> None:
    for table, goals in GOALS.items():
        names = {entry.name for entry in TABLES[table]}
        assert len(names) == len(TABLES[table])
        assert {name for goal in goals for name in (goal.contender, *goal.peers)} <= names


def test_the_clients_can_be_chosen() -> None:
    assert [entry.name for entry in selected("publish", ["go-nsq", "ansq"])] == [
        "go-nsq (Go)",
        "ansq (asyncio)",
    ]
    assert selected("publish", []) == TABLES["publish"]


def test_figures_are_the_last_line_whatever_a_client_printed_before() -> None:
    figures = read_figures('closing\n{"messages": 200, "seconds": 2, "cpu_seconds": 0.001}\n')
    assert figures == Figures(200, 2, 0.001)
    assert figures.sample() == Sample(rate=100, cpu=5)


@pytest.mark.parametrize("output", ["", "done\n", "{}", "[1]", '{"seconds": 1}'])
def test_a_worker_without_figures_has_failed(output: str) -> None:
    with pytest.raises(ContenderFailed, match="no figures"):
        read_figures(output)


def test_a_count_grows_until_it_takes_long_enough_but_fits_into_nsqd() -> None:
    assert next_count(4000, took=1.0, wanted=2.0) == 10_000
    assert next_count(4000, took=0.0001, wanted=2.0) == 160_000
    assert next_count(1_000_000, took=0.5, wanted=2.0) == MAX_COUNT


def test_percentiles_are_those_of_all_latencies() -> None:
    stopwatch = Stopwatch()
    stopwatch.add_latencies([number / 1000 for number in range(1000, 0, -1)])
    assert stopwatch.figures == {"p50": 0.501, "p99": 0.991}


@pytest.fixture(scope="module")
def bench_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with start_nsqd(tmp_path_factory.mktemp("bench-nsqd")) as server:
        yield server


def runs_of(program: str, scenario: str, nsqd: Nsqd) -> ClientRuns:
    command = [sys.executable, "-c", program]
    return ClientRuns(command, scenario, 0.1, lambda: Topic(nsqd.tcp_address, nsqd.http_address))


FIGURES = 'print(\'{"messages": 1, "seconds": 1, "cpu_seconds": 1}\')'


@pytest.mark.parametrize(
    ("program", "scenario", "reason"),
    [
        ("raise SystemExit('no nsqd')", "publish", "exit code 1: no nsqd"),
        (FIGURES, "publish", "published 0 messages and not 1000"),
        (FIGURES, "through", "published 0 messages and not 6000"),
        (FIGURES, "consume-batch", "left 1000 of 1000 messages unfinished"),
    ],
)
def test_nsqd_must_agree_with_what_a_worker_claims(
    program: str, scenario: str, reason: str, bench_nsqd: Nsqd
) -> None:
    with pytest.raises(ContenderFailed, match=reason):
        runs_of(program, scenario, bench_nsqd).run_once(1000)


def test_a_topic_is_filled_and_gone_afterwards(bench_nsqd: Nsqd) -> None:
    with Topic(bench_nsqd.tcp_address, bench_nsqd.http_address) as topic:
        topic.fill(20_001, BODY)
        assert topic.unfinished() == 20_001
        assert CHANNEL in bench_nsqd.ask("/stats")[1].decode()
    assert json.loads(bench_nsqd.ask("/stats?format=json")[1])["topics"] == []


@pytest.mark.parametrize(
    "entry",
    [entry for table in TABLES for entry in selected(table, ["nsqflow"])],
    ids=lambda entry: f"{entry.scenario}-{entry.runs_on}",
)
def test_each_of_our_workers_runs(entry: Entry, bench_nsqd: Nsqd) -> None:
    new_topic = partial(Topic, bench_nsqd.tcp_address, bench_nsqd.http_address)
    figures = ClientRuns(entry.command, entry.scenario, 0.1, new_topic).run_once(1000)
    # The last batch may hold more than what is left to count.
    assert (
        1000 <= figures.messages < 1500 if "batch" in entry.scenario else figures.messages == 1000
    )
    assert figures.seconds > 0
    assert (figures.p99 is not None) == (entry.scenario == "latency")


# --- this tree beside another commit

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="no git repository"
)


def start_against(folder: Path, *arguments: str, bench: str = "clients") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.bench_{bench}", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@needs_git
@pytest.mark.parametrize(
    ("bench", "scenarios"),
    [("clients", ["consume-batch", "publish"]), ("broker", ["memory", "durable"])],
)
def test_this_tree_is_compared_with_another_commit(
    bench: str, scenarios: list[str], tmp_path: Path
) -> None:
    options = ["--rounds", "2", "--seconds", "0.02"]
    options += [f"--only={scenario}" for scenario in scenarios]
    with start_against(tmp_path, "--against=HEAD", *options, bench=bench) as running:
        out, err = running.communicate(timeout=100)
    assert running.returncode == 0, err
    number = r"\d+\.\d\dx \(\d+\.\d\d to \d+\.\d\d\)"
    verdicts = [rf"  {scenario}: CPU per message {number}, rate {number}" for scenario in scenarios]
    title = rf"this tree over {commit_of('HEAD')}, median of 2 rounds \(min to max\):"
    assert re.search("\n".join([title, *verdicts]) + "\n$", out), out
    assert list(tmp_path.iterdir()) == []


@needs_git
def test_the_other_library_is_that_of_the_commit() -> None:
    with sources_of(commit_of("HEAD")) as sources:
        program = "import nsqflow; print(nsqflow.__file__)"
        found = subprocess.check_output(
            [sys.executable, "-c", program], env=environment_of(sources), text=True
        )
        assert Path(found.strip()) == sources / "nsqflow/__init__.py"
        assert not sources.is_relative_to(ROOT)
    assert not sources.exists()


def test_the_workers_of_both_trees_trim_no_heap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[Mapping[str, str] | None] = []

    class Runs(ClientRuns):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            environments.append(self.environment)

    monkeypatch.setattr(bench_clients, "ClientRuns", Runs)
    args = argparse.Namespace(only=["publish"], seconds=0.1)
    trees = {"this tree": ROOT / "src", "abc": tmp_path}
    with ExitStack() as stack:
        ((scenario, samplers),) = bench_clients.compared_scenarios(args, trees, stack)
    assert (scenario, [*samplers]) == ("publish", [*trees])
    assert [each["PYTHONPATH"] for each in environments if each] == [
        str(ROOT / "src"),
        str(tmp_path),
    ]
    for each in environments:
        assert each is not None
        assert each["MALLOC_TRIM_THRESHOLD_"] == each["MALLOC_MMAP_THRESHOLD_"] == "100000000"


@needs_git
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_the_other_tree_when_it_is_stopped(
    signum: signal.Signals, tmp_path: Path
) -> None:
    with start_against(
        tmp_path, "--against=HEAD", "--rounds", "1000", "--only", "publish"
    ) as running:
        deadline = monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:  # the other tree, then the folder of nsqd
            assert running.poll() is None
            assert monotonic() < deadline
            sleep(0.01)
        os.killpg(running.pid, signum)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + signum, err
    assert list(tmp_path.iterdir()) == []


@needs_git
@pytest.mark.parametrize("revision", ["no-such-branch", "HEAD:src", "-q", ""])
def test_a_revision_that_is_not_a_commit_is_refused_in_one_line(
    revision: str, tmp_path: Path
) -> None:
    with start_against(tmp_path, f"--against={revision}") as running:
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (2, "")
    assert err == (f"bench clients --against: {revision!r} is no commit of this repository\n")


@needs_git
def test_a_commit_without_sources_is_refused() -> None:
    tree = subprocess.check_output(["git", "hash-object", "-t", "tree", "/dev/null"], text=True)
    with pytest.raises(RevisionError, match="has no folder src"), sources_of(tree.strip()):
        pass


def test_a_verdict_gives_the_ratios_of_cpu_and_rate() -> None:
    def sampler_of(cpu: float, rate: float) -> Callable[[], Sample]:
        return lambda: Sample(rate, cpu)

    taken = {"this tree": sampler_of(3, 100), "abc": sampler_of(2, 200)}
    report = measure("consume", taken, goals_of("consume", "abc"), rounds=3)
    assert verdict("consume", report) == (
        "consume: CPU per message 1.50x (1.50 to 1.50), rate 0.50x (0.50 to 0.50)"
    )
    failed = Report("consume", {}, {"abc": "exit code 1"}, [])
    assert verdict("consume", failed) == "consume: failed: abc: exit code 1"


def test_a_verdict_on_latency_gives_its_percentiles() -> None:
    taken = {name: lambda: Sample(1000, 1, p50=0.1, p99=0.2) for name in ("this tree", "abc")}
    report = measure("latency", taken, goals_of("latency", "abc"), rounds=1)
    assert "p50 1.00x (1.00 to 1.00), p99 1.00x (1.00 to 1.00)" in verdict("latency", report)


def test_a_table_or_one_way_of_it_can_be_compared() -> None:
    assert scenarios_of(["consume-batch"]) == ["consume-batch"]
    assert scenarios_of(["publish", "latency"]) == ["publish", "latency"]
    assert scenarios_of(["consume"]) == [
        "consume-handler",
        "consume-iterator",
        "consume-context",
        "consume-batch",
    ]


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, names in STARTERS.items() for name in names]
)
def test_messages_go_through_each_broker_that_is_measured(
    table: str, name: str, tmp_path: Path
) -> None:
    with STARTERS[table][name](tmp_path) as server:
        new_topic = partial(Topic, server.tcp_address, server.http_address)
        if table == "tools":
            assert ToolRuns(0.5, new_topic)().rate > 0
            return
        figures = ClientRuns(WORKER, "through", 0.1, new_topic).run_once(1000)
    assert figures.messages >= 1000
    assert figures.seconds > 0


@pytest.mark.parametrize("kind", ["real", "ours"])
def test_a_start_is_timed_until_a_message_is_taken(kind: Kind) -> None:
    assert time_start(kind) > 0


@pytest.mark.parametrize(("seconds", "reached"), [([1.4, 9.0, 0.1], True), ([1.6], False)])
def test_a_start_is_judged_by_the_median(
    seconds: list[float], reached: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_starts({NAMES["ours"]: seconds, NAMES["real"]: [9.0]}) is reached
    assert ("ok" if reached else "MISSED") in capsys.readouterr().out


def progress(rows: int, start: float, seconds: float) -> Any:
    """What a query says of one batch."""
    timestamp = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=start)
    text = timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    durations = {"triggerExecution": round(1000 * seconds)}
    return SimpleNamespace(numInputRows=rows, timestamp=text, durationMs=durations)


def test_the_rate_of_a_stream_leaves_out_its_first_batch_and_those_without_rows() -> None:
    batches = [progress(100, 0, 9), progress(300, 9.5, 1), progress(0, 10.5, 7)]
    assert rate_of(batches) == 300
    assert rate_of([*batches, progress(300, 11.5, 1)]) == 200


def test_a_stream_of_one_batch_has_no_rate() -> None:
    with pytest.raises(ContenderFailed, match="one batch"):
        rate_of([progress(100, 0, 1), progress(0, 1, 1)])


@pytest.mark.parametrize(("ours", "reached"), [([0.24, 0.9, 0.1], True), ([0.26], False)])
def test_an_idle_stream_is_judged_by_what_it_takes_beyond_the_ceiling(
    ours: list[float], reached: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {
        ONE: [Sample(1, 1, p50=p50, p99=9) for p50 in ours],
        CEILING: [Sample(1, 1, p50=0.2, p99=9) for _ in ours],
    }
    assert show_delays(delays_of(Report("test", taken, {}, [])), most=0.05) is reached
    assert ("ok" if reached else "MISSED") in capsys.readouterr().out


def test_an_idle_stream_that_failed_did_not_reach_its_goal() -> None:
    report = Report("test", {CEILING: [Sample(1, 1, p50=0.2, p99=9)]}, {ONE: "no legs"}, [])
    assert not show_delays(delays_of(report), most=0.05)


def test_cpu_is_shown_by_process_where_spark_ran(capsys: pytest.CaptureFixture[str]) -> None:
    taken: dict[str, list[Sample]] = {
        "spark": [SparkSample(1, 6, jvm=1, python=2, nsqd=3)],
        "client": [Sample(1, 4)],
    }
    show_cpu(Report("test", taken, {}, []))
    shown = capsys.readouterr().out
    assert "JVM  1.00  Python  2.00  nsqd  3.00" in shown
    assert "client" not in shown


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_processes_are_found_below_their_ancestors() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()  # the grandchild runs
        found = processes()
        (grandchild,) = descendants(child.pid, found)
        assert found[grandchild].parent == child.pid
        assert found[os.getpid()].own > 0
        child.communicate()


@pytest.mark.parametrize(
    ("ended_before", "ended", "expected"),
    [
        (5.0, 5.0, 2.0),  # the one that has ended is not waited for
        (5.0, 5.0 + 40.0, 2.0),  # it took nothing since
        (5.0, 5.0 + 43.0, 2.0 + 3.0),
    ],
)
def test_what_an_ended_process_took_before_does_not_count(
    ended_before: float, ended: float, expected: float
) -> None:
    root, stays, ends, stranger = 1, 2, 3, 4
    before = {
        root: Process(0, 1.0, ended_before),
        stays: Process(root, 10.0, 0.0),
        ends: Process(root, 40.0, 0.0),
        stranger: Process(0, 7.0, 0.0),
    }
    after = {
        root: Process(0, 9.0, ended),
        stays: Process(root, 12.0, 0.0),
        stranger: Process(0, 77.0, 0.0),
    }
    assert taken_below(before, after, root) == pytest.approx(expected)
    assert taken(before, after, [root, stranger]) == 78


def test_a_process_that_was_begun_since_counts_with_all_it_took() -> None:
    root = {1: Process(0, 1.0, 0.0)}
    assert taken_below(root, root | {2: Process(1, 3.0, 0.0), 3: Process(2, 4.0, 0.0)}, 1) == 7


@pytest.mark.parametrize("text", ["0", "-2000", "2001", "many", ""])
def test_messages_that_make_no_whole_batches_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a multiple of 2,000 is needed"):
        whole_batches(text)
    assert whole_batches("4000") == 4000
