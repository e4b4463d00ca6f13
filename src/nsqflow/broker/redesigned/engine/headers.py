"""The headers of extended messages, as far as nsqd reads them: trace id, tag and filters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

TRACE_ID = "##trace_id"
TAG = "##client_dispatch_tag"

Filter = Callable[[bytes], bool]
"""Returns whether a message with these headers is to be delivered."""

_GLOB_PART = re.compile(r"\\(.)|\*\*?|\?|\[(!?)([^\]]+)\]|\{([^}]*)\}|([^\\*?[{]+)", re.DOTALL)


class InvalidHeaders(Exception):
    """The headers are not JSON."""


class InvalidTraceId(Exception):
    """The trace id in the headers is not a number in a string."""


def trace_id_of(headers: bytes) -> int | None:
    """Return the trace id, None if there is none; raise if it, or the JSON, is invalid."""
    try:
        values = json.loads(headers)
    except (ValueError, RecursionError) as error:
        raise InvalidHeaders(f"cannot parse JSON: {error}") from None
    text = values.get(TRACE_ID) if isinstance(values, dict) else None
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidTraceId("passin trace id should be string")  # (sic)
    if (trace_id := parse_trace_id(text)) is None:
        raise InvalidTraceId("invalid trace id")
    return trace_id


def parse_trace_id(text: str) -> int | None:
    """Return a trace id; None if the text is none."""
    digits = text.lstrip("0")[:21]  # Python reads no number of thousands of digits
    valid = text.isascii() and text.isdecimal() and int(digits or "0") < 2**64
    return int(digits or "0") if valid else None


def tag_of(headers: bytes) -> str:
    """Return the tag of a message; empty if it has none."""
    return _text(headers, TAG) if headers else ""


def make_filter(rule: Mapping[str, Any] | None) -> Filter | None:
    """Return the filter that IDENTIFY's ``ext_filter`` describes; None if it is none that works.

    nsqd ignores a rule that it does not understand: everything is delivered.
    """
    if not rule:
        return None
    matches = _matcher(rule)
    if matches is None:
        return None
    inverse = bool(rule.get("inverse"))
    return lambda headers: matches(headers) is not inverse


def _matcher(rule: Mapping[str, Any]) -> Filter | None:
    kind, key, data = rule.get("type"), rule.get("filter_ext_key"), rule.get("filter_data")
    if kind == 4:
        return _list_matcher(key, rule.get("filter_data_list"))
    if not (isinstance(key, str) and key and isinstance(data, str) and data):
        return None
    match: Callable[[str], object]
    try:
        if kind == 1:
            match = data.__eq__
        elif kind == 2:
            match = re.compile(data).search
        elif kind == 3:
            match = _glob(data).fullmatch
        else:
            return None
    except (re.error, OverflowError, RecursionError):  # the latter two for absurd patterns
        return None
    return lambda headers: bool(headers) and bool(match(_text(headers, key)))


def _list_matcher(relation: object, rules: object) -> Filter | None:
    """Return a filter of several equalities, of which any or all must hold."""
    if not isinstance(rules, list) or not rules or not relation:
        return None
    matchers = [_matcher({**each, "type": 1}) for each in rules if isinstance(each, dict)]
    if None in matchers or len(matchers) < len(rules):
        return None
    # nsqd takes any other word too, and then nothing matches.
    if relation not in ("any", "all"):
        return lambda headers: False
    combine = any if relation == "any" else all
    return lambda headers: combine(match(headers) for match in matchers if match is not None)


def _text(headers: bytes, key: str) -> str:
    """Return a value that is text; a key with dots names a value within objects."""
    try:
        value = json.loads(headers)
    except (ValueError, RecursionError):
        return ""
    for part in [key] if isinstance(value, dict) and key in value else key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def _glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob: ``*`` and ``**``, ``?``, ``[ab]``, ``[!ab]``, ``{one,other}``."""
    parts, at = [], 0
    while at < len(pattern):
        part = _GLOB_PART.match(pattern, at)
        if part is None:
            raise re.error("unclosed", pattern, at)
        escaped, negated, chars, words, plain = part.groups()
        if chars is not None:
            parts.append(f"[{'^' if negated else ''}{chars}]")
        elif words is not None:
            parts.append(f"(?:{'|'.join(_glob(word).pattern for word in words.split(','))})")
        elif escaped or plain:
            parts.append(re.escape(escaped or plain))
        else:
            parts.append("." if part[0] == "?" else ".*")
        at = part.end()
    return re.compile("".join(parts), re.DOTALL)
