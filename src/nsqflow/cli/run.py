"""``nsqflow run``: runs a pipeline file on Spark until it ends or is stopped."""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsqflow.cli.errors import Terminated, hide_in_tracebacks
from nsqflow.cli.run_view import View, describe, open_view, show_java
from nsqflow.cli.servers import CliServers, LookupdOption, NsqdHttpOption, NsqdOption
from nsqflow.cli.terminal import escape, print_err, spinner
from nsqflow.errors import ConfigError, PipelineFailed
from nsqflow.signals import SignalRecorder

if TYPE_CHECKING:
    from nsqflow.pipelines.pipeline import Pipeline
    from nsqflow.pipelines.runner import PipelineRun

_TICK = 0.25  # seconds between two polls of the queries

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file that names servers. "
        "[NSQFLOW_CONFIG, else ~/.config/nsqflow/config.toml; ./nsqflow.toml is not read]",
    ),
]


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
        str | None, typer.Option("--master", metavar="URL", help="The Spark master to run on.")
    ] = None,
    begin_at: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Begin a new pipeline there, on topics of the redesigned NSQ: an ISO time with "
            "its zone, timestamp:SECONDS, earliest, latest or offsets as JSON.",
        ),
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process what is waiting now, then exit.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what it would do, then check it; write nothing. This imports the modules "
            "that the file names and looks up its servers, so it is no sandbox.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print progress as JSON, one line per batch.")
    ] = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> None:
    """Run a pipeline file: from NSQ, through SQL and Python, to files, tables and topics.

    --lookupd and --nsqd override the servers in the file, and those override variables and config.

    It runs until it is stopped. Ctrl-C and SIGTERM let the current batches end; a second signal
    does not wait. When started again, it continues where it was; --from is for a new one.

    Example:
      $ nsqflow run examples/pipelines/views.toml --dry-run
      $ nsqflow run examples/pipelines/views.toml --available-now --set run.master='local[2]'
    """
    from nsqflow.pipelines.inputs import check_inputs
    from nsqflow.pipelines.pipeline import load_pipeline
    from nsqflow.pipelines.reachability import unreachable_error
    from nsqflow.pipelines.summary import summarize
    from nsqflow.pipelines.topics import topic_error
    from nsqflow.spark.starting_position import NEW_POSITION

    def servers() -> Mapping[str, tuple[str, ...]]:
        # Not from ./nsqflow.toml: the servers it names would get the secrets
        # that the pipeline file takes from the environment.
        found = CliServers.of(lookupd, nsqd, nsqd_http, config, trusted_only=True)
        return {"lookupd": found.lookupd, "nsqd": found.nsqd, "nsqd_http": found.nsqd_http}

    first = servers() if lookupd or nsqd or nsqd_http else None
    settings = [*(settings or []), *([f"run.master={master}"] if master else [])]
    pipeline = load_pipeline(file, settings, servers=servers, first=first)
    hide_in_tracebacks(pipeline.document.hide)
    if begin_at is not None:
        pipeline = pipeline.starting_at(NEW_POSITION.parse("--from", begin_at))
    if as_json and any(sink.format == "console" for sink in pipeline.sinks):
        raise ConfigError("--json and a sink of format console would both write to stdout")
    summary = summarize(pipeline) if dry_run else {}
    if summary and not as_json:
        # First, because what follows imports modules and resolves the names of servers.
        print(describe(summary), flush=True)
    # Importing a module would otherwise leave __pycache__ beside it.
    sys.dont_write_bytecode |= dry_run
    check_inputs(pipeline)
    error = unreachable_error(pipeline.source) or topic_error(pipeline)
    if dry_run:
        if error:
            print_err(str(error))
        _dry_run(pipeline, summary, as_json)
    elif error:
        raise error
    else:
        _run(pipeline.now() if available_now else pipeline, as_json)


def _dry_run(pipeline: Pipeline, summary: dict[str, Any], as_json: bool) -> None:
    from nsqflow.pipelines.dry_run import dry_run
    from nsqflow.pipelines.spark_session import session

    with (
        SignalRecorder(Terminated) as signals,
        tempfile.TemporaryDirectory(prefix="nsqflow-") as folder,
        spinner("checking it without messages ..."),
    ):
        # Override the file: a dry run must leave nothing behind.
        nowhere = {
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.eventLog.enabled": "false",
        }
        with session(pipeline, "local[1]", _from_java, **nowhere) as spark:
            signals.start_recording()
            columns = dry_run(spark, pipeline, Path(folder), signals.raise_recorded)
    signals.raise_recorded()
    if as_json:
        print(json.dumps(summary | {"columns": columns}))
        return
    print("\ncolumns")
    for name, text in columns.items():
        print(f"  {escape(name):<12} {escape(text)}")


def _run(pipeline: Pipeline, as_json: bool) -> None:
    from nsqflow.pipelines.runner import PipelineRun
    from nsqflow.pipelines.spark_session import session

    with (
        SignalRecorder(Terminated) as signals,
        open_view(pipeline, as_json=as_json) as view,
        session(pipeline, "", _from_java) as spark,
    ):
        signals.start_recording()
        view.started(spark.sparkContext.uiWebUrl)
        running = PipelineRun(spark, pipeline, lambda: signals.number)
        try:
            _watch(running, view, signals)
        finally:
            running.stop()
        view.show(running)
        failures = running.failures()
        view.failed(failures)
    if failures:
        raise PipelineFailed(failures)
    signals.raise_recorded()


def _from_java(line: str) -> None:
    """Show a line of Java's stderr, except those that Java writes at every start."""
    from nsqflow.spark.jvm import is_noise

    if logging.getLogger("nsqflow").isEnabledFor(logging.DEBUG) or not is_noise(line):
        show_java(line)


def _watch(running: PipelineRun, view: View, signals: SignalRecorder) -> None:
    while running.is_active() and not signals.number:
        view.show(running)
        time.sleep(_TICK)
    if signals.number:
        view.stopping(signal.Signals(signals.number).name)
    running.end()
    while running.is_busy() and not signals.urgent:
        view.show(running)
        time.sleep(_TICK)
