"""Options: their ranges, and what nsqd tells of them over HTTP."""

import json
import socket
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from nsqflow.broker.address import TcpAddress, UnixAddress, parse_listen_address
from nsqflow.broker.flags import nsqd_flags
from nsqflow.broker.options import DaemonOptions, LookupdOptions, NsqdOptions
from nsqflow.errors import ConfigError
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Nsqd, start_nsqd


def names_of(options: type[DaemonOptions]) -> list[str]:
    """What the options are called in config files and over HTTP."""
    known = [(f.name, f.metadata["option"]) for f in fields(options)]
    return [option.name or name for name, option in known if option.has_flag]


def ask_real(nsqd: Nsqd, name: str) -> tuple[int, Any]:
    """What a real nsqd says of an option; text comes bare."""
    status, body = nsqd.ask(f"/config/{name}")
    try:
        return status, json.loads(body)
    except ValueError:
        return status, body.decode()


def test_every_option_has_the_default_that_the_real_nsqd_has(tmp_path: Path) -> None:
    ours = NsqdOptions()
    given = {"data_path", "tcp_address", "http_address", "https_address", "max_memory"}
    names = [n for n in names_of(NsqdOptions) if n not in given and "broadcast" not in n]
    with start_nsqd(tmp_path) as nsqd:
        real = {name: ask_real(nsqd, name) for name in names}
    assert real == {name: (200, ours.value(name)) for name in names}


def test_every_option_is_told_as_the_real_nsqd_tells_it(
    tmp_path: Path, certificates: Certificates
) -> None:
    given = [
        "-log-level=DEBUG",
        "-log-prefix=[other] ",
        "-https-address=127.0.0.1:0",
        "-broadcast-address=example.org",
        "-broadcast-tcp-port=1",
        "-broadcast-http-port=2",
        "-lookupd-tcp-address=127.0.0.1:1",
        "-lookupd-tcp-address=127.0.0.1:2",
        "-auth-http-address=127.0.0.1:3",
        "-auth-http-address=http://127.0.0.1:4/path",
        "-http-client-connect-timeout=1.5s",
        "-http-client-request-timeout=1m30s",
        "-node-id=7",
        "-mem-queue-size=0x10",
        "-msg-timeout=1h2m3s4ms",
        "-max-msg-timeout=2h",
        "-max-msg-size=1_000",
        "-max-body-size=2000",
        "-max-req-timeout=0",
        "-max-heartbeat-interval=.5s",
        "-max-rdy-count=3",
        "-max-output-buffer-size=4096",
        "-max-output-buffer-timeout=10s",
        "-min-output-buffer-timeout=1500us",
        "-output-buffer-timeout=100ms",
        "-max-channel-consumers=9",
        f"-tls-cert={certificates.cert}",
        f"-tls-key={certificates.key}",
        f"-tls-root-ca-file={certificates.ca}",
        "-tls-client-auth-policy=require-verify",
        "-tls-required=TCP-HTTPS",
        "-tls-min-version=TLS1.3",
        "-deflate=F",
        "-max-deflate-level=2",
        "-snappy=false",
    ]
    flags = nsqd_flags()
    ours, warnings = flags.options(flags.read([f"-data-path={tmp_path}", *given]))
    elsewhere = {"tcp_address", "http_address", "max_memory"}
    names = [name for name in names_of(NsqdOptions) if name not in elsewhere]
    with start_nsqd(tmp_path, options=given) as nsqd:
        real = {name: ask_real(nsqd, name) for name in names}
    assert real == {name: (200, ours.value(name)) for name in names}
    assert warnings == []
    defaults = NsqdOptions()
    assert [name for name in names if ours.value(name) == defaults.value(name)] == []


@pytest.mark.parametrize("name", ["node_id", "client_timeout", "nope", "lookupd_tcp_address", ""])
def test_a_name_that_the_real_nsqd_does_not_know_is_not_told(name: str, nsqd: Nsqd) -> None:
    if name:
        assert ask_real(nsqd, name) == (400, {"message": "INVALID_OPTION"})
    with pytest.raises(KeyError):
        NsqdOptions().value(name)


BAD_VALUES: list[dict[str, Any]] = [
    {"tcp_address": ""},
    {"tcp_address": "localhost"},
    {"tcp_address": "127.0.0.1:65536"},
    {"tcp_address": "::1:4150"},
    {"tcp_address": "/run/"},
    {"tcp_address": 4150},
    {"http_address": "here"},
    {"https_address": None},
    {"broadcast_address": 5},
    {"broadcast_tcp_port": -1},
    {"broadcast_http_port": 65536},
    {"lookupd_tcp_address": ("127.0.0.1",)},
    {"lookupd_tcp_address": (":4160",)},
    {"lookupd_tcp_address": ("127.0.0.1:0",)},
    {"lookupd_tcp_address": ("127.0.0.1:1", None)},
    {"lookupd_tcp_address": 4160},
    {"auth_http_address": ("nowhere",)},
    {"auth_http_address": ("ftp://here",)},
    {"auth_http_address": (1,)},
    {"http_client_connect_timeout": 0},
    {"node_id": 1024},
    {"node_id": -1},
    {"data_path": 5},
    {"data_path": "a\0b"},
    {"mem_queue_size": -1},
    {"mem_queue_size": 1.5},
    {"max_memory": 0},
    {"msg_timeout": 0},
    {"msg_timeout": -1.0},
    {"msg_timeout": float("nan")},
    {"msg_timeout": float("inf")},
    {"msg_timeout": "60s"},
    {"msg_timeout": True},
    {"max_msg_size": 0},
    {"max_msg_size": 2**31},
    {"max_req_timeout": -0.001},
    {"max_rdy_count": 0},
    {"max_rdy_count": True},
    {"max_output_buffer_size": 63},
    {"max_deflate_level": 0},
    {"max_deflate_level": 10},
    {"deflate": 1},
    {"snappy": "true"},
    {"log_level": "warning"},
    {"log_level": "INFO"},
    {"log_level": None},
    {"tls_required": "yes"},
    {"tls_required": False},
    {"tls_client_auth_policy": "verify"},
    {"tls_min_version": "ssl3.0"},
]


@pytest.mark.parametrize("values", BAD_VALUES, ids=repr)
def test_a_value_that_is_not_allowed_is_named_with_the_range(values: dict[str, Any]) -> None:
    [(name, value)] = values.items()
    shown = value[-1] if isinstance(value, tuple) else value
    with pytest.raises(ConfigError) as caught:
        NsqdOptions(**values)
    assert str(caught.value).startswith(name)
    assert repr(shown) in str(caught.value) or "not int" in str(caught.value)
    assert "allowed" in str(caught.value) or "must be" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", TcpAddress("127.0.0.1", 0)),
        (":4150", TcpAddress("", 4150)),
        ("[::1]:4150", TcpAddress("::1", 4150)),
        ("[fe80::1%eth0]:1", TcpAddress("fe80::1%eth0", 1)),
        ("example.org:65535", TcpAddress("example.org", 65535)),
        ("/run/nsqd.sock", UnixAddress("/run/nsqd.sock")),
        ("./nsqd.sock", UnixAddress("./nsqd.sock")),
    ],
)
def test_an_address_to_listen_on_is_a_host_and_a_port_or_a_path(
    text: str, address: TcpAddress | UnixAddress
) -> None:
    assert parse_listen_address("tcp_address", text) == address


@pytest.mark.parametrize(
    ("tcp_address", "told"),
    [
        ("127.0.0.1:0", "127.0.0.1"),
        ("127.1.2.3:0", "127.1.2.3"),
        ("localhost:0", "127.0.0.1"),
        ("[::1]:0", "::1"),
        ("0.0.0.0:0", socket.gethostname()),
        (":0", socket.gethostname()),
        ("/run/nsqd.sock", socket.gethostname()),
    ],
)
def test_others_are_told_a_host_that_they_can_reach(tcp_address: str, told: str) -> None:
    assert NsqdOptions(tcp_address=tcp_address).broadcast_address == told
    assert LookupdOptions(tcp_address=tcp_address).broadcast_address == told
    assert NsqdOptions(tcp_address=tcp_address, broadcast_address="x").broadcast_address == "x"


def test_http_and_https_can_be_switched_off_but_tcp_cannot() -> None:
    options = NsqdOptions(http_address="", https_address="")
    assert (options.http_address, options.https_address) == ("", "")
    with pytest.raises(ConfigError, match="http_address ''"):
        LookupdOptions(http_address="")


def test_lists_paths_and_single_addresses_are_taken_as_callers_have_them(tmp_path: Path) -> None:
    given: dict[str, Any] = {"lookupd_tcp_address": ["a:1", "b:2"], "auth_http_address": "c:3"}
    options = NsqdOptions(data_path=tmp_path, **given)  # type: ignore[arg-type]
    assert options.data_path == str(tmp_path)
    assert options.lookupd_tcp_address == ("a:1", "b:2")
    assert options.auth_http_address == ("c:3",)


def test_a_password_in_the_url_of_an_auth_server_is_not_shown() -> None:
    options = NsqdOptions(auth_http_address=("http://user:s3cret@127.0.0.1:1/auth",))
    assert "s3cret" not in repr(options)
    with pytest.raises(ConfigError) as caught:
        NsqdOptions(auth_http_address=("http://user:s3cret@127.0.0.1:0/auth",))
    assert "s3cret" not in str(caught.value)


def test_a_policy_for_clients_certificates_requires_tls() -> None:
    options = NsqdOptions(tls_cert="c", tls_key="k", tls_client_auth_policy="require")
    assert options.tls_required == "true"
    assert replace(options, tls_required="tcp-https").tls_required == "tcp-https"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tls_cert": "c"}, "tls_cert without tls_key"),
        ({"tls_key": "k"}, "tls_key without tls_cert"),
        ({"tls_required": "true"}, "tls_required without tls_cert"),
        ({"tls_client_auth_policy": "require"}, "tls_required without tls_cert"),
    ],
)
def test_tls_that_can_not_work_is_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        NsqdOptions(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["inactive_producer_timeout", "tombstone_lifetime"])
def test_times_of_nsqlookupd_are_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} 0; allowed are seconds, above 0 to"):
        LookupdOptions(**{name: 0})  # type: ignore[arg-type]
