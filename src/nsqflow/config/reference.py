"""The options in words: for ``help(Consumer)`` and the tables of the reference pages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from nsqflow.config.kinds import Boolean, Kind
from nsqflow.config.options import Option, declared_options

T = TypeVar("T")

_WIDTH = 88


def with_options(config: Any, *, omit: Iterable[str] = ()) -> Callable[[type[T]], type[T]]:
    """Return a decorator that lists the options of a config class in the help of a class."""

    def decorate(owner: type[T]) -> type[T]:
        owner.__doc__ = _Help(owner.__doc__, config, frozenset(omit))  # type: ignore[assignment]
        return owner

    return decorate


class _Help:
    """A docstring that is built when it is read, so that imports stay cheap."""

    def __init__(self, text: str | None, config: Any, omit: frozenset[str]) -> None:
        self._text = text
        self._config = config
        self._omit = omit

    def __get__(self, instance: object, owner: type | None = None) -> str:
        listed = describe_options(self._config, omit=self._omit)
        return f"{inspect.cleandoc(self._text or '')}\n\n{listed}"


def describe_options(config: Any, *, omit: Iterable[str] = ()) -> str:
    """Return the options of a config class, those that it adds to its base class first."""
    inherited = {one.field for one in declared_options(config.__bases__[0])}
    options = sorted(declared_options(config), key=lambda one: one.field in inherited)
    head = "Options, each with its default and its range. Times are seconds, sizes bytes.\n"
    return "\n".join((head, *(_describe(one) for one in options if one.name not in omit)))


def _describe(option: Option) -> str:
    import textwrap  # only for help()

    facts = ", ".join(filter(None, (python_default(option), python_range(option))))
    indent = " " * 4
    text = option.text.replace("`", "")
    text = textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return f"{option.name}: {facts}\n{text}".replace(": \n", "\n")


def python_default(option: Option) -> str:
    """Return a keyword argument's default as Python code; empty if it is not a single value."""
    value = option.default
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value) if isinstance(value, int | float | None) else ""


def python_range(option: Option) -> str:
    """Return what a keyword argument accepts; empty if the option's text says it."""
    if isinstance(option.kind, Boolean):
        return "True or False"
    return "" if type(option.kind) is Kind else str(option.kind)
