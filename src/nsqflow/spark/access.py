"""How the servers are talked to: TLS, AUTH and compression.

Secret and certificates may lie in files and variables of the machine: they are read where and
when they are used, on the driver and on every executor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from nsqflow.errors import ConfigError
from nsqflow.spark.servers import Servers
from nsqflow.spark.table import ANYWHERE, make, option
from nsqflow.spark.values import Flag, Text, file_path

if TYPE_CHECKING:
    import ssl

_MAX_SECRET = 64 * 1024

_PEM = Text("the path of a PEM file", file_path)

_SECRETS = {
    "authSecret": "auth_secret",
    "authSecretFile": "auth_secret_file",
    "authSecretEnv": "auth_secret_env",
}
_FILES = {
    "tlsCaFile": "tls_ca_file",
    "tlsCertFile": "tls_cert_file",
    "tlsKeyFile": "tls_key_file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to talk to an nsqd: TLS, AUTH and compression."""

    tls: bool = option(
        "tls",
        ANYWHERE,
        Flag(),
        "talk to nsqd over TLS; one that does not offer it is an error",
        default="false",
    )
    tls_ca_file: str | None = option(
        "tlsCaFile",
        ANYWHERE,
        _PEM,
        "certificates to verify the servers with, instead of the system's",
    )
    tls_cert_file: str | None = option(
        "tlsCertFile",
        ANYWHERE,
        _PEM,
        "the certificate to show to the servers",
    )
    tls_key_file: str | None = option(
        "tlsKeyFile",
        ANYWHERE,
        _PEM,
        "its key, not encrypted; without it, the key is in `tlsCertFile`",
    )
    tls_verify: bool = option(
        "tlsVerify",
        ANYWHERE,
        Flag(),
        "verify the servers' certificates and names; false is for tests",
        default="true",
    )
    auth_secret: str | None = option(
        "authSecret",
        ANYWHERE,
        Text("text"),
        "the secret for an nsqd that asks for AUTH; visible to who sees the query's options",
        secret=True,
    )
    auth_secret_file: str | None = option(
        "authSecretFile",
        ANYWHERE,
        Text("the path of a file", file_path),
        "a file with the secret, read where it is used; one newline at its end does not count",
    )
    auth_secret_env: str | None = option(
        "authSecretEnv",
        ANYWHERE,
        Text("the name of a variable"),
        "an environment variable with the secret, read where it is used",
    )
    snappy: bool = option(
        "snappy",
        ANYWHERE,
        Flag(),
        "compress what goes to and from nsqd with snappy",
        default="false",
    )
    deflate: bool = option(
        "deflate",
        ANYWHERE,
        Flag(),
        "compress it with deflate; one of the two",
        default="false",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any], servers: Servers) -> Self:
        """Take what is given; refuse what contradicts itself, or would protect nothing."""
        access = make(cls, given)
        secrets = [name for name, field in _SECRETS.items() if field in given]
        if len(secrets) > 1:
            raise ConfigError(f"{' and '.join(secrets)}; give one of them")
        if access.snappy and access.deflate:
            raise ConfigError("snappy and deflate can't be had together; give one of them")
        for name, field in {**_FILES, "tlsVerify": "tls_verify"}.items():
            if field in given and not (access.tls or servers.use_https):
                raise ConfigError(f"{name} without tls; give tls=true, or nothing is encrypted")
        if access.tls_key_file is not None and access.tls_cert_file is None:
            raise ConfigError("tlsKeyFile without tlsCertFile; a key needs its certificate")
        return access

    def secret(self) -> bytes | None:
        """Give the secret for AUTH, as this machine has it; None if there is none."""
        if self.auth_secret_file is not None:
            return _secret_of_file(self.auth_secret_file)
        if self.auth_secret_env is not None:
            return _secret_of_variable(self.auth_secret_env)
        return None if self.auth_secret is None else self.auth_secret.encode()

    def ssl_context(self) -> ssl.SSLContext | None:
        """Say how to talk TLS with nsqd; None without TLS."""
        return self.http_context() if self.tls else None

    def http_context(self) -> ssl.SSLContext:
        """Say how to talk with servers whose address is https, whatever nsqd does."""
        import ssl

        for name, field in _FILES.items():
            if (path := getattr(self, field)) is not None:
                _check_readable(name, path)
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
        except ssl.SSLError as error:
            raise ConfigError(f"tlsCaFile {self.tls_ca_file!r}: {_reason(error)}") from None
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._show_certificate(context)
        return context

    def _show_certificate(self, context: ssl.SSLContext) -> None:
        import ssl

        if self.tls_cert_file is None:
            return
        try:
            # Without a password given, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.tls_cert_file, self.tls_key_file, password="")
        except ssl.SSLError as error:
            key = "" if self.tls_key_file is None else f" with tlsKeyFile {self.tls_key_file!r}"
            raise ConfigError(
                f"tlsCertFile {self.tls_cert_file!r}{key}: {_reason(error)}; allowed are a "
                "certificate and its key, both PEM, and the key not encrypted"
            ) from None


def _secret_of_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            secret = file.read(_MAX_SECRET + 1)
    except OSError as error:
        raise ConfigError(f"authSecretFile {path!r}: {error.strerror}") from None
    if len(secret) > _MAX_SECRET:
        raise ConfigError(f"authSecretFile {path!r}: more than {_MAX_SECRET} bytes")
    secret = secret.removesuffix(b"\r\n" if secret.endswith(b"\r\n") else b"\n")
    if not secret:
        raise ConfigError(f"authSecretFile {path!r}: the file is empty")
    return secret


def _secret_of_variable(name: str) -> bytes:
    secret = os.environ.get(name)
    if not secret:
        why = "there is no such variable" if secret is None else "the variable is empty"
        raise ConfigError(f"authSecretEnv {name!r}: {why} in the environment of this process")
    return os.fsencode(secret)


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{name} {path!r}: {error.strerror}") from None


def _reason(error: ssl.SSLError) -> str:
    """Write what OpenSSL says, where it is more than a line of its source."""
    return (error.reason or "cannot be read").lower().replace("_", " ")
