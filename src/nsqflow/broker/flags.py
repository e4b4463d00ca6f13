"""The command lines and config files of the real daemons.

Flags are as Go reads them: ``-name=value``, ``--name value``, ``-name`` alone for what is true or
false; the last of several counts, but lists grow. A config file is TOML. A flag wins over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from nsqflow.broker.options import DaemonOptions, LookupdOptions, NsqdOptions, Option
from nsqflow.broker.values import Kind, Switch, Text
from nsqflow.errors import ConfigError

D = TypeVar("D", bound=DaemonOptions)


class FlagError(ConfigError):
    """A command line that can't be read."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that is known."""

    name: str
    kind: Kind
    text: str
    default: Any = None
    option: str | None = None
    """The field of the options that it sets."""
    key: str = ""
    """What a config file calls it; empty if it has no place there."""
    works: bool = True
    """False for one of the real daemon that has no effect here."""

    def usage(self) -> str:
        """Write how it is used, in the way of Go."""
        shown = self.kind.show(self.default)
        default = f" (default {shown})" if shown else ""
        return f"  -{self.name} {self.kind.label}".rstrip() + f"\n    \t{self.text}{default}\n"


class Flags(Generic[D]):
    """The flags of a daemon."""

    def __init__(self, program: str, options: type[D], idle: Iterable[Flag] = ()) -> None:
        self.program = program
        self.prefix = f"[{program}] "
        """What its log lines begin with, while no option says otherwise."""
        self._options = options
        known = [
            Flag("config", Text(), "path of a config file"),
            Flag("help", Switch(), "print this"),
            Flag("version", Switch(), "print the version"),
            _idle("verbose", Switch()),
            *idle,
            *self._working(),
        ]
        self._flags = {flag.name: flag for flag in sorted(known, key=lambda flag: flag.name)}

    def read(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Read a command line; gives the flags on it and their values.

        It reads no further than ``-help``. Raises ``FlagError``.
        """
        given: dict[str, Any] = {}
        left = list(reversed(arguments))
        while left and "help" not in given:
            argument = left.pop()
            if argument == "--":
                break
            flag, text = self._split(argument)
            if text is None:
                text = "true" if flag.kind.is_bool else self._next(flag, left)
            value = _parse(flag, text)
            given[flag.name] = given.get(flag.name, ()) + value if flag.kind.is_list else value
        if left and "help" not in given:
            raise self._stray(left.pop())
        return given

    def options(self, given: dict[str, Any]) -> tuple[D, list[str]]:
        """Make the options of what was given, and of the config file if there is one.

        Gives, too, what is to be told about flags that have no effect. Raises ``ConfigError``.
        """
        values, warnings = dict[str, Any](), list[str]()
        if path := given.get("config"):
            values |= self._from_file(path, warnings)
        for name, value in given.items():
            flag = self._flags[name]
            if not flag.works:
                warnings.append(f"-{name} has no effect in nsqflow")
            elif flag.option:
                values[flag.option] = value
        return self._options(**values), warnings

    def usage(self) -> str:
        """Tell all flags."""
        lines = (flag.usage() for flag in self._flags.values())
        return f"Usage of {self.program}:\n{''.join(lines)}"

    def _working(self) -> list[Flag]:
        flags = []
        for f in fields(self._options):
            known: Option = f.metadata["option"]
            if known.has_flag:
                name, key = f.name.replace("_", "-"), known.name or f.name
                default = None if f.default is MISSING else f.default
                flags.append(Flag(name, known.kind, known.text, default, f.name, key))
        return flags

    def _split(self, argument: str) -> tuple[Flag, str | None]:
        """Take a flag apart: which one it is, and its value if that is in the same word."""
        body = argument.removeprefix("-")
        if body == argument or not body:
            raise self._stray(argument)
        name, equals, value = body.removeprefix("-").partition("=")
        if name == "h":
            name = "help"
        if name not in self._flags:
            hint = _hint(name, self._flags, "-")
            raise FlagError(f"unknown flag {argument.partition('=')[0]}{hint}; -help lists all")
        return self._flags[name], value if equals else None

    def _next(self, flag: Flag, left: list[str]) -> str:
        if not left:
            raise FlagError(f"-{flag.name} without its value; write -{flag.name}=VALUE")
        return left.pop()

    def _stray(self, argument: str) -> FlagError:
        # The real daemons silently take no notice of it, nor of any flag behind it.
        return FlagError(f"{argument!r} is not a flag; write -name=value, -help lists all")

    def _from_file(self, path: str, warnings: list[str]) -> dict[str, Any]:
        known = {flag.key: flag for flag in self._flags.values() if flag.key}
        values: dict[str, Any] = {}
        for key, value in _load(path).items():
            flag = known.get(key)
            if flag is None:
                warnings.append(f"{path}: no option {key!r}{_hint(key, known)}")
            elif not flag.works:
                warnings.append(f"{path}: {key} has no effect in nsqflow")
            elif flag.option:
                try:
                    values[flag.option] = flag.kind.from_toml(value)
                except ValueError as error:
                    raise ConfigError(f"{path}: {key} {value!r}; allowed is {error}") from None
        return values


def _parse(flag: Flag, text: str) -> Any:
    if not flag.works:
        return text
    try:
        return flag.kind.parse(text)
    except ValueError as error:
        raise FlagError(f"-{flag.name} {text!r}; allowed is {error}") from None


def _load(path: str) -> dict[str, Any]:
    import tomllib  # most command lines have no config file

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"config file {path!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path!r} is not TOML: {error}") from None


def _hint(name: str, known: Iterable[str], dash: str = "") -> str:
    near = get_close_matches(name, known, 1)
    return f" (did you mean {dash}{near[0]}?)" if near else ""


def _idle(name: str, kind: Kind, key: str = "") -> Flag:
    key = key or name.replace("-", "_")
    return Flag(name, kind, "known to the real daemon; has no effect here", key=key, works=False)


_IDLE_IN_NSQD = (
    _idle("e2e-processing-latency-percentile", Kind(), "e2e_processing_latency_percentiles"),
    _idle("e2e-processing-latency-window-time", Kind()),
    _idle("max-bytes-per-file", Kind()),
    _idle("queue-scan-selection-count", Kind()),
    _idle("queue-scan-worker-pool-max", Kind()),
    _idle("statsd-address", Kind()),
    _idle("statsd-exclude-ephemeral", Switch()),
    _idle("statsd-interval", Kind()),
    _idle("statsd-mem-stats", Switch()),
    _idle("statsd-prefix", Kind()),
    _idle("statsd-udp-packet-size", Kind()),
    _idle("sync-every", Kind()),
    _idle("sync-timeout", Kind()),
    _idle("worker-id", Switch()),
)


def nsqd_flags() -> Flags[NsqdOptions]:
    """Give the flags of nsqd; without a data path, unlike the real one, it keeps all in memory."""
    return Flags("nsqd", NsqdOptions, _IDLE_IN_NSQD)


def nsqlookupd_flags() -> Flags[LookupdOptions]:
    """Give the flags of nsqlookupd."""
    return Flags("nsqlookupd", LookupdOptions)
