"""Which servers a command line means: options, variables, config files; TLS and secrets."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.servers import CliServers
from nsqflow.errors import ConfigError
from tests.cli.commands import InProcess
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Nsqd, start_nsqd

pytestmark = pytest.mark.usefixtures("empty_folder")

SECRET = "s3cret-of-no-user"
NAMED = Path("nsqflow.toml")  # by --config, so that it is trusted


def servers(
    lookupd: list[str] | None = None,
    nsqd: list[str] | None = None,
    nsqd_http: list[str] | None = None,
    config: Path | None = None,
) -> CliServers:
    return CliServers.of(lookupd, nsqd, nsqd_http, config)


def refusal(config: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        servers(config=config)
    return str(caught.value)


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


def http_addresses(found: CliServers) -> list[tuple[str, str]]:
    nodes = asyncio.run(CliCluster(found).nodes())
    return [(node.address, node.http.address) for node in nodes]


def test_the_default_is_the_nsqd_of_this_machine() -> None:
    found = servers()
    assert (found.lookupd, found.nsqd) == ((), ("127.0.0.1:4150",))
    assert http_addresses(found) == [("127.0.0.1:4150", "127.0.0.1:4151")]
    assert (found.origin, found.files) == ("the default", ())
    assert str(found) == "nsqd 127.0.0.1:4150"


def test_addresses_may_be_repeated_or_separated_by_commas() -> None:
    found = servers(nsqd=["a:1, b:2", "c:3"], nsqd_http=["a:4,b:5,c:6"])
    assert http_addresses(found) == [("a:1", "a:4"), ("b:2", "b:5"), ("c:3", "c:6")]


def test_options_win_over_variables_and_these_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('lookupd = ["file:1", "file:2"]\ntimeout = 7\n')
    assert (servers().lookupd, servers().origin) == (("file:1", "file:2"), "nsqflow.toml")
    monkeypatch.setenv("NSQFLOW_LOOKUPD", "variable:1")
    assert (servers().lookupd, servers().origin) == (("variable:1",), "NSQFLOW_LOOKUPD")
    found = servers(lookupd=["option:1"])
    assert (found.lookupd, found.origin) == (("option:1",), "--lookupd")
    assert found.timeout == 7


def test_an_option_for_one_kind_of_server_overrides_the_other_kind_of_a_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('nsqd = "file:1"\nnsqd_http = "file:2"\n')
    monkeypatch.setenv("NSQFLOW_LOOKUPD", "variable:1")
    found = servers()
    assert (found.lookupd, found.nsqd, found.nsqd_http) == (("variable:1",), (), ())


def test_the_file_of_the_folder_goes_before_that_of_the_user(file: Path, theirs: Path) -> None:
    theirs.write_text('nsqd = "user:1"\nnsqd_http = "user:2"\ntimeout = 7\n')
    assert (servers().nsqd, servers().files) == (("user:1",), (theirs,))
    file.write_text('lookupd = "folder:1"')
    found = servers()
    assert (found.lookupd, found.nsqd, found.nsqd_http) == (("folder:1",), (), ())
    assert (found.timeout, found.files) == (7, (theirs, Path("nsqflow.toml")))
    file.write_text("timeout = 8")
    found = servers()
    assert (found.nsqd, found.nsqd_http, found.timeout) == (("user:1",), ("user:2",), 8)
    assert found.untrusted is None


def test_a_file_that_is_named_is_read_and_no_other(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('nsqd = "folder:1"')
    named, option = tmp_path / "named.toml", tmp_path / "option.toml"
    named.write_text('lookupd = "named:1"')
    option.write_text('lookupd = "option:1"')
    monkeypatch.setenv("NSQFLOW_CONFIG", str(named))
    assert servers().lookupd == ("named:1",)
    assert servers(config=option).lookupd == ("option:1",)


@pytest.mark.parametrize("option", ["--lookupd", "--nsqd", "--nsqd-http"])
@pytest.mark.parametrize("text", ["", " ", ","])
def test_an_empty_option_does_not_mean_the_default_server(
    nsqflow: InProcess, option: str, text: str
) -> None:
    done = nsqflow("topics", option, text)
    assert done == (2, "", f"nsqflow: {option} is empty: must be HOST:PORT\n")


def test_a_variable_that_is_empty_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQFLOW_LOOKUPD", "")
    assert servers().origin == "the default"
    monkeypatch.setenv("NSQFLOW_LOOKUPD", ",")
    assert refusal().startswith("NSQFLOW_LOOKUPD is invalid: must be host:port")


def test_every_key_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQFLOW_NSQD", "a:1,b:2")
    monkeypatch.setenv("NSQFLOW_NSQD_HTTP", "a:3,b:4")
    monkeypatch.setenv("NSQFLOW_TIMEOUT", "0.5")
    monkeypatch.setenv("NSQFLOW_ADDRESS_MAP", "a=localhost, b:2=localhost:9")
    monkeypatch.setenv("NSQFLOW_AUTH_SECRET", SECRET)
    monkeypatch.setenv("NSQFLOW_TLS", "true")
    monkeypatch.setenv("NSQFLOW_TLS_VERIFY", "0")
    found = servers()
    assert http_addresses(found) == [("a:1", "a:3"), ("b:2", "b:4")]
    assert (found.timeout, found.secret) == (0.5, SECRET.encode())
    assert found.address_map == {"a": "localhost", "b:2": "localhost:9"}
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lookup = 'a:1'", "nsqflow.toml: unknown key 'lookup'; did you mean 'lookupd'?"),
        ("colour = 1", "nsqflow.toml: unknown key 'colour'; known: lookupd, nsqd, "),
        (
            "auth_secret = 'x'",
            "nsqflow.toml: unknown key 'auth_secret'; a secret must not be in this file",
        ),
        ("nsqd = 5", "nsqflow.toml: nsqd=5 is invalid: must be host:port"),
        ("nsqd = ['a:1', 5]", "nsqflow.toml: nsqd=['a:1', 5] is invalid: must be"),
        ("tls = 'yes'", "nsqflow.toml: tls='yes' is invalid: must be true or false"),
        ("lookupd = []", "nsqflow.toml: lookupd is invalid: must be host:port"),
        (
            "nsqd_http = ['http://me:word@a', 5]",
            "nsqflow.toml: nsqd_http is invalid: must be",
        ),
        ("nsqd_http = 'a:1'", "nsqflow.toml without --nsqd: it belongs to --nsqd"),
        ("timeout = 0", "nsqflow.toml: timeout=0 is invalid: must be a number > 0 and <= 3600"),
        ("timeout = true", "nsqflow.toml: timeout=True is invalid: must be a number > 0"),
        ("timeout = nan", "nsqflow.toml: timeout=nan is invalid: must be a number > 0"),
        ("timeout = 1" + "0" * 400, "nsqflow.toml: timeout=1"),
        ("timeout = 1" + "0" * 5000, "config file 'nsqflow.toml' is not TOML: "),
        ("timeout = " + "[" * 100_000, "config file 'nsqflow.toml' is not TOML: "),
        ('nsqd = "/tmp/\\u001b"', "nsqd address '/tmp/\\x1b' is invalid: must be host:port"),
        (
            "tls_ca_file = ''",
            "nsqflow.toml: tls_ca_file='' is invalid: must be the path",
        ),
        (
            "address_map = [1]",
            "nsqflow.toml: address_map=[1] is invalid: must be a table",
        ),
        ("nsqd = 'a'", "nsqd address 'a' is invalid: must be host:port"),
        ("lookupd = 'ftp://me:word@a'", "HTTP address 'ftp://***@a' is invalid: must be host:port"),
        ("nsqd = 'a:1'\nlookupd = 'b:2'", "both nsqflow.toml and nsqflow.toml are given"),
        ("nsqd = 'a:1'\nnsqd_http = ['b:2', 'c:3']", "nsqflow.toml has 2 addresses for 1 nsqd: "),
        ("nsqd = ", "config file 'nsqflow.toml' is not TOML: Invalid value (at "),
        ("tls_ca_file = 'ca'", "tls_ca_file without tls: set tls=true, or nothing is encrypted"),
        (
            "tls = true\ntls_ca_file = 'ca'",
            "tls_ca_file='ca' is invalid: No such file or directory",
        ),
        ("tls = true\ntls_key_file = 'k'", "tls_key_file without tls_cert_file: a key needs its"),
        (
            "auth_secret_file = 'none'",
            "auth_secret_file='none' is invalid: No such file or directory",
        ),
        ("auth_secret_file = 'empty'", "auth_secret_file='empty' is invalid: the file is empty"),
        (
            "auth_secret_env = 'NOPE'",
            "auth_secret_env='NOPE' is invalid: there is no such variable",
        ),
        ("auth_secret_env = 'A'\nauth_secret_file = 'b'", "both auth_secret_file and auth_secret_"),
    ],
)
def test_a_file_with_invalid_content_is_refused_with_what_is_allowed(
    file: Path, text: str, expected: str
) -> None:
    (file.parent / "empty").write_text("\n")
    file.write_text(text)
    assert refusal(NAMED).startswith(expected)
    assert "word" not in refusal(NAMED)


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert refusal(missing) == f"config file {str(missing)!r}: No such file or directory"


def test_an_endless_file_is_not_read_completely() -> None:
    assert refusal(Path("/dev/zero")) == "config file '/dev/zero': more than 1048576 bytes"


def test_a_wrong_file_is_a_misuse_of_every_verb(nsqflow: InProcess, file: Path) -> None:
    file.write_text("colour = 1")
    for words in (["topics"], ["pub", "orders", "x"], ["doctor"]):
        done = nsqflow(*words)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("nsqflow: nsqflow.toml: unknown key 'colour'; ")


def test_paths_in_a_file_are_seen_from_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret").write_text(f"{SECRET}\n")
    (folder / "conf.toml").write_text("auth_secret_file = 'secret'")
    assert servers(config=folder / "conf.toml").secret == SECRET.encode()


def test_a_secret_of_a_variable_is_the_one_that_the_file_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("auth_secret_env = 'ORDERS_SECRET'")
    monkeypatch.setenv("ORDERS_SECRET", SECRET)
    assert servers(config=NAMED).secret == SECRET.encode()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSQFLOW_AUTH_SECRET", SECRET)
    found = servers(lookupd=[f"http://me:{SECRET}@127.0.0.1:4161"])
    assert SECRET not in repr(found)
    assert str(found) == "nsqlookupd 127.0.0.1:4161"


def test_an_nsqd_without_a_port_above_needs_nsqd_http(nsqflow: InProcess) -> None:
    for address in ("127.0.0.1:65535", "/tmp/socket"):
        done = nsqflow("topics", "--nsqd", address)
        assert done.code == 2
        reason = f"the HTTP address of nsqd {address} is unknown: set nsqd_http"
        assert done.err == f"nsqflow: {reason}\n"


def test_tls_is_as_the_file_says(
    nsqflow: InProcess, file: Path, nsqd: Nsqd, certificates: Certificates
) -> None:
    named = ["--config", "nsqflow.toml"]
    file.write_text(
        f'nsqd = "{nsqd.tcp_address}"\nnsqd_http = "https://{nsqd.https_address}"\n'
        f'tls = true\ntls_ca_file = "{certificates.ca}"\n'
    )
    assert nsqflow("pub", *named, "tls", "x").out == "published 1 message to tls\n"
    assert "tls" in nsqflow("topics", *named).out.splitlines()
    done = nsqflow("doctor", *named, "--json")
    assert "in sync with ours" in done.out
    file.write_text(f'nsqd = "{nsqd.tcp_address}"\ntls = true\n')
    done = nsqflow("pub", *named, "tls", "x")
    assert (done.code, done.out) == (1, "")
    assert "certificate verify failed" in done.err


def test_a_secret_is_sent_to_an_nsqd_that_requires_one(
    nsqflow: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        AuthServer({SECRET: [Authorization(topic=".*", channels=[".*"])]}) as auth,
        start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as nsqd,
    ):
        words = ["pub", "orders", "x", "--nsqd", nsqd.tcp_address]
        done = nsqflow(*words)
        assert (done.code, done.out) == (2, "")
        assert "asks for AUTH: set auth_secret" in done.err
        monkeypatch.setenv("NSQFLOW_AUTH_SECRET", "wrong-secret")
        done = nsqflow(*words)
        assert (done.code, done.out) == (1, "")
        assert "the secret is taken from NSQFLOW_AUTH_SECRET" in done.err
        assert "wrong-secret" not in done.err
        monkeypatch.setenv("NSQFLOW_AUTH_SECRET", SECRET)
        assert nsqflow(*words).out == "published 1 message to orders\n"


def test_addresses_are_mapped(nsqflow: InProcess, tmp_path: Path, file: Path) -> None:
    from tests.fixtures.servers import start_nsqlookupd

    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(
            tmp_path, lookupd=[lookupd], options=["-broadcast-address=nsqd.invalid"]
        ) as nsqd,
    ):
        named = ["--config", "nsqflow.toml"]
        file.write_text(
            f'lookupd = "{lookupd.http_address}"\n[address_map]\n"nsqd.invalid" = "127.0.0.1"\n'
        )
        assert nsqflow("pub", *named, "orders", "x").out == "published 1 message to orders\n"
        done = nsqflow("stat", *named, "orders", "--once")
        assert done.code == 0
        assert nsqd.tcp_address.rpartition(":")[2] in nsqflow("nodes", *named).out
