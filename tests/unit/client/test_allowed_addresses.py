"""Which of the nsqd that nsqlookupd names are dialled."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nsqflow import Consumer, Producer
from nsqflow.client.allowed_addresses import AddressFilter, AllowedAddresses, first_few
from nsqflow.errors import ConfigError


@pytest.mark.parametrize(
    ("allowed", "address", "verdict"),
    [
        (["nsqd1"], "nsqd1:4150", True),
        (["NSQd1.Example"], "nsqD1.exAmple:4150", True),
        (["nsqd1.example"], "nsqd1:4150", False),
        (["nsqd1"], "nsqd1.example:4150", False),
        (["nsqd_1-a"], "nsqd_1-a:4150", True),
        (["10.1.2.3"], "10.1.2.3:4150", True),
        (["10.1.2.3"], "10.1.2.4:4150", False),
        (["10.0.0.0/8"], "10.255.0.1:4150", True),
        (["10.0.0.0/8"], "11.0.0.1:4150", False),
        (["10.0.0.0/8"], "010.0.0.1:4150", False),
        (["10.0.0.0/8"], "10.1:4150", False),
        (["10.0.0.0/8"], "host-in-10:4150", False),
        (["10.0.0.0/8"], "[fd00::1]:4150", False),
        (["fd00::/8"], "[fd00::1]:4150", True),
        (["FD00::1"], "[fd00:0::1]:4150", True),
        (["::/0"], "10.0.0.1:4150", False),
        (["a", "10.0.0.0/8", "b"], "b:1", True),
        (("a",), "a:1", True),
        ("a", "a:1", True),
        (["a"], "/run/nsqd.sock", False),
        (["a"], "no address", False),
    ],
)
def test_an_address_is_allowed_by_its_name_or_its_network(
    allowed: Any, address: str, verdict: bool
) -> None:
    assert AllowedAddresses(allowed).allow(address) is verdict


@pytest.mark.parametrize(
    "entry",
    [
        *("10.0.0.0/33", "10.0.0.1/8", "10.0.0.256", "10.1", "1", "::g", "[::1]"),
        *("host:4150", "10.0.0.1:4150", "", " ", "a b", "-a", "a..b", "*.example", "a" * 64),
        *(".".join(["a" * 60] * 5), b"a", 5, None),
    ],
)
def test_what_is_not_a_host_or_network_is_refused_when_the_client_is_made(entry: object) -> None:
    wrong: Any = {"allowed_addresses": [entry]}
    start = f"allowed_addresses={[entry]!r} is invalid: {entry!r} must be a host name"
    for make in (
        lambda: Consumer("t", "c", lookupd="lookupd:4161", **wrong),
        lambda: Producer(lookupd="lookupd:4161", **wrong),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value).startswith(start)


@pytest.mark.parametrize("value", [[], (), 5, b"a", iter(["a"])])
def test_what_is_not_a_list_of_hosts_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="is invalid: must be one or more hosts or networks"):
        Producer(lookupd="lookupd:4161", allowed_addresses=value)


def test_without_the_option_all_are_allowed() -> None:
    assert AddressFilter(None).split(["a:1", "/x", "a:1"]) == (("a:1", "/x"), ())


def test_each_is_logged_once_and_not_too_many(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    addresses = AddressFilter(["good"])
    for _ in range(3):
        assert addresses.split(["bad:1", "good:1"]) == (("good:1",), ("bad:1",))
    assert [record.getMessage() for record in caplog.records] == [
        "bad:1 is not dialled: it is outside allowed_addresses"
    ]
    for _ in range(2):
        addresses.split(f"bad:{port}" for port in range(2, 3000))
    assert len(caplog.records) == 101
    assert caplog.records[-1].getMessage() == "more than 100 nsqd are outside allowed_addresses"


def test_many_addresses_are_shortened() -> None:
    assert first_few(["b:1", "a:1"]) == "a:1, b:1"
    assert first_few([f"a:{n}" for n in range(9)], 2) == "a:0, a:1 and 7 more"
