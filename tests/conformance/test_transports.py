"""Every way to the real nsqd: TLS, compression, AUTH, IPv6, unix sockets; on both event loops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsqflow import Consumer, Producer, admin
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.errors import (
    AuthFailedError,
    ConfigError,
    NetworkError,
    NsqError,
    RequestTimeout,
    TlsNotGrantedError,
    UnauthorizedError,
)
from nsqflow.protocol import ClientSession
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, start_nsqd

SECRET = "hunter2"

numbers = count(1)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, on an nsqd that it shares with others."""
    return f"transports_{next(numbers)}"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a coroutine function with its arguments, on one event loop and on the other."""

    def run(work: Callable[..., Coroutine[Any, Any, None]], *args: Any, **kwargs: Any) -> None:
        asynchronous(uvloop=request.param)(work)(*args, **kwargs)

    return run


@pytest.fixture(scope="module")
def trust(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.ca)


@pytest.fixture(scope="module")
def modest_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that neither encrypts nor compresses."""
    folder = tmp_path_factory.mktemp("modest-nsqd")
    with start_nsqd(
        folder, kind=server_kind, options=["-snappy=false", "-deflate=false"]
    ) as server:
        yield server


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer(
        {
            SECRET: [Authorization(topic="transports_.*")],
            "reader": [Authorization(permissions=["subscribe"])],
            "writer": [Authorization(permissions=["publish"])],
        }
    ) as server:
        yield server


@pytest.fixture(scope="module")
def strict_nsqd(
    server_kind: Kind,
    tmp_path_factory: pytest.TempPathFactory,
    auth: AuthServer,
    certificates: Certificates,
) -> Iterator[Nsqd]:
    """An nsqd that asks for AUTH."""
    folder = tmp_path_factory.mktemp("strict-nsqd")
    options = [f"-auth-http-address={auth.address}"]
    with start_nsqd(folder, kind=server_kind, tls=certificates, options=options) as server:
        yield server


def bodies(number: int) -> list[bytes]:
    """Bodies small and large, that compress well and not at all."""
    return [
        b"%d " % n + (os.urandom(n * 37 % 5000) if n % 2 else b"again and " * (n * 91 % 3000))
        for n in range(number)
    ]


async def carry(address: str, topic: str, number: int = 200, **options: Any) -> None:
    """Publish, one by one and all at once, and receive it; with one connection each."""
    events = EventLog()
    sent = bodies(number)
    options = {"on_event": events, **options}
    async with (
        asyncio.timeout(PATIENCE),
        Producer(address, **options) as producer,
        Consumer(topic, "c", nsqd=address, **options) as consumer,
    ):
        await producer.publish(topic, sent[0])
        await producer.publish_many(topic, sent[1 : number // 2])
        await asyncio.gather(*(producer.publish(topic, body) for body in sent[number // 2 :]))
        received: list[bytes] = []
        while len(received) < number:
            async with await anext(consumer) as message:
                received.append(message.body)
        assert sorted(received) == sorted(sent)
    assert [event.kind for event in events.entries] == ["connected"] * 2


async def client_of(nsqd: Nsqd, topic: str) -> Any:
    """What nsqd knows of the one client of a channel."""
    async with admin.Nsqd(nsqd.http_address) as api:
        while True:
            for each in (await api.stats(topic)).topics:
                for channel in each.channels:
                    for client in channel.clients:
                        return client


async def error_of(consumer: Consumer) -> NsqError:
    """What comes out of a consumer that can't work."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(NsqError) as caught:
            async with consumer:
                await anext(consumer)
    return caught.value


# All that goes together.

TRANSPORTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "TLS": {"tls": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "TLS and snappy": {"tls": True, "snappy": True},
    "TLS and deflate": {"tls": True, "deflate": True, "deflate_level": 1},
}


def options_of(transport: str, trust: ssl.SSLContext) -> dict[str, Any]:
    options = dict(TRANSPORTS[transport])
    return options | {"tls": trust} if options.get("tls") else options


@pytest.mark.proves(rows=[49, 50, 51], defects=[6, 8])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_arrives_by_every_transport(
    run: Callable[..., None], nsqd: Nsqd, topic: str, trust: ssl.SSLContext, transport: str
) -> None:
    run(carry, nsqd.tcp_address, topic, **options_of(transport, trust))


@pytest.mark.proves(rows=[49, 50, 51])
@pytest.mark.parametrize("transport", TRANSPORTS)
@asynchronous
async def test_nsqd_says_that_it_is_the_transport_asked_for(
    nsqd: Nsqd, topic: str, trust: ssl.SSLContext, transport: str
) -> None:
    options = options_of(transport, trust)
    async with Consumer(topic, "c", nsqd=nsqd.tcp_address, **options):
        client = await client_of(nsqd, topic)
    for feature in ("tls", "snappy", "deflate"):
        assert client[feature] is bool(options.get(feature))


@pytest.mark.parametrize("chop", [1, 2, 7, 1000])
@pytest.mark.parametrize("transport", TRANSPORTS)
@asynchronous
async def test_all_arrives_wherever_the_network_cuts_it(
    nsqd: Nsqd, topic: str, trust: ssl.SSLContext, transport: str, chop: int
) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        proxy.chop = chop
        # One byte at a time is slow: a few thousand will do.
        number = 4 if chop < 7 else 20
        await carry(proxy.address, topic, number, **options_of(transport, trust))


@pytest.mark.parametrize("transport", ["plain", "TLS and snappy"])
def test_all_arrives_from_far_away(
    run: Callable[..., None], nsqd: Nsqd, topic: str, trust: ssl.SSLContext, transport: str
) -> None:
    async def from_far_away() -> None:
        async with Proxy(nsqd.tcp_address) as proxy:
            proxy.delay = 0.05
            await carry(proxy.address, topic, **options_of(transport, trust))

    run(from_far_away)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_connection_that_is_reset_is_reopened_by_every_transport(
    run: Callable[..., None], nsqd: Nsqd, topic: str, trust: ssl.SSLContext, transport: str
) -> None:
    async def be_reset() -> None:
        events = EventLog()
        options = {"reconnect_delay": 0.01, "on_event": events, **options_of(transport, trust)}
        async with (
            Proxy(nsqd.tcp_address) as proxy,
            Consumer(topic, "c", nsqd=proxy.address, **options) as consumer,
            Producer(proxy.address, **options) as producer,
        ):
            for number in range(3):
                await events.next("connected")
                await events.next("connected")
                await producer.publish(topic, b"%d" % number)
                async with asyncio.timeout(PATIENCE), await anext(consumer) as message:
                    assert message.body == b"%d" % number
                proxy.reset()

    run(be_reset)


# TLS.


@pytest.mark.proves(rows=[49])
def test_an_untrusted_server_is_refused(run: Callable[..., None], nsqd: Nsqd, topic: str) -> None:
    async def distrust() -> None:
        events = EventLog()
        options: Any = {"tls": True, "on_event": events}
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, **options):
            error = (await events.next("connect_failed")).error
            assert isinstance(error, NetworkError)
            assert isinstance(error.__cause__, ssl.SSLCertVerificationError)
        async with Producer(nsqd.tcp_address, **options) as producer:
            with pytest.raises(RequestTimeout, match="certificate verify failed"):
                await producer.publish(topic, b"x", timeout=2)

    run(distrust)


@pytest.mark.proves(rows=[49])
@asynchronous
async def test_a_server_that_another_authority_vouches_for_is_refused(
    nsqd: Nsqd, topic: str
) -> None:
    events = EventLog()
    stranger = ssl.create_default_context()
    trustme.CA().configure_trust(stranger)
    async with Consumer(topic, "c", nsqd=nsqd.tcp_address, tls=stranger, on_event=events):
        error = (await events.next("connect_failed")).error
        assert isinstance(error, NetworkError)
        assert isinstance(error.__cause__, ssl.SSLCertVerificationError)


@asynchronous
async def test_a_server_of_another_name_is_refused(
    nsqd: Nsqd, topic: str, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, resolve = asyncio.get_running_loop(), asyncio.get_running_loop().getaddrinfo

    async def lie(host: Any, port: Any, **hints: Any) -> Any:
        return await resolve("127.0.0.1", port, **hints)

    monkeypatch.setattr(loop, "getaddrinfo", lie)
    events = EventLog()
    port = nsqd.tcp_address.rpartition(":")[2]
    for host in ("nsqd.example", "localhost"):
        async with Consumer(topic, "c", nsqd=f"{host}:{port}", tls=trust, on_event=events):
            if host == "localhost":
                await events.next("connected")
            else:
                assert "Hostname mismatch" in str((await events.next("connect_failed")).error)


@pytest.mark.proves(rows=[49], wishes=[30])
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_the_version_of_tls_is_the_users_choice(
    run: Callable[..., None], nsqd: Nsqd, topic: str, certificates: Certificates, version: str
) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]

    async def connect() -> None:
        await carry(nsqd.tcp_address, topic, 20, tls=context)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, tls=context):
            client = await client_of(nsqd, topic)
        assert client["tls_version"] == version.replace("v", "").replace("_", ".")

    run(connect)


@pytest.mark.proves(wishes=[30])
def test_a_client_may_show_a_certificate_of_its_own(
    server_kind: Kind,
    run: Callable[..., None],
    tmp_path: Path,
    topic: str,
    certificates: Certificates,
) -> None:
    known = ssl.create_default_context(cafile=certificates.ca)
    known.load_cert_chain(certificates.cert, certificates.key)
    unknown = ssl.create_default_context(cafile=certificates.ca)

    async def show(address: str) -> None:
        events = EventLog()
        await carry(address, topic, 20, tls=known)
        async with Consumer(topic, "c", nsqd=address, tls=unknown, on_event=events):
            assert isinstance((await events.next("connect_failed")).error, NetworkError)

    options = ["-tls-client-auth-policy=require-verify", f"-tls-root-ca-file={certificates.ca}"]
    with start_nsqd(tmp_path, kind=server_kind, tls=certificates, options=options) as nsqd:
        run(show, nsqd.tcp_address)


@pytest.mark.proves(rows=[49])
@asynchronous
async def test_tls_that_is_not_granted_is_an_error_before_another_byte(
    modest_nsqd: Nsqd, topic: str
) -> None:
    hello = ClientSession(ConsumerConfig(nsqd=("a:1",), tls=True).identify()).data_to_send()
    async with Proxy(modest_nsqd.tcp_address) as proxy:
        error = await error_of(Consumer(topic, "c", nsqd=proxy.address, tls=True))
        assert isinstance(error, TlsNotGrantedError)
        await eventually(lambda: proxy.open_connections == 0)
        assert (proxy.to_server, proxy.connections) == (len(hello), 1)
        async with Producer(proxy.address, tls=True) as producer:
            with pytest.raises(TlsNotGrantedError):
                await producer.publish(topic, b"x")


@asynchronous
async def test_nsqd_that_requires_tls_refuses_plaintext(
    server_kind: Kind, tmp_path: Path, topic: str, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    with start_nsqd(
        tmp_path, kind=server_kind, tls=certificates, options=["-tls-required=true"]
    ) as nsqd:
        await carry(nsqd.tcp_address, topic, 10, tls=trust)
        events = EventLog()
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, on_event=events):
            event = await events.next("connect_failed")
            assert str(event.error) == "E_INVALID cannot SUB in current state (TLS required)"


# Compression.


@pytest.mark.proves(rows=[50])
@pytest.mark.parametrize("method", ["snappy", "deflate"])
def test_compression_that_is_not_granted_is_a_warning_and_plain(
    run: Callable[..., None],
    modest_nsqd: Nsqd,
    topic: str,
    method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(carry, modest_nsqd.tcp_address, topic, 20, **{method: True})
    warnings = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
    text = f"{modest_nsqd.tcp_address} does not support {method}; continuing without compression"
    assert warnings == {text}


@asynchronous
async def test_what_compresses_well_takes_few_bytes(nsqd: Nsqd, topic: str) -> None:
    taken = {}
    for method in ("snappy", "deflate", "deflate_level"):
        options: Any = {method: True} if method != "deflate_level" else {}
        async with Proxy(nsqd.tcp_address) as proxy:
            async with Producer(proxy.address, **options) as producer:
                await producer.publish(topic, bytes(100_000))
            taken[method] = proxy.to_server
    assert taken["deflate"] < taken["snappy"] < 20_000 < 100_000 < taken["deflate_level"]


# AUTH.


@pytest.mark.proves(rows=[52])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_secret_is_accepted_over_every_transport(
    run: Callable[..., None],
    strict_nsqd: Nsqd,
    topic: str,
    trust: ssl.SSLContext,
    transport: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    options = options_of(transport, trust) | {"auth_secret": SECRET}
    run(carry, strict_nsqd.tcp_address, topic, 20, **options)
    assert SECRET not in caplog.text


@pytest.mark.proves(rows=[52])
@asynchronous
async def test_nsqd_lists_authenticated_clients(strict_nsqd: Nsqd, topic: str) -> None:
    options: Any = {"auth_secret": SECRET.encode()}
    async with Consumer(topic, "c", nsqd=strict_nsqd.tcp_address, **options):
        client = await client_of(strict_nsqd, topic)
    assert (client["authed"], client["auth_identity"]) == (True, "a-user")


@pytest.mark.proves(rows=[17, 52])
@pytest.mark.parametrize(
    ("secret", "kind"),
    [("wrong", AuthFailedError), (None, ConfigError), ("writer", UnauthorizedError)],
)
def test_an_unauthorized_subscription_raises(
    run: Callable[..., None],
    strict_nsqd: Nsqd,
    topic: str,
    secret: str | None,
    kind: type[NsqError],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        address = strict_nsqd.tcp_address
        error = await error_of(Consumer(topic, "c", nsqd=address, auth_secret=secret))
        assert type(error) is kind
        async with asyncio.timeout(PATIENCE):
            consumer = Consumer(topic, "c", nsqd=address, auth_secret=secret)
            with pytest.raises(kind) as caught:
                await consumer.run(lambda message: None, signals=False)
        assert "wrong" not in caplog.text + str(error) + str(caught.value)

    run(fail)


@pytest.mark.proves(rows=[52])
@pytest.mark.parametrize(
    ("secret", "kind"),
    [("wrong", AuthFailedError), (None, ConfigError), ("reader", UnauthorizedError)],
)
def test_an_unauthorized_publish_raises(
    run: Callable[..., None],
    strict_nsqd: Nsqd,
    topic: str,
    secret: str | None,
    kind: type[NsqError],
) -> None:
    async def fail() -> None:
        async with Producer(strict_nsqd.tcp_address, auth_secret=secret) as producer:
            with pytest.raises(kind) as caught:
                await producer.publish(topic, b"x")
        assert type(caught.value) is kind

    run(fail)


@pytest.mark.proves(rows=[52])
@asynchronous
async def test_a_topic_that_is_not_ones_own_is_refused(strict_nsqd: Nsqd, topic: str) -> None:
    address = strict_nsqd.tcp_address
    error = await error_of(Consumer("others", "c", nsqd=address, auth_secret=SECRET))
    assert isinstance(error, UnauthorizedError)
    async with Producer(address, auth_secret=SECRET, reconnect_delay=0.01) as producer:
        with pytest.raises(UnauthorizedError):
            await producer.publish("others", b"x")
        await producer.publish(topic, b"x")  # the others go on


# Where nsqd listens.


def ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("transport", ["plain", "snappy"])
def test_nsqd_may_be_at_an_ipv6_address(
    server_kind: Kind, run: Callable[..., None], tmp_path: Path, topic: str, transport: str
) -> None:
    with start_nsqd(tmp_path, kind=server_kind, options=["-tcp-address=[::1]:0"]) as nsqd:
        assert nsqd.tcp_address.startswith("[::1]:")
        run(carry, nsqd.tcp_address, topic, **TRANSPORTS[transport])


@pytest.mark.parametrize(
    ("scheme", "transport"),
    [("unix:", "plain"), ("unix://", "plain"), *(("", transport) for transport in TRANSPORTS)],
)
def test_nsqd_may_be_at_a_unix_socket(
    server_kind: Kind,
    run: Callable[..., None],
    tmp_path: Path,
    topic: str,
    certificates: Certificates,
    trust: ssl.SSLContext,
    transport: str,
    scheme: str,
) -> None:
    path = tmp_path / "nsqd.sock"
    with start_nsqd(
        tmp_path, kind=server_kind, tls=certificates, options=[f"-tcp-address={path}"]
    ) as nsqd:
        assert nsqd.tcp_address == str(path)
        run(carry, f"{scheme}{path}", topic, 20, **options_of(transport, trust))


@asynchronous
async def test_a_missing_unix_socket_is_a_failed_connection(tmp_path: Path) -> None:
    events = EventLog()
    path = str(tmp_path / "nsqd.sock")
    async with Consumer("t", "c", nsqd=path, on_event=events):
        error = (await events.next("connect_failed")).error
        assert isinstance(error, NetworkError)
        assert str(error).startswith(f"{path}: ")
