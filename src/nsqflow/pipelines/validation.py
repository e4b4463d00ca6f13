"""Validates a pipeline file beyond single keys, and fills in defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nsqflow.config.names import durable_channel
from nsqflow.config.options import check_exactly_one, did_you_mean
from nsqflow.errors import ConfigError
from nsqflow.pipelines.document import with_same_source
from nsqflow.pipelines.keys import TableRef
from nsqflow.pipelines.model import FILE_FORMATS, Parse, Run, Sink, Source, Step, Table
from nsqflow.spark.options import parse_sink, parse_stream
from nsqflow.spark.spool.store import check_location

GIVEN = ("messages", "parsed", "errors")
"""The views that every pipeline has."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

# Options of NSQ that have their own keys.
_KEYS = ("topic", "channel", "lookupd", "nsqd", "nsqdHttp", "spoolLocation")


# Masters of spark-submit; details of yarn and k8s go into [run.conf].
_MASTER = re.compile(
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\]|-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\])?"
    r"|yarn|(spark|k8s)://.+"
)


def is_url(path: str) -> bool:
    """Return whether a path is a URL, for Spark's file systems."""
    return _URL.match(path) is not None


def located(ref: TableRef, path: str) -> str:
    """Return an absolute path; a relative one is relative to the folder of the file."""
    if is_url(path):
        return path
    folder = ref.document.path.absolute().parent
    return with_same_source(path, os.path.normpath(os.path.join(folder, path)))


# --- single tables ------------------------------------------------------------------------------


def complete_source(source: Source, name: str) -> Source:
    """Check a source and fill in its defaults; ``name`` is the pipeline's."""
    if source.files:
        return replace(source, files=located(source.ref, source.files))
    _refuse_options(source.ref, source.options)
    return replace(source, channel=source.channel or name)


def check_parse(parse: Parse) -> None:
    """Check the keys of ``[parse]`` together."""
    _check_watermark(parse)
    by_schema = parse.format in ("json", "csv")
    if by_schema and parse.schema is None:
        raise parse.ref.error("", f" has no schema: format {parse.format} needs one")
    for name in ("schema", "options"):
        if getattr(parse, name) and not by_schema:
            raise parse.ref.error(name, f" cannot be used with format {parse.format}")
    if parse.keep and parse.format == "raw":
        raise parse.ref.error("keep", " cannot be used with format raw, which keeps all columns")


def locate_table(table: Table) -> Table:
    """Return a table with an absolute path."""
    return replace(table, path=located(table.ref, table.path)) if table.path else table


def complete_step(step: Step, number: int) -> Step:
    """Check a step and fill in its defaults; ``number`` is its position."""
    try:
        check_exactly_one(sql=step.sql, python=step.python)
    except ConfigError as error:
        raise step.ref.error("", f": {error}") from None
    _check_watermark(step)
    if step.arguments and step.sql:
        raise step.ref.error("arguments", " are only for a Python function: sql has none")
    return step if step.name else replace(step, name=f"step{number}")


def complete_sink(sink: Sink, source: Source, last: str) -> Sink:
    """Check a sink and fill in its defaults; ``last`` is the last step."""
    known = sink.format.lower() if sink.format.lower() in _TRAITS else sink.format
    sink = replace(sink, format=known, of=sink.of or last)
    for key in _TRAITS.get(known, ()):
        if getattr(sink, key):
            raise sink.ref.error(key, f" cannot be used with format {known}")
    if known in FILE_FORMATS:
        if sink.path is None:
            raise sink.ref.error("", f" has no path: format {known} needs one")
        if sink.mode != "append" and not sink.batch:
            raise sink.ref.error("mode", f"={sink.mode!r} is invalid: format {known} needs append")
    if known == "nsq":
        _refuse_options(sink.ref, sink.options)
    return replace(
        sink,
        path=located(sink.ref, sink.path) if sink.path else None,
        batch=_by_batch(sink) if sink.batch is None else sink.batch,
        channel=None if source.files else _channel(sink, source),
    )


def complete_run(run: Run, name: str) -> Run:
    """Check ``[run]`` and fill in its defaults; ``name`` is the pipeline's."""
    if run.master.startswith("sc:"):
        raise run.ref.error("master", f"={run.master!r} is invalid: not for Spark Connect")
    if not _MASTER.fullmatch(run.master):
        allowed = "local[*], local[4], spark://host:port, yarn or k8s://host:port"
        raise run.ref.error("master", f"={run.master!r} is invalid: must be {allowed}")
    checkpoint = located(run.ref, run.checkpoint or f"nsqflow-data/{name}")
    try:
        spool = check_location(located(run.ref, run.spool) if run.spool else checkpoint)
    except ConfigError as error:
        key = "spool" if run.spool else "checkpoint"
        hint = "" if run.spool else "; the spool is there too unless run.spool is set"
        raise run.ref.error(key, f": {error}{hint}") from None
    return replace(
        run,
        checkpoint=with_same_source(run.checkpoint, checkpoint.rstrip("/")),
        spool=with_same_source(run.spool or run.checkpoint, spool.rstrip("/")),
    )


_FOR_NSQ = ("topic", "lookupd", "nsqd")
_TRAITS: Mapping[str, Sequence[str]] = {
    "nsq": ("path", "partition_by", "batch"),
    "console": ("path", "partition_by", "batch", *_FOR_NSQ),
    "jdbc": ("path", "partition_by", *_FOR_NSQ),
    **dict.fromkeys(FILE_FORMATS, _FOR_NSQ),
}
"""The known formats, and the keys that cannot be used with them."""


def _by_batch(sink: Sink) -> bool:
    # Spark has no streaming sink for jdbc, and ours for nsq can only append.
    return sink.format == "jdbc" or (sink.format == "nsq" and sink.mode != "append")


def _check_watermark(owner: Parse | Step) -> None:
    if (owner.watermark is None) != (owner.delay is None):
        missing = "watermark" if owner.delay else "delay"
        raise owner.ref.error("", f" has no {missing}: watermark and delay go together")


def _refuse_options(ref: TableRef, options: Iterable[str]) -> None:
    keys = {name.lower() for name in _KEYS}
    for option in options:
        if option.lower() in keys:
            raise ref.inner("options").error(option, " must be set as a key, not in options")


def _channel(sink: Sink, source: Source) -> str:
    if sink.channel:
        return sink.channel
    try:
        return durable_channel(f"{source.channel}.{sink.name}")
    except ConfigError as error:
        raise sink.ref.error(
            "name", f" is part of its channel's name: {error}; or set channel"
        ) from None


# --- the whole file -----------------------------------------------------------------------------


def check_together(
    root: TableRef, tables: Sequence[Table], steps: Sequence[Step], sinks: Sequence[Sink]
) -> None:
    """Check that names are unique, and that every used name exists."""
    if not sinks:
        raise root.error("sink", " is missing: a pipeline needs at least one sink")
    taken = dict.fromkeys((*GIVEN, "input"), "given")
    owners: list[Table | Step] = [*tables, *steps]
    for owner in owners:
        if owner.name.lower() in taken:
            raise owner.ref.error("name", f"={owner.name!r} is the name of another view")
        taken[owner.name.lower()] = owner.name
    writable = {name.lower(): name for name in (*GIVEN, *(step.name for step in steps))}
    for sink in sinks:
        if sink.of.lower() not in writable:
            raise _no_view(sink, list(writable.values()))
    _check_once(sinks, "name", "its channel, checkpoint and spool are named after it")
    _check_once(sinks, "channel", "each of them would get only a part of the messages")
    _check_once(sinks, "path", "two queries can't write to one folder")


def check_nsq(owner: Source | Sink, options: Mapping[str, str]) -> None:
    """Check the options of ``format("nsq")`` of a source or a sink."""
    try:
        (parse_sink if isinstance(owner, Sink) else parse_stream)(options)
    except ConfigError as error:
        raise option_error(owner, error) from None


def option_error(owner: Source | Sink, error: ConfigError) -> ConfigError:
    """Return an error about an option of ``format("nsq")`` as one about the key that sets it."""
    # The error names the invalid option first, and may name others after it.
    text = str(error).lower()
    named = [option for option in owner.options if option.lower() in text]
    if not named:
        return owner.ref.error("", f": {error}")
    first = min(named, key=lambda option: (text.index(option.lower()), -len(option)))
    return owner.ref.inner("options").error(first, f": {error}")


def _no_view(sink: Sink, known: Sequence[str]) -> ConfigError:
    hints = filter(None, (did_you_mean(sink.of, known), f"known: {', '.join(known)}"))
    return sink.ref.error("of", f"={sink.of!r} is not a view; {' '.join(hints)}")


def _check_once(sinks: Sequence[Sink], key: str, why: str) -> None:
    seen: set[str] = set()
    for sink in sinks:
        value = getattr(sink, key)
        if value is None:
            continue
        if value.lower() in seen:
            raise sink.ref.error(key, f"={value!r} is used by another sink: {why}")
        seen.add(value.lower())
