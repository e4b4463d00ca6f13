"""Topic and channel names, by the rules that servers actually apply.

1 to 64 characters: ``.``, ``_``, ``-``, ASCII letters and digits. Both topics and channels may end
with ``#ephemeral``, which counts towards the 64. (The published protocol says 2 to 32; no server
since 0.3 does.)
"""

from __future__ import annotations

import re

from nsqflow.errors import ConfigError

MAX_NAME_LENGTH = 64
EPHEMERAL = "#ephemeral"

_VALID = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?")


def is_valid_name(name: str) -> bool:
    """Return whether nsqd accepts ``name`` for a topic or a channel."""
    return len(name) <= MAX_NAME_LENGTH and _VALID.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """Return whether the topic or channel is deleted with its last client."""
    return name.endswith(EPHEMERAL)


def check_topic(name: str) -> str:
    """Return ``name``; raise ``ConfigError`` if it is invalid."""
    return _check("topic", name)


def check_channel(name: str) -> str:
    """Return ``name``; raise ``ConfigError`` if it is invalid."""
    return _check("channel", name)


def _check(what: str, name: str) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"{what} name must be a str, not {type(name).__name__}: {name!r}")
    if is_valid_name(name):
        return name
    raise ConfigError(f"{what} name {name!r} {_broken_rule(name)}")


def _broken_rule(name: str) -> str:
    if not name:
        return f"is empty: must have 1 to {MAX_NAME_LENGTH} characters"
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters: must have 1 to {MAX_NAME_LENGTH} with {EPHEMERAL}"
    if name == EPHEMERAL:
        return f"has nothing before {EPHEMERAL}"
    bad = re.search(r"[^.a-zA-Z0-9_-]", name.removesuffix(EPHEMERAL))
    # Without a bad character the name would have been valid.
    assert bad is not None
    return (
        f"has {bad.group()!r} at position {bad.start()}: "
        f"must consist of letters, digits, '.', '_' and '-', and may end with {EPHEMERAL}"
    )
