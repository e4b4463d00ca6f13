"""``nsqflow run``: a pipeline file on Spark, watched until it ends or is stopped."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsqflow.cli.progress import View, describe, open_view
from nsqflow.cli.screen import busy, clean
from nsqflow.cli.servers import ConfigOption, Servers
from nsqflow.cli.signals import Signals
from nsqflow.errors import ConfigError

if TYPE_CHECKING:
    from nsqflow.pipelines.pipeline import Pipeline
    from nsqflow.pipelines.running import Running

_TICK = 0.25  # seconds between two looks at the queries


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file, in TOML.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a key of the file, as in sink.archive.path=/data; may be repeated.",
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="The Spark to run on.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when what waits now is done with.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check it and show what it would do; touch nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Progress as lines of JSON, one for each batch.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Run a pipeline file: from NSQ, through SQL and Python, to files, tables and topics.

    It runs until it is stopped. Ctrl-C and SIGTERM let the batches that are under way end; a
    second one does not wait. Started again, it goes on where it was.

    Example:
      $ nsqflow run examples/pipelines/views.toml --dry-run
      $ nsqflow run examples/pipelines/views.toml --available-now --set run.master='local[2]'
    """
    from nsqflow.pipelines.pipeline import load_pipeline

    def servers() -> Mapping[str, tuple[str, ...]]:
        found = Servers.of(None, None, None, config)
        return {"lookupd": found.lookupd, "nsqd": found.nsqd, "nsqd_http": found.nsqd_http}

    settings = [*(settings or []), *([f"run.master={master}"] if master else [])]
    pipeline = load_pipeline(file, settings, servers=servers)
    if as_json and any(sink.format == "console" for sink in pipeline.sinks):
        raise ConfigError("--json and a sink of format console would both write to stdout")
    if dry_run:
        _rehearse(pipeline, as_json)
    else:
        _run(pipeline.now() if available_now else pipeline, as_json)


def _rehearse(pipeline: Pipeline, as_json: bool) -> None:
    from nsqflow.pipelines.outline import outline
    from nsqflow.pipelines.rehearsal import rehearse
    from nsqflow.pipelines.session import session

    with (
        Signals() as signals,
        tempfile.TemporaryDirectory(prefix="nsqflow-") as folder,
        busy("trying it on no messages ..."),
    ):
        # Whatever the file says: this must leave nothing behind.
        nowhere = {
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.eventLog.enabled": "false",
        }
        with session(pipeline, "local[1]", **nowhere) as spark:
            signals.take_over()
            columns = rehearse(spark, pipeline, Path(folder), signals.raise_again)
    signals.raise_again()
    told = outline(pipeline)
    if as_json:
        print(json.dumps(told | {"columns": columns}))
        return
    print(describe(told))
    print("\ncolumns")
    for name, text in columns.items():
        print(f"  {clean(name):<12} {clean(text)}")


def _run(pipeline: Pipeline, as_json: bool) -> None:
    from nsqflow.pipelines.running import PipelineFailed, Running
    from nsqflow.pipelines.session import session

    with (
        Signals() as signals,
        open_view(pipeline, as_json=as_json) as view,
        session(pipeline) as spark,
    ):
        signals.take_over()
        running = Running(spark, pipeline, lambda: signals.number)
        try:
            _watch(running, view, signals)
        finally:
            running.stop()
        view.show(running)
        failures = running.failures()
        view.failed(failures)
    if failures:
        raise PipelineFailed(failures)
    signals.raise_again()


def _watch(running: Running, view: View, signals: Signals) -> None:
    while running.is_active() and not signals.number:
        view.show(running)
        time.sleep(_TICK)
    if signals.number:
        view.stopping(signal.Signals(signals.number).name)
    running.end()
    while running.is_busy() and not signals.urgent:
        view.show(running)
        time.sleep(_TICK)
