"""The verb demo: all of nsqflow at work for twenty seconds, and an account of every message."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsqflow.cli.screen import console, note
from nsqflow.errors import ConfigError

if TYPE_CHECKING:
    from nsqflow.cli.demo.live import View
    from nsqflow.cli.demo.report import Report
    from nsqflow.cli.demo.watch import Watch

_MOST = 1_000_000  # messages: each is remembered until it is accounted for
_GLOB = "[]{}*?\\"  # in a path, they mean something to Spark
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
        typer.Option(
            "--rate",
            min=1,
            max=50_000,
            help="Messages per second; half as many more and less as time goes by.",
        ),
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
    _check_options(seconds, rate, folder, picture)
    # If one of them is missing, nothing is made.
    import pyspark  # noqa: F401

    from nsqflow.cli.demo.report import save
    from nsqflow.cli.demo.site import Site
    from nsqflow.cli.demo.watch import Watch
    from nsqflow.cli.signals import Signals
    from nsqflow.spark.java import prepare_java

    prepare_java()
    place = _new_folder(folder)
    try:
        with Signals() as signals:
            with _view(as_json) as view, Site(rate, seconds, seed) as site:
                watch = Watch(site, view, signals)
                report = _run(watch, place)
            signals.raise_again()
    except BaseException:
        note(f"not finished; what there is, is in {place}")
        raise
    assert report is not None  # or a signal would have been raised
    if picture is not None:
        save(picture, watch.picture)
    if as_json:
        report.tell_json()
    else:
        report.tell()
    return 0 if report.account.is_right else 1


def _check_options(seconds: float, rate: int, folder: Path, picture: Path | None) -> None:
    if seconds * rate > _MOST:
        raise ConfigError(f"--seconds {seconds:g} at --rate {rate}: more than {_MOST:,} messages")
    if bad := {*_GLOB} & {*str(folder.absolute())}:
        raise ConfigError(f"--folder {str(folder.absolute())!r}: {min(bad)} is not allowed there")
    if picture is not None and not picture.absolute().parent.is_dir():
        raise ConfigError(f"--picture {str(picture)!r}: there is no such folder")


def _run(watch: Watch, place: Path) -> Report | None:
    """Run the pipeline on the site; nothing comes of it if a signal ends it."""
    from nsqflow.cli.demo.report import make_report
    from nsqflow.pipelines.pipeline import load_pipeline
    from nsqflow.pipelines.running import Running
    from nsqflow.pipelines.session import session

    pipeline = load_pipeline(place / "pipeline.toml", _SETTINGS, servers=watch.site.servers)
    watch.view.say("starting Spark ...")
    with ExitStack() as stack:
        with _stderr_in(place / "spark.log"):
            spark = stack.enter_context(session(pipeline, **_CONF))
        watch.signals.take_over()
        watch.view.say("starting the queries ...")
        running = Running(spark, pipeline, lambda: watch.signals.number)
        try:
            progress = watch.follow(running, [sink.name for sink in pipeline.sinks])
        finally:
            running.stop()
        if watch.signals.number:
            return None
        watch.view.say("reading what was written, and counting ...")
        return make_report(spark, progress, place)


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
def _view(as_json: bool) -> Iterator[View]:
    from nsqflow.cli.demo.live import Lines, Quiet, Screen, can_draw

    if as_json or not can_draw():
        yield Quiet() if as_json else Lines()
        return
    from rich.live import Live

    with Live(console=console(), refresh_per_second=8, transient=True) as live:
        yield Screen(live)
