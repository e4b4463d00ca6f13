"""A message of the redesigned NSQ: its ids, its position in the partition, its headers."""

from __future__ import annotations

import json
import logging
from typing import Any

from nsqflow.client.body_compression import CODEC_HEADER, decompress_body
from nsqflow.client.message import Delivery, Message
from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.messages import JSON_HEADERS

logger = logging.getLogger(__name__)

TAG_HEADER = "##client_dispatch_tag"
_CODEC = f'"{CODEC_HEADER}"'.encode()


class PartitionMessage(Message):
    """A message of a partition."""

    __slots__ = ()

    @property
    def partition(self) -> int | None:
        """Its partition."""
        return self.delivery.subscription.partition

    @property
    def internal_id(self) -> int:
        """The number that nsqd gives it; ascending within a partition."""
        return int.from_bytes(self.id[:8], "big")

    @property
    def trace_id(self) -> int:
        """The id that it is traced by; 0 if it is not traced."""
        return int.from_bytes(self.id[8:], "big")


class ExtendedMessage(PartitionMessage):
    """A message with headers, or with its position; a body that is compressed is unpacked."""

    __slots__ = ("_ext", "_headers", "_offset", "_size")

    _headers: dict[str, Any] | None

    def __init__(
        self,
        delivery: Delivery,
        header: bytes,
        body: bytes,
        ext_version: int | None = None,
        ext: bytes | None = None,
        offset: int | None = None,
        size: int | None = None,
    ) -> None:
        super().__init__(delivery, header, body)
        self._offset = offset
        self._size = size
        self._ext = ext if ext_version == JSON_HEADERS else None
        # Most messages have none of these headers: the JSON is parsed when it is needed.
        if self._ext is not None and _CODEC in self._ext:
            self._unpack()

    @property
    def offset(self) -> int | None:
        """Its position in the partition; None unless the subscription is ordered or has sought."""
        return self._offset

    @property
    def size(self) -> int | None:
        """Its size in the partition, in bytes; None where ``offset`` is."""
        return self._size

    @property
    def headers(self) -> dict[str, Any] | None:
        """Its headers; None in a topic without headers, or if they can't be read."""
        try:
            return self._headers
        except AttributeError:
            self._headers = parse_headers(self._ext)
            return self._headers

    @property
    def tag(self) -> str | None:
        """Its tag; None if it has none."""
        tag = (self.headers or {}).get(TAG_HEADER)
        return tag if isinstance(tag, str) else None

    def _unpack(self) -> None:
        """Unpack the body; leave it as it is if that fails, so that user code can decide."""
        headers = self.headers
        if headers is None or CODEC_HEADER not in headers:
            return
        try:
            self.body = decompress_body(self.body, headers)
        except RemoteProtocolError as error:
            logger.warning("%r is delivered as it is: %s", self, error)


def parse_headers(ext: bytes | None) -> dict[str, Any] | None:
    """Return the headers; None if there are none, or if they can't be read."""
    if ext is None:
        return None
    try:
        headers = json.loads(ext)
    except (ValueError, RecursionError):
        return None
    return headers if isinstance(headers, dict) else None
