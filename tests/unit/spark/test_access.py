"""Secrets and certificates: read where they are used, and never shown."""

from __future__ import annotations

import pickle
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from nsqflow.errors import ConfigError
from nsqflow.spark.options import parse_sink
from nsqflow.spark.server_options import Access
from tests.fixtures.certificates import Certificates

SECRET = "hunter2"


def refused(access: Access) -> str:
    with pytest.raises(ConfigError) as caught:
        access.http_context()
    return str(caught.value)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """Let the two meet in memory; returns the server's end."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=name)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (here, there):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert here.version() is not None
    return there


@pytest.fixture
def server(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


@pytest.fixture
def pem(tmp_path: Path, certificates: Certificates) -> Path:
    """An encrypted key, one of another user, and a file that is not a key."""
    key = load_pem_private_key(certificates.key.read_bytes(), None)
    encrypted = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")
    )
    (tmp_path / "encrypted.pem").write_bytes(encrypted)
    other = trustme.CA().issue_cert("localhost")
    other.private_key_pem.write_to_path(tmp_path / "other.pem")
    (tmp_path / "nothing.pem").write_text("nothing\n")
    return tmp_path


def test_without_a_secret_there_is_none() -> None:
    assert Access().secret() is None


def test_a_secret_may_be_given_as_it_is() -> None:
    assert Access(auth_secret="geheim ü").secret() == "geheim ü".encode()


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"hunter2", b"hunter2"),
        (b"hunter2\n", b"hunter2"),
        (b"hunter2\r\n", b"hunter2"),
        (b"hunter2\n\n", b"hunter2\n"),
        (b" hunter2\r", b" hunter2\r"),
        (b"\xff\x00", b"\xff\x00"),
    ],
)
def test_a_secret_in_a_file_loses_one_newline_and_nothing_else(
    tmp_path: Path, content: bytes, secret: bytes
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    assert Access(auth_secret_file=str(file)).secret() == secret


def test_a_secret_in_a_file_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    access = Access(auth_secret_file=str(file))
    for secret in (b"first", b"second"):
        file.write_bytes(secret)
        assert access.secret() == secret


def test_a_secret_in_a_variable_is_read_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = Access(auth_secret_env="NSQ_SECRET_OF_A_TEST")
    for secret in ("first", "second"):
        monkeypatch.setenv("NSQ_SECRET_OF_A_TEST", secret)
        assert access.secret() == secret.encode()


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n"])
def test_an_empty_secret_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"authSecretFile='{file}' is invalid: the file is empty"):
        Access(auth_secret_file=str(file)).secret()


def test_a_file_that_is_not_there_is_named_with_its_option(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(
        ConfigError, match=f"authSecretFile='{file}' is invalid: No such file or directory"
    ):
        Access(auth_secret_file=str(file)).secret()


def test_an_invalid_path_is_refused_when_the_options_are_read() -> None:
    given = {"nsqd": "a:4150", "tls": "true"}
    for name in ("tlsCaFile", "tlsCertFile", "authSecretFile"):
        with pytest.raises(ConfigError) as caught:
            parse_sink(given | {name: "/a\0"})
        assert str(caught.value).startswith(f"{name}='/a\\x00' is invalid: must be the path of a")


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(
        ConfigError, match="authSecretFile='/dev/zero' is invalid: more than 65536 bytes"
    ):
        Access(auth_secret_file="/dev/zero").secret()


@pytest.mark.parametrize(
    ("value", "why"), [(None, "there is no such variable"), ("", "the variable is empty")]
)
def test_a_variable_without_a_secret_is_named_with_its_option(
    monkeypatch: pytest.MonkeyPatch, value: str | None, why: str
) -> None:
    monkeypatch.delenv("NSQ_SECRET_OF_A_TEST", raising=False)
    if value is not None:
        monkeypatch.setenv("NSQ_SECRET_OF_A_TEST", value)
    with pytest.raises(ConfigError, match=f"authSecretEnv='NSQ_SECRET_.*' is invalid: {why}"):
        Access(auth_secret_env="NSQ_SECRET_OF_A_TEST").secret()


def test_a_secret_is_not_shown_but_goes_to_the_executors() -> None:
    access = Access(auth_secret=SECRET, tls=True)
    assert SECRET not in repr(access)
    assert pickle.loads(pickle.dumps(access)) == access


def test_without_tls_there_is_no_context_for_nsqd() -> None:
    assert Access().ssl_context() is None


def test_servers_are_verified_by_the_given_certificates(
    certificates: Certificates, server: ssl.SSLContext
) -> None:
    context = Access(tls=True, tls_ca_file=str(certificates.ca)).ssl_context()
    assert context is not None
    handshake(context, server, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(context, server, "elsewhere")


def test_servers_that_the_system_does_not_trust_are_refused(server: ssl.SSLContext) -> None:
    context = Access(tls=True).ssl_context()
    assert context is not None
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(context, server, "localhost")


def test_verification_of_servers_can_be_disabled(server: ssl.SSLContext) -> None:
    context = Access(tls=True, tls_verify=False).ssl_context()
    assert context is not None
    handshake(context, server, "elsewhere")


def test_https_uses_the_same_certificates_without_tls_to_nsqd(
    certificates: Certificates, server: ssl.SSLContext
) -> None:
    access = Access(tls_ca_file=str(certificates.ca))
    assert access.ssl_context() is None
    handshake(access.http_context(), server, "localhost")


@pytest.mark.parametrize("together", [True, False])
def test_a_certificate_is_shown_to_a_server_that_asks(
    certificates: Certificates, server: ssl.SSLContext, tmp_path: Path, together: bool
) -> None:
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(certificates.ca)
    files: dict[str, Any] = {"tls_cert_file": certificates.cert, "tls_key_file": certificates.key}
    if together:
        both = tmp_path / "both.pem"
        both.write_bytes(certificates.key.read_bytes() + certificates.cert.read_bytes())
        files = {"tls_cert_file": both}
    paths = {name: str(path) for name, path in files.items()}
    client = Access(tls_ca_file=str(certificates.ca), **paths).http_context()  # type: ignore[arg-type]
    assert handshake(client, server, "localhost").getpeercert() is not None


def test_a_certificate_file_that_is_not_there_is_named_with_its_option(
    certificates: Certificates, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone.pem")
    cert = str(certificates.cert)
    missing = f"'{gone}' is invalid: No such file or directory"
    assert refused(Access(tls_ca_file=gone)) == f"tlsCaFile={missing}"
    assert refused(Access(tls_cert_file=gone)) == f"tlsCertFile={missing}"
    assert refused(Access(tls_cert_file=cert, tls_key_file=gone)) == f"tlsKeyFile={missing}"


def test_a_file_without_certificates_is_refused(pem: Path) -> None:
    file = str(pem / "nothing.pem")
    assert refused(Access(tls_ca_file=file)).startswith(f"tlsCaFile={file!r} is invalid: no ")
    assert refused(Access(tls_cert_file=file)).startswith(f"tlsCertFile={file!r} is invalid: ")


def test_a_key_of_another_certificate_is_refused(pem: Path, certificates: Certificates) -> None:
    access = Access(tls_cert_file=str(certificates.cert), tls_key_file=str(pem / "other.pem"))
    assert "key values mismatch" in refused(access) or "key type mismatch" in refused(access)


def test_an_encrypted_key_is_refused_without_a_password_prompt(
    pem: Path, certificates: Certificates
) -> None:
    key = str(pem / "encrypted.pem")
    words = refused(Access(tls_cert_file=str(certificates.cert), tls_key_file=key))
    assert words.startswith(f"tlsCertFile='{certificates.cert}' with tlsKeyFile={key!r} is ")
    assert words.endswith("and the key not encrypted")
