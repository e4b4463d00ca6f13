"""Options, declared once: a dataclass field with its default, kind and text.

``option()`` declares a field. Everything else reads the declarations: ``check_options`` for keyword
arguments, ``OptionTable`` for Spark's options, pipeline files, config files, variables and the
flags of the daemons, and ``reference`` for the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from nsqflow.config.kinds import Kind
from nsqflow.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A declared option."""

    kind: Kind
    text: str
    """What it does, for the reference."""
    default: Any = None
    default_text: str = ""
    """The default in words, where the value does not say enough."""
    field: str = ""
    """The dataclass field."""
    name: str = ""
    """The name that users write."""
    scopes: tuple[str, ...] = ()
    """Where it applies; everywhere if empty."""
    required: bool = False
    has_flag: bool = True
    """Whether a daemon has a flag for it."""

    def parse(self, text: str) -> Any:
        """Return the value of a text; raise ``ConfigError`` if it is empty or invalid."""
        if not text:
            raise ConfigError(f"{self.name} is empty: must be {self.kind}")
        return self.kind.parse(self.name, text)

    def applies_to(self, scope: str) -> bool:
        """Return whether it applies in a scope."""
        return not self.scopes or scope in self.scopes


def option(
    default: Any,
    kind: Kind,
    text: str,
    *,
    name: str = "",
    default_text: str = "",
    scopes: tuple[str, ...] = (),
    required: bool = False,
    secret: bool = False,
    has_flag: bool = True,
) -> Any:
    """Declare a dataclass field that is an option.

    A callable ``default`` is called for each instance. A ``secret`` is left out of the
    dataclass's repr.
    """
    declared = Option(
        kind=kind,
        text=text,
        default=() if callable(default) else default,
        default_text=default_text,
        name=name,
        scopes=scopes,
        required=required,
        has_flag=has_flag,
    )
    metadata = {"option": declared}
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def declared_options(cls: Any, naming: Callable[[str], str] = str) -> list[Option]:
    """Return the options that a dataclass declares; ``naming`` maps field names to theirs."""
    return [
        replace(known, field=one.name, name=known.name or naming(one.name))
        for one in fields(cls)
        if (known := one.metadata.get("option")) is not None
    ]


def check_options(instance: Any) -> None:
    """Check the fields of a frozen dataclass, and set each to its canonical value."""
    for one in fields(instance):
        if (known := one.metadata.get("option")) is not None:
            value = getattr(instance, one.name)
            checked = known.kind.check(one.name, value)
            if checked is not value:
                object.__setattr__(instance, one.name, checked)


def check_exactly_one(**given: object) -> None:
    """Raise ``ConfigError`` unless exactly one of two options is given."""
    first, second = given
    if all(given.values()):
        raise ConfigError(f"both {first} and {second} are given: give one of them")
    if not any(given.values()):
        raise ConfigError(f"neither {first} nor {second} is given: give one of them")


def create(cls: type[T], given: Mapping[str, Any], **others: Any) -> T:
    """Return a ``cls`` with those of the given values that are its fields, and with ``others``."""
    names = {one.name for one in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in given.items() if name in names}, **others)


def camel_case(name: str) -> str:
    """Return Spark's spelling of a field's name: ``maxAttempts`` for ``max_attempts``."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


class OptionTable:
    """The options of some dataclasses, by the names that users write, in any case."""

    def __init__(self, *classes: Any, naming: Callable[[str], str] = str) -> None:
        self._options = [one for cls in classes for one in declared_options(cls, naming)]

    def __iter__(self) -> Iterator[Option]:
        return iter(self._options)

    def get(self, name: str, scope: str = "") -> Option | None:
        """Return the option of a name that applies in a scope, or None."""
        for one in self._options:
            if one.name.lower() == name.lower() and one.applies_to(scope):
                return one
        return None

    def names(self, scope: str = "") -> list[str]:
        """Return the names of the options that apply in a scope."""
        return [one.name for one in self._options if one.applies_to(scope)]

    def parse(self, given: Mapping[str, str], scope: str = "") -> dict[str, Any]:
        """Return the values of the given texts, by field; raise ``ConfigError``."""
        values = {}
        for name, text in given.items():
            if (known := self.get(name, scope)) is None:
                raise self.unknown(name, scope)
            values[known.field] = known.parse(text)
        return values

    def unknown(self, name: str, scope: str = "") -> ConfigError:
        """Return the error for an unknown name; its value may be a misspelt secret."""
        names = self.names(scope)
        hints = filter(None, (did_you_mean(name, names), f"known: {', '.join(sorted(names))}"))
        return ConfigError(f"unknown option {name!r}; {' '.join(hints)}")


def did_you_mean(name: str, known: Iterable[str], *, count: int = 1) -> str:
    """Return ``did you mean 'x'?`` for the known names that are close to it; empty if none is."""
    from difflib import get_close_matches  # only after a mistake

    names = {one.lower(): one for one in known}
    near = [names[one] for one in get_close_matches(name.lower(), names, count)]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""
