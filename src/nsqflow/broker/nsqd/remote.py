"""Who is at the other end of a connection, as far as the connection tells."""

from __future__ import annotations

import asyncio
import ssl

from nsqflow.broker.tls import common_name


class Remote:
    """The other end: its address and its TLS."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.ip = str(peer[0]) if isinstance(peer, tuple) else ""
        """On which machine it is; nothing for a unix socket."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        self.address = f"{host}:{peer[1]}" if self.ip else "@"
        """Where it is; "@" is how Go writes a unix socket without a name."""
        self._tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")

    @property
    def tls(self) -> bool:
        """It speaks TLS."""
        return self._tls is not None

    @property
    def tls_version(self) -> str:
        """Which TLS, as Go's nsqd writes it."""
        return (self._tls.version() or "").replace("TLSv", "TLS") if self._tls else ""

    @property
    def tls_cipher(self) -> str:
        """Which cipher suite, by OpenSSL's name."""
        cipher = self._tls.cipher() if self._tls else None
        return cipher[0] if cipher else ""

    @property
    def common_name(self) -> str:
        """Whom its certificate names."""
        return common_name(self._tls) if self._tls else ""
