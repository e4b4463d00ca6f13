"""The options of the daemons: ranges, and their values over HTTP."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.errors import ConfigError

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
    {"allowed_host": 5},
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
def test_an_invalid_value_is_named_with_the_range(values: dict[str, Any]) -> None:
    [(name, value)] = values.items()
    shown = value[-1] if isinstance(value, tuple) else value
    with pytest.raises(ConfigError) as caught:
        NsqdOptions(**values)
    assert str(caught.value).startswith(name)
    assert repr(shown) in str(caught.value) or "not int" in str(caught.value)
    assert "allowed" in str(caught.value) or "must be" in str(caught.value)


@pytest.mark.parametrize(
    ("tcp_address", "broadcast"),
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
def test_the_broadcast_address_is_a_reachable_host(tcp_address: str, broadcast: str) -> None:
    assert NsqdOptions(tcp_address=tcp_address).broadcast_address == broadcast
    assert LookupdOptions(tcp_address=tcp_address).broadcast_address == broadcast
    assert NsqdOptions(tcp_address=tcp_address, broadcast_address="x").broadcast_address == "x"


def test_http_and_https_can_be_switched_off_but_tcp_cannot() -> None:
    options = NsqdOptions(http_address="", https_address="")
    assert (options.http_address, options.https_address) == ("", "")
    with pytest.raises(ConfigError, match="http_address=''"):
        LookupdOptions(http_address="")


def test_lists_paths_and_single_addresses_are_accepted(tmp_path: Path) -> None:
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
def test_incomplete_tls_options_are_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        NsqdOptions(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["inactive_producer_timeout", "tombstone_lifetime"])
def test_times_of_nsqlookupd_are_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0 is invalid"):
        LookupdOptions(**{name: 0})  # type: ignore[arg-type]
