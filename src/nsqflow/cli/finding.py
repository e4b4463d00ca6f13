"""What doctor finds: how something is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, WRONG = "ok", "note", "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    state: str
    """``ok``; ``note``: good to know; ``wrong``: something will not work."""
    text: str
    remedy: str = ""


def well(subject: str, text: str) -> Finding:
    """It is as it should be."""
    return Finding(subject, OK, text)


def remarkable(subject: str, text: str, remedy: str) -> Finding:
    """It is not wrong, but it may surprise."""
    return Finding(subject, NOTE, text, remedy)


def wrong(subject: str, text: str, remedy: str) -> Finding:
    """It will not work like this."""
    return Finding(subject, WRONG, text, remedy)
