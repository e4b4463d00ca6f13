"""Secrets go only to servers that their owner named: a file in the folder is not the owner."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.commands import InProcess, Result
from tests.cli.scripted_http import lookupd_answers, scripted_http
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd

SECRET = "s3cret-of-no-user"
VERBS = [["pub", "orders", "x"], ["tail", "orders", "-n", "1"], ["doctor"]]
USE_CONFIG = "if you trust the file, use --config nsqflow.toml"
NOT_SENT = "because ./nsqflow.toml names the server; " + USE_CONFIG


class Guarded(NamedTuple):
    """An nsqd that asks for AUTH, and an auth server that records each secret it is shown."""

    auth: AuthServer
    nsqd: Nsqd
    lookupd: Nsqlookupd

    @property
    def directly(self) -> str:
        return f'nsqd = "{self.nsqd.tcp_address}"\nnsqd_http = "{self.nsqd.http_address}"\n'

    @property
    def through_lookupd(self) -> str:
        return f'lookupd = "{self.lookupd.http_address}"\n'

    @property
    def secrets(self) -> list[str]:
        return [request["secret"] for request in self.auth.requests]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    data = tmp_path / "data"
    data.mkdir()
    with (
        AuthServer({SECRET: [Authorization()]}) as auth,
        start_nsqlookupd() as lookupd,
        start_nsqd(data, lookupd=[lookupd], options=[f"-auth-http-address={auth.address}"]) as nsqd,
    ):
        assert nsqd.ask("/topic/create?topic=orders", "POST")[0] == 200
        nsqd.await_log(r"LOOKUPD\(\S+\): topic REGISTER orders")
        yield Guarded(auth, nsqd, lookupd)


@pytest.fixture
def file(empty_folder: Path) -> Path:
    """The config file of the folder where the command runs."""
    return empty_folder / "nsqflow.toml"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The config file of the user."""
    path = tmp_path / "config" / "nsqflow" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def error_line(done: Result) -> str:
    return " ".join((done.out + done.err).split())


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("auth_secret_file", '"../home/.ssh/id_ed25519"'),
        ("auth_secret_env", '"AWS_SECRET_ACCESS_KEY"'),
        ("tls", "true"),
        ("tls_ca_file", '"ca.pem"'),
        ("tls_cert_file", '"../home/cert.pem"'),
        ("tls_key_file", '"../home/.ssh/id_ed25519"'),
        ("tls_verify", "false"),
        ("address_map", '{ "a:1" = "b:2" }'),
    ],
)
def test_a_file_that_is_merely_found_names_servers_and_nothing_to_send_them(
    nsqflow: InProcess,
    guarded: Guarded,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
    key: str,
    value: str,
) -> None:
    ssh_key = file.parent.parent / "home" / ".ssh" / "id_ed25519"
    ssh_key.parent.mkdir(parents=True)
    ssh_key.write_text(f"{SECRET}\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    file.write_text(f"{guarded.directly}{key} = {value}\n")
    done = nsqflow(*verb)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"nsqflow: nsqflow.toml: {key} is not allowed in a file that was not named; {USE_CONFIG}\n"
    )
    assert guarded.secrets == []


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("way", ["directly", "through_lookupd"])
def test_servers_of_such_a_file_and_those_that_they_name_get_no_secret(
    nsqflow: InProcess,
    guarded: Guarded,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
    way: str,
) -> None:
    monkeypatch.setenv("NSQFLOW_AUTH_SECRET", SECRET)
    file.write_text(getattr(guarded, way))
    done = nsqflow(*verb)
    assert done.code in (1, 2)
    assert guarded.secrets == []
    assert f"(withheld: NSQFLOW_AUTH_SECRET), {NOT_SENT}" in error_line(done)
    assert SECRET not in done.out + done.err
    monkeypatch.delenv("NSQFLOW_AUTH_SECRET")
    assert NOT_SENT in error_line(nsqflow(*verb))  # without a secret that is worth knowing too


@pytest.mark.parametrize("way", ["directly", "through_lookupd"])
def test_a_secret_of_the_users_config_does_not_reach_them_either(
    nsqflow: InProcess, guarded: Guarded, file: Path, theirs: Path, way: str
) -> None:
    (theirs.parent / "secret").write_text(SECRET)
    theirs.write_text('auth_secret_file = "secret"')
    file.write_text(getattr(guarded, way))
    done = nsqflow("pub", "orders", "x")
    assert f"(withheld: auth_secret_file in {theirs}), {NOT_SENT}" in error_line(done)
    assert guarded.secrets == []
    theirs.write_text(f'auth_secret_file = "secret"\n{guarded.directly}')
    file.unlink()
    assert nsqflow("pub", "orders", "x").out == "published 1 message to orders\n"
    assert guarded.secrets == [SECRET, SECRET]


def test_a_link_to_a_file_that_is_trusted_is_not(
    nsqflow: InProcess, guarded: Guarded, file: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQFLOW_AUTH_SECRET", SECRET)
    theirs.write_text(guarded.directly)
    file.symlink_to(theirs)
    assert NOT_SENT in error_line(nsqflow("pub", "orders", "x"))
    theirs.write_text(f'{guarded.directly}auth_secret_env = "NSQFLOW_AUTH_SECRET"')
    assert nsqflow("pub", "orders", "x").code == 2
    assert guarded.secrets == []


@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_file_that_is_named_is_trusted(
    nsqflow: InProcess, guarded: Guarded, file: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("ORDERS_SECRET", SECRET)
    file.write_text(f'{guarded.directly}auth_secret_env = "ORDERS_SECRET"\n')
    words = ["--config", "nsqflow.toml"] if way == "option" else []
    if way == "variable":
        monkeypatch.setenv("NSQFLOW_CONFIG", "nsqflow.toml")
    assert nsqflow("pub", "orders", "x", *words).out == "published 1 message to orders\n"
    assert SECRET in guarded.secrets


def test_servers_of_a_trusted_source_get_the_secret(
    nsqflow: InProcess, guarded: Guarded, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQFLOW_AUTH_SECRET", SECRET)
    file.write_text('nsqd = "127.0.0.1:9"\n')
    words = ["pub", "orders", "x", "--nsqd", guarded.nsqd.tcp_address]
    assert nsqflow(*words).out == "published 1 message to orders\n"
    assert SECRET in guarded.secrets


def test_no_client_certificate_is_shown_to_them_but_tls_is_as_the_user_says(
    nsqflow: InProcess,
    file: Path,
    tmp_path: Path,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["-tls-client-auth-policy=require-verify", f"-tls-root-ca-file={certificates.ca}"]
    monkeypatch.setenv("NSQFLOW_TLS", "true")
    monkeypatch.setenv("NSQFLOW_TLS_CA_FILE", str(certificates.ca))
    monkeypatch.setenv("NSQFLOW_TLS_CERT_FILE", str(certificates.cert))
    monkeypatch.setenv("NSQFLOW_TLS_KEY_FILE", str(certificates.key))
    with start_nsqd(tmp_path, tls=certificates, options=options) as nsqd:
        file.write_text(
            f'nsqd = "{nsqd.tcp_address}"\nnsqd_http = "https://{nsqd.https_address}"\n'
        )
        for verb in (*VERBS, ["topics"], ["stat", "--once"]):
            done = nsqflow(*verb)
            assert done.code == 1
            assert "(withheld: NSQFLOW_TLS_CERT_FILE, NSQFLOW_TLS_KEY_FILE), " in error_line(done)
            assert NOT_SENT in error_line(done)
        named = ["--config", "nsqflow.toml"]
        assert nsqflow("pub", "orders", "x", *named).out == "published 1 message to orders\n"
        assert nsqflow("topics", *named).out == "orders\n"
    data = tmp_path / "lenient"
    data.mkdir()
    with start_nsqd(data, tls=certificates) as nsqd:
        file.write_text(f'nsqd = "{nsqd.tcp_address}"\n')
        assert nsqflow("pub", "orders", "x").out == "published 1 message to orders\n"
        monkeypatch.delenv("NSQFLOW_TLS_CA_FILE")
        assert "certificate verify failed" in nsqflow("pub", "orders", "x").err


def test_a_certificate_of_the_user_is_not_an_error_where_the_folder_names_a_server_without_tls(
    nsqflow: InProcess, nsqd: Nsqd, file: Path, theirs: Path
) -> None:
    theirs.write_text('lookupd = "https://127.0.0.1:9"\ntls_ca_file = "ca.pem"\n')
    file.write_text(f'nsqd = "{nsqd.tcp_address}"\n')
    assert nsqflow("pub", "orders", "x").out == "published 1 message to orders\n"


def test_a_password_in_an_address_goes_to_that_address_alone(
    nsqflow: InProcess, file: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_http(lookupd_answers(["orders"])) as lookupd:
        theirs.write_text(f'lookupd = "http://me:{SECRET}@{lookupd.address}"\n')
        assert nsqflow("topics").out == "orders\n"
        ours = f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}"
        assert lookupd.headers[-1]["authorization"] == ours
        file.write_text(f'lookupd = "{lookupd.address}"\n')
        for verb in (["topics"], ["nodes"], ["doctor"], ["tail", "orders"]):
            before = len(lookupd.headers)
            nsqflow(*verb)
            assert lookupd.headers[before:]
            assert not any("authorization" in headers for headers in lookupd.headers[before:])
        # A layer that names servers names all: addresses of two are never mixed.
        file.write_text(f'nsqd = "127.0.0.1:9"\nnsqd_http = "{lookupd.address}"\n')
        monkeypatch.setenv("NSQFLOW_NSQD_HTTP", f"http://me:{SECRET}@127.0.0.1:9")
        assert nsqflow("topics").err.startswith("nsqflow: NSQFLOW_NSQD_HTTP without --nsqd")


def test_doctor_says_what_was_read_and_what_is_withheld(
    nsqflow: InProcess, nsqd: Nsqd, file: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs.write_text("timeout = 4")
    file.write_text(f'nsqd = "{nsqd.tcp_address}"\nnsqd_http = "{nsqd.http_address}"\n')
    monkeypatch.setenv("NSQFLOW_AUTH_SECRET", SECRET)
    done = nsqflow("doctor")
    assert done.code == 0
    assert (
        f"note   servers: nsqd {nsqd.tcp_address} (nsqflow.toml); config files {theirs}, "
        "nsqflow.toml; ./nsqflow.toml is not trusted: it was found in this folder\n"
        "       no secret and no client certificate is sent (withheld: NSQFLOW_AUTH_SECRET), "
        f"{NOT_SENT}\n"
    ) in done.out
    done = nsqflow("doctor", "--config", "nsqflow.toml")
    assert f"ok     servers: nsqd {nsqd.tcp_address} (nsqflow.toml); config file nsqfl" in done.out
