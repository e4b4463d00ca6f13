"""Shows a pipeline's progress: a live table, lines of text, or lines of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsqflow.cli.terminal import Cell, console, count, escape, on_terminal, print_err, rich_table

if TYPE_CHECKING:
    from rich.live import Live

    from nsqflow.pipelines.pipeline import Pipeline
    from nsqflow.pipelines.runner import BatchProgress, PipelineRun

_HEADS = (
    *("sink", "writes", "batches", "read", "written", "read/s", "waiting", "last batch", "state"),
)
_MARKS = 10  # batches for a rate


@contextmanager
def open_view(pipeline: Pipeline, *, as_json: bool) -> Iterator[View]:
    """Choose a view; it prints the summary at the start and the totals at the end."""
    from nsqflow.pipelines.summary import summarize

    view: View
    # A console sink would overwrite the table.
    if as_json or not on_terminal() or any(sink.format == "console" for sink in pipeline.sinks):
        view = JsonView(pipeline) if as_json else View(pipeline)
        view.begin(summarize(pipeline))
        yield view
    else:
        from rich.live import Live

        # Output appears above the table; redirected stderr is left alone.
        with Live(
            "starting Spark ...",
            console=console(),
            refresh_per_second=4,
            redirect_stderr=on_terminal(sys.stderr),
        ) as live:
            view = LiveView(pipeline, live)
            view.begin(summarize(pipeline))
            yield view
    view.end()


class View:
    """Progress as lines of text, and the totals for all views."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.formats = {sink.name: sink.format for sink in pipeline.sinks}
        self.totals = {sink.name: SinkTotals() for sink in pipeline.sinks}

    def begin(self, summary: dict[str, Any]) -> None:
        """Show the summary of the pipeline."""
        print(describe(summary), flush=True)

    def started(self, address: str | None) -> None:
        """Show the address of Spark's UI, if it has one."""
        if address:
            print(f"Spark UI {escape(address)}", flush=True)

    def show(self, running: PipelineRun) -> None:
        """Show the batches that have ended since the last call."""
        for batch in running.new_batches():
            self.totals[batch.sink].add(batch)
            self.show_batch(batch)

    def show_batch(self, batch: BatchProgress) -> None:
        """Show a batch."""
        waiting = "" if batch.remaining is None else f", {batch.remaining:,} remain"
        done = _describe_counts(batch.messages, batch.rows)
        line = f"{batch.sink}: batch {batch.batch}, {done} in {batch.seconds:.1f} s{waiting}"
        print(line, flush=True)

    def stopping(self, why: str) -> None:
        """Show why the pipeline stops."""
        print_err(f"{why}: finishing the current batches; a second signal stops at once")

    def failed(self, failures: Mapping[str, str]) -> None:
        """Show nothing; the error is reported by the caller."""

    def end(self) -> None:
        """Show the totals."""
        for name, total in self.totals.items():
            batches = f"{total.batches:,} batch{'' if total.batches == 1 else 'es'}"
            done = _describe_counts(total.messages, total.rows)
            print(f"{name}: {done} in {batches}", flush=True)


class JsonView(View):
    """Progress as lines of JSON."""

    def begin(self, summary: dict[str, Any]) -> None:
        """Print the summary of the pipeline."""
        _print_event("start", summary)

    def started(self, address: str | None) -> None:
        """Print the address of Spark's UI."""
        _print_event("spark", {"ui": address})

    def show_batch(self, batch: BatchProgress) -> None:
        """Print a batch."""
        _print_event("batch", asdict(batch))

    def stopping(self, why: str) -> None:
        """Print the signal."""
        _print_event("stop", {"signal": why})

    def failed(self, failures: Mapping[str, str]) -> None:
        """Print each failure."""
        for name, reason in failures.items():
            _print_event("failure", {"sink": name, "reason": reason})

    def end(self) -> None:
        """Print the totals."""
        totals = {
            name: {"batches": total.batches, "messages": total.messages, "rows": total.rows}
            for name, total in self.totals.items()
        }
        _print_event("end", {"sinks": totals})


class LiveView(View):
    """Progress as a table that is updated in place."""

    def __init__(self, pipeline: Pipeline, live: Live) -> None:
        super().__init__(pipeline)
        self._live = live

    def show(self, running: PipelineRun) -> None:
        """Show the current state."""
        super().show(running)
        states = running.states()
        rows = [
            [name, self.formats[name], *total.cells(), states.get(name)]
            for name, total in self.totals.items()
        ]
        self._live.update(rich_table(_HEADS, rows))

    def show_batch(self, batch: BatchProgress) -> None:
        """Show nothing; the table does."""


class SinkTotals:
    """The totals of a sink."""

    def __init__(self) -> None:
        self.batches = 0
        self.messages = 0
        self.rows: int | None = 0
        """Rows written; None if unknown for a batch."""
        self._last: BatchProgress | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MARKS)
        """The end of the last batches, and the total of messages at that time."""

    def add(self, batch: BatchProgress) -> None:
        """Count a batch that has just ended."""
        now = time.monotonic()
        if not self._marks:
            self._marks.append((now - batch.seconds, 0))
        self.batches += 1
        self.messages += batch.messages
        if self.rows is not None:
            self.rows = None if batch.rows is None else self.rows + batch.rows
        self._last = batch
        self._marks.append((now, self.messages))

    def cells(self) -> list[Cell]:
        """Return the cells of the table."""
        if self._last is None:
            return [0, 0, 0, None, None, None]
        since, before = self._marks[0]
        rate = (self.messages - before) / max(time.monotonic() - since, 0.001)
        last = self._last
        took = f"{last.seconds:.1f} s"
        return [self.batches, self.messages, self.rows, rate, last.remaining, took]


def describe(summary: Mapping[str, Any]) -> str:
    """Format the summary for users."""
    source, parse = summary["source"], summary["parse"]
    lines = [f"pipeline {summary['pipeline']} of {summary['file']}, on {summary['master']}"]
    if "files" in source:
        lines.append(f"  reads    {source['format']} files {source['files']}")
    else:
        kind = "nsqd" if "nsqd" in source else "nsqlookupd"
        where = ", ".join(source["nsqd" if kind == "nsqd" else "lookupd"])
        since = f" from {source['from']}" if "from" in source else ""
        order = " in order" * ("ordered" in source)
        lines.append(f"  reads    topic {source['topic']}{since}{order}, {kind} {where}")
    lines.append(f"  parses   {parse['format']} {parse['schema'] or ''}".rstrip())
    lines += [f"  joins    {t['name']}, {t['format']} {t['path'] or ''}" for t in summary["tables"]]
    lines += [f"  does     {_describe_step(step)}" for step in summary["steps"]]
    for sink in summary["sinks"]:
        once = "exactly once" if sink["once"] else "at least once"
        lines.append(
            f"  writes   {sink['name']}: {sink['of']} as {sink['format']}"
            f"{' to ' + sink['to'] if sink['to'] else ''}, {once}{_describe_trigger(sink)}"
        )
        if "channel" in sink:
            lines.append(f"             channel    {sink['channel']}")
        lines.append(f"             checkpoint {sink['checkpoint']}")
        if "spool" in sink:
            lines.append(f"             spool      {sink['spool']}")
    lines += [_describe_variable(variable) for variable in summary["variables"]]
    return "\n".join(map(escape, lines))


def show_java(line: str) -> None:
    """Show a line of Java's stderr, above the live table."""
    print(escape(line), file=sys.stderr, flush=True)


def _describe_counts(messages: int, rows: int | None) -> str:
    written = "" if rows is None else f", {count(rows, 'row')} written"
    return f"{count(messages, 'message')} read{written}"


def _describe_trigger(sink: Mapping[str, Any]) -> str:
    trigger = sink["trigger"]
    return f", every {trigger}" if trigger and trigger[0].isdigit() else ""


def _describe_variable(variable: Mapping[str, Any]) -> str:
    unset = "" if variable["set"] else ", which is not set"
    return f"  variable {variable['name']}{unset}: {', '.join(variable['keys'])}"


def _describe_step(step: Mapping[str, str]) -> str:
    what = f"python {step['python']}" if "python" in step else "sql"
    watermark = f", watermark {step['watermark']}" if "watermark" in step else ""
    return f"{step['name']}: {what}{watermark}"


def _print_event(event: str, summary: Mapping[str, Any]) -> None:
    print(json.dumps({"event": event, **summary}), flush=True)
