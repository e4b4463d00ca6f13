"""Regular expressions of Go, as far as Python's can stand for them.

They are what an auth server names topics and channels with. What both languages have but
mean differently is translated; what only one of them has is refused, as Go would refuse what it
does not know: a pattern must never allow more than its author meant.
"""

from __future__ import annotations

import re
import warnings

# What is in a pattern, as far as it matters here; any other character stands for itself.
_TOKEN = re.compile(
    r"""
    \\Q (?P<quoted> .*? ) (?: \\E | \Z )
    | \\ (?P<escape> . )
    | (?P<set> \[ \^? \]? (?: \[:\^?\w+:\] | \\. | [^]\\] )* \] )
    | \(\? (?P<group> P?<(?![=!])\w+> | : | [ims]+ [:)] | .? )
    | (?P<possessive> (?: [*+?] | \{\d+(?:,\d*)?\} ) \+ )
    | (?P<brace> \{, )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLASS = re.compile(r"\[:(\^?)(\w+):\]|\\(.)", re.DOTALL)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9A-Fa-f",
}
_SHARED_ESCAPES = frozenset("dDsSwWbBAaftnrvx0")


def compile_go(pattern: str) -> re.Pattern[str]:
    """Compile it; ``.search`` is then Go's MatchString. Raises ``ValueError``."""
    translated = _TOKEN.sub(_translate, pattern)
    try:
        with warnings.catch_warnings():
            # Of set operations, which Python may once have and Go has not.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(translated, re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _translate(token: re.Match[str]) -> str:
    kind, text = token.lastgroup, token[0]
    if kind == "quoted":
        return re.escape(token["quoted"])
    if kind == "escape":
        return r"\Z" if text == r"\z" else _escape(token["escape"])
    if kind == "set":
        return _CLASS.sub(_in_set, text)
    if kind == "brace":
        return r"\{,"
    if kind == "group":
        return _group(token)
    raise ValueError(f"{text!r} is not understood")


def _escape(letter: str) -> str:
    if letter.isascii() and letter.isalnum() and letter not in _SHARED_ESCAPES:
        raise ValueError(f"'\\{letter}' is not understood")
    return "\\" + letter


def _in_set(token: re.Match[str]) -> str:
    if token[3]:
        return _escape(token[3])
    if token[1] or token[2] not in _CLASSES:
        raise ValueError(f"{token[0]!r} is not understood")
    return _CLASSES[token[2]]


def _group(token: re.Match[str]) -> str:
    group = token["group"]
    if group.startswith("<"):
        return f"(?P{group}"
    # (Python has flags without a group only at the beginning, Go anywhere.)
    known = group.startswith("P<") or group == ":" or group[1:].endswith(":")
    if known or (group[1:].endswith(")") and token.start() == 0):
        return token[0]
    raise ValueError(f"{token[0]!r} is not understood")
