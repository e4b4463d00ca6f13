"""TLS and AUTH, as set by Spark's options and by the settings of the command line.

Secrets and certificates may be in files and environment variables. They are read where they are
used: on the driver and on every executor.
"""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from nsqflow.config.kinds import Boolean, Path, Text
from nsqflow.config.options import option
from nsqflow.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_MAX_SECRET = 64 * 1024
_SECRETS = ("auth_secret", "auth_secret_file", "auth_secret_env")
_FILES = ("tls_ca_file", "tls_cert_file", "tls_key_file")
_PEM = Path("the path of a PEM file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The options for TLS and AUTH."""

    tls: bool = option(
        False, Boolean(), "use TLS with nsqd; it is an error if an nsqd does not offer it"
    )
    tls_ca_file: str | None = option(
        None, _PEM, "certificates to verify the servers with, instead of the system's"
    )
    tls_cert_file: str | None = option(None, _PEM, "the client's certificate")
    tls_key_file: str | None = option(
        None, _PEM, "its key, not encrypted; by default the key is in `tlsCertFile`"
    )
    tls_verify: bool = option(
        True, Boolean(), "verify the servers' certificates and names; false is for tests"
    )
    auth_secret: str | None = option(
        None,
        Text(),
        "the secret for an nsqd that requires AUTH; visible to everyone who sees the query's "
        "options",
        secret=True,
    )
    auth_secret_file: str | None = option(
        None,
        Path("the path of a file"),
        "a file with the secret, read where it is used; one newline at its end is ignored",
    )
    auth_secret_env: str | None = option(
        None,
        Text("the name of an environment variable"),
        "an environment variable with the secret, read where it is used",
    )

    def check_given(self, given: Container[str], *, https: bool) -> None:
        """Raise ``ConfigError`` for options that contradict each other, or have no effect.

        ``given`` has the names of the fields that are set; ``https`` says whether an HTTP API is
        reached over TLS.
        """
        secrets = [self.name_of(one) for one in _SECRETS if one in given]
        if len(secrets) > 1:
            raise ConfigError(f"both {' and '.join(secrets)} are given: give one of them")
        for one in (*_FILES, "tls_verify"):
            if one in given and not (self.tls or https):
                raise ConfigError(
                    f"{self.name_of(one)} without tls: set tls=true, or nothing is encrypted"
                )
        if self.tls_key_file is not None and self.tls_cert_file is None:
            key, certificate = map(self.name_of, ("tls_key_file", "tls_cert_file"))
            raise ConfigError(f"{key} without {certificate}: a key needs its certificate")

    def secret(self) -> bytes | None:
        """Return the secret for AUTH, read on this machine; None if there is none."""
        if self.auth_secret_file is not None:
            return _read_file(self.name_of("auth_secret_file"), self.auth_secret_file)
        if self.auth_secret_env is not None:
            return _read_variable(self.name_of("auth_secret_env"), self.auth_secret_env)
        return None if self.auth_secret is None else self.auth_secret.encode()

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context for TLS with nsqd; None without TLS."""
        return self.http_context() if self.tls else None

    def http_context(self) -> ssl.SSLContext:
        """Return the context for servers whose address is https, whether or not nsqd uses TLS.

        It is created again only if one of its files has changed.
        """
        return _cached_context(self, tuple(_changed_at(getattr(self, one)) for one in _FILES))

    @staticmethod
    def name_of(field: str) -> str:
        """Return the name by which users know a field."""
        return field


@lru_cache(maxsize=8)
def _cached_context(security: Security, _changes: tuple[int, ...]) -> ssl.SSLContext:
    # Reading all authorities that the system trusts takes longer than a small Spark batch.
    import ssl

    for one in _FILES:
        if (path := getattr(security, one)) is not None:
            _read(security.name_of(one), path, 1)  # OpenSSL does not say which file is at fault
    try:
        context = ssl.create_default_context(cafile=security.tls_ca_file)
    except ssl.SSLError as error:
        name = security.name_of("tls_ca_file")
        raise _unusable(name, security.tls_ca_file, _reason(error)) from None
    if not security.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if security.tls_cert_file is not None:
        _load_certificate(context, security)
    return context


def _load_certificate(context: ssl.SSLContext, security: Security) -> None:
    import ssl

    certificate, key = security.tls_cert_file, security.tls_key_file
    assert certificate is not None
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        name = security.name_of("tls_cert_file")
        with_key = "" if key is None else f" with {security.name_of('tls_key_file')}={key!r}"
        raise ConfigError(
            f"{name}={certificate!r}{with_key} is invalid: {_reason(error)}; must be a "
            "certificate and its key, both PEM, and the key not encrypted"
        ) from None


def _changed_at(path: str | None) -> int:
    try:
        return 0 if path is None else os.stat(path).st_mtime_ns
    except OSError:
        return 0  # creating the context fails, with the reason


def _read_file(name: str, path: str) -> bytes:
    secret = _read(name, path, _MAX_SECRET + 1)
    if len(secret) > _MAX_SECRET:
        raise _unusable(name, path, f"more than {_MAX_SECRET} bytes")
    secret = secret.removesuffix(b"\r\n" if secret.endswith(b"\r\n") else b"\n")
    if not secret:
        raise _unusable(name, path, "the file is empty")
    return secret


def _read_variable(name: str, variable: str) -> bytes:
    secret = os.environ.get(variable)
    if not secret:
        why = "there is no such variable" if secret is None else "the variable is empty"
        raise _unusable(name, variable, f"{why} in the environment of this process")
    return os.fsencode(secret)


def _read(name: str, path: str, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise _unusable(name, path, error.strerror) from None


def _unusable(name: str, value: str | None, reason: object) -> ConfigError:
    return ConfigError(f"{name}={value!r} is invalid: {reason}")


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words."""
    return (error.reason or "cannot be read").lower().replace("_", " ")
