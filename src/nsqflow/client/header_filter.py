"""Filters by header, which nsqd of the redesigned NSQ applies before it delivers a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nsqflow.config.go_regexp import compile_go_regexp
from nsqflow.errors import ConfigError

_TYPES = {"equal": 1, "regexp": 2, "glob": 3}


@dataclass(frozen=True, slots=True)
class HeaderFilter:
    """Which messages a consumer receives, by their headers; only headers that are text match.

        Consumer("orders", "eu", lookupd=..., header_filter=HeaderFilter.equal("region", "eu"))

    What does not match is finished by nsqd, for the whole channel: all consumers of the channel
    need the same filter.
    """

    _rule: Mapping[str, Any] = field()

    @classmethod
    def equal(cls, name: str, value: str) -> HeaderFilter:
        """Receive messages whose header ``name`` is ``value``."""
        return cls(_single("equal", name, value))

    @classmethod
    def regexp(cls, name: str, pattern: str) -> HeaderFilter:
        """Receive messages whose header matches a regular expression of Go (RE2), anywhere."""
        rule = _single("regexp", name, pattern)
        try:
            compile_go_regexp(pattern)
        except ValueError as error:
            # nsqd would ignore it and deliver everything.
            raise ConfigError(f"pattern={pattern!r} is invalid: {error}") from None
        return cls(rule)

    @classmethod
    def glob(cls, name: str, pattern: str) -> HeaderFilter:
        """Receive messages whose header matches ``*``, ``?``, ``[ab]`` or ``{one,other}``."""
        rule = _single("glob", name, pattern)
        for opening, closing in ("[]", "{}"):
            if pattern.count(opening) != pattern.count(closing):
                raise ConfigError(f"pattern={pattern!r} is invalid: {opening!r} is not closed")
        return cls(rule)

    @classmethod
    def all_of(cls, values: Mapping[str, str]) -> HeaderFilter:
        """Receive messages that have all of these headers."""
        return cls(_several("all", values))

    @classmethod
    def any_of(cls, values: Mapping[str, str]) -> HeaderFilter:
        """Receive messages that have any of these headers."""
        return cls(_several("any", values))

    def inverted(self) -> HeaderFilter:
        """Return the filter for all other messages."""
        return replace(self, _rule={**self._rule, "inverse": not self._rule.get("inverse")})

    @property
    def ext_filter(self) -> dict[str, Any]:
        """What IDENTIFY contains."""
        return dict(self._rule)


def _single(kind: str, name: object, value: object) -> dict[str, Any]:
    _check_text("name", name)
    _check_text("value" if kind == "equal" else "pattern", value)
    return {"type": _TYPES[kind], "filter_ext_key": name, "filter_data": value}


def _several(relation: str, values: Mapping[str, str]) -> dict[str, Any]:
    if not values:
        raise ConfigError("values={} is invalid: must name a header")
    rules = [_single("equal", name, value) for name, value in values.items()]
    return {"type": 4, "filter_ext_key": relation, "filter_data_list": rules}


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}={value!r} is invalid: must be text that is not empty")
