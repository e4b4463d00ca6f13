"""The verb run: wrong files, dry runs, signals, what is shown, and the examples."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nsqflow.broker import BackgroundBroker
from nsqflow.cli.errors import Terminated
from nsqflow.signals import SignalRecorder
from tests.cli.commands import InProcess, run
from tests.cli.terminals import Terminal
from tests.fixtures.servers import ROOT, Nsqd, start_nsqd
from tests.fixtures.spark import (
    JVM,
    SPARK_PATIENCE,
    Program,
    session_members,
    without_late_pythons,
)

pytestmark = pytest.mark.timeout(1200)

PIPELINE = """\
[source]
topic = "views"
channel = "c"
options = { maxMessagesPerTrigger = 100, msgTimeout = "3s", idleTimeout = "200ms" }

[parse]
format = "json"
schema = "n INT NOT NULL"

[[transform]]
name = "squares"
sql = "SELECT n, n * n AS square FROM input"

[[sink]]
name = "archive"
format = "parquet"
path = "data/squares"

[[sink]]
name = "copy"
format = "nsq"
topic = "squares"

[[sink]]
name = "broken"
of = "errors"
select = "CAST(body AS STRING) AS body, error"
format = "json"
path = "data/broken"

[run]
master = "local[2,4]"

[run.conf]
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.ui.enabled" = false
"""


def without(*sinks: str) -> str:
    """The pipeline without some of its sinks: each costs seconds on a small machine."""
    head, *parts = PIPELINE.split("[[sink]]\n")
    last, conf = parts[-1].split("[run]\n")
    kept = [part for part in (*parts[:-1], last) if part.split('"')[1] not in sinks]
    return "[[sink]]\n".join([head, *kept]) + "[run]\n" + conf


@pytest.fixture
def file(empty_folder: Path) -> Path:
    path = empty_folder / "squares.toml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    (tmp_path / "nsqd").mkdir()
    with start_nsqd(tmp_path / "nsqd") as server:
        yield server


def environment(nsqd: Nsqd) -> dict[str, str]:
    return {
        "NSQFLOW_NSQD": nsqd.tcp_address,
        "NSQFLOW_NSQD_HTTP": nsqd.http_address,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def publish(nsqd: Nsqd, topic: str, bodies: Iterable[str]) -> None:
    from nsqflow.blocking import Producer

    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, [body.encode() for body in bodies])


def start(file: Path, nsqd: Nsqd, *options: str, **more: str) -> Program:
    """Run a file; what is temporary is in ``scratch_of`` it, Java's too."""
    scratch = scratch_of(file)
    scratch.mkdir(exist_ok=True)
    java = f"run.conf.spark.driver.extraJavaOptions={JVM} -Djava.io.tmpdir={scratch}"
    command = [sys.executable, "-m", "nsqflow", "run", str(file), *options, "--set", java]
    places = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
    return Program(command, file.parent, **environment(nsqd), **places, **more)


def scratch_of(file: Path) -> Path:
    return file.parent.parent / "scratch"


def await_gone(program: Program) -> None:
    """Wait until nothing that it started is there any more."""
    until(lambda: not session_members(program.process.pid), program)


def find_java(program: Program) -> int:
    """The process that Spark runs in; 0 if there is none yet."""
    for member in session_members(program.process.pid):
        with suppress(OSError):  # it may have ended by now
            if b"deploy.SparkSubmit" in Path(f"/proc/{member}/cmdline").read_bytes():
                return member
    return 0


def until(holds: Callable[[], object], program: Program) -> None:
    deadline = time.monotonic() + SPARK_PATIENCE
    while not holds():
        assert time.monotonic() < deadline, program.account()
        time.sleep(0.02)  # no event for processes that are not our children


def events(program: Program, kind: str) -> list[dict[str, Any]]:
    events = map(json.loads, program.lines)
    return [event for event in events if event["event"] == kind]


# --- wrong files --------------------------------------------------------------------------------


def test_a_wrong_file_is_one_line_and_a_misuse(nsqflow: InProcess, file: Path) -> None:
    file.write_text(PIPELINE.replace('path = "data/broken"', 'pth = "data/broken"'))
    done = nsqflow("run", "squares.toml")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "nsqflow: squares.toml:29: sink.broken.pth is not a key; did you mean 'path'? known: name, "
        "of, select, format, path, topic, lookupd, nsqd, partition_by, mode, batch, channel, "
        "trigger, options\n"
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["none.toml"], "none.toml: No such file or directory"),
        (["squares.toml", "--set", "run"], "--set 'run' is invalid: must be key=value, "),
        (["squares.toml", "--set", "run.mster=x"], "--set: run.mster is not a key; did you mean "),
        (["squares.toml", "--master", "sc://x"], "--set: run.master='sc://x' is invalid"),
        (
            ["squares.toml", "--master", "none"],
            "--set: run.master='none' is invalid: must be local[*], ",
        ),
        (
            ["squares.toml", "--dry-run", "--set", "transform.squares.python=steps:none"],
            "squares.toml:10: transform.squares: both sql and python are given: give one of them",
        ),
        (["squares.toml", "--nsqd", "a:1", "--lookupd", "b:2"], "both --lookupd and --nsqd are"),
        (["squares.toml", "--nsqd-http", "a:1"], "--nsqd-http without --nsqd: it belongs "),
        (["squares.toml", "--config", "none.toml"], "config file 'none.toml': No such file or dir"),
        (
            ["squares.toml", "--json", "--set", "sink.copy.format=console"],
            "squares.toml:22: sink.copy.topic cannot be used with format console",
        ),
        (["squares.toml", "--from", "noon"], "--from='noon' is invalid: must be latest, earliest"),
        (["squares.toml", "--from", "existing"], "--from='existing' is invalid: must be latest, "),
        (["squares.toml", "--from", ""], "--from"),
        (
            ["squares.toml", "--nsqd", "a:1", "--from", "earliest", "--set", "source.files=x"],
            "--set: source.files: files are read from the beginning",
        ),
        ([], "missing argument 'FILE'; see nsqflow run --help"),
    ],
)
def test_a_wrong_command_line_is_an_error_before_spark_is_started(
    nsqflow: InProcess, file: Path, words: list[str], problem: str
) -> None:
    done = nsqflow("run", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"nsqflow: {problem}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("position", ["2026-01-31T10:00:00Z", "latest"])
def test_only_for_a_topic_of_the_redesigned_nsq_the_beginning_can_be_given(
    nsqflow: InProcess, file: Path, nsq_broker: BackgroundBroker, nsqd: Nsqd, position: str
) -> None:
    nsq_broker.create_topic("views")
    directly = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address]
    for servers in (directly, ["--lookupd", nsq_broker.lookupd_addresses[0]]):
        done = nsqflow("run", "squares.toml", *servers, "--from", position)
        text = "--from is for topics of the redesigned NSQ: 'views' is a classic topic"
        assert done == (2, "", f"nsqflow: {text}\n")


def test_the_file_may_say_where_a_classic_topic_begins(
    nsqflow: InProcess, file: Path, nsqd: Nsqd
) -> None:
    start = "source.options.startingPosition="
    words = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address, "--set"]
    done = nsqflow("run", "squares.toml", *words, f"{start}2026-01-31T10:00:00Z")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("and classic NSQ can't go back; must be existing, or latest\n")


def test_a_topic_that_a_redesigned_cluster_lacks_is_an_error_before_spark_is_started(
    nsqflow: InProcess, file: Path, nsq_redesigned_broker: BackgroundBroker
) -> None:
    lookupd = nsq_redesigned_broker.lookupd_addresses[0]
    done = nsqflow("run", "squares.toml", "--lookupd", lookupd)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "nsqflow: squares.toml:1: source: topic 'views' does not exist in the redesigned NSQ, "
        "where publishing creates none: nsqflow create views --partitions N\n"
    )


STEP = '[[transform]]\npython = "{}"\n'


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("no_such_steps:f", "ModuleNotFoundError: No module named 'no_such_steps'; modules are "),
        ("json:f", "json has no function f"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_step_that_cannot_be_called_is_an_error_before_spark_is_started(
    nsqflow: InProcess,
    file: Path,
    function: str,
    problem: str,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file.write_text(PIPELINE + STEP.format(function))
    done = nsqflow("run", "squares.toml", *options)
    assert done.code == 2
    assert bool(done.out) == bool(options)  # a dry run shows first what it would do
    assert done.err.startswith("nsqflow: squares.toml:")
    assert f"transform.2.python '{function}': {problem}" in done.err
    assert done.err.count("\n") == 1


def test_a_dry_run_lists_variables_before_it_imports_or_looks_up_anything(
    file: Path, empty_folder: Path
) -> None:
    (file.parent / "noisy.py").write_text("print('imported', flush=True)\nraise SystemExit(3)\n")
    file.write_text(
        PIPELINE.replace("[source]", '[source]\nnsqd = "${PLACE}:4150"') + STEP.format("noisy:f")
    )
    done = run("run", str(file), "--dry-run", env={**os.environ, "PLACE": "no.such.invalid"})
    *_, variable, imported = done.out.splitlines()
    assert variable == "  variable PLACE: source.nsqd"
    assert imported == "imported"
    assert "no.such.invalid" not in done.out + done.err


def test_a_traceback_shows_no_value_of_a_variable(file: Path, empty_folder: Path) -> None:
    raising = "import os\nraise ValueError(f'no access with {os.environ[\"KEY\"]}')\n"
    (file.parent / "raising.py").write_text(raising)
    step = STEP.format("raising:f") + 'arguments = { key = "${KEY}" }\n'
    file.write_text(PIPELINE + step)
    done = run("--debug", "run", str(file), env={**os.environ, "KEY": "AKIA-secret-1"})
    assert done.code == 2
    assert "ValueError: no access with ${KEY}\n" in done.err
    assert "AKIA-secret-1" not in done.out + done.err


# --- which servers ------------------------------------------------------------------------------


def reads(file: Path, empty_folder: Path, *options: str, **more: str) -> str:
    """What a dry run says it would read from; it ends there, as it finds no Java."""
    without = {"PATH": "/nonexistent", "JAVA_HOME": "", "XDG_CACHE_HOME": "/dev/null/none"}
    done = run("run", str(file), "--dry-run", *options, env={**without, **more})
    assert done.code == 2
    note, error = done.err.splitlines()
    assert note.startswith("nsqflow: no nsq"), done.err
    assert error.startswith("nsqflow: Spark needs Java "), done.err
    (line,) = re.findall("^  reads +topic views, (.+)$", done.out, re.MULTILINE)
    return str(line)


def test_servers_come_from_the_options_then_the_file_then_variables_and_the_config(
    file: Path, empty_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "ci.toml").write_text('nsqd = "ci:4150"\n')
    config = ("--config", str(tmp_path / "ci.toml"))
    assert reads(file, empty_folder) == "nsqd 127.0.0.1:4150"
    assert reads(file, empty_folder, *config) == "nsqd ci:4150"
    assert reads(file, empty_folder, *config, NSQFLOW_LOOKUPD="env:4161") == "nsqlookupd env:4161"
    file.write_text(PIPELINE.replace("[source]", '[source]\nnsqd = "file:4150"'))
    assert reads(file, empty_folder, *config, NSQFLOW_LOOKUPD="env:4161") == "nsqd file:4150"
    shown = reads(
        file, empty_folder, "--lookupd", "a:4161", "--lookupd", "b:4161", NSQFLOW_NSQD="e:1"
    )
    assert shown == "nsqlookupd a:4161, b:4161"
    assert reads(file, empty_folder, "--nsqd", "a:4150", "--nsqd-http", "a:9") == "nsqd a:4150"


def test_servers_of_a_config_file_in_the_current_folder_get_no_secret_of_the_pipeline(
    file: Path, empty_folder: Path, tmp_path: Path
) -> None:
    (empty_folder / "nsqflow.toml").write_text('nsqd = "untrusted:4150"\n')
    assert reads(file, empty_folder) == "nsqd 127.0.0.1:4150"
    (tmp_path / "config" / "nsqflow").mkdir(parents=True)
    (tmp_path / "config" / "nsqflow" / "config.toml").write_text('nsqd = "mine:4150"\n')
    assert reads(file, empty_folder) == "nsqd mine:4150"
    named = str(empty_folder / "nsqflow.toml")
    assert reads(file, empty_folder, NSQFLOW_CONFIG=named) == "nsqd untrusted:4150"


def test_json_and_a_console_cannot_both_have_the_output(nsqflow: InProcess, file: Path) -> None:
    file.write_text('[source]\nfiles = "x"\n[[sink]]\nname = "out"\nformat = "console"\n')
    done = nsqflow("run", "squares.toml", "--json")
    expected = "nsqflow: --json and a sink of format console would both write to stdout\n"
    assert done == (2, "", expected)


def test_a_wrong_file_is_an_error_without_loading_spark(file: Path) -> None:
    file.write_text("[sorce]")
    command = [sys.executable, "-X", "importtime", "-m", "nsqflow", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "nsqflow.pipelines.pipeline" in loaded
    assert loaded.isdisjoint(["pyspark", "pyarrow", "rich.live", "rich.table"])


# --- signals ------------------------------------------------------------------------------------


def test_a_signal_is_raised_before_spark_runs_and_remembered_after() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    now = 100.0
    with SignalRecorder(Terminated, lambda: now) as signals:
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # the same, as `timeout` sends it: Java is being ended
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        now += 1
        signals.start_recording()
        signals.raise_recorded()
        signal.raise_signal(signal.SIGTERM)
        assert (signals.number, signals.urgent) == (signal.SIGTERM, False)
        signal.raise_signal(signal.SIGINT)
        assert (signals.number, signals.urgent) == (signal.SIGTERM, True)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    with pytest.raises(Terminated):
        signals.raise_recorded()


def test_the_same_signal_sent_twice_at_once_counts_once() -> None:
    now = 100.0
    with SignalRecorder(Terminated, lambda: now) as signals:
        signals.start_recording()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert (signals.number, signals.urgent) == (signal.SIGTERM, False)
        now += 1
        signal.raise_signal(signal.SIGTERM)
        assert signals.urgent


TOTAL = 2000


def body(n: int) -> str:
    return f"broken {n}" if n % 10 == 0 else json.dumps({"n": n})


def test_a_run_that_is_terminated_goes_on_where_it_was_with_nothing_lost_or_doubled(
    file: Path, nsqd: Nsqd
) -> None:
    import pyarrow.parquet

    publish(nsqd, "views", map(body, range(TOTAL)))
    with start(file, nsqd, "--json") as first:
        first.await_line('"batch", "sink": "copy"', 2 * SPARK_PATIENCE)
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(SPARK_PATIENCE) == 143, first.account()
        await_gone(first)
    assert [*scratch_of(file).iterdir()] == []
    assert events(first, "stop") == [{"event": "stop", "signal": "SIGTERM"}]
    (end,) = events(first, "end")
    read = {name: counts["messages"] for name, counts in end["sinks"].items()}
    assert all(0 <= count < TOTAL for count in read.values())
    assert read["copy"] > 0

    publish(nsqd, "views", map(body, range(TOTAL, TOTAL + 50)))
    with start(
        *(file, nsqd, "--json", "--available-now"),
        *("--set", "source.options.maxMessagesPerTrigger=5000"),
    ) as second:
        second.await_end(2 * SPARK_PATIENCE)
    for sink in ("archive", "copy", "broken"):
        batches = [batch for batch in events(second, "batch") if batch["sink"] == sink]
        assert read[sink] + sum(batch["messages"] for batch in batches) == TOTAL + 50

    numbers = [n for n in range(TOTAL + 50) if n % 10]
    # All files there are, not only those of Spark's log: none was written for nothing.
    rows = pyarrow.parquet.read_table(file.parent / "data" / "squares").to_pylist()
    assert sorted(row["n"] for row in rows) == numbers
    lines = [
        json.loads(line)
        for path in (file.parent / "data" / "broken").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert sorted(line["body"] for line in lines) == sorted(map(body, range(0, TOTAL + 50, 10)))
    (topic,) = json.loads(nsqd.ask("/stats?format=json&topic=squares")[1])["topics"]
    assert topic["message_count"] == len(numbers)


def test_checkpoint_and_spool_are_beside_each_other_and_said_at_the_start(
    file: Path, nsqd: Nsqd
) -> None:
    with start(file, nsqd) as program:
        for sink in ("archive", "copy", "broken"):
            folder = re.escape(str(file.parent / "nsqflow-data" / "squares" / sink))
            program.await_line(f"channel +c.{sink}$")
            program.await_line(f"checkpoint {folder}/checkpoint$")
            program.await_line(f"spool +{folder}/spool$")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_spark_starts_leaves_no_process_and_no_file(
    file: Path, nsqd: Nsqd, number: signal.Signals, code: int
) -> None:
    files = sorted(file.parent.rglob("*"))
    with start(file, nsqd) as program:
        until(lambda: find_java(program), program)
        program.process.send_signal(number)
        assert program.process.wait(SPARK_PATIENCE) == code, program.account()
        await_gone(program)
    assert "Traceback" not in without_late_pythons("\n".join(program.log))
    assert [*scratch_of(file).iterdir()] == []
    assert sorted(file.parent.rglob("*")) == files
    assert json.loads(nsqd.ask("/stats?format=json")[1])["topics"] == []


HELD = """
from pyspark.sql.functions import udf

def held(frame, gate):
    @udf("int")
    def wait(n):
        open(gate).read()
        return n

    return frame.withColumn("n", wait("n"))
"""


def test_a_second_signal_waits_for_no_batch_and_costs_no_message(file: Path, nsqd: Nsqd) -> None:
    gate = file.parent / "gate"
    os.mkfifo(gate)
    (file.parent / "steps.py").write_text(HELD)
    step = f'[[transform]]\npython = "steps:held"\narguments = {{ gate = "{gate}" }}\n'
    file.write_text(without("copy") + step)
    publish(nsqd, "views", map(body, range(20)))
    with start(file, nsqd, "--json") as first:
        first.await_line('"batch", "sink": "broken"', 2 * SPARK_PATIENCE)
        first.process.send_signal(signal.SIGTERM)
        first.await_line('"stop"')
        assert first.process.poll() is None
        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(SPARK_PATIENCE) == 143, first.account()
        await_gone(first)
    (end,) = events(first, "end")
    assert {name: counts["messages"] for name, counts in end["sinks"].items()} == {
        "archive": 0,
        "broken": 20,
    }
    gate.unlink()
    gate.write_text("open")
    with start(file, nsqd, "--json", "--available-now") as second:
        second.await_end(2 * SPARK_PATIENCE)
    read = {batch["sink"]: batch["messages"] for batch in events(second, "batch")}
    assert read == {"archive": 20}


def test_servers_that_cannot_be_reached_are_an_error_before_spark_starts(file: Path) -> None:
    done = run("run", str(file), env={**os.environ, "NSQFLOW_NSQD": "127.0.0.1:1"})
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "nsqflow: no nsqd is reachable: 127.0.0.1:2: Connection refused "
        "(the HTTP API of nsqd 127.0.0.1:1); "
    )


def test_a_run_that_fails_says_why_in_one_line(file: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Program(
            [sys.executable, "-m", "nsqflow", "run", str(file), "--available-now", "--json"],
            file.parent,
            NSQFLOW_NSQD="127.0.0.1:1",
            NSQFLOW_NSQD_HTTP=f"127.0.0.1:{silent.getsockname()[1]}",
        ) as program,
    ):
        assert program.process.wait(2 * SPARK_PATIENCE) == 1, program.account()
        program.await_log("nsqflow: sink ")
        await_gone(program)
    *others, last = without_late_pythons("\n".join(program.log)).split("\n")
    assert re.match(r"nsqflow: sink \w+: NetworkError: no nsqd is reachable: 127.0.0.1:\d+: ", last)
    assert last.endswith("; nsqflow doctor shows why")
    assert not [line for line in others if line.startswith(("spark:", "\tat", "Traceback"))]
    failures = events(program, "failure")
    assert failures
    assert all(one["reason"].startswith("NetworkError: no nsqd is reachable") for one in failures)
    assert len(events(program, "end")) == 1


@pytest.mark.parametrize(
    ("setting", "said", "problem"),
    [
        (
            "spark.driver.memory=nonsense",
            "Invalid initial heap size|Invalid maximum heap size|Error",
            r"/.*/squares.toml:\d+: run: Java ended while Spark was starting; its output above ",
        ),
        (
            "spark.sql.shuffle.partitions=nonsense",
            "",
            r"/.*squares.toml:\d+: run.master: .*spark.sql.shuffle.partitions",
        ),
    ],
)
def test_what_spark_refuses_at_its_start_is_a_misuse(
    file: Path, nsqd: Nsqd, setting: str, said: str, problem: str
) -> None:
    with start(file, nsqd, "--set", f"run.conf.{setting}") as program:
        assert program.process.wait(SPARK_PATIENCE) == 2, program.account()
        program.await_log(f"^nsqflow: {problem}")
        await_gone(program)
    assert re.search(said, "\n".join(program.log[:-1]))
    assert json.loads(nsqd.ask("/stats?format=json")[1])["topics"] == []


REFUSED = """
import sys
from pathlib import Path

from nsqflow.cli.errors import report
from nsqflow.pipelines.pipeline import load_pipeline
from nsqflow.pipelines.spark_session import session

try:
    pipeline = load_pipeline(Path(sys.argv[1]), ["source.nsqd=127.0.0.1:4150"])
    with session(pipeline) as spark:
        spark.read.parquet("/no/where")
except Exception as error:
    sys.exit(report(error))
"""


def test_an_error_of_spark_is_one_line_though_its_java_has_ended(
    file: Path,
) -> None:
    with Program([sys.executable, "-c", REFUSED, str(file)], file.parent) as program:
        assert program.process.wait(SPARK_PATIENCE) == 1, program.account()
        program.await_log(r"^nsqflow: \[PATH_NOT_FOUND\] .*/no/where")
        assert "Traceback" not in without_late_pythons("\n".join(program.log))


def test_a_spark_that_dies_is_reported_in_one_line(file: Path, nsqd: Nsqd) -> None:
    file.write_text(without("copy", "broken"))
    with start(file, nsqd, "--json") as program:
        program.await_line('"start"')
        channels = "/stats?format=json&topic=views"
        until(lambda: json.loads(nsqd.ask(channels)[1])["topics"], program)
        os.kill(find_java(program), signal.SIGKILL)
        assert program.process.wait(SPARK_PATIENCE) == 1, program.account()
        program.await_log("^nsqflow: Spark's JVM has exited by itself: killed by SIGKILL$")
        await_gone(program)
    assert "Traceback" not in without_late_pythons("\n".join(program.log))


def test_a_signal_to_the_whole_process_group_lets_batches_end_before_java_does(
    file: Path, nsqd: Nsqd
) -> None:
    file.write_text(without("copy"))
    publish(nsqd, "views", map(body, range(200)))
    with start(file, nsqd, "--json", "--set", "run.trigger=0 seconds") as program:
        program.await_line('"batch", "sink": "broken"', 2 * SPARK_PATIENCE)
        program.process.send_signal(signal.SIGTERM)  # as `timeout` does: to it, and to its group
        os.killpg(program.process.pid, signal.SIGTERM)
        assert program.process.wait(SPARK_PATIENCE) == 143, program.account()
        await_gone(program)
    log = without_late_pythons("\n".join(program.log))
    assert "Java" not in log
    assert "Traceback" not in log
    assert events(program, "stop") == [{"event": "stop", "signal": "SIGTERM"}]
    (end,) = events(program, "end")
    assert end["sinks"]["broken"]["messages"] >= 100
    for name, counts in end["sinks"].items():
        batches = [batch for batch in events(program, "batch") if batch["sink"] == name]
        assert counts["rows"] == sum(batch["rows"] for batch in batches)


def test_java_and_its_pythons_end_with_a_command_that_is_killed(file: Path, nsqd: Nsqd) -> None:
    file.write_text(without("copy", "broken"))
    publish(nsqd, "views", map(body, range(20)))
    with start(file, nsqd, "--json") as program:
        program.await_line('"batch"', 2 * SPARK_PATIENCE)
        java = find_java(program)
        assert os.getpgid(java) != os.getpgid(program.process.pid)
        # Beside the command and Java there are Spark's Pythons.
        assert len(session_members(program.process.pid)) > 2
        program.process.kill()
        until(lambda: session_members(program.process.pid) in ([], [program.process.pid]), program)


SLOW_ONCE = """\
#!/bin/sh
case "$*" in
    *python_streaming_source_runner*) mkdir {mark} 2>/dev/null && exit 1 ;;
esac
exec {python} "$@"
"""


def test_a_query_whose_python_was_too_slow_is_started_again(
    file: Path, nsqd: Nsqd, tmp_path: Path
) -> None:
    python, mark = tmp_path / "python", tmp_path / "mark"
    python.write_text(SLOW_ONCE.format(mark=mark, python=shlex.quote(sys.executable)))
    python.chmod(0o700)
    file.write_text(without("copy", "broken"))
    publish(nsqd, "views", map(body, range(20)))
    with start(file, nsqd, "--json", "--available-now", PYSPARK_PYTHON=str(python)) as program:
        program.await_end(3 * SPARK_PATIENCE)
    assert mark.exists()
    (end,) = events(program, "end")
    assert end["sinks"]["archive"]["messages"] == 20


# As programs for pyspark do, it uses Spark when it is imported.
SPARK_AT_IMPORT = """
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf

spark = SparkSession.builder.getOrCreate()
least = col("n") > spark.sql("SELECT 5").first()[0]

@udf("string")
def text(number):
    return str(number)

def step(frame):
    return frame.where(least).withColumn("text", text("n"))
"""


def test_a_dry_run_leaves_no_files(file: Path, nsqd: Nsqd) -> None:
    (file.parent / "log").mkdir()
    (file.parent / "early_steps.py").write_text(SPARK_AT_IMPORT)
    conf = f"""
"spark.eventLog.enabled" = true
"spark.eventLog.dir" = "{file.parent}/log"
"spark.hadoop.fs.s3a.secret.key" = "${{SECRET}}"
"""
    file.write_text(PIPELINE + conf + STEP.format("early_steps:step"))
    files = sorted(file.parent.rglob("*"))
    options = ("--dry-run", "--json", "--set", "sink.copy.topic=${SECRET}")
    more = {"SECRET": "hunter2", "PYTHONDONTWRITEBYTECODE": ""}
    with start(file, nsqd, *options, **more) as program:
        (line,) = program.await_end(2 * SPARK_PATIENCE)
    summary = json.loads(line)
    keys = ["sink.copy.topic", "run.conf.spark.hadoop.fs.s3a.secret.key"]
    assert summary["variables"] == [{"name": "SECRET", "set": True, "keys": keys}]
    assert summary["columns"]["sink archive"] == "n int, square int, text string"
    assert [sink["to"] for sink in summary["sinks"]][1] == "${SECRET}"
    assert "hunter2" not in line + "\n".join(program.log)
    assert sorted(file.parent.rglob("*")) == files
    assert [*scratch_of(file).iterdir()] == []
    assert json.loads(nsqd.ask("/stats?format=json")[1])["topics"] == []


# --- on a terminal ------------------------------------------------------------------------------


def test_a_table_shows_progress_and_ctrl_c_ends_it_cleanly(file: Path, nsqd: Nsqd) -> None:
    publish(nsqd, "views", map(body, range(150)))
    # Java says this before Spark runs: it must not end up in the live line.
    java = f"run.conf.spark.driver.extraJavaOptions={JVM} -Xverify:none"
    options = ("--set", "run.conf.spark.ui.enabled=true", "--set", java)
    with Terminal(["run", str(file), *options], environment(nsqd)) as terminal:
        terminal.await_shown("OpenJDK [^\n]* warning: Options -Xverify:none [^\n]*\n")
        terminal.await_shown("Spark UI http://127.0.0.1:[0-9]+\n")
        # The live line was erased before Java's line, and came again after it.
        java_line = r"starting Spark \.\.\.\r\x1b\[2KOpenJDK [^\n]*\r\nstarting Spark \.\.\."
        assert re.search(java_line, terminal.text), terminal.text
        terminal.await_shown(r"sink +writes +batches +read +written +read/s +waiting +last batch")
        for sink, kind, rows in (("archive", "parquet", 135), ("copy", "nsq", 135)):
            terminal.await_shown(rf"{sink} +{kind} +2 +150 +{rows} .* waiting")
        terminal.await_shown(r"broken +json +2 +150 +15 .* waiting")
        terminal.type("\x03")
        assert terminal.end() == 130, terminal.shown
        assert session_members(terminal.process.pid) == []
    assert "SIGINT: finishing the current batches" in terminal.shown
    assert "archive: 150 messages read, 135 rows written in 2 batches\n" in terminal.shown
    assert "Traceback" not in without_late_pythons(terminal.shown)


def test_a_dry_run_shows_that_it_is_busy_and_ctrl_c_ends_it(file: Path, nsqd: Nsqd) -> None:
    with Terminal(["run", str(file), "--dry-run"], environment(nsqd)) as terminal:
        terminal.await_shown("checking it without messages")
        terminal.type("\x03")
        assert terminal.end() == 130, terminal.shown
        assert session_members(terminal.process.pid) == []
    assert "Traceback" not in without_late_pythons(terminal.shown)


# --- the examples -------------------------------------------------------------------------------


def examples_of_help() -> list[str]:
    _, _, shown = run("run", "--help").out.partition("Example:\n")
    return re.findall(r"^ +\$ (.+)$", shown, re.MULTILINE)


def test_the_examples_of_the_help_run_as_they_stand(
    empty_folder: Path, tmp_path: Path, nsqd: Nsqd
) -> None:
    shutil.copytree(ROOT / "examples" / "pipelines", empty_folder / "examples" / "pipelines")
    files = sorted(empty_folder.rglob("*"))
    command = tmp_path / "nsqflow"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m nsqflow "$@"\n')
    command.chmod(0o700)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    views = [json.dumps({"user": f"u{n}", "page": "/orders", "ms": n}) for n in range(300)]
    publish(nsqd, "views", [*views, "broken", '{"user": "u"}'])

    dry, now = examples_of_help()
    with Program(["sh", "-c", dry], empty_folder, PATH=path, **environment(nsqd)) as program:
        lines = program.await_end(2 * SPARK_PATIENCE)
    assert "  by_section   minute timestamp, section string, views bigint, slow bigint" in lines
    assert sorted(empty_folder.rglob("*")) == files
    (topic,) = json.loads(nsqd.ask("/stats?format=json&topic=views")[1])["topics"]
    assert topic["channels"] == []

    with Program(["sh", "-c", now], empty_folder, PATH=path, **environment(nsqd)) as program:
        lines = program.await_end(2 * SPARK_PATIENCE)
    for sink in ("archive", "sections", "broken"):
        assert [line for line in lines if line.startswith(f"{sink}: 302 messages read, ")]
    data = empty_folder / "examples" / "pipelines" / "data"
    broken = "".join(path.read_text() for path in data.glob("broken/*.json"))
    errors = [json.loads(line) for line in broken.splitlines()]
    assert sorted(error["error"] for error in errors) == ["not JSON", "page is missing"]
    assert list(data.glob("views/day=*/section=shop/*.parquet"))
