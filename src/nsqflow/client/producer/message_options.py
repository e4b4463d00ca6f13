"""The options of a single message: delay, key, partition, trace, headers, tag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nsqflow.client.body_compression import CODEC_HEADER, SIZE_HEADER, compress_body
from nsqflow.client.producer.publish_batch import PublishBatch, TopicPartition
from nsqflow.config.numbers import DELAY
from nsqflow.errors import ConfigError
from nsqflow.protocol.publish import Bodies
from nsqflow.trace import check_trace_id, new_trace_id

TRACE_HEADER = "##trace_id"
TAG_HEADER = "##client_dispatch_tag"
_MAX_HEADERS = 0xFFFF  # bytes
_MAX_TAG = 100  # bytes


def make_batch(
    topic: str,
    body: bytes,
    deadline: float,
    *,
    delay: float | None = None,
    key: bytes | None = None,
    partition: int | None = None,
    trace: int | None = None,
    headers: Mapping[str, Any] | None = None,
    tag: str | None = None,
    is_traced: bool = False,
    codec: str | None = None,
) -> PublishBatch:
    """Return the batch of one message; raise ``ConfigError`` for values that no topic takes.

    ``is_traced``: the tracing of the topic is switched on. ``codec`` compresses the body.
    """
    delay_ms = None
    if delay is not None:
        DELAY.check("delay", delay)
        delay_ms = round(delay * 1000)
    trace_optional = trace is None and is_traced and delay is None
    if trace_optional:
        trace = new_trace_id()
    elif trace is not None:
        check_trace_id(trace)
    packing: Mapping[str, Any] = {}
    if codec is not None:
        body, packing = compress_body(codec, body)
    encoded = encode_headers(headers, tag=tag, trace=trace, packing=packing)
    batch = PublishBatch(topic, deadline, Bodies((body,)), delay_ms)
    if encoded is not None:
        batch.headers = [encoded]
        batch.size += len(encoded)
    batch.trace, batch.trace_optional = trace, trace_optional
    batch.key = check_key(key, partition)
    if key is not None or partition is not None:
        batch.destination = TopicPartition(topic, check_partition(partition))
    return batch


def encode_headers(
    headers: Mapping[str, Any] | None,
    *,
    tag: str | None = None,
    trace: int | None = None,
    packing: Mapping[str, Any] | None = None,
) -> bytes | None:
    """Return the headers of a message as JSON; None if it has none, so that ``trace`` needs none.

    ``packing`` says how the body is compressed.
    """
    fields = _own_headers(headers)
    if tag is not None:
        fields[TAG_HEADER] = _check_tag(tag)
    fields |= packing or {}
    if headers is None and not fields:
        return None
    if trace is not None:
        fields[TRACE_HEADER] = str(trace)
    return _as_json(fields)


def check_key(key: object, partition: int | None) -> bytes | None:
    """Return the key; raise ``ConfigError`` if it is empty, or a partition is set too."""
    if key is None:
        return None
    if not isinstance(key, bytes):
        raise TypeError(f"key is {type(key).__name__}: must be bytes")
    if not key:
        raise ConfigError("key=b'' is invalid: must not be empty")
    if partition is not None:
        raise ConfigError(f"key and partition={partition!r} are both set: choose one of them")
    return key


def check_partition(partition: object) -> int | None:
    """Return the partition; raise ``ConfigError`` if no topic can have it."""
    if partition is not None and (type(partition) is not int or not 0 <= partition < 2**31):
        raise ConfigError(f"partition={partition!r} is invalid: must be an integer >= 0")
    return partition


def _own_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers is {type(headers).__name__}: must be a mapping")
    for name in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is {type(name).__name__}: must be str")
        if name.startswith("##") or name in (CODEC_HEADER, SIZE_HEADER):
            raise ConfigError(f"header {name!r} is invalid: the name is reserved")
    return dict(headers)


def _as_json(fields: Mapping[str, Any]) -> bytes:
    try:
        data = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"headers can't be written as JSON: {error}") from None
    if len(data) > _MAX_HEADERS:
        raise ConfigError(
            f"headers of {len(data)} bytes as JSON are invalid: must have at most {_MAX_HEADERS}"
        )
    return data


def _check_tag(tag: object) -> str:
    if not isinstance(tag, str):
        raise TypeError(f"tag is {type(tag).__name__}: must be str")
    if not 1 <= len(tag.encode()) <= _MAX_TAG:
        raise ConfigError(f"tag={tag!r} is invalid: must have 1 to {_MAX_TAG} bytes")
    return tag
