"""A summary of a pipeline, for the start of a run and for --dry-run."""

from __future__ import annotations

from typing import Any

from nsqflow.address import parse_http_address
from nsqflow.pipelines.model import FILE_FORMATS, Sink, Step
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.spark.options import parse_stream
from nsqflow.spark.starting_position import EXISTING


def summarize(pipeline: Pipeline) -> dict[str, Any]:
    """Return what a pipeline does, without secrets."""
    summary: dict[str, Any] = {
        "pipeline": pipeline.name,
        "file": str(pipeline.document.path),
        "master": pipeline.run.master,
        "source": _source(pipeline),
        "parse": {"format": pipeline.parse.format, "schema": pipeline.parse.schema},
        "tables": [{"name": t.name, "format": t.format, "path": t.path} for t in pipeline.tables],
        "steps": [_step(step) for step in pipeline.steps],
        "sinks": [_sink(pipeline, sink) for sink in pipeline.sinks],
        "variables": pipeline.document.variables_read(),
    }
    hidden: dict[str, Any] = _hide(pipeline, summary)
    return hidden


def writes_once(sink: Sink) -> bool:
    """Return whether the sink is exactly-once; otherwise it is at-least-once."""
    return sink.format in FILE_FORMATS and not sink.batch


def _source(pipeline: Pipeline) -> dict[str, Any]:
    source = pipeline.source
    if source.files:
        return {"files": source.files, "format": source.format}
    summary: dict[str, Any] = {
        "topic": ",".join(source.topic) or source.options.get("topicPattern", "")
    }
    if source.nsqd:
        summary["nsqd"] = list(source.nsqd)
    else:  # as text, an address has no password
        summary["lookupd"] = [str(parse_http_address(text)) for text in source.lookupd]
    options = parse_stream(pipeline.source_options(pipeline.sinks[0]))
    if options.starting_position != EXISTING:
        summary["from"] = options.starting_position
    if options.ordered:
        summary["ordered"] = True
    return summary


def _step(step: Step) -> dict[str, Any]:
    summary = {"name": step.name}
    summary |= {"sql": step.sql} if step.sql else {"python": step.python or ""}
    if step.watermark:
        summary["watermark"] = f"{step.watermark}, {step.delay}"
    return summary


def _sink(pipeline: Pipeline, sink: Sink) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "name": sink.name,
        "of": sink.of,
        "format": sink.format,
        "to": sink.path or sink.topic or sink.options.get("dbtable"),
        "mode": sink.mode,
        "trigger": pipeline.trigger(sink),
        "once": writes_once(sink),
        "checkpoint": pipeline.checkpoint(sink),
    }
    if sink.channel:
        summary |= {"channel": sink.channel, "spool": pipeline.spool(sink)}
    return summary


def _hide(pipeline: Pipeline, value: Any) -> Any:
    if isinstance(value, dict):
        # Names are not secret: they appear in the progress and in the file.
        return {k: v if k == "name" else _hide(pipeline, v) for k, v in value.items()}
    if isinstance(value, list):
        return [_hide(pipeline, inner) for inner in value]
    return pipeline.document.hide(value) if isinstance(value, str) else value
