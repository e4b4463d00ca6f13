"""The Host and Origin headers of browsers and programs: which requests are refused."""

import socket

import pytest

from nsqflow.broker.host_check import HostCheck
from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.errors import ConfigError
from nsqflow.http.server import Request

LOOPBACK = [
    *("127.0.0.1:0", "127.3.2.1:4151", "localhost:4151", "[::1]:4151", "LOCALHOST:4151"),
    *("127.1:4151", "2130706433:4151", "[0:0:0:0:0:0:0:1]:4151"),
]
OTHER_ADDRESSES = ["0.0.0.0:4151", ":4151", "[::]:4151", "192.0.2.7:4151", "./nsqd.sock"]


def refuses(address: str, headers: dict[str, str], **options: object) -> bool:
    check = HostCheck.of(LookupdOptions(**options), address)  # type: ignore[arg-type]
    request = Request("POST", "/topic/delete", "topic=x", headers, b"", complete=True)
    return check.reason_to_refuse(request) is not None


@pytest.mark.parametrize("address", LOOPBACK)
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:4151",
        "192.0.2.7:80",
        "[::1]:4151",
        "[::1]",
        "[fe80::1%25eth0]:4151",
        "localhost:4151",
        "LocalHost",
        "localhost.:4151",
        socket.gethostname(),
        f"{socket.gethostname().upper()}:4151",
        "",
    ],
)
def test_on_loopback_a_program_is_served(address: str, host: str) -> None:
    assert not refuses(address, {"host": host})
    assert not refuses(address, {})


@pytest.mark.parametrize("address", LOOPBACK)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4151",
        "localhost.evil.example",
        "127.0.0.1.evil.example:4151",
        "localhost@evil.example",
        "localhost/evil.example",
        "localhost:4151, evil.example",
        "localhost:port",
        "[::1",
        "[::1]evil.example",
        "evil.example[::1]",
        "127.0.0.1%evil.example",
        "127.0.0.1:99999",
        "0x7f000001",
        "\x80",
    ],
)
def test_on_loopback_a_name_that_is_not_ours_is_refused(address: str, host: str) -> None:
    assert refuses(address, {"host": host})
    assert refuses(address, {"host": host}, allowed_host=["broker"])


@pytest.mark.parametrize("address", OTHER_ADDRESSES)
def test_on_other_interfaces_any_host_is_served_unless_names_are_given(address: str) -> None:
    for host in ("broker:4151", "nsqd.internal", "127.0.0.1:4151", "x y"):
        assert not refuses(address, {"host": host})
    for host in ("broker:4151", "BROKER", "127.0.0.1:4151", "localhost"):
        assert not refuses(address, {"host": host}, allowed_host="broker")
    assert refuses(address, {"host": "nsqd.internal"}, allowed_host="broker")


def test_the_broadcast_address_and_allowed_names_are_served_on_loopback() -> None:
    given = {"broadcast_address": "Nsqd.Internal", "allowed_host": ("broker", "b.example")}
    for host in ("nsqd.internal:4151", "broker", "b.example:1"):
        assert not refuses("127.0.0.1:4151", {"host": host}, **given)
        assert refuses("127.0.0.1:4151", {"host": host})


@pytest.mark.parametrize(
    "host", ["evil.example/", "evil.example:99999", "[::1", ".", ".:80", "a b"]
)
def test_a_malformed_host_is_refused_whatever_is_allowed(host: str) -> None:
    assert refuses("127.0.0.1:4151", {"host": host}, broadcast_address=".")
    for address in ("127.0.0.1:4151", "0.0.0.0:4151"):
        assert refuses(address, {"host": host}, allowed_host=".")


@pytest.mark.parametrize("address", LOOPBACK + OTHER_ADDRESSES)
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:4151", "http://evil.example"),
        ("localhost:4151", "http://localhost:8080"),
        ("localhost:4151", "http://127.0.0.1:4151"),
        ("localhost:4151", "http://localhost"),
        ("localhost:4151", "null"),
        ("localhost:4151", ""),
        ("localhost:4151", "http://localhost:4151, http://evil.example"),
        ("localhost:4151", "http://localhost:nan"),
        ("localhost:4151", "http://user@localhost:4151"),
        ("localhost:4151", "http://localhost:4151/page"),
        ("localhost:4151", "chrome-extension://localhost:4151"),
        ("localhost:443", "http://localhost"),
        ("", "http://localhost:4151"),
        ("", ""),
        ("", "null"),
    ],
)
def test_a_page_of_another_origin_is_refused(address: str, host: str, origin: str) -> None:
    assert refuses(address, {"host": host, "origin": origin})


def test_a_page_of_another_origin_is_refused_without_a_host() -> None:
    assert refuses("127.0.0.1:4151", {"origin": "http://localhost:4151"})


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:4151", "http://localhost:4151"),
        ("localhost:4151", "http://LOCALHOST:4151"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost:443"),
        ("[::1]:4151", "http://[::1]:4151"),
    ],
)
def test_a_page_of_the_same_origin_is_served(host: str, origin: str) -> None:
    assert not refuses("127.0.0.1:4151", {"host": host, "origin": origin})


def test_the_reason_names_the_header_its_value_and_what_to_do() -> None:
    check = HostCheck.of(NsqdOptions(), "127.0.0.1:4151")

    def reason(**headers: str) -> str | None:
        return check.reason_to_refuse(Request("GET", "/", "", headers, b"", complete=True))

    assert reason(host="b") == "Host 'b' is not allowed: add it with -allowed-host"
    assert reason(host="b", origin="http://a") == (
        "Origin 'http://a' is not allowed: web pages of other hosts have no access"
    )
    assert len(reason(host="b" * 10_000) or "") < 300


@pytest.mark.parametrize("name", ["broker:4151", "", "http://broker", "a b", 7])
def test_an_allowed_host_is_a_name_without_a_port(name: object) -> None:
    with pytest.raises(ConfigError, match="allowed_host="):
        NsqdOptions(allowed_host=(name,))  # type: ignore[arg-type]
