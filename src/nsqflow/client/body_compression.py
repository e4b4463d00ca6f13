"""Compression of message bodies by clients of the redesigned NSQ, compatible with Go's client.

Two headers of an extended message describe it: the codec's number and the uncompressed size.
A gzip body is a whole gzip file; snappy and lz4 are raw blocks.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from typing import Any

import cramjam

from nsqflow.errors import ConfigError, RemoteProtocolError

CODEC_HEADER = "nsq.client.compress"
SIZE_HEADER = "nsq.msg.size"
CODECS = {"gzip": 1, "snappy": 2, "lz4": 3}
MAX_BODY = 64 * 1024 * 1024
"""Maximum uncompressed bytes of a body; servers accept bodies of 1 MiB by default."""


def compress_body(codec: str, body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a body, compressed if that makes it smaller, and the headers that describe it."""
    if codec == "gzip":
        packed = gzip.compress(body, mtime=0)
    elif codec == "snappy":
        packed = bytes(cramjam.snappy.compress_raw(body))
    elif codec == "lz4":
        packed = bytes(cramjam.lz4.compress_block(body, store_size=False))
    else:
        raise ConfigError(f"codec {codec!r} is invalid: must be one of {', '.join(CODECS)}")
    if len(packed) >= len(body):
        return body, {}
    return packed, {CODEC_HEADER: str(CODECS[codec]), SIZE_HEADER: str(len(body))}


def decompress_body(body: bytes, headers: Mapping[str, Any]) -> bytes:
    """Return the body as it was published; raise ``RemoteProtocolError`` if it is damaged."""
    number, size = headers.get(CODEC_HEADER), _size(headers)
    try:
        if number == "1":
            return _unzip(body)
        if number == "2":
            if cramjam.snappy.decompress_raw_len(body) > MAX_BODY:
                raise RemoteProtocolError(f"a body decompresses to more than {MAX_BODY} bytes")
            return bytes(cramjam.snappy.decompress_raw(body))
        if number == "3":
            return bytes(cramjam.lz4.decompress_block(body, output_len=size))
    except (ValueError, EOFError, OSError, zlib.error, cramjam.DecompressionError) as error:
        raise RemoteProtocolError(
            f"a body compressed by codec {number} is damaged: {error}"
        ) from None
    raise RemoteProtocolError(f"{CODEC_HEADER} is {number!r}; known are 1, 2 and 3")


def _unzip(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    data = unpacker.decompress(body, MAX_BODY + 1)
    if len(data) > MAX_BODY:
        raise RemoteProtocolError(f"a body decompresses to more than {MAX_BODY} bytes")
    if not unpacker.eof:
        raise EOFError("it ends too early")
    return data


def _size(headers: Mapping[str, Any]) -> int:
    text = headers.get(SIZE_HEADER)
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()):
        return 0
    size = int(text[:12])
    if size > MAX_BODY:
        raise RemoteProtocolError(f"a body decompresses to {size} bytes, more than {MAX_BODY}")
    return size
