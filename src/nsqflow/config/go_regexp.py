"""Regular expressions that Go programs read: those of auth servers, and filters of nsqd."""

from __future__ import annotations

import re
import warnings

# Constructs that Go does not have, or reads differently.
_IN_SET = r"\[\^?\]?(?:\\[^b0-9]|[^]\\])*?"
_NOT_IN_GO = {
    "a backreference": r"\\[0-9]|\(\?P=",
    "a Python-only escape": r"\\[Zz]|\\[^\x00-\x7f]",
    "a character class in a set": rf"{_IN_SET}\[:",
    "an escape in a set": rf"{_IN_SET}\\[b0-9]",
    "lookahead": r"\(\?[=!]",
    "lookbehind": r"\(\?<[=!]",
    "an atomic group": r"\(\?>",
    "a conditional group": r"\(\?\(",
    "a comment": r"\(\?#",
    "a Python-only flag": r"\(\?[a-zA-Z-]*[aLux]",
    "a possessive quantifier": r"(?:[*+?]|\{[0-9,]*\})\+",
    "a repeat without a lower bound": r"\{(?:,[0-9]*)?\}",
    "a repeat of more than 1000": r"\{(?:[0-9]*,)?0*(?!1000[^0-9])[1-9][0-9]{3,}[0-9,]*\}",
}
_OTHER = r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]"  # escapes and sets with the same meaning
_PARTS = re.compile("|".join([*(f"({each})" for each in _NOT_IN_GO.values()), _OTHER]), re.DOTALL)


def compile_go_regexp(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression that is written for Go.

    Raises ``ValueError`` for an invalid one and for one that Python would read differently. On
    ASCII, the rest of the syntax means the same in both languages.
    """
    for part in _PARTS.finditer(pattern):
        if part.lastindex:
            construct = [*_NOT_IN_GO][part.lastindex - 1]
            raise ValueError(f"{construct} is not supported: {part[0]!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # set operations
            return re.compile(pattern, re.ASCII)
    except (re.error, FutureWarning, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None
