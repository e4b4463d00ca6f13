"""The limits a server sets, with the defaults of nsqd 1.3.0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes from its clients; beyond it they get an error and are closed."""

    max_msg_size: int = 1024 * 1024
    """Bytes of one message."""
    max_body_size: int = 5 * 1024 * 1024
    """Bytes of a batch of messages, and of the body of IDENTIFY and AUTH."""
    max_rdy_count: int = 2500
    max_req_timeout_ms: int = 60 * 60 * 1000
    """The longest delay of a deferred message."""
    max_line_size: int = 16 * 1024
    """Bytes of a command line: nsqd's read buffer."""
