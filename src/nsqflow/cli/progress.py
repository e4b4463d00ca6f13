"""How a pipeline's progress is shown: a live table, lines of text, or lines of JSON."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nsqflow.cli.screen import Cell, clean, console, count, note, on_terminal, rich_table

if TYPE_CHECKING:
    from rich.live import Live

    from nsqflow.pipelines.pipeline import Pipeline
    from nsqflow.pipelines.running import Batch, Running

_HEADS = ("sink", "writes", "batches", "messages", "per second", "waiting", "last batch", "state")
_MARKS = 10  # batches that a rate is of


@contextmanager
def open_view(pipeline: Pipeline, *, as_json: bool) -> Iterator[View]:
    """Choose how progress is shown; says at the start what is going to happen, and then the sum."""
    from nsqflow.pipelines.outline import outline

    view: View
    # A console sink writes where the table would be.
    if as_json or not on_terminal() or any(sink.format == "console" for sink in pipeline.sinks):
        view = JsonView(pipeline) if as_json else View(pipeline)
        view.begin(outline(pipeline))
        yield view
    else:
        from rich.live import Live

        with Live("starting Spark ...", console=console(), refresh_per_second=4) as live:
            view = LiveView(pipeline, live)
            view.begin(outline(pipeline))
            yield view
    view.end()


class View:
    """Progress as lines of text, and the totals for all views."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.formats = {sink.name: sink.format for sink in pipeline.sinks}
        self.tallies = {sink.name: Tally() for sink in pipeline.sinks}

    def begin(self, told: dict[str, Any]) -> None:
        """Say what is going to happen, and where it is kept."""
        print(describe(told), flush=True)

    def show(self, running: Running) -> None:
        """Show what is new."""
        for batch in running.news():
            self.tallies[batch.sink].add(batch)
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

    def failed(self, failures: Mapping[str, str]) -> None:
        """Leave it to who reports the error."""

    def end(self) -> None:
        """Say what came of it."""
        for name, tally in self.tallies.items():
            batches = f"{tally.batches:,} batch{'' if tally.batches == 1 else 'es'}"
            print(f"{name}: {count(tally.messages, 'message')} in {batches}", flush=True)


class JsonView(View):
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

    def failed(self, failures: Mapping[str, str]) -> None:
        """Tell each of them."""
        for name, reason in failures.items():
            _emit("failure", {"sink": name, "reason": reason})

    def end(self) -> None:
        """Tell the totals."""
        totals = {
            name: {"batches": tally.batches, "messages": tally.messages}
            for name, tally in self.tallies.items()
        }
        _emit("end", {"sinks": totals})


class LiveView(View):
    """Progress as a table that changes in its place."""

    def __init__(self, pipeline: Pipeline, live: Live) -> None:
        super().__init__(pipeline)
        self._live = live

    def show(self, running: Running) -> None:
        """Show how things are."""
        super().show(running)
        states = running.states()
        rows = [
            [name, self.formats[name], *tally.cells(), states.get(name)]
            for name, tally in self.tallies.items()
        ]
        self._live.update(rich_table(_HEADS, rows))

    def show_batch(self, batch: Batch) -> None:
        """Leave it to the table."""


class Tally:
    """What a sink has done so far."""

    def __init__(self) -> None:
        self.batches = 0
        self.messages = 0
        self._last: Batch | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MARKS)
        """When some batches had ended, and how many messages there were by then."""

    def add(self, batch: Batch) -> None:
        """Count a batch that has just ended."""
        now = time.monotonic()
        if not self._marks:
            self._marks.append((now - batch.seconds, 0))
        self.batches += 1
        self.messages += batch.messages
        self._last = batch
        self._marks.append((now, self.messages))

    def cells(self) -> list[Cell]:
        """What the table says of it."""
        if self._last is None:
            return [0, 0, None, None, None]
        since, before = self._marks[0]
        rate = (self.messages - before) / max(time.monotonic() - since, 0.001)
        last = self._last
        left = None if last.backlog is None else max(last.backlog - last.messages, 0)
        return [self.batches, self.messages, rate, left, f"{last.seconds:.1f} s"]


def describe(told: Mapping[str, Any]) -> str:
    """Write what ``outline`` tells for people."""
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
    lines += [f"  does     {_describe_step(step)}" for step in told["steps"]]
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


def _describe_step(step: Mapping[str, str]) -> str:
    what = f"python {step['python']}" if "python" in step else "sql"
    watermark = f", watermark {step['watermark']}" if "watermark" in step else ""
    return f"{step['name']}: {what}{watermark}"


def _emit(event: str, told: Mapping[str, Any]) -> None:
    print(json.dumps({"event": event, **told}), flush=True)
