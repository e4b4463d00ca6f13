"""What a pipeline is going to do, for people and programs that ask."""

from __future__ import annotations

from typing import Any

from nsqflow.http.client import parse_http_address
from nsqflow.pipelines.model import FILE_FORMATS, Sink, Step
from nsqflow.pipelines.pipeline import Pipeline


def outline(pipeline: Pipeline) -> dict[str, Any]:
    """Tell all of a pipeline that is worth knowing, and no secret."""
    told: dict[str, Any] = {
        "pipeline": pipeline.name,
        "file": str(pipeline.document.path),
        "master": pipeline.run.master,
        "source": _source(pipeline),
        "parse": {"format": pipeline.parse.format, "schema": pipeline.parse.schema},
        "tables": [{"name": t.name, "format": t.format, "path": t.path} for t in pipeline.tables],
        "steps": [_step(step) for step in pipeline.steps],
        "sinks": [_sink(pipeline, sink) for sink in pipeline.sinks],
    }
    hidden: dict[str, Any] = _hide(pipeline, told)
    return hidden


def writes_once(sink: Sink) -> bool:
    """Whether each row is there once, whatever dies; else it is there once or more."""
    return sink.format in FILE_FORMATS and not sink.batch


def _source(pipeline: Pipeline) -> dict[str, Any]:
    source = pipeline.source
    if source.files:
        return {"files": source.files, "format": source.format}
    topic = ",".join(source.topic) or source.options.get("topicPattern", "")
    if source.nsqd:
        return {"topic": topic, "nsqd": list(source.nsqd)}
    # As text an address is without the password that may be in it.
    return {"topic": topic, "lookupd": [str(parse_http_address(text)) for text in source.lookupd]}


def _step(step: Step) -> dict[str, Any]:
    told = {"name": step.name}
    told |= {"sql": step.sql} if step.sql else {"python": step.python or ""}
    if step.watermark:
        told["watermark"] = f"{step.watermark}, {step.delay}"
    return told


def _sink(pipeline: Pipeline, sink: Sink) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": sink.name,
        "of": sink.of,
        "format": sink.format,
        "to": sink.path or sink.topic or sink.options.get("dbtable"),
        "mode": sink.mode,
        "trigger": sink.trigger or pipeline.run.trigger,
        "once": writes_once(sink),
        "checkpoint": pipeline.checkpoint(sink),
    }
    if sink.channel:
        told |= {"channel": sink.channel, "spool": pipeline.spool(sink)}
    return told


def _hide(pipeline: Pipeline, value: Any) -> Any:
    if isinstance(value, dict):
        # By its name a sink goes in the progress, and wherever else.
        return {k: v if k == "name" else _hide(pipeline, v) for k, v in value.items()}
    if isinstance(value, list):
        return [_hide(pipeline, inner) for inner in value]
    return pipeline.document.hide(value) if isinstance(value, str) else value
