"""The headers of messages of extended topics, as columns for Spark; one JSON for each message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from nsqflow.client.body_compression import CODEC_HEADER, CODECS, decompress_body
from nsqflow.client.partition_message import TAG_HEADER, parse_headers
from nsqflow.errors import RemoteProtocolError

_CODEC = f'"{CODEC_HEADER}"'.encode()
_MAX_PART = 64 * 1024 * 1024  # bytes of unpacked bodies in a batch of rows
_HEADERS = pa.map_(pa.string(), pa.string())


def header_columns(exts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return headers and tags; null for messages without."""
    parsed = [parse_headers(ext) for ext in exts.to_pylist()]
    headers = [None if each is None else [*_texts(each).items()] for each in parsed]
    tags = [None if each is None else _tag(each) for each in parsed]
    return pa.array(headers, _HEADERS), pa.array(tags, pa.string())


def unpacked_parts(stored: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows with their bodies unpacked where a header says that they are compressed.

    Parts of up to 64 MiB follow each other, as a slot may unpack to more than memory or an array
    can hold; a single body may be larger. One that can't be unpacked is left as it is, so that the
    query can decide.
    """
    exts = stored.column("ext").to_pylist()
    if not any(ext is not None and _CODEC in ext for ext in exts):
        yield stored
        return
    start, size, part = 0, 0, list[bytes]()
    for number, body in enumerate(stored.column("body").to_pylist()):
        unpacked = unpack_body(body, exts[number])
        if part and size + len(unpacked) > _MAX_PART:
            yield _with_bodies(stored.slice(start, len(part)), part)
            start, size, part = number, 0, []
        part.append(unpacked)
        size += len(unpacked)
    if part:
        yield _with_bodies(stored.slice(start), part)


def _with_bodies(stored: pa.RecordBatch, bodies: list[bytes]) -> pa.RecordBatch:
    arrays = [pa.array(bodies, pa.binary()), *stored.columns[1:]]
    return pa.RecordBatch.from_arrays(arrays, schema=stored.schema)


def republished_headers(ext: bytes | None) -> bytes:
    """Return the headers, as JSON, that a message keeps when it is published again.

    Those are all but what nsqd and clients have added to its delivery, and the tag is kept.
    """
    headers = parse_headers(ext)
    if ext is None or headers is None:
        return b"{}"
    kept = {
        name: value
        for name, value in headers.items()
        if name == TAG_HEADER or not name.startswith("##")
    }
    if len(kept) == len(headers):
        return ext
    # Not escaped: the headers of a message have a limit, and must not grow beyond it.
    text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def headers_and_tag(ext: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
    """Return the headers of a message and its tag; None if it has none."""
    headers = parse_headers(ext)
    return headers, None if headers is None else _tag(headers)


def unpack_body(body: bytes, ext: bytes | None) -> bytes:
    """Return a body unpacked, if a header says that it is compressed and that is true."""
    headers = parse_headers(ext)
    if headers is None or CODEC_HEADER not in headers:
        return body
    try:
        return decompress_body(body, headers)
    except RemoteProtocolError:
        return body


def codec_of(ext: bytes | None) -> str | None:
    """Return the name of what a body is compressed by, by its headers; None if it is not."""
    number = (parse_headers(ext) or {}).get(CODEC_HEADER)
    return next((name for name, each in CODECS.items() if str(each) == number), None)


def _texts(headers: dict[str, Any]) -> dict[str, str]:
    """Return the values as text: what is not text is JSON."""
    return {
        _encodable(name): _encodable(value) if isinstance(value, str) else json.dumps(value)
        for name, value in headers.items()
    }


def _tag(headers: dict[str, Any]) -> str | None:
    tag = headers.get(TAG_HEADER)
    return _encodable(tag) if isinstance(tag, str) else None


def _encodable(text: str) -> str:
    """Return a text that is valid in UTF-8: JSON can escape half of a surrogate pair alone."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
