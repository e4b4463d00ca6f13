"""A result of ``nsqflow doctor``."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str
    state: str
    """``ok``; ``note``: works, but may surprise; ``error``: does not work."""
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    """Report that the subject works."""
    return Finding(subject, OK, text)


def note(subject: str, text: str, remedy: str) -> Finding:
    """Report that the subject works, but may surprise."""
    return Finding(subject, NOTE, text, remedy)


def problem(subject: str, text: str, remedy: str) -> Finding:
    """Report that the subject does not work."""
    return Finding(subject, PROBLEM, text, remedy)
