"""Stats: ours beside those of the real nsqd after the same events."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd
from tests.unit.broker.nsqd.running import ask, connected, make_nsqd, new_name, sized, stats_of

# These differ between servers and moments.
VOLATILE = {"start_time", "remote_address", "connect_ts", "tls_cipher_suite"}


class Addresses(NamedTuple):
    tcp: str
    http: str


Scene = Callable[[Addresses, str], Awaitable[Any]]


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer({"sesame": [Authorization()]}) as server:
        server.identity, server.identity_url = "user", "http://user.example"
        yield server


@pytest.fixture(scope="module")
def real(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Addresses]:
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), tls=certificates) as server:
        yield _addresses(server)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """An nsqd without clients and other topics."""
    with start_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield _addresses(server)


def _addresses(server: Nsqd) -> Addresses:
    return Addresses(server.tcp_address, server.http_address)


async def on_ours(scene: Scene, topic: str, **options: Any) -> Any:
    async with make_nsqd(**options) as nsqd:
        return await scene(Addresses(nsqd.tcp_address, nsqd.http_address), topic)


async def until(address: str, topic: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the stats once their first channel fits."""
    async with asyncio.timeout(PATIENCE):
        while True:
            stats = await stats_of(address, topic=topic)
            if fits(stats["topics"][0]["channels"][0]):
                return stats


def outline(value: Any, name: str = "") -> Any:
    """Return the names in their order, and the values that must be the same."""
    if isinstance(value, dict) and name != "memory":
        return [(key, outline(each, key)) for key, each in value.items() if key != "version"]
    if isinstance(value, dict):
        return [(key, type(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [outline(each) for each in value]
    return type(value) if name in VOLATILE else value


def _has_handled_some(busy: dict[str, Any]) -> bool:
    return (busy["requeue_count"], busy["in_flight_count"]) == (1, 1)


async def handle_some(nsqd: Addresses, topic: str) -> dict[str, Any]:
    """Finish one message, defer one, leave one in flight and one queued; pause a channel."""
    async with connected(nsqd.tcp) as consumer, connected(nsqd.tcp) as producer:
        await consumer.identify()
        await consumer.command(f"SUB {topic} busy\n".encode())
        await ask(nsqd.http, "POST", "/channel/create", topic=topic, channel="idle")
        await ask(nsqd.http, "POST", "/channel/pause", topic=topic, channel="idle")
        await producer.identify()
        for body in (b"1", b"2", b"3", b"4"):
            await producer.command(f"PUB {topic}\n".encode() + sized(body))
        first = (await consumer.request(b"RDY 1\n"))[10:26]
        second = (await consumer.request(b"FIN " + first + b"\n"))[10:26]
        await consumer.request(b"REQ " + second + b" 600000\n")
        stats = await until(nsqd.http, topic, _has_handled_some)
        stats["text"] = (await ask(nsqd.http, "GET", "/stats", topic=topic))[1].decode()
        return stats


@asynchronous
async def test_the_same_events_give_the_same_stats(real: Addresses) -> None:
    topic = new_name()
    theirs, ours = await handle_some(real, topic), await on_ours(handle_some, topic)
    del theirs["text"], ours["text"]
    [stats] = theirs["topics"]
    assert stats["message_count"] == 4
    assert stats["channels"][0]["clients"][0]["in_flight_count"] == 1
    assert stats["channels"][1]["clients"] == []
    assert [each["pub_counts"][0]["count"] for each in theirs["producers"]] == [4]
    assert outline(ours) == outline(theirs)


@asynchronous
async def test_the_same_events_give_the_same_text(real: Addresses) -> None:
    topic = new_name()
    theirs, ours = await handle_some(real, topic), await on_ours(handle_some, topic)

    def comparable(text: str) -> str:
        text = re.sub(r"^nsqd v1\.3\.0.*", "nsqd", text)
        text = re.sub(r"(?<=start_time ).*|(?<=uptime ).*|(?<=connected: ).*", "*", text)
        return re.sub(r"(?<=\t)[0-9]+|(?<=here:)[0-9]+", "*", text)

    assert "*P [idle " in theirs["text"]
    assert f"msgs: 4        topics: {topic}=4" in theirs["text"]
    assert comparable(ours["text"]) == comparable(theirs["text"])


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"include_clients": "false"},
        {"include_clients": "0", "include_mem": "0"},
        {"include_clients": "no", "include_mem": "1"},
        {"topic": "there-is-none"},
        {"topic": "there-is-none", "include_mem": "false"},
        {"channel": "there-is-none"},
        {"channel": "b"},
        {"topic": "", "channel": ""},
        {"format": "JSON", "include_mem": "0"},
    ],
    ids=str,
)
@asynchronous
async def test_the_same_query_gives_the_same_selection(
    query: dict[str, str], quiet: Addresses
) -> None:
    async with make_nsqd() as nsqd:
        ours = Addresses(nsqd.tcp_address, nsqd.http_address)
        answers = []
        for each in (quiet, ours):
            for channel in ("a", "b"):
                await ask(each.http, "POST", "/topic/create", topic="one")
                await ask(each.http, "POST", "/channel/create", topic="one", channel=channel)
            await ask(each.http, "POST", "/topic/create", topic="another")
            _, body = await ask(each.http, "GET", "/stats", None, **({"format": "json"} | query))
            answers.append(body.decode())
    if query.get("format"):
        assert answers[0].splitlines()[3:] == answers[1].splitlines()[3:]
    else:
        assert outline(json.loads(answers[1])) == outline(json.loads(answers[0]))


@asynchronous
async def test_a_tls_connection_has_its_cipher_in_the_stats(
    real: Addresses, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)

    async def subscribe(nsqd: Addresses, topic: str) -> dict[str, Any]:
        async with connected(nsqd.tcp) as client:
            assert (await client.identify(tls_v1=True))["tls_v1"]
            await client.writer.start_tls(context, server_hostname="127.0.0.1")
            assert await client.receive() == b"OK"
            await client.command(f"SUB {topic} ch\n".encode())
            return await until(nsqd.http, topic, lambda channel: channel["client_count"] == 1)

    topic = new_name()
    tls = {"tls_cert": str(certificates.cert), "tls_key": str(certificates.key)}
    tls["https_address"] = "127.0.0.1:0"
    theirs, ours = await subscribe(real, topic), await on_ours(subscribe, topic, **tls)
    [client] = theirs["topics"][0]["channels"][0]["clients"]
    assert client["tls"]
    assert client["tls_version"] == "TLS1.3"
    assert outline(ours) == outline(theirs)


@asynchronous
async def test_an_authorized_client_has_its_identity_in_the_stats(
    auth: AuthServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def subscribe(nsqd: Addresses, topic: str) -> dict[str, Any]:
        async with connected(nsqd.tcp) as client:
            await client.identify(sample_rate=50, snappy=False)
            await client.request(b"AUTH\n" + sized(b"sesame"))
            await client.command(f"SUB {topic} ch\n".encode())
            return await until(nsqd.http, topic, lambda channel: channel["client_count"] == 1)

    topic = new_name()
    options = [f"-auth-http-address={auth.address}"]
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), options=options) as nsqd:
        theirs = await subscribe(_addresses(nsqd), topic)
    ours = await on_ours(subscribe, topic, auth_http_address=auth.address)
    [client] = theirs["topics"][0]["channels"][0]["clients"]
    assert (client["authed"], client["auth_identity"]) == (True, "user")
    assert client["auth_identity_url"] == "http://user.example"
    assert outline(ours) == outline(theirs)
