"""Withholds secrets from servers that an untrusted config file names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nsqflow.cli.config_file import Settings
from nsqflow.cli.errors import CommandError, error_message, exit_code
from nsqflow.errors import (
    AuthError,
    AuthFailedError,
    NetworkError,
    NsqError,
    UnauthorizedError,
)

_SECRETS = ("auth_secret", "auth_secret_file", "auth_secret_env")
_CERTIFICATES = ("tls_cert_file", "tls_key_file")
# Error texts of the client, and of OpenSSL if a server requires a client certificate.
_ASKS_FOR_MORE = re.compile(r"asks for AUTH|alert (?:certificate required|bad certificate)")
# Older servers only close the connection; with TLS 1.3 the handshake seems to succeed first.
_CLOSED = re.compile(r"\balert\b|closed by|reset by peer|EOF occurred|Broken pipe", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UntrustedFile:
    """A config file that was found in the current folder, and names the servers.

    No secret and no client certificate is sent to these servers, nor to those that they name:
    the file may have come with a checked-out repository.
    """

    file: Path
    withheld: tuple[str, ...] = ()
    """The variables and settings with a secret or certificate that is not sent."""
    has_certificate: bool = False

    @classmethod
    def of(cls, settings: Settings, key: str) -> Self | None:
        """Return the file if it sets ``key``, which names the servers."""
        if settings.found is None or settings.is_trusted(key):
            return None
        origins = settings.origins
        withheld = [
            origins[name] if origins[name].startswith("NSQFLOW_") else f"{name} in {origins[name]}"
            for name in (*_SECRETS, *_CERTIFICATES)
            if name in origins
        ]
        return cls(settings.found, tuple(withheld), _CERTIFICATES[0] in origins)

    @property
    def hint(self) -> str:
        """What is withheld, why, and how to send it."""
        withheld = f" (withheld: {', '.join(self.withheld)})" if self.withheld else ""
        return (
            f"no secret and no client certificate is sent{withheld}, because ./{self.file} names "
            f"the server; if you trust the file, use --config {self.file}"
        )

    def explain(self, error: NsqError) -> NsqError:
        """Return the error, with a hint if it may come from what was not sent."""
        if not self._is_cause_of(error):
            return error
        explained = CommandError(error_message(error), self.hint, exit_code(error))
        explained.__cause__ = error
        return explained

    def _is_cause_of(self, error: NsqError) -> bool:
        if isinstance(error, AuthError | AuthFailedError | UnauthorizedError):
            return True
        if _ASKS_FOR_MORE.search(str(error)):
            return True
        closed = isinstance(error, NetworkError) and _CLOSED.search(str(error)) is not None
        return self.has_certificate and closed


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that may be used for servers of an untrusted file."""
    return {
        name: value for name, value in values.items() if name not in (*_SECRETS, *_CERTIFICATES)
    }
