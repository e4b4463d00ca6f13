"""TLS by nsqd's options: for its clients and for auth servers.

Two things differ from Go: TLS below 1.2 is not supported, and as Python can't request a certificate
without verifying it, ``require`` verifies as ``require-verify`` does.
"""

from __future__ import annotations

import ssl
from typing import Any

from nsqflow.broker.options import NsqdOptions
from nsqflow.errors import ConfigError


def server_context(options: NsqdOptions) -> ssl.SSLContext | None:
    """Return the TLS context for clients, None without a certificate; raise ``ConfigError``."""
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _minimum_version(options)
    _load_certificate(context, options)
    if options.tls_client_auth_policy:
        if options.tls_client_auth_policy == "require" and not options.tls_root_ca_file:
            raise ConfigError(
                "tls_client_auth_policy='require' needs tls_root_ca_file; set it, "
                "or use 'require-verify' for the system's authorities"
            )
        _load_authorities(context, options, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: NsqdOptions) -> ssl.SSLContext:
    """Return the TLS context for auth servers; raise ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _minimum_version(options)
    _load_authorities(context, options, ssl.Purpose.SERVER_AUTH)
    return context


def common_name(connection: ssl.SSLObject | ssl.SSLSocket) -> str:
    """Return the common name in the client's certificate; empty if it sent none."""
    certificate = connection.getpeercert() or {}
    subject: Any = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[-1] if names else ""


def _minimum_version(options: NsqdOptions) -> ssl.TLSVersion:
    newest = options.tls_min_version == "tls1.3"
    return ssl.TLSVersion.TLSv1_3 if newest else ssl.TLSVersion.TLSv1_2


def _load_certificate(context: ssl.SSLContext, options: NsqdOptions) -> None:
    cert, key = options.tls_cert, options.tls_key
    _check_pem("tls_cert", cert, "certificate")
    _check_pem("tls_key", key, "private key")

    def no_password() -> str:  # else OpenSSL would ask for it on the terminal
        raise ConfigError(f"tls_key={key!r} is invalid: a key with a passphrase is not supported")

    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"tls_key={key!r} is invalid: it is not the key of tls_cert={cert!r}"
            ) from None
        raise _unreadable(f"tls_cert={cert!r} or tls_key={key!r}", error) from None


def _load_authorities(context: ssl.SSLContext, options: NsqdOptions, purpose: ssl.Purpose) -> None:
    path = options.tls_root_ca_file
    if not path:
        context.load_default_certs(purpose)
        return
    _check_pem("tls_root_ca_file", path, "certificate")
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise _unreadable(f"tls_root_ca_file={path!r}", error) from None


def _check_pem(option: str, path: str, what: str) -> None:
    """Raise unless the file contains a certificate or private key: OpenSSL gives no reason."""
    try:
        with open(path, "rb") as file:
            found = f"{what.upper()}-----".encode() in file.read()
    except OSError as error:
        raise ConfigError(f"{option}={path!r} is invalid: {error.strerror}") from None
    if not found:
        raise ConfigError(f"{option}={path!r} is invalid: it contains no PEM {what}")


def _unreadable(options: str, error: ssl.SSLError) -> ConfigError:
    return ConfigError(f"{options} is invalid: {error.reason or 'not understood'}")
