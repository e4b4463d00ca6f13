"""Recognizes loopback addresses."""

import socket

import pytest

from nsqflow.loopback import is_loopback, resolves_to_loopback

HERE = ["127.0.0.1", "127.255.0.3", "::1", "::ffff:127.0.0.1", "0:0:0:0:0:0:0:1", "::1%lo"]
ELSEWHERE = ["0.0.0.0", "::", "192.0.2.1", "fe80::1", "::ffff:192.0.2.1", "127.foo.com", ""]


@pytest.mark.parametrize("number", HERE)
def test_an_address_of_the_loopback_interface_is_known(number: str) -> None:
    assert is_loopback(number)


@pytest.mark.parametrize("number", ELSEWHERE)
def test_no_other_is(number: str) -> None:
    assert not is_loopback(number)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.1", "2130706433", "0x7f.0.0.1"])
def test_it_is_known_however_it_is_written(host: str) -> None:
    assert resolves_to_loopback(host)
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "192.0.2.1", "\x80", "a" * 300])
def test_what_leads_elsewhere_or_nowhere_does_not_resolve_to_it(host: str) -> None:
    assert not resolves_to_loopback(host)


def test_a_name_with_another_address_too_is_not_of_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("192.0.2.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert not resolves_to_loopback("somewhere")
