"""Injects faults, so that users can test how their services react."""

from __future__ import annotations

from collections import defaultdict, deque

from nsqflow.errors import SERVER_ERRORS, ConfigError

_COMMANDS = frozenset(
    {
        *("IDENTIFY", "AUTH", "SUB", "PUB", "MPUB", "DPUB", "RDY", "FIN", "REQ", "TOUCH", "CLS"),
        *("NOP", "PUB_TRACE", "MPUB_TRACE", "PUB_EXT", "MPUB_EXT"),
    }
)


class FaultInjector:
    """The faults to inject into an nsqd."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds by which everything sent to clients is delayed."""
        self._codes: defaultdict[str, deque[str]] = defaultdict(deque)

    def fail_next(self, command: str, code: str) -> None:
        """Respond to the next command of this name with an error and don't execute it."""
        if command not in _COMMANDS:
            raise ConfigError(
                f"command={command!r} is invalid: must be one of {', '.join(sorted(_COMMANDS))}"
            )
        if code not in SERVER_ERRORS:
            raise ConfigError(
                f"code={code!r} is invalid: must be one of {', '.join(sorted(SERVER_ERRORS))}"
            )
        of = code.removeprefix("E_").removesuffix("_FAILED")
        if of in _COMMANDS - {"AUTH", command}:  # publishing may fail with E_AUTH_FAILED too
            raise ConfigError(f"code={code!r} is invalid for {command}: no server responds with it")
        self._codes[command].append(code)

    def slow(self, seconds: float) -> None:
        """Delay everything sent to clients by ``seconds``; 0 ends the delay."""
        try:
            valid = 0 <= seconds <= 3600
        except TypeError:
            valid = False
        if not valid:
            raise ConfigError(f"seconds={seconds!r} is invalid: must be a number from 0 to 3600")
        self.delay = seconds

    def take(self, command: str) -> str | None:
        """Return the code that this command must fail with, if any."""
        codes = self._codes.get(command)
        return codes.popleft() if codes else None

    def __bool__(self) -> bool:
        return any(self._codes.values())
