"""``nsqflow run``: a pipeline file on Spark, watched until it ends or is stopped."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsqflow.cli.errors import Terminated
from nsqflow.cli.screen import clean, console, count, note, on_terminal, rich_table
from nsqflow.cli.servers import ConfigOption, Servers
from nsqflow.errors import ConfigError

if TYPE_CHECKING:
    from rich.live import Live

    from nsqflow.pipelines.pipeline import Pipeline
    from nsqflow.pipelines.running import Batch, Running

_TICK = 0.25  # seconds between two looks at the queries
_HEADS = ("sink", "writes", "batches", "messages", "per second", "waiting", "last batch", "state")


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
    from nsqflow.pipelines.session import end_session, start_session

    with _Signals() as signals, tempfile.TemporaryDirectory(prefix="nsqflow-") as folder:
        warehouse = {"spark.sql.warehouse.dir": f"{folder}/warehouse"}
        spark = start_session(pipeline, "local[1]", **warehouse)
        try:
            signals.take_over()
            columns = rehearse(spark, pipeline, Path(folder))
        finally:
            end_session(spark)
    told = outline(pipeline)
    if as_json:
        print(json.dumps(told | {"columns": columns}))
        return
    print(_outlined(told))
    print("\ncolumns")
    for name, text in columns.items():
        print(f"  {clean(name):<12} {clean(text)}")


def _run(pipeline: Pipeline, as_json: bool) -> None:
    from nsqflow.pipelines.running import Running
    from nsqflow.pipelines.session import end_session, start_session

    with _Signals() as signals, _view(pipeline, as_json) as view:
        spark = start_session(pipeline)
        try:
            signals.take_over()
            running = Running(spark, pipeline)
            try:
                _watch(running, view, signals)
            finally:
                running.stop()
            view.show(running)
            running.check()
        finally:
            end_session(spark)
    signals.raise_again()


def _watch(running: Running, view: _View, signals: _Signals) -> None:
    while running.is_active() and not signals.number:
        view.show(running)
        time.sleep(_TICK)
    if signals.number:
        view.stopping(signal.Signals(signals.number).name)
    running.end()
    while running.is_busy() and not signals.urgent:
        view.show(running)
        time.sleep(_TICK)


# --- signals ------------------------------------------------------------------------------------


class _Signals:
    """SIGINT and SIGTERM: remembered while the queries run, and raised before."""

    def __init__(self) -> None:
        self.number = 0
        """The first that came."""
        self.urgent = False
        """Whether there was a second."""
        self._raising = True
        self._before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> _Signals:
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take_over(self) -> None:
        """From now on remember them: Spark runs, and has put a handler of its own in our place."""
        self._raising = False
        self._install()

    def raise_again(self) -> None:
        """Raise what was remembered, now that all is wound up."""
        if self.number:
            raise KeyboardInterrupt if self.number == signal.SIGINT else Terminated

    def _install(self) -> None:
        for number in self._before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._raising:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        self.urgent = self.number != 0
        self.number = self.number or number


# --- what is shown ------------------------------------------------------------------------------


class _View:
    """Progress as lines of text, and the totals of all views."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._sinks = {sink.name: sink for sink in pipeline.sinks}
        self._begun = time.monotonic()
        self._last: dict[str, Batch] = {}
        self._batches = dict.fromkeys(self._sinks, 0)
        self._messages = dict.fromkeys(self._sinks, 0)

    def begin(self, told: dict[str, Any]) -> None:
        """Say what is going to happen, and where it is kept."""
        print(_outlined(told), flush=True)

    def show(self, running: Running) -> None:
        """Show what is new."""
        for batch in running.news():
            self._last[batch.sink] = batch
            self._batches[batch.sink] += 1
            self._messages[batch.sink] += batch.messages
            self.show_batch(batch)

    def show_batch(self, batch: Batch) -> None:
        """Show a batch."""
        waiting = "" if batch.backlog is None else f", {batch.backlog:,} waited"
        messages = count(batch.messages, "message")
        line = f"{batch.sink}: batch {batch.batch}, {messages} in {batch.seconds:.1f} s{waiting}"
        print(line, flush=True)

    def stopping(self, why: str) -> None:
        """Say that the end is near."""
        note(f"{why}: batches that are under way are finished; once more stops at once")

    def end(self) -> None:
        """Say what came of it."""
        for name in self._sinks:
            batches = count(self._batches[name], "batch").replace("batchs", "batches")
            print(f"{name}: {count(self._messages[name], 'message')} in {batches}", flush=True)


class _JsonView(_View):
    """Progress as lines of JSON."""

    def begin(self, told: dict[str, Any]) -> None:
        """Tell what is going to happen."""
        _emit("start", told)

    def show_batch(self, batch: Batch) -> None:
        """Tell a batch."""
        _emit("batch", asdict(batch))

    def stopping(self, why: str) -> None:
        """Tell why."""
        _emit("stop", {"signal": why})

    def end(self) -> None:
        """Tell the totals."""
        totals = {
            name: {"batches": self._batches[name], "messages": self._messages[name]}
            for name in self._sinks
        }
        _emit("end", {"sinks": totals})


class _LiveView(_View):
    """Progress as a table that changes in its place."""

    def __init__(self, pipeline: Pipeline, live: Live) -> None:
        super().__init__(pipeline)
        self._live = live

    def show(self, running: Running) -> None:
        """Show how things are."""
        super().show(running)
        states = running.states()
        self._live.update(rich_table(_HEADS, [self._row(n, states[n]) for n in self._sinks]))

    def show_batch(self, batch: Batch) -> None:
        """Leave it to the table."""

    def _row(self, name: str, state: str) -> list[str | int | float | None]:
        sink, last = self._sinks[name], self._last.get(name)
        rate = self._messages[name] / max(time.monotonic() - self._begun, 1.0)
        seconds = f"{last.seconds:.1f} s" if last else None
        backlog = last.backlog if last else None
        return [
            name,
            sink.format,
            self._batches[name],
            self._messages[name],
            rate,
            backlog,
            seconds,
            state,
        ]


@contextmanager
def _view(pipeline: Pipeline, as_json: bool) -> Iterator[_View]:
    from nsqflow.pipelines.outline import outline

    view: _View
    # A console sink writes where the table would be.
    if as_json or not on_terminal() or any(sink.format == "console" for sink in pipeline.sinks):
        view = _JsonView(pipeline) if as_json else _View(pipeline)
        view.begin(outline(pipeline))
        yield view
        view.end()
        return
    from rich.live import Live

    with Live("starting Spark ...", console=console(), refresh_per_second=4) as live:
        view = _LiveView(pipeline, live)
        view.begin(outline(pipeline))
        yield view
    view.end()


def _emit(event: str, told: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event, **told}) + "\n")
    sys.stdout.flush()


def _outlined(told: dict[str, Any]) -> str:
    source, parse = told["source"], told["parse"]
    lines = [f"pipeline {told['pipeline']} of {told['file']}, on {told['master']}"]
    if "files" in source:
        lines.append(f"  reads    {source['format']} files {source['files']}")
    else:
        kind = "nsqd" if "nsqd" in source else "nsqlookupd"
        where = ", ".join(source["nsqd" if kind == "nsqd" else "lookupd"])
        lines.append(f"  reads    topic {source['topic']}, {kind} {where}")
    lines.append(f"  parses   {parse['format']} {parse['schema'] or ''}".rstrip())
    lines += [f"  joins    {t['name']}, {t['format']} {t['path'] or ''}" for t in told["tables"]]
    lines += [f"  does     {_step_line(step)}" for step in told["steps"]]
    for sink in told["sinks"]:
        once = "each row once" if sink["once"] else "each row at least once"
        lines.append(
            f"  writes   {sink['name']}: {sink['of']} as {sink['format']}"
            f"{' to ' + sink['to'] if sink['to'] else ''}, {once}"
        )
        if "channel" in sink:
            lines.append(f"             channel    {sink['channel']}")
        lines.append(f"             checkpoint {sink['checkpoint']}")
        if "spool" in sink:
            lines.append(f"             spool      {sink['spool']}")
    return "\n".join(map(clean, lines))


def _step_line(step: Mapping[str, str]) -> str:
    what = f"python {step['python']}" if "python" in step else "sql"
    watermark = f", watermark {step['watermark']}" if "watermark" in step else ""
    return f"{step['name']}: {what}{watermark}"
