"""IDENTIFY: what a task says of itself to nsqd, and what it does without if nsqd insists."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import nsqflow
from nsqflow.errors import BadBodyError, ConfigError
from nsqflow.protocol import IdentifyRequest
from nsqflow.spark.access import Access

_OUTPUT_BUFFER_SIZE = 64 * 1024  # the most that nsqd grants unless its operator raised it

# What is only wished for, by the words with which nsqd refuses it.
_WISHES = {
    "output buffer size": "output_buffer_size",
    "output buffer timeout": "output_buffer_timeout",
}


def identify(
    access: Access, msg_timeout: float | None, output_buffer_timeout: float | None
) -> IdentifyRequest:
    """Say who this is and what it asks for."""
    host = socket.gethostname()
    return IdentifyRequest(
        client_id=host.partition(".")[0],
        hostname=host,
        user_agent=f"nsqflow-spark/{nsqflow.__version__}",
        output_buffer_size=_OUTPUT_BUFFER_SIZE,
        output_buffer_timeout=_milliseconds(output_buffer_timeout),
        msg_timeout=_milliseconds(msg_timeout),
        tls_v1=access.tls,
        snappy=access.snappy,
        deflate=access.deflate,
    )


def ask_for_less(request: IdentifyRequest, refusal: BadBodyError, nsqd: str) -> IdentifyRequest:
    """Leave out what nsqd refused, or raise ``ConfigError`` if it is more than a wish."""
    for words, name in _WISHES.items():
        if words in refusal.text and getattr(request, name) is not None:
            less: dict[str, Any] = {name: None}
            return replace(request, **less)
    if "msg timeout" in refusal.text and request.msg_timeout is not None:
        raise ConfigError(
            f"msgTimeout of {request.msg_timeout / 1000:g} s; {nsqd} refuses it, "
            "its -max-msg-timeout says how much it takes"
        ) from refusal
    raise ConfigError(f"{nsqd} refused the options: {refusal}") from refusal


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
