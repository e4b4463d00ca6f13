"""What must hold between the keys of a pipeline file, and what those that are left out become."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from nsqflow.errors import ConfigError
from nsqflow.pipelines.file import filled_like
from nsqflow.pipelines.keys import Place
from nsqflow.pipelines.model import FILE_FORMATS, Parse, Run, Sink, Source, Step, Table
from nsqflow.spark.options import parse_sink, parse_stream
from nsqflow.spark.store import check_location
from nsqflow.spark.values import lasting_channel

GIVEN = ("messages", "parsed", "errors")
"""The views that are there without a step of that name."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

# Options of NSQ for which there are keys.
_KEYS = ("topic", "channel", "lookupd", "nsqd", "nsqdHttp", "spoolLocation")


def located(place: Place, path: str) -> str:
    """Make a path absolute: a relative one begins at the folder of the file."""
    if _URL.match(path):
        return path
    folder = place.document.path.absolute().parent
    return filled_like(path, os.path.normpath(os.path.join(folder, path)))


# --- each table by itself -----------------------------------------------------------------------


def complete_source(source: Source, name: str) -> Source:
    """Check a source; ``name`` is the pipeline's."""
    if source.files:
        return replace(source, files=located(source.place, source.files))
    _refuse_options(source.place, source.options)
    return replace(source, channel=source.channel or name)


def complete_parse(parse: Parse) -> Parse:
    """Check a parse."""
    _check_watermark(parse)
    by_schema = parse.format in ("json", "csv")
    if by_schema and parse.schema is None:
        raise parse.place.wrong("", f" has no schema; format {parse.format} needs one")
    for name in ("schema", "options"):
        if getattr(parse, name) and not by_schema:
            raise parse.place.wrong(name, f" has no meaning for format {parse.format}")
    if parse.keep and parse.format == "raw":
        raise parse.place.wrong("keep", " has no meaning for format raw, which keeps all columns")
    return parse


def complete_table(table: Table) -> Table:
    """Check a table."""
    return replace(table, path=located(table.place, table.path)) if table.path else table


def complete_step(step: Step, number: int) -> Step:
    """Check a step, the so manieth."""
    if (step.sql is None) == (step.python is None):
        which = "both" if step.sql else "neither"
        raise step.place.wrong("", f" has {which} of sql and python; give one of the two")
    _check_watermark(step)
    if step.arguments and step.sql:
        raise step.place.wrong("arguments", " are for a function; sql takes none")
    return step if step.name else replace(step, name=f"step{number}")


def complete_sink(sink: Sink, source: Source, last: str) -> Sink:
    """Check a sink; ``last`` is the last step."""
    known = sink.format.lower() if sink.format.lower() in _TRAITS else sink.format
    sink = replace(sink, format=known, of=sink.of or last)
    for key in _TRAITS.get(known, ()):
        if getattr(sink, key):
            raise sink.place.wrong(key, f" has no meaning for format {known}")
    if known in FILE_FORMATS:
        if sink.path is None:
            raise sink.place.wrong("", f" has no path; format {known} needs one")
        if sink.mode != "append" and not sink.batch:
            raise sink.place.wrong("mode", f" {sink.mode!r}; format {known} allows append")
    if known == "nsq":
        _refuse_options(sink.place, sink.options)
    return replace(
        sink,
        path=located(sink.place, sink.path) if sink.path else None,
        batch=_by_batch(sink) if sink.batch is None else sink.batch,
        channel=None if source.files else _channel(sink, source),
    )


def complete_run(run: Run, name: str) -> Run:
    """Check how it is run; ``name`` is the pipeline's."""
    if run.master.startswith("sc:"):
        raise run.place.wrong("master", f" {run.master!r}; allowed is any but Spark Connect")
    checkpoint = located(run.place, run.checkpoint or f"nsqflow-data/{name}")
    try:
        spool = check_location(located(run.place, run.spool) if run.spool else checkpoint)
    except ConfigError as error:
        key = "spool" if run.spool else "checkpoint"
        hint = "" if run.spool else "; the spool is there too unless run.spool says another place"
        raise run.place.wrong(key, f": {error}{hint}") from None
    return replace(
        run,
        checkpoint=filled_like(run.checkpoint, checkpoint.rstrip("/")),
        spool=filled_like(run.spool or run.checkpoint, spool.rstrip("/")),
    )


_FOR_NSQ = ("topic", "lookupd", "nsqd")
_TRAITS: Mapping[str, Sequence[str]] = {
    "nsq": ("path", "partition_by", "batch"),
    "console": ("path", "partition_by", "batch", *_FOR_NSQ),
    "jdbc": ("path", "partition_by", *_FOR_NSQ),
    **dict.fromkeys(FILE_FORMATS, _FOR_NSQ),
}
"""The formats that we know, and the keys that mean nothing to them."""


def _by_batch(sink: Sink) -> bool:
    # A streaming query can only append to the one, and not write to the other at all.
    return sink.format == "jdbc" or (sink.format == "nsq" and sink.mode != "append")


def _check_watermark(owner: Parse | Step) -> None:
    if (owner.watermark is None) != (owner.delay is None):
        missing = "watermark" if owner.delay else "delay"
        raise owner.place.wrong("", f" has no {missing}; watermark and delay go together")


def _refuse_options(place: Place, options: Iterable[str]) -> None:
    keys = {name.lower() for name in _KEYS}
    for option in options:
        if option.lower() in keys:
            raise place.inner("options").wrong(option, " has a key of its own, outside of options")


def _channel(sink: Sink, source: Source) -> str:
    if sink.channel:
        return sink.channel
    try:
        return lasting_channel(f"{source.channel}.{sink.name}")
    except ConfigError as error:
        raise sink.place.wrong("name", f" makes its channel's: {error}; or give channel") from None


# --- together -----------------------------------------------------------------------------------


def check_together(
    root: Place, tables: Sequence[Table], steps: Sequence[Step], sinks: Sequence[Sink]
) -> None:
    """Check that names are there once, and that what is named is there."""
    if not sinks:
        raise root.wrong("sink", " is missing; a pipeline writes to one sink or more")
    taken = dict.fromkeys((*GIVEN, "input"), "given")
    owners: list[Table | Step] = [*tables, *steps]
    for owner in owners:
        if owner.name.lower() in taken:
            raise owner.place.wrong("name", f" {owner.name!r} is taken; a view has one name")
        taken[owner.name.lower()] = owner.name
    writable = {name.lower(): name for name in (*GIVEN, *(step.name for step in steps))}
    for sink in sinks:
        if sink.of.lower() not in writable:
            raise _no_view(sink, list(writable.values()))
    _check_once(sinks, "name", "a channel, a checkpoint and a spool are named by it")
    _check_once(sinks, "channel", "of two that share a channel each gets a part of the messages")
    _check_once(sinks, "path", "two queries can't write to one folder")


def check_nsq(owner: Source | Sink, options: Mapping[str, str]) -> None:
    """Check the options of ``format("nsq")`` that a source or a sink makes."""
    try:
        (parse_sink if isinstance(owner, Sink) else parse_stream)(options)
    except ConfigError as error:
        # It names the option at fault first, and may name others behind it.
        text = str(error).lower()
        named = [option for option in owner.options if option.lower() in text]
        if not named:
            raise owner.place.wrong("", f": {error}") from None
        first = min(named, key=lambda option: (text.index(option.lower()), -len(option)))
        raise owner.place.inner("options").wrong(first, f": {error}") from None


def _no_view(sink: Sink, known: Sequence[str]) -> ConfigError:
    near = get_close_matches(sink.of, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return sink.place.wrong("of", f" {sink.of!r}; {hint}allowed are {', '.join(known)}")


def _check_once(sinks: Sequence[Sink], key: str, why: str) -> None:
    seen: set[str] = set()
    for sink in sinks:
        value = getattr(sink, key)
        if value is None:
            continue
        if value.lower() in seen:
            raise sink.place.wrong(key, f" {value!r} is that of another sink; {why}")
        seen.add(value.lower())
