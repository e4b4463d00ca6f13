"""Times as Go writes them: ``1m30s``."""

from __future__ import annotations

import re

NANOSECONDS = {
    "h": 3600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "µs": 10**3,  # the micro sign,
    "μs": 10**3,  # and the Greek letter
    "ns": 1,
}

_UNIT = "|".join(sorted(NANOSECONDS, key=len, reverse=True))  # or "ms" would be found to be "m"
_DURATION = re.compile(rf"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:{_UNIT}))+")
_PART = re.compile(rf"([0-9.]+)({_UNIT})")


def parse_duration(text: str) -> float:
    """Read a number with a unit, or several; gives seconds. Raises ``ValueError``."""
    if text in ("0", "+0", "-0"):
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError("a number with a unit (ns, us, ms, s, m, h), such as 1m30s")
    total = sum(float(number) * NANOSECONDS[unit] for number, unit in _PART.findall(text))
    return (-total if text.startswith("-") else total) / 10**9


def format_duration(seconds: float) -> str:
    """Write it in its largest whole units; empty if it is 0."""
    left, text = round(seconds * 10**9), ""
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, left = divmod(left, NANOSECONDS[unit])
        text += f"{count}{unit}" if count else ""
    return text
