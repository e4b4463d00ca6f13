"""The warning about AUTH without TLS: for which peers, and how often."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nsqflow import Producer
from nsqflow.address import join_address
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from nsqflow.transport import plaintext
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import Nsqd, start_nsqd

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests were warned of."""
    monkeypatch.setattr(plaintext, "_warned", set[str]())


def own_host() -> str:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        host: str = probe.getsockname()[0]
        return host


@pytest.fixture
def nsqd(tmp_path: Path, certificates: Certificates) -> Iterator[Nsqd]:
    """An nsqd that asks for AUTH, and listens on all addresses of this machine."""
    with AuthServer({SECRET: [Authorization()]}) as auth:
        options = [f"-auth-http-address={auth.address}", "-tcp-address=0.0.0.0:0"]
        with start_nsqd(tmp_path, tls=certificates, options=options) as server:
            yield server


def at(host: str, nsqd: Nsqd) -> str:
    return join_address(host, int(nsqd.tcp_address.rpartition(":")[2]))


@asynchronous
async def test_the_client_warns_of_a_secret_in_clear_text(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    away = at(own_host(), nsqd)
    caplog.set_level(logging.WARNING)
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    for address, context, warned in (
        (at("127.0.0.1", nsqd), None, 0),
        (away, tls, 0),
        (away, None, 1),
        (away, None, 1),
    ):
        async with Producer(address, auth_secret=SECRET, tls=context) as producer:
            await producer.publish("orders", b"x")
        assert len(caplog.records) == warned
    assert caplog.records[0].getMessage().startswith(f"{away}: AUTH without TLS: ")
    assert SECRET not in caplog.text


def test_a_spark_task_warns_of_a_secret_in_clear_text(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    away = at(own_host(), nsqd)
    caplog.set_level(logging.WARNING)
    encrypted = Access(tls=True, tls_verify=False, auth_secret=SECRET)
    for address, access, warned in (
        (at("127.0.0.1", nsqd), Access(auth_secret=SECRET), 0),
        (away, encrypted, 0),
        (away, Access(auth_secret=SECRET), 1),
        (away, Access(auth_secret=SECRET), 1),
    ):
        with closing(connect(address, access)):
            assert len(caplog.records) == warned
    assert caplog.records[0].getMessage().startswith(f"{away}: AUTH without TLS: ")
    assert SECRET not in caplog.text
