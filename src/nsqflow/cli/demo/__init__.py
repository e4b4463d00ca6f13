"""``nsqflow demo``: publishes, archives and aggregates messages, then accounts for each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsqflow.cli.terminal import console, print_err
from nsqflow.errors import ConfigError

if TYPE_CHECKING:
    from nsqflow.cli.demo.display import Display
    from nsqflow.cli.demo.report import DemoReport
    from nsqflow.cli.demo.runner import DemoRunner
    from nsqflow.cli.demo.workload import Workload

_MAX_MESSAGES = 1_000_000  # messages: each is kept in memory until the end
_RATE = 2000
_ORDERED_RATE = 500  # each partition of an ordered topic is read one message at a time
_OVERHEAD = 40.0  # seconds in addition to publishing, on two cores
_GLOB = "[]{}*?\\"  # special characters in Spark's paths
_FILES = ("pipeline.toml", "pages.csv")
# Not the paths of the file: a later run on another NSQ must start from scratch.
_SETTINGS = (
    "sink.archive.path=archive",
    "sink.dead.path=dead-letters",
    "run.checkpoint=checkpoint",
)
# Positions show whether the order was kept: with a folder for each partition, a file has the rows
# of one partition and one batch, in their order.
_ORDERED_SETTINGS = (
    "parse.keep=partition, offset",
    "sink.archive.partition_by=partition",
    "sink.dead.select=base64(body) AS body, partition, offset, error, timestamp",
)
# For a Spark of one minute: no UI, and only the fast compiler.
_CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, max=3600, help="How long to publish.")
    ] = 20,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            min=1,
            max=50_000,
            help="Messages per second on average; the rate varies by half. [2000; with "
            "--redesigned 500]",
        ),
    ] = None,
    redesigned: Annotated[
        bool,
        typer.Option(
            "--redesigned",
            help="Run three nodes of the redesigned NSQ with an ordered topic, and kill a leader "
            "in the middle.",
        ),
    ] = False,
    folder: Annotated[
        Path,
        typer.Option("--folder", metavar="FOLDER", help="Each run creates a new folder in it."),
    ] = Path("nsqflow-demo"),
    seed: Annotated[int, typer.Option("--seed", help="The seed of the random page views.")] = 1,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Save a picture of the screen as SVG."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print only the result, as a JSON object.")
    ] = False,
) -> int:
    """Show what nsqflow does, without other servers; takes about a minute.

    An NSQ in this process gets page views, some of them broken. Spark archives them as
    Parquet, sets the broken ones aside, and publishes the slowest pages back to NSQ. At the end
    every message is accounted for; the exit code is 1 if one is missing or duplicated, or with
    --redesigned out of order.

    Example:
      $ nsqflow demo --seconds 5
      $ nsqflow demo --seconds 5 --redesigned
    """
    if rate is None:
        rate = _ORDERED_RATE if redesigned else _RATE
    _check_options(seconds, rate, folder, picture)
    # Fail before anything is created if it is missing.
    import pyspark  # noqa: F401

    from nsqflow.cli.demo.report import save
    from nsqflow.cli.demo.runner import DemoRunner
    from nsqflow.cli.errors import Terminated
    from nsqflow.signals import SignalRecorder
    from nsqflow.spark.java import prepare_java

    prepare_java()
    run_folder = _new_folder(folder)
    try:
        with SignalRecorder(Terminated) as signals:
            make = _workload_class(redesigned=redesigned)
            with _view(as_json) as view, make(rate, seconds, seed) as workload:
                runner = DemoRunner(workload, view, signals)
                report = _run(runner, run_folder)
            signals.raise_recorded()
    except BaseException:
        print_err(f"not finished; partial results are in {run_folder}")
        raise
    assert report is not None  # or a signal would have been raised
    if picture is not None:
        save(picture, runner.picture)
    if as_json:
        report.print_json()
    else:
        report.print()
    return 0 if report.account.is_right else 1


def _workload_class(*, redesigned: bool) -> type[Workload]:
    from nsqflow.cli.demo.cluster_workload import ClusterWorkload
    from nsqflow.cli.demo.workload import Workload

    return ClusterWorkload if redesigned else Workload


def _check_options(seconds: float, rate: int, folder: Path, picture: Path | None) -> None:
    if seconds * rate > _MAX_MESSAGES:
        raise ConfigError(
            f"--seconds {seconds:g} at --rate {rate}: more than {_MAX_MESSAGES:,} messages"
        )
    if bad := {*_GLOB} & {*str(folder.absolute())}:
        raise ConfigError(f"--folder {str(folder.absolute())!r}: {min(bad)} is not allowed there")
    if picture is not None and not picture.absolute().parent.is_dir():
        raise ConfigError(f"--picture {str(picture)!r}: there is no such folder")


def _run(runner: DemoRunner, run_folder: Path) -> DemoReport | None:
    """Run the pipeline on the workload; return None if a signal ends it."""
    from nsqflow.cli.demo.report import make_report
    from nsqflow.pipelines.pipeline import load_pipeline
    from nsqflow.pipelines.runner import PipelineRun
    from nsqflow.pipelines.spark_session import session

    servers = runner.workload.servers
    settings = (*_SETTINGS, *(_ORDERED_SETTINGS if "lookupd" in servers else ()))
    pipeline = load_pipeline(run_folder / "pipeline.toml", settings, servers=lambda: servers)
    runner.view.say(
        f"starting Spark; the demo takes about {_duration(runner.workload.seconds)} ..."
    )
    with (
        (run_folder / "spark.log").open("a") as log,
        session(pipeline, "", partial(print, file=log, flush=True), **_CONF) as spark,
    ):
        runner.signals.start_recording()
        runner.view.say("starting the queries ...")
        running = PipelineRun(spark, pipeline, lambda: runner.signals.number)
        try:
            progress = runner.follow(running, [sink.name for sink in pipeline.sinks])
        finally:
            running.stop()
        if runner.signals.number:
            return None
        runner.view.say("reading and counting the results ...")
        return make_report(spark, progress, run_folder)


def _duration(seconds: float) -> str:
    """Return the total duration, with starting Spark and reading the files."""
    whole = seconds + _OVERHEAD
    return f"{whole:.0f} s" if whole < 90 else f"{whole / 60:.0f} minutes"


def _new_folder(parent: Path) -> Path:
    """Create a new folder for this run, with the pipeline file in it."""
    parent.mkdir(parents=True, exist_ok=True)
    run_folder = next(
        run_folder for number in count(1) if _is_made(run_folder := parent / str(number))
    )
    for name in _FILES:
        shutil.copyfile(Path(__file__).parent / name, run_folder / name)
    return run_folder


def _is_made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


@contextmanager
def _view(as_json: bool) -> Iterator[Display]:
    from nsqflow.cli.demo.display import Display, LineDisplay, ScreenDisplay, fits_screen

    if as_json or not fits_screen():
        yield Display() if as_json else LineDisplay()
        return
    from rich.live import Live

    with Live(console=console(), refresh_per_second=8, transient=True) as live:
        yield ScreenDisplay(live)
