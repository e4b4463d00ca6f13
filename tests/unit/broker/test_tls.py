"""TLS contexts by nsqd's options."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.tls import client_context, common_name, server_context
from nsqflow.errors import ConfigError
from tests.fixtures.certificates import Certificates


@pytest.fixture
def options(certificates: Certificates) -> NsqdOptions:
    return NsqdOptions(tls_cert=str(certificates.cert), tls_key=str(certificates.key))


def context_for(options: NsqdOptions) -> ssl.SSLContext:
    context = server_context(options)
    assert context is not None
    return context


def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Do a handshake in memory; return the server's side, or raise its error."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(4):  # more rounds than any handshake takes
        for side in (asking, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    serving.do_handshake()
    return serving


def test_without_a_certificate_there_is_no_tls() -> None:
    assert server_context(NsqdOptions()) is None


def test_a_client_needs_no_certificate_without_a_policy(
    options: NsqdOptions, certificates: Certificates
) -> None:
    connection = handshake(context_for(options), trusting(certificates))
    assert connection.version() == "TLSv1.3"
    assert common_name(connection) == ""


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_policy_requires_a_certificate_of_the_authority(
    policy: str, options: NsqdOptions, certificates: Certificates, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    strict = context_for(
        replace(options, tls_client_auth_policy=policy, tls_root_ca_file=str(tmp_path / "ca.pem"))
    )
    known, unknown = trusting(certificates), trusting(certificates)
    authority.issue_cert("client@example.org", common_name="billing").configure_cert(known)
    trustme.CA().issue_cert("client@example.org").configure_cert(unknown)

    assert common_name(handshake(strict, known)) == "billing"
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.verify.failed"):
        handshake(strict, unknown)
    with pytest.raises(ssl.SSLError, match=r"(?i)peer.did.not.return.a.certificate"):
        handshake(strict, trusting(certificates))


def test_require_without_an_authority_is_refused(options: NsqdOptions) -> None:
    with pytest.raises(ConfigError, match="tls_root_ca_file"):
        server_context(replace(options, tls_client_auth_policy="require"))


def test_clients_may_be_verified_by_the_authorities_of_the_system(options: NsqdOptions) -> None:
    context = context_for(replace(options, tls_client_auth_policy="require-verify"))
    assert context.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("named", "spoken"),
    [("tls1.0", "TLSv1.2"), ("tls1.1", "TLSv1.2"), ("tls1.2", "TLSv1.2"), ("tls1.3", None)],
)
def test_older_tls_versions_are_accepted_down_to_the_minimum(
    named: str, spoken: str | None, options: NsqdOptions, certificates: Certificates
) -> None:
    older = trusting(certificates)
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    context = context_for(replace(options, tls_min_version=named))
    if spoken:
        assert handshake(context, older).version() == spoken
    else:
        with pytest.raises(ssl.SSLError, match=r"(?i)unsupported.protocol"):
            handshake(context, older)


@pytest.mark.parametrize("option", ["tls_cert", "tls_key", "tls_root_ca_file"])
def test_an_unusable_file_is_named(option: str, options: NsqdOptions, tmp_path: Path) -> None:
    def failure(path: Path) -> str:
        wrong = replace(
            options,
            tls_client_auth_policy="require-verify",
            **{option: str(path)},  # type: ignore[arg-type]
        )
        with pytest.raises(ConfigError) as caught:
            server_context(wrong)
        return str(caught.value)

    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(b"\x00s3cret")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\ns3cret")
    missing = tmp_path / "missing.pem"
    assert failure(missing) == f"{option}={str(missing)!r} is invalid: No such file or directory"
    assert failure(tmp_path) == f"{option}={str(tmp_path)!r} is invalid: Is a directory"
    assert failure(garbage).startswith(f"{option}={str(garbage)!r} is invalid: it contains no ")
    assert f"{option}={str(broken)!r}" in failure(broken)
    assert "s3cret" not in failure(garbage) + failure(broken)


def test_a_key_of_another_certificate_is_refused(options: NsqdOptions, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(key)
    with pytest.raises(ConfigError, match="it is not the key of tls_cert"):
        server_context(replace(options, tls_key=str(key)))


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(
    options: NsqdOptions, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(options.tls_key).read_bytes(), None)
    path = tmp_path / "key.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"s3cret"),
        )
    )
    with pytest.raises(ConfigError, match="a key with a passphrase"):
        server_context(replace(options, tls_key=str(path)))


@pytest.mark.parametrize("named", ["tls1.0", "tls1.2", "tls1.3"])
def test_the_minimum_version_holds_for_auth_servers_too(named: str, options: NsqdOptions) -> None:
    options = replace(options, tls_min_version=named)
    oldest = ssl.TLSVersion.TLSv1_3 if named == "tls1.3" else ssl.TLSVersion.TLSv1_2
    assert client_context(options).minimum_version is oldest
    assert context_for(options).minimum_version is oldest


def test_auth_servers_are_verified(options: NsqdOptions, certificates: Certificates) -> None:
    known = client_context(replace(options, tls_root_ca_file=str(certificates.ca)))
    assert handshake(context_for(options), known).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context_for(options), client_context(options))
