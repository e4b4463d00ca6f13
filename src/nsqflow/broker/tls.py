"""TLS as nsqd's options say: for its clients, and for the auth servers that it asks.

Two things differ from Go. Nothing older than TLS 1.2 is spoken. And Python's TLS has no
certificate that is asked for and not verified, so ``require`` verifies as ``require-verify`` does.
"""

from __future__ import annotations

import ssl
from typing import Any

from nsqflow.broker.options import NsqdOptions
from nsqflow.errors import ConfigError

_BEGIN_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_BEGIN_KEY = b"PRIVATE KEY-----"


def server_context(options: NsqdOptions) -> ssl.SSLContext | None:
    """Give the TLS for clients, None if there is no certificate; raise ``ConfigError``."""
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _minimum_version(options)
    _load_certificate(context, options)
    if options.tls_client_auth_policy:
        if options.tls_client_auth_policy == "require" and not options.tls_root_ca_file:
            raise ConfigError(
                "tls_client_auth_policy 'require' without tls_root_ca_file; name the authorities, "
                "or say 'require-verify' for those of the system"
            )
        _load_authorities(context, options, ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: NsqdOptions) -> ssl.SSLContext:
    """Give the TLS for auth servers; raise ``ConfigError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _minimum_version(options)
    _load_authorities(context, options, ssl.Purpose.SERVER_AUTH)
    return context


def common_name(connection: ssl.SSLObject | ssl.SSLSocket) -> str:
    """Give the name in the client's certificate; empty if it showed none."""
    certificate = connection.getpeercert() or {}
    subject: Any = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[-1] if names else ""


def _minimum_version(options: NsqdOptions) -> ssl.TLSVersion:
    newest = options.tls_min_version == "tls1.3"
    return ssl.TLSVersion.TLSv1_3 if newest else ssl.TLSVersion.TLSv1_2


def _load_certificate(context: ssl.SSLContext, options: NsqdOptions) -> None:
    cert, key = options.tls_cert, options.tls_key
    if _BEGIN_CERTIFICATE not in _read("tls_cert", cert):
        raise ConfigError(f"tls_cert {cert!r}: no certificate in PEM form is in it")
    if _BEGIN_KEY not in _read("tls_key", key):
        raise ConfigError(f"tls_key {key!r}: no private key in PEM form is in it")

    def no_password() -> str:  # else OpenSSL would ask for it on the terminal
        raise ConfigError(f"tls_key {key!r}: it has a passphrase; give one without")

    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls_key {key!r}: it is not the key of tls_cert {cert!r}") from None
        reason = error.reason or "not understood"
        raise ConfigError(f"tls_cert {cert!r} or tls_key {key!r}: {reason}") from None


def _load_authorities(context: ssl.SSLContext, options: NsqdOptions, purpose: ssl.Purpose) -> None:
    path = options.tls_root_ca_file
    if not path:
        context.load_default_certs(purpose)
        return
    if _BEGIN_CERTIFICATE not in _read("tls_root_ca_file", path):
        raise ConfigError(f"tls_root_ca_file {path!r}: no certificate in PEM form is in it")
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        reason = error.reason or "not understood"
        raise ConfigError(f"tls_root_ca_file {path!r}: {reason}") from None


def _read(option: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{option} {path!r}: {error.strerror}") from None
