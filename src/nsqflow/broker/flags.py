"""Command lines and config files of nsqd and nsqlookupd, as the real daemons read them.

Flags have Go's syntax: ``-name=value``, ``--name value``, and ``-name`` alone for a boolean. The
last of several counts, except that lists grow. A config file is TOML; a flag overrides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from nsqflow.broker.options import D, LookupdOptions, NsqdOptions
from nsqflow.config.kinds import Boolean, Kind, Text
from nsqflow.config.options import declared_options, did_you_mean
from nsqflow.errors import ConfigError


class FlagError(ConfigError):
    """A command line that can't be read."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A known flag."""

    name: str
    kind: Kind
    text: str
    default: Any = None
    option: str | None = None
    """The field of the options that it sets."""
    key: str = ""
    """Its key in a config file; empty if it has none."""
    works: bool = True
    """False for a flag of the real daemon that has no effect here."""

    def usage(self) -> str:
        """Return its lines of the usage text, as Go formats them."""
        shown = self.kind.show_go(self.default)
        default = f" (default {shown})" if shown else ""
        return f"  -{self.name} {self.kind.label}".rstrip() + f"\n    \t{self.text}{default}\n"

    def parse(self, text: str) -> Any:
        """Return the value of a text; raise ``FlagError`` if it can't be read."""
        if not self.works:
            return text
        try:
            return (text,) if self.kind.is_list else self.kind.from_go(f"-{self.name}", text)
        except ConfigError as error:
            raise FlagError(str(error)) from None


class Flags(Generic[D]):
    """The flags of a daemon."""

    def __init__(self, program: str, options: type[D], idle: Iterable[Flag] = ()) -> None:
        self.program = program
        self.prefix = f"[{program}] "
        """The prefix of log lines until the options are read."""
        self._options = options
        working = [
            Flag(one.field.replace("_", "-"), one.kind, one.text, one.default, one.field, one.name)
            for one in declared_options(options)
            if one.has_flag
        ]
        known = [
            Flag("config", Text(), "path of a config file"),
            Flag("help", Boolean(), "print this help"),
            Flag("version", Boolean(), "print the version"),
            _idle("verbose", Boolean()),
            *idle,
            *working,
        ]
        self._flags = {flag.name: flag for flag in sorted(known, key=lambda flag: flag.name)}

    def read(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the flags of a command line and their values; raise ``FlagError``.

        It stops reading at ``-help``.
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
            value = flag.parse(text)
            given[flag.name] = given.get(flag.name, ()) + value if flag.kind.is_list else value
        if left and "help" not in given:
            raise self._stray(left.pop())
        return given

    def options(self, given: dict[str, Any]) -> tuple[D, list[str]]:
        """Return the options set by the flags and the config file, and warnings.

        The warnings are about flags and keys that have no effect. Raise ``ConfigError`` for an
        invalid value.
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
        """Return the usage text."""
        lines = (flag.usage() for flag in self._flags.values())
        return f"Usage of {self.program}:\n{''.join(lines)}"

    def _split(self, argument: str) -> tuple[Flag, str | None]:
        """Return an argument's flag, and its value if the argument has one."""
        body = argument.removeprefix("-")
        if body == argument or not body:
            raise self._stray(argument)
        name, equals, value = body.removeprefix("-").partition("=")
        if name == "h":
            name = "help"
        if name not in self._flags:
            hint = did_you_mean(f"-{name}", [f"-{known}" for known in self._flags])
            hint = f" ({hint})" if hint else ""
            raise FlagError(f"unknown flag {argument.partition('=')[0]}{hint}; -help lists all")
        return self._flags[name], value if equals else None

    def _next(self, flag: Flag, left: list[str]) -> str:
        if not left:
            raise FlagError(f"-{flag.name} has no value: write -{flag.name}=VALUE")
        return left.pop()

    def _stray(self, argument: str) -> FlagError:
        # The real daemons silently ignore it and every flag after it.
        return FlagError(f"{argument!r} is not a flag: write -name=value, -help lists all")

    def _from_file(self, path: str, warnings: list[str]) -> dict[str, Any]:
        known = {flag.key: flag for flag in self._flags.values() if flag.key}
        values: dict[str, Any] = {}
        for key, value in _load(path).items():
            flag = known.get(key)
            if flag is None:
                hint = did_you_mean(key, known)
                warnings.append(f"{path}: unknown option {key!r}" + (f" ({hint})" if hint else ""))
            elif not flag.works:
                warnings.append(f"{path}: {key} has no effect in nsqflow")
            elif flag.option:
                values[flag.option] = flag.kind.from_go(f"{path}: {key}", value)
        return values


def _load(path: str) -> dict[str, Any]:
    import tomllib  # most command lines have no config file

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"config file {path!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path!r} is not TOML: {error}") from None


def _idle(name: str, kind: Kind, key: str = "") -> Flag:
    key = key or name.replace("-", "_")
    return Flag(name, kind, "known to the real daemon; has no effect here", key=key, works=False)


_IDLE_IN_NSQD = (
    *("e2e-processing-latency-window-time", "max-bytes-per-file", "queue-scan-selection-count"),
    *("queue-scan-worker-pool-max", "statsd-address", "statsd-interval", "statsd-prefix"),
    *("statsd-udp-packet-size", "sync-every", "sync-timeout"),
)
_IDLE_SWITCHES_IN_NSQD = ("statsd-exclude-ephemeral", "statsd-mem-stats", "worker-id")


def nsqd_flags() -> Flags[NsqdOptions]:
    """Return the flags of nsqd; without a data path it keeps messages only in memory."""
    latency = "e2e-processing-latency-percentile"
    idle = [_idle(latency, Kind(), "e2e_processing_latency_percentiles")]
    idle += [_idle(name, Kind()) for name in _IDLE_IN_NSQD]
    idle += [_idle(name, Boolean()) for name in _IDLE_SWITCHES_IN_NSQD]
    return Flags("nsqd", NsqdOptions, idle)


def nsqlookupd_flags() -> Flags[LookupdOptions]:
    """Return the flags of nsqlookupd."""
    return Flags("nsqlookupd", LookupdOptions)
