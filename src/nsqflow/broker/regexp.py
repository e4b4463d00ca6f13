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
    | \\ (?P<escape> x[0-9A-Fa-f]{2} | . )
    | (?P<set> \[ \^? \]? (?: \[:\^?\w+:\] | \\. | [^]\\] )* \] )
    | \(\? (?P<group> P?<(?![=!])\w+> | : | [ims]+ [:)] | .? )
    | (?P<possessive> (?: [*+?] | \{\d+(?:,\d*)?\} ) \+ )
    | (?P<count> \{\d+(?:,\d*)?\} )
    | (?P<brace> \{ )
    | (?P<end> \$ )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_OF_LINES = re.compile(r"\(\?[is]*m[ims]*\)")
# And what is in a set. A range to a class is one to "[" in Go, and would be one to the first of
# the class here.
_MEMBER = re.compile(
    r"""
    \[: (?P<class> \w+ ) :\]
    | \\ (?P<escape> x[0-9A-Fa-f]{2} | . )
    | (?P<range> - ) (?= \[: | \\s )
    | \[:
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9A-Fa-f",
}
_SHARED_ESCAPES = frozenset("dDwWbBAaftnrv")
_SPACE = r" \t-\n\f-\r"  # Python has \v too
_MOST_REPEATS = 1000


def compile_go(pattern: str) -> re.Pattern[str]:
    """Compile it; ``.search`` is then Go's MatchString. Raises ``ValueError``."""
    # In Python it is also found before a newline at the end.
    end = "$" if _OF_LINES.match(pattern) else r"\Z"

    def translate(token: re.Match[str]) -> str:
        return end if token.lastgroup == "end" else _translate(token)

    translated = _TOKEN.sub(translate, pattern)
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
        return _MEMBER.sub(_in_set, text)
    if kind == "brace":
        return r"\{"
    if kind == "count":
        return _count(text)
    if kind == "group":
        return _group(token)
    raise ValueError(f"{text!r} is not understood")


def _escape(what: str) -> str:
    if what in "sS":
        return f"[{'^' if what == 'S' else ''}{_SPACE}]"
    shared = len(what) == 3 or what in _SHARED_ESCAPES
    if shared or (what.isascii() and not what.isalnum()):
        return "\\" + what
    raise ValueError(f"'\\{what}' is not understood")


def _count(text: str) -> str:
    if any(int(number) > _MOST_REPEATS for number in re.findall(r"\d+", text)):
        raise ValueError(f"{text!r} is more than {_MOST_REPEATS} times")
    return text


def _in_set(token: re.Match[str]) -> str:
    text = token[0]
    if text == r"\s":
        return _SPACE
    if token["escape"] and text not in (r"\S", r"\b"):  # to Python \b is a backspace here
        return _escape(token["escape"])
    if token["class"] in _CLASSES:
        return _CLASSES[token["class"]]
    if token["range"] and token.string[: token.start()] in ("[", "[^"):
        return text
    raise ValueError(f"{text!r} is not understood")


def _group(token: re.Match[str]) -> str:
    group = token["group"]
    if group.startswith("<"):
        return f"(?P{group}"
    # Python has flags without a group only at the beginning, Go anywhere. And what ends a line
    # in a group would have to be told from what ends the text around it.
    flagged = group[1:].endswith(":") and "m" not in group
    known = group.startswith("P<") or group == ":" or flagged
    if known or (group[1:].endswith(")") and token.start() == 0):
        return token[0]
    raise ValueError(f"{token[0]!r} is not understood")
