"""The verb demo: all of nsqflow at work for twenty seconds, and an account of every message."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsqflow.cli.errors import Failure
from nsqflow.cli.screen import console, note
from nsqflow.errors import ConfigError

if TYPE_CHECKING:
    from nsqflow.cli.demo.live import Lines
    from nsqflow.cli.demo.progress import Progress
    from nsqflow.cli.demo.report import Report
    from nsqflow.cli.demo.site import Site
    from nsqflow.cli.run import _Signals as Signals
    from nsqflow.pipelines.running import Running

_TICK = 0.25  # seconds between two looks
_PATIENCE = 120.0  # seconds without any batch
_LAST = 5.0  # seconds for the last results to come back
_FILES = ("pipeline.toml", "pages.csv")
# Not where the file says: who runs it afterwards, on another NSQ, begins anew.
_SETTINGS = (
    "sink.archive.path=archive",
    "sink.dead.path=dead-letters",
    "run.checkpoint=checkpoint",
)
# For a Spark that lives a minute: no web page, and no compiler that takes its time.
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
        int,
        typer.Option("--rate", min=1, max=100_000, help="Messages per second, on the average."),
    ] = 2000,
    folder: Annotated[
        Path,
        typer.Option(
            "--folder", metavar="FOLDER", help="Each run makes a folder of its own in here."
        ),
    ] = Path("nsqflow-demo"),
    seed: Annotated[int, typer.Option("--seed", help="Other visitors for another number.")] = 1,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Save the screen of half-time as SVG."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Tell the account alone, as a JSON object.")
    ] = False,
) -> int:
    """Show what nsqflow does, with nothing else running; it takes about a minute.

    An NSQ in this process gets page views, some of them broken. Spark archives them as
    Parquet, puts the broken ones aside, and publishes the slowest pages back to NSQ. At the end
    every message is accounted for; the exit code is 1 if one is missing, or there twice.

    Example:
      $ nsqflow demo --seconds 5
    """
    import pyspark  # noqa: F401  (if it is missing, nothing is made)

    from nsqflow.cli.demo.site import Site
    from nsqflow.cli.run import _Signals as Signals

    if picture is not None and not picture.absolute().parent.is_dir():
        raise ConfigError(f"--picture {str(picture)!r}: there is no such folder")
    place = _new_folder(folder)
    try:
        with Signals() as signals:
            with _view(as_json) as view, Site(rate, seconds, seed) as site:
                report = _run(site, place, view, signals, picture)
            signals.raise_again()
    except BaseException:
        note(f"not finished; what there is is in {place}, what Spark said in {place}/spark.log")
        raise
    assert report is not None  # or a signal would have been raised
    report.tell_json() if as_json else report.tell()
    return 0 if report.account.is_right else 1


def _run(
    site: Site, place: Path, view: Lines, signals: Signals, picture: Path | None
) -> Report | None:
    from nsqflow.cli.demo.progress import Progress
    from nsqflow.cli.demo.report import make_report
    from nsqflow.pipelines.pipeline import load_pipeline
    from nsqflow.pipelines.running import Running
    from nsqflow.pipelines.session import end_session, start_session

    pipeline = load_pipeline(place / "pipeline.toml", _SETTINGS, servers=site.servers)
    progress = Progress(site, {sink.name: sink.channel or "" for sink in pipeline.sinks})
    view.say("starting Spark ...")
    with _stderr_in(place / "spark.log"):
        spark = start_session(pipeline, **_CONF)
    try:
        signals.take_over()
        view.say("starting the queries ...")
        running = Running(spark, pipeline)
        try:
            _watch(running, progress, view, signals, picture)
            if not signals.number:
                _end(running, view, signals)
        finally:
            running.stop()
        if signals.number:
            return None
        view.say("reading what was written, and counting ...")
        return make_report(spark, progress, place)
    finally:
        end_session(spark)


def _watch(
    running: Running, progress: Progress, view: Lines, signals: Signals, picture: Path | None
) -> None:
    """Show how it goes, until all that was published has been through all queries."""
    from nsqflow.cli.demo.live import draw

    site, last = progress.site, time.monotonic()
    while not signals.number and not progress.is_done():
        now = time.monotonic()
        for batch in running.news():
            progress.add(batch)
            last = now
        _check(running, site, now - last)
        if site.begun:
            progress.mark(now)
            view.show(progress)
        elif all(progress.batches.values()):
            # The first batch of a query is empty, and takes longest: now they are warm.
            site.open()
        if picture and progress.passed > site.seconds / 2:
            picture.write_text(draw(progress))
            picture = None
        time.sleep(_TICK)
    deadline = time.monotonic() + _LAST
    while not signals.number and not progress.is_summed() and time.monotonic() < deadline:
        time.sleep(_TICK)


def _check(running: Running, site: Site, idle: float) -> None:
    running.check()
    if site.error:
        raise site.error
    if idle > _PATIENCE:
        raise Failure(f"there was no batch for {idle:.0f} s", "--debug tells more")


def _end(running: Running, view: Lines, signals: Signals) -> None:
    """Let batches that Spark makes to clean up end: to break them off is an error to it."""
    view.say("ending the queries ...")
    running.end()
    while running.is_busy() and not signals.number:
        time.sleep(_TICK)


def _new_folder(parent: Path) -> Path:
    """Make a folder for this run, with the pipeline in it; no run touches what another made."""
    number = 1
    while True:
        place = parent / str(number)
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            if not parent.is_dir():
                raise
            number += 1
            continue
        for name in _FILES:
            shutil.copyfile(Path(__file__).parent / name, place / name)
        return place


@contextmanager
def _stderr_in(path: Path) -> Iterator[None]:
    """Have the JVM that is started meanwhile write to a file what would spoil the screen."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _view(as_json: bool) -> Iterator[Lines]:
    from nsqflow.cli.demo.live import Lines, Quiet, Screen, can_draw

    if as_json or not can_draw():
        yield Quiet() if as_json else Lines()
        return
    from rich.live import Live

    with Live(console=console(), refresh_per_second=8, transient=True) as live:
        yield Screen(live)
