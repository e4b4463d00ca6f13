"""A pipeline: what its file says, complete and checked as far as that goes without Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from nsqflow.errors import ConfigError
from nsqflow.pipelines.checks import (
    check_nsq,
    check_together,
    complete_parse,
    complete_run,
    complete_sink,
    complete_source,
    complete_step,
    complete_table,
)
from nsqflow.pipelines.file import Document, read_file
from nsqflow.pipelines.keys import Place, read_table, unknown_key
from nsqflow.pipelines.model import LABEL, NOW, Parse, Run, Sink, Source, Step, Table

T = TypeVar("T", Source, Parse, Run, Table, Step, Sink)

Servers = Mapping[str, Sequence[str]]
"""``lookupd`` or ``nsqd`` (and ``nsqd_http``), and the addresses."""

_KEYS = ("name", "source", "parse", "table", "transform", "sink", "run")

# How the options of NSQ begin that say how servers are talked to.
_ACCESS = ("tls", "auth", "snappy", "deflate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """All of a file; what was left out is filled in."""

    name: str
    source: Source
    parse: Parse
    tables: tuple[Table, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    run: Run
    document: Document = field(repr=False, compare=False)

    def now(self) -> Pipeline:
        """The same, to end when what is there at the start is done with."""
        sinks = tuple(replace(sink, trigger=None) for sink in self.sinks)
        return replace(self, run=replace(self.run, trigger=NOW), sinks=sinks)

    def checkpoint(self, sink: Sink) -> str:
        """Where Spark keeps how far a sink has come."""
        # A backfill is another query than the one that reads the topic.
        folder = "backfill" if self.source.files else "checkpoint"
        return f"{self.run.checkpoint}/{sink.name}/{folder}"

    def spool(self, sink: Sink) -> str:
        """Where a sink's messages are kept between nsqd and Spark."""
        return f"{self.run.spool}/{sink.name}/spool"

    def source_options(self, sink: Sink) -> dict[str, str]:
        """The options of ``format("nsq")`` to read what a sink is to get."""
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
        """The options of a sink's format; ``nsq`` has the source's servers if it names none."""
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
) -> Pipeline:
    """Read a pipeline file; raise ``ConfigError`` with the place, the key and what is allowed.

    ``settings`` are ``key=value`` each, and the last word on their keys; ``servers`` is asked for
    where NSQ is if the file does not say so.
    """
    document = read_file(path, settings, environment)
    root = Place(document, ())
    for key in document.data:
        if key not in _KEYS:
            raise unknown_key(root, key, dict.fromkeys(_KEYS))
    name = _name(root)
    source = complete_source(_one(root, "source", Source), name)
    if not (source.lookupd or source.nsqd):
        found = servers()
        source = replace(
            source,
            lookupd=tuple(found.get("lookupd", ())),
            nsqd=tuple(found.get("nsqd", ())),
            nsqd_http=tuple(found.get("nsqd_http", ())),
        )
    steps = [complete_step(step, n) for n, step in enumerate(_several(root, "transform", Step), 1)]
    last = steps[-1].name if steps else "parsed"
    pipeline = Pipeline(
        name=name,
        source=source,
        parse=complete_parse(_one(root, "parse", Parse)),
        tables=tuple(map(complete_table, _several(root, "table", Table))),
        steps=tuple(steps),
        sinks=tuple(complete_sink(s, source, last) for s in _several(root, "sink", Sink)),
        run=complete_run(_one(root, "run", Run), name),
        document=document,
    )
    check_together(root, pipeline.tables, pipeline.steps, pipeline.sinks)
    for sink in pipeline.sinks:
        if not source.files:
            check_nsq(source, pipeline.source_options(sink))
        if sink.format == "nsq":
            check_nsq(sink, pipeline.sink_options(sink))
    return pipeline


def _name(root: Place) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", root.document.path.stem).strip("-")
    try:
        return str(LABEL.take("", root.document.data.get("name", stem)))
    except ConfigError as error:
        raise root.wrong("name", str(error)) from None


def _one(root: Place, name: str, cls: type[T]) -> T:
    place, value = root.inner(name), root.document.data.get(name)
    # A table that is not there may lack what one that is there must have.
    return cls(place=place) if value is None else read_table(cls, place, value)


def _several(root: Place, name: str, cls: type[T]) -> list[T]:
    values = root.document.data.get(name, [])
    if not isinstance(values, list):
        raise root.wrong(name, f" is no array of tables; each has a header [[{name}]]")
    return [read_table(cls, root.inner(name).inner(n), value) for n, value in enumerate(values)]
