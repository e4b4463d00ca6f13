"""Addresses: how they are parsed, checked and mapped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.address import (
    TcpAddress,
    UnixAddress,
    map_address,
    parse_address,
    parse_addresses,
    parse_http_address,
    parse_listen_address,
)
from nsqflow.errors import ConfigError

hosts = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True)
ports = st.integers(1, 65535)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4150", TcpAddress("127.0.0.1", 4150)),
        ("nsqd-0.nsqd.default.svc:1", TcpAddress("nsqd-0.nsqd.default.svc", 1)),
        ("[::1]:65535", TcpAddress("::1", 65535)),
        ("[fe80::1%eth0]:4150", TcpAddress("fe80::1%eth0", 4150)),
        ("/run/nsqd.sock", UnixAddress("/run/nsqd.sock")),
        ("unix:/run/nsqd.sock", UnixAddress("/run/nsqd.sock")),
        ("unix:///run/nsqd.sock", UnixAddress("/run/nsqd.sock")),
    ],
)
def test_an_address_is_read(text: str, address: TcpAddress | UnixAddress) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "nsqd", "nsqd:", ":4150", "nsqd:0", "nsqd:65536", "nsqd:4150x", "nsqd:-1"),
        *("::1:4150", "[::1]", "[]:4150", "a b:4150", "a\0b:4150", "http://nsqd:4151"),
        *("unix:", "unix:run/nsqd.sock", "/", "unix:///", "run/nsqd.sock"),
    ],
)
def test_an_invalid_address_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert str(caught.value).startswith(f"nsqd address {text!r} is invalid: must be host:port")


@pytest.mark.parametrize("value", [None, 4150, b"nsqd:4150", ("nsqd", 4150)])
def test_what_is_not_text_is_refused_too(value: Any) -> None:
    with pytest.raises(ConfigError, match="nsqd address"):
        parse_address(value)


@given(hosts, ports)
def test_an_address_reads_as_it_is_written(host: str, port: int) -> None:
    assert str(parse_address(f"{host}:{port}")) == f"{host}:{port}"
    assert str(parse_address(f"[::{port:x}]:{port}")) == f"[::{port:x}]:{port}"
    assert str(parse_address(f"/{host}")) == f"/{host}"


def test_one_address_or_several_each_once_without_spaces_around() -> None:
    assert parse_addresses("nsqd", "a:1") == ("a:1",)
    assert parse_addresses("nsqd", [" a:1", "b:2\n", "a:1"]) == ("a:1", "b:2")
    assert parse_addresses("nsqd", (text for text in ("a:1", "b:2"))) == ("a:1", "b:2")


@pytest.mark.parametrize("wrong", [None, 5, [5], b"a:1"])
def test_what_is_neither_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^lookupd=.* is invalid: must be one or more addresses"):
        parse_addresses("lookupd", wrong)


# Known by another name here.


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("nsqd-0:4150", "127.0.0.1:15000"),  # by its whole address
        ("nsqd-0:9999", "127.0.0.9:9999"),  # by its host: the port stays
        ("nsqd-1:4150", "other:7"),  # ... unless the value names one
        ("nsqd-2:4150", "/run/nsqd.sock"),
        ("nsqd-3:4150", "[::1]:4150"),
        ("nsqd-4:4150", "[::2]:4150"),
        ("[::5]:4150", "five:4150"),
        ("/run/a.sock", "/run/b.sock"),
        ("unknown:4150", "unknown:4150"),
        ("/run/unknown.sock", "/run/unknown.sock"),
    ],
)
def test_a_mapping_leads_elsewhere_by_address_or_by_host(address: str, target: str) -> None:
    mapping = {
        "nsqd-0:4150": "127.0.0.1:15000",
        "nsqd-0": "127.0.0.9",
        "nsqd-1": "other:7",
        "nsqd-2": "/run/nsqd.sock",
        "nsqd-3": "::1",
        "nsqd-4": "[::2]",
        "::5": "five",
        "/run/a.sock": "/run/b.sock",
    }
    assert map_address(address, mapping) == target


def test_without_a_mapping_an_address_leads_to_itself() -> None:
    assert map_address("nsqd-0:4150", None) == "nsqd-0:4150"


def test_a_function_is_asked_for_each_address() -> None:
    assert map_address("nsqd-0:4150", lambda address: address.replace("nsqd-", "n")) == "n0:4150"


def test_a_function_that_raises_is_named() -> None:
    known = {"a:1": "b:1"}
    with pytest.raises(ConfigError, match=r"^address_map raised KeyError\('a:2'\) for 'a:2'$") as e:
        map_address("a:2", known.__getitem__)
    assert isinstance(e.value.__cause__, KeyError)


# HTTP APIs


@pytest.mark.parametrize(
    ("text", "shown", "authority"),
    [
        ("lookup-1:4161", "lookup-1:4161", "lookup-1:4161"),
        ("[::1]:4161", "[::1]:4161", "[::1]:4161"),
        ("http://lookup:4161/", "lookup:4161", "lookup:4161"),
        ("http://lookup", "lookup:80", "lookup:80"),
        ("https://u:p@lookup", "https://lookup:443", "lookup:443"),
        ("HTTPS://lookup:65535", "https://lookup:65535", "lookup:65535"),
        ("http://lookup:1/nsq/eu/", "http://lookup:1/nsq/eu", "lookup:1"),
    ],
)
def test_an_http_address_is_host_and_port_or_a_url(text: str, shown: str, authority: str) -> None:
    address = parse_http_address(text)
    assert (str(address), address.authority) == (shown, authority)


@pytest.mark.parametrize(
    "text",
    [
        *("", "lookup", ":4161", "lookup:0", "lookup:65536", "lookup:4161/x", "ftp://lookup:1"),
        *("http://", "::1:4161", "lookup:41 61", "http://lookup:4161?a=b", "lo\x00kup:4161"),
        "http://lookup:4161/a b",
    ],
)
def test_an_http_address_of_another_form_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"HTTP address .* is invalid: must be .*1 to 65535"):
        parse_http_address(text)


@pytest.mark.parametrize("text", ["http://u:hunter2@lookup:0", "u:hunter2@lookup:4161"])
def test_credentials_are_in_no_error_and_no_repr(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\*\*\*@lookup") as caught:
        parse_http_address(text)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(parse_http_address("http://u:hunter2@lookup"))


# Listen addresses


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
