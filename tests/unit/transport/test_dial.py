"""The text of an error in connecting."""

from __future__ import annotations

import os

import pytest

from nsqflow.transport.dial import without_address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[Errno 111] Connect call failed ('127.0.0.1', 1)", os.strerror(111)),
        (
            "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
            "[Errno 111] Connect call failed ('127.0.0.1', 1)",
            os.strerror(111),
        ),
        (
            "Multiple exceptions: [Errno 113] Connect call failed ('::1', 1, 0, 0), "
            "[Errno 111] Connect call failed ('127.0.0.1', 1)",
            f"Multiple exceptions: {os.strerror(113)}, {os.strerror(111)}",
        ),
        ("[Errno -2] Name or service not known", "[Errno -2] Name or service not known"),
    ],
)
def test_an_error_in_connecting_does_not_repeat_the_address(text: str, reason: str) -> None:
    assert without_address(OSError(text)) == reason
