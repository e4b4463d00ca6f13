"""A pipeline as read from its file: with defaults, validated as far as possible without Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from nsqflow.errors import ConfigError
from nsqflow.pipelines.document import Document, Interpolated, read_file
from nsqflow.pipelines.keys import TableRef, load_value, read_table, unknown_key
from nsqflow.pipelines.model import FILE_TRIGGER, LABEL, NOW, Parse, Run, Sink, Source, Step, Table
from nsqflow.pipelines.validation import (
    check_nsq,
    check_parse,
    check_together,
    complete_run,
    complete_sink,
    complete_source,
    complete_step,
    locate_table,
)

T = TypeVar("T", Source, Parse, Run, Table, Step, Sink)

Servers = Mapping[str, Sequence[str]]
"""Addresses by kind: ``lookupd``, or ``nsqd`` and ``nsqd_http``."""

_KEYS = ("name", "source", "parse", "table", "transform", "sink", "run")

# Prefixes of the options about connecting.
_ACCESS = ("tls", "auth", "snappy", "deflate")

_POSITION = "startingPosition"

# The option, in lower case, whose value is the name of a variable.
_NAMES_VARIABLE = "authsecretenv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The content of a file, with defaults filled in."""

    name: str
    source: Source
    parse: Parse
    tables: tuple[Table, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    run: Run
    begin_at: str | None = None
    """Where the source begins, if that is not up to the file: no sink may have a checkpoint."""
    document: Document = field(repr=False, compare=False)

    def starting_at(self, position: str) -> Pipeline:
        """Return the same pipeline, to begin at a ``startingPosition`` without any checkpoint."""
        if self.source.files:
            raise self.source.ref.error("files", ": files are read from the beginning")
        options = {n: t for n, t in self.source.options.items() if n.lower() != _POSITION.lower()}
        source = replace(self.source, options=options | {_POSITION: position})
        pipeline = replace(self, source=source, begin_at=position)
        check_nsq(source, pipeline.source_options(self.sinks[0]))
        return pipeline

    def now(self) -> Pipeline:
        """Return the same pipeline, to end once everything available at the start is processed."""
        sinks = tuple(replace(sink, trigger=None) for sink in self.sinks)
        return replace(self, run=replace(self.run, trigger=NOW), sinks=sinks)

    def trigger(self, sink: Sink) -> str | None:
        """Return the trigger of a sink; None to start a batch as soon as the last one ends."""
        default = FILE_TRIGGER if sink.writes_files else None
        return sink.trigger or self.run.trigger or default

    def checkpoint(self, sink: Sink) -> str:
        """Return the location of a sink's checkpoint."""
        # A backfill is a different query from the one that reads the topic.
        folder = "backfill" if self.source.files else "checkpoint"
        return f"{self.run.checkpoint}/{sink.name}/{folder}"

    def spool(self, sink: Sink) -> str:
        """Return the location of a sink's spool, between nsqd and Spark."""
        return f"{self.run.spool}/{sink.name}/spool"

    def source_options(self, sink: Sink) -> dict[str, str]:
        """Return the options of ``format("nsq")`` for reading a sink's messages."""
        source = self.source
        named = {
            "topic": ",".join(source.topic),
            "channel": sink.channel or "",
            "lookupd": ",".join(source.lookupd),
            "nsqd": ",".join(source.nsqd),
            "nsqdHttp": ",".join(source.nsqd_http),
            "spoolLocation": self.spool(sink),
        }
        return dict(source.options) | {name: text for name, text in named.items() if text}

    def sink_options(self, sink: Sink) -> dict[str, str]:
        """Return the options of a sink's format; ``nsq`` defaults to the source's servers."""
        if sink.format != "nsq":
            return dict(sink.options)
        servers: Source | Sink = sink
        access: dict[str, str] = {}
        if not (sink.lookupd or sink.nsqd):
            servers = self.source
            access = {n: t for n, t in servers.options.items() if n.lower().startswith(_ACCESS)}
        named = {
            "topic": sink.topic or "",
            "lookupd": ",".join(servers.lookupd),
            "nsqd": ",".join(servers.nsqd),
        }
        return access | dict(sink.options) | {name: text for name, text in named.items() if text}


def load_pipeline(
    path: Path,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    servers: Callable[[], Servers] = dict,
    first: Servers | None = None,
) -> Pipeline:
    """Read a pipeline file; raise ``ConfigError`` with the line, the key and what is allowed.

    ``settings`` are ``key=value`` each and override the file. ``first`` overrides the file's NSQ
    servers; ``servers`` is called if neither names any.
    """
    document = read_file(path, settings, environment)
    root = TableRef(document, ())
    for key in document.data:
        if key not in _KEYS:
            raise unknown_key(root, key, _KEYS)
    name = _name(root)
    source = complete_source(_one(root, "source", Source), name)
    if first or not (source.lookupd or source.nsqd):
        found = first or servers()
        source = replace(
            source,
            lookupd=tuple(found.get("lookupd", ())),
            nsqd=tuple(found.get("nsqd", ())),
            nsqd_http=tuple(found.get("nsqd_http", ())),
        )
    steps = [complete_step(step, n) for n, step in enumerate(_several(root, "transform", Step), 1)]
    last = steps[-1].name if steps else "parsed"
    parse = _one(root, "parse", Parse)
    check_parse(parse)
    pipeline = Pipeline(
        name=name,
        source=source,
        parse=parse,
        tables=tuple(map(locate_table, _several(root, "table", Table))),
        steps=tuple(steps),
        sinks=tuple(complete_sink(s, source, last) for s in _several(root, "sink", Sink)),
        run=complete_run(_one(root, "run", Run), name),
        document=document,
    )
    check_together(root, pipeline.tables, pipeline.steps, pipeline.sinks)
    _check_variable_names(pipeline)
    for sink in pipeline.sinks:
        if not source.files:
            check_nsq(source, pipeline.source_options(sink))
        if sink.format == "nsq":
            check_nsq(sink, pipeline.sink_options(sink))
    _note_variables(pipeline, environment)
    return pipeline


def _check_variable_names(pipeline: Pipeline) -> None:
    """Refuse ``${NAME}`` in an option that names a variable: its value would be shown as a name."""
    owners: list[Source | Sink] = [pipeline.source, *pipeline.sinks]
    for owner in owners:
        for option, name in owner.options.items():
            if option.lower() == _NAMES_VARIABLE and isinstance(name, Interpolated):
                problem = f"={name!r} is invalid: must be the name of a variable, without ${{}}"
                raise owner.ref.inner("options").error(option, problem)


def _note_variables(pipeline: Pipeline, environment: Mapping[str, str]) -> None:
    """Record the variables that options name: they count as read by the file, like ``${NAME}``."""
    sinks = [sink for sink in pipeline.sinks if sink.format == "nsq"]
    owners: list[Source | Sink] = [*sinks]
    # A sink that names no servers uses those of the source, even if the source reads files.
    if not pipeline.source.files or any(not (sink.lookupd or sink.nsqd) for sink in sinks):
        owners.append(pipeline.source)
    for owner in owners:
        for option, name in owner.options.items():
            if option.lower() == _NAMES_VARIABLE:
                path = (*owner.ref.path, "options", option)
                owner.ref.document.note_variable(path, name, environment)


def _name(root: TableRef) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", root.document.path.stem).strip("-")
    try:
        return str(load_value(LABEL, "", root.document.data.get("name", stem)))
    except ConfigError as error:
        raise root.error("name", str(error)) from None


def _one(root: TableRef, name: str, cls: type[T]) -> T:
    ref, value = root.inner(name), root.document.data.get(name)
    # Required keys may be missing only together with their table.
    return cls(ref=ref) if value is None else read_table(cls, ref, value)


def _several(root: TableRef, name: str, cls: type[T]) -> list[T]:
    values = root.document.data.get(name, [])
    if not isinstance(values, list):
        raise root.error(name, f" is not an array of tables: each must have a header [[{name}]]")
    return [read_table(cls, root.inner(name).inner(n), value) for n, value in enumerate(values)]
