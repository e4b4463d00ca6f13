"""What our nsqd tells of itself, beside what the real one does after the same events."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from nsqflow.broker.nsqd import stats_text
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd
from tests.unit.broker.nsqd.running import ask, connected, make_nsqd, new_name, sized, stats_of

# These differ from one nsqd to the next, and from one moment to the next.
VOLATILE = {"start_time", "remote_address", "connect_ts", "tls_cipher_suite"}


class Addresses(NamedTuple):
    tcp: str
    http: str


Scene = Callable[[Addresses, str], Awaitable[Any]]


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer({"sesame": [Authorization()]}) as server:
        server.identity_url = "http://somebody"
        yield server


@pytest.fixture(scope="module")
def real(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Addresses]:
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), tls=certificates) as server:
        yield _addresses(server)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """One that has no clients, and no topics but ours."""
    with start_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield _addresses(server)


def _addresses(server: Nsqd) -> Addresses:
    return Addresses(server.tcp_address, server.http_address)


async def on_ours(scene: Scene, topic: str, **options: Any) -> Any:
    async with make_nsqd(**options) as nsqd:
        return await scene(Addresses(nsqd.tcp_address, nsqd.http_address), topic)


async def until(address: str, topic: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
    """The stats, once their first channel is as it shall be."""
    async with asyncio.timeout(PATIENCE):
        while True:
            stats = await stats_of(address, topic=topic)
            if fits(stats["topics"][0]["channels"][0]):
                return stats


def outline(value: Any, name: str = "") -> Any:
    """What can be compared: the names in their order, and the values that must be the same."""
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
    """One message finished, one put off, one in flight, one waiting; a channel without a client."""
    async with connected(nsqd.tcp) as consumer, connected(nsqd.tcp) as producer:
        await consumer.identify()
        await consumer.say(f"SUB {topic} busy\n".encode())
        await ask(nsqd.http, "POST", "/channel/create", topic=topic, channel="idle")
        await ask(nsqd.http, "POST", "/channel/pause", topic=topic, channel="idle")
        await producer.identify()
        for body in (b"1", b"2", b"3", b"4"):
            await producer.say(f"PUB {topic}\n".encode() + sized(body))
        first = (await consumer.exchange(b"RDY 1\n"))[10:26]
        second = (await consumer.exchange(b"FIN " + first + b"\n"))[10:26]
        await consumer.exchange(b"REQ " + second + b" 600000\n")
        stats = await until(nsqd.http, topic, _has_handled_some)
        stats["text"] = (await ask(nsqd.http, "GET", "/stats", topic=topic))[1].decode()
        return stats


@asynchronous
async def test_the_same_events_give_the_same_stats(real: Addresses) -> None:
    topic = new_name()
    theirs, ours = await handle_some(real, topic), await on_ours(handle_some, topic)
    del theirs["text"], ours["text"]
    [told] = theirs["topics"]
    assert told["message_count"] == 4
    assert told["channels"][0]["clients"][0]["in_flight_count"] == 1
    assert told["channels"][1]["clients"] == []
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
        told = []
        for each in (quiet, ours):
            for channel in ("a", "b"):
                await ask(each.http, "POST", "/topic/create", topic="one")
                await ask(each.http, "POST", "/channel/create", topic="one", channel=channel)
            await ask(each.http, "POST", "/topic/create", topic="another")
            _, body = await ask(each.http, "GET", "/stats", None, **({"format": "json"} | query))
            told.append(body.decode())
    if query.get("format"):
        assert told[0].splitlines()[3:] == told[1].splitlines()[3:]
    else:
        assert outline(json.loads(told[1])) == outline(json.loads(told[0]))


@asynchronous
async def test_a_connection_with_tls_says_so(real: Addresses, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)

    async def subscribe(nsqd: Addresses, topic: str) -> dict[str, Any]:
        async with connected(nsqd.tcp) as client:
            assert (await client.identify(tls_v1=True))["tls_v1"]
            await client.writer.start_tls(context, server_hostname="127.0.0.1")
            assert await client.hear() == b"OK"
            await client.say(f"SUB {topic} ch\n".encode())
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
async def test_an_authorized_client_says_who_it_is(
    auth: AuthServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def subscribe(nsqd: Addresses, topic: str) -> dict[str, Any]:
        async with connected(nsqd.tcp) as client:
            await client.identify(sample_rate=50, snappy=False)
            await client.exchange(b"AUTH\n" + sized(b"sesame"))
            await client.say(f"SUB {topic} ch\n".encode())
            return await until(nsqd.http, topic, lambda channel: channel["client_count"] == 1)

    topic = new_name()
    options = [f"-auth-http-address={auth.address}"]
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), options=options) as nsqd:
        theirs = await subscribe(_addresses(nsqd), topic)
    ours = await on_ours(subscribe, topic, auth_http_address=auth.address)
    [client] = theirs["topics"][0]["channels"][0]["clients"]
    assert (client["authed"], client["auth_identity"]) == (True, "somebody")
    assert client["auth_identity_url"] == "http://somebody"
    assert outline(ours) == outline(theirs)


@asynchronous
async def test_a_producer_tells_of_all_its_topics_or_of_the_one_asked_for() -> None:
    first, second = new_name(), new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as producer:
        for topic, count in (first, 1), (second, 2):
            for _ in range(count):
                await producer.say(f"PUB {topic}\n".encode() + sized(b"x"))
        [all_of_it] = (await stats_of(nsqd.http_address))["producers"]
        assert all_of_it["pub_counts"] == [
            {"topic": first, "count": 1},
            {"topic": second, "count": 2},
        ]
        [part] = (await stats_of(nsqd.http_address, topic=second))["producers"]
        assert part["pub_counts"] == [{"topic": second, "count": 2}]
        _, text = await ask(nsqd.http_address, "GET", "/stats")
        assert f"msgs: 3        topics: {first}=1,{second}=2 connected: " in text.decode()


@asynchronous
async def test_memory_that_can_be_told_is_told() -> None:
    async with make_nsqd() as nsqd:
        memory = (await stats_of(nsqd.http_address))["memory"]
    assert memory["heap_in_use_bytes"] > 1024 * 1024
    assert memory["heap_objects"] > 10_000
    assert memory["gc_total_runs"] > 0


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1_000_000_000, "1s"),
        (1_500_000_000, "1.5s"),
        (10_000_000_000, "10s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (90_061_000_000_001, "25h1m1.000000001s"),
        (-5, "0s"),
    ],
)
def test_uptime_is_written_as_go_writes_it(nanoseconds: int, text: str) -> None:
    stats = {"version": "1", "start_time": 100, "health": "OK", "topics": None, "producers": None}
    lines = stats_text.render(stats, 100 * 10**9 + nanoseconds).splitlines()
    assert lines[2] == f"uptime {text}"
    assert lines[3:] == ["", "Health: OK", "", "Topics: None", "", "Producers: None"]
