"""Faults on demand, so that users can see what their own services make of them."""

from __future__ import annotations

from collections import defaultdict, deque

from nsqflow.errors import SERVER_ERRORS, ConfigError

_COMMANDS = frozenset(
    {"IDENTIFY", "AUTH", "SUB", "PUB", "MPUB", "DPUB", "RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP"}
)


class Faults:
    """What shall go wrong in an nsqd."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds by which all that clients are sent is late."""
        self._codes: defaultdict[str, deque[str]] = defaultdict(deque)

    def fail_next(self, command: str, code: str) -> None:
        """Answer the next command of this name with an error, and don't carry it out."""
        if command not in _COMMANDS:
            raise ConfigError(f"command {command!r}; allowed are {', '.join(sorted(_COMMANDS))}")
        if code not in SERVER_ERRORS:
            raise ConfigError(f"code {code!r}; allowed are {', '.join(sorted(SERVER_ERRORS))}")
        of = code.removeprefix("E_").removesuffix("_FAILED")
        if of in _COMMANDS - {"AUTH", command}:  # the right to publish is a matter of AUTH too
            raise ConfigError(f"code {code!r} for {command}; no server answers it with that")
        self._codes[command].append(code)

    def slow(self, seconds: float) -> None:
        """Send all that clients are sent so much later; 0: at once again."""
        try:
            valid = 0 <= seconds <= 3600
        except TypeError:
            valid = False
        if not valid:
            raise ConfigError(f"seconds {seconds!r}; 0 to 3600 are allowed")
        self.delay = seconds

    def take(self, command: str) -> str | None:
        """Return the code that this command is to be answered with, if it is to fail."""
        codes = self._codes.get(command)
        return codes.popleft() if codes else None

    def __bool__(self) -> bool:
        return any(self._codes.values())
