"""The messages in the body of an HTTP ``/mpub``: one per line, or as the MPUB command has them.

| count: int32 | (size: int32 | body)* |
"""

from __future__ import annotations

from struct import Struct

from nsqflow.broker.api import ApiError

_INT32 = Struct(">i")


def split_lines(body: bytes, max_msg_size: int) -> list[bytes]:
    """Give the lines that are not empty; raise ``ApiError`` if one is too long."""
    bodies = [line for line in body.split(b"\n") if line]
    if bodies and max(map(len, bodies)) > max_msg_size:
        raise ApiError(413, "MSG_TOO_BIG")
    return bodies


def split_binary(body: bytes, max_msg_size: int, max_body_size: int) -> list[bytes]:
    """Give the messages; raise ``ApiError`` if they are not what was announced.

    As nsqd, it does not look at what may follow them.
    """
    count = _int32(body, 0)
    if not 0 < count <= (max_body_size - 4) // 5:  # each takes four bytes of size and one of body
        raise ApiError(413, "BAD_BODY")
    bodies: list[bytes] = []
    at = 4
    for _ in range(count):
        size = _int32(body, at)
        end = at + 4 + size
        if not 0 < size <= max_msg_size or end > len(body):
            raise ApiError(413, "BAD_MESSAGE")
        bodies.append(body[at + 4 : end])
        at = end
    return bodies


def _int32(body: bytes, at: int) -> int:
    """Read a number; -1 if the body ends within it."""
    number: int = _INT32.unpack_from(body, at)[0] if at + 4 <= len(body) else -1
    return number
