"""Decodes the bytes that a terminal sends into keys."""

from __future__ import annotations

import re

ESCAPE = "escape"

# What terminals send for keys without a character, in normal and application mode.
_NAMES = {
    **{f"\x1b{kind}A": "up" for kind in "[O"},
    **{f"\x1b{kind}B": "down" for kind in "[O"},
    **{f"\x1b{kind}H": "home" for kind in "[O"},
    **{f"\x1b{kind}F": "end" for kind in "[O"},
    **dict.fromkeys(("\x1b[1~", "\x1b[7~"), "home"),
    **dict.fromkeys(("\x1b[4~", "\x1b[8~"), "end"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
}
# A control sequence (ECMA-48), a key of application mode, Alt with a key, or one character.
_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO[ -~]|\x1b[^\x1b\[O]|[^\x1b]", re.DOTALL)
_MAX_SEQUENCE = 32  # characters; longer sequences are not keys


class KeyDecoder:
    """Splits what a terminal sends into keys; a sequence may arrive in pieces.

    A key with a character is that character; others have names, such as ``page up``.
    """

    def __init__(self) -> None:
        self._rest = ""

    @property
    def is_waiting(self) -> bool:
        """Whether an Esc was received that is either the key or the start of a sequence."""
        return self._rest != ""

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that are complete."""
        text, keys = self._rest + data.decode("utf-8", "replace"), list[str]()
        while text:
            if text.startswith("\x1b\x1b"):  # not the start of a sequence
                keys.append(ESCAPE)
                text = text[1:]
            elif match := _KEY.match(text):
                keys += self._key(match[0])
                text = text[match.end() :]
            else:
                break
        self._rest = text if len(text) <= _MAX_SEQUENCE else ""
        return keys

    def flush(self) -> list[str]:
        """Return Esc if it is the key: call this when nothing has followed for a while."""
        alone, self._rest = self._rest == "\x1b", ""
        return [ESCAPE] if alone else []

    def _key(self, text: str) -> list[str]:
        if text.startswith("\x1b"):
            return [_NAMES[text]] if text in _NAMES else []
        return [text]
