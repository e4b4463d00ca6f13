"""Where a daemon listens: ``host:port``, ``[v6]:port``, ``:port``, or the path of a socket."""

from __future__ import annotations

import re
from typing import NamedTuple

from nsqflow.errors import ConfigError

_HOST_PORT = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^][:/\s\0]*)):(?P<port>[0-9]{1,5})",
    re.ASCII,
)


class TcpAddress(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    """Empty for all interfaces."""
    port: int
    """0 for one that the system chooses."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect to it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class UnixAddress(NamedTuple):
    """The path of a unix socket."""

    path: str


def parse_listen_address(option: str, text: object) -> TcpAddress | UnixAddress:
    """Read where to listen; raise ``ConfigError`` that names the option."""
    if isinstance(text, str):
        match = _HOST_PORT.fullmatch(text)
        if match and int(match["port"]) <= 65535:
            return TcpAddress(match["v6"] or match["host"], int(match["port"]))
        # A name alone would be a path too, but whoever writes one means a host.
        if "/" in text and "\0" not in text and not text.endswith("/"):
            return UnixAddress(text)
    raise ConfigError(
        f"{option} {text!r}; allowed are host:port, [IPv6]:port and :port with a port of 0 to "
        "65535, and the path of a unix socket, with a '/' in it"
    )


def check_peer_address(option: str, text: object) -> None:
    """Raise ``ConfigError`` unless it is somewhere one can connect to over TCP."""
    match = _HOST_PORT.fullmatch(text) if isinstance(text, str) else None
    if not match or not (match["v6"] or match["host"]) or not 1 <= int(match["port"]) <= 65535:
        raise ConfigError(
            f"{option} {text!r}; allowed are host:port and [IPv6]:port with a port of 1 to 65535"
        )
