"""The warning about AUTH without TLS: for which peers, and how often."""

from __future__ import annotations

import pytest

from nsqflow.transport import plaintext
from nsqflow.transport.plaintext import is_local, warn_of_plaintext_auth


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests were warned of."""
    monkeypatch.setattr(plaintext, "_warned", set[str]())


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (("127.0.0.1", 4150), True),
        (("127.8.9.10", 4150), True),
        (("::1", 4150, 0, 0), True),
        (("::ffff:127.0.0.1", 4150, 0, 0), True),
        (("::ffff:10.0.0.1", 4150, 0, 0), False),
        (("fe80::1%lo", 4150, 0, 1), False),
        (("10.0.0.1", 4150), False),
        (("192.168.1.1", 4150), False),
        (("0.0.0.0", 4150), False),
        (("localhost", 4150), False),  # a name says nothing of where it leads
        ((), False),
        (None, False),
        ("/run/nsqd.sock", True),
        ("", True),
        (b"\0abstract", True),
    ],
)
def test_only_loopback_and_unix_sockets_are_local(peer: object, local: bool) -> None:
    assert is_local(peer) is local


def test_each_address_causes_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for host in ("10.0.0.1", "10.0.0.2", "127.0.0.1"):
            warn_of_plaintext_auth(f"{host}:4150", (host, 4150))
    assert [record.getMessage() for record in caplog.records] == [
        f"{host}:4150: AUTH without TLS: the secret travels in clear text; use tls"
        for host in ("10.0.0.1", "10.0.0.2")
    ]


def test_the_number_of_remembered_addresses_is_limited() -> None:
    for number in range(3000):
        warn_of_plaintext_auth(f"10.0.0.1:{number}", ("10.0.0.1", number))
    assert len(plaintext._warned) <= 1000
