"""How a consumer finds its nsqd: named by the user, or by nsqlookupd, now or later."""

from __future__ import annotations

import asyncio
import json
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from nsqflow import ClientEvent, Consumer
from nsqflow.errors import ConfigError
from tests.conformance.server_side import bodies_from, channel_stats, kinds, publish, topic_of
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.scripted import ScriptedLookupd
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd

OFTEN = 0.1  # seconds from one question to nsqlookupd to the next
ONCE = 3600.0


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def create(nsqd: Nsqd, topic: str, *lookupds: Nsqlookupd) -> None:
    """Create a topic, and wait until each nsqlookupd names the nsqd for it."""
    assert nsqd.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
    for lookupd in lookupds:
        lookupd.await_log(rf"REGISTER category:topic key:{topic} ")


def folder(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


def a_port_without_server() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


# --- named by the user


@pytest.mark.proves(rows=[1])
@asynchronous
async def test_all_nsqd_of_a_list_are_consumed(
    server_kind: Kind, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as other:
        await publish(nsqd, topic, b"one")
        await publish(other, topic, b"two")
        servers = [nsqd.tcp_address, other.tcp_address]
        async with Consumer(topic, "ch", nsqd=servers) as consumer:
            assert await bodies_from(consumer, 2) == [b"one", b"two"]
            assert [c.nsqd for c in consumer.stats().connections if c.connected] == sorted(servers)


def test_a_consumer_takes_either_nsqd_or_lookupd() -> None:
    with pytest.raises(ConfigError, match="neither nsqd nor lookupd"):
        Consumer("orders", "ch")
    with pytest.raises(ConfigError, match="both nsqd and lookupd"):
        Consumer("orders", "ch", nsqd="a:1", lookupd="b:1")


@pytest.mark.proves(rows=[3, 4, 5])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lookupd_poll_interval", 0),
        ("lookupd_poll_jitter", 1.5),
        ("lookupd_poll_timeout", float("inf")),
        ("max_in_flight", 0),
        ("max_in_flight", 2.5),
        ("rdy_redistribute_interval", -1),
        ("backoff_multiplier", 0),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_name_and_the_range(
    option: str, value: float
) -> None:
    with pytest.raises(ConfigError, match=f"{option}={value!r}"):
        Consumer("orders", "ch", nsqd="a:1", **{option: value})  # type: ignore[arg-type]


# --- named by nsqlookupd


@pytest.mark.proves(rows=[2, 10, 11, 12, 15])
@asynchronous
async def test_what_each_nsqlookupd_knows_is_united_at_the_start(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    with (
        start_nsqlookupd(kind=server_kind) as first,
        start_nsqlookupd(kind=server_kind) as second,
        start_nsqd(folder(tmp_path, "1"), kind=server_kind, lookupd=[first]) as one,
        start_nsqd(folder(tmp_path, "2"), kind=server_kind, lookupd=[second]) as two,
        start_nsqd(folder(tmp_path, "3"), kind=server_kind, lookupd=[first, second]) as both,
    ):
        create(one, topic, first)
        create(two, topic, second)
        create(both, topic, first, second)
        for body, nsqd in (b"1", one), (b"2", two), (b"3", both):
            await publish(nsqd, topic, body)
        lookupds = [first.http_address, second.http_address]
        # Asked once, at the start: what a later round would add does not come.
        async with Consumer(topic, "ch", lookupd=lookupds, lookupd_poll_interval=ONCE) as consumer:
            assert await bodies_from(consumer, 3) == [b"1", b"2", b"3"]
            # One connection to the one that both have named.
            assert [channel_stats(nsqd, topic)["client_count"] for nsqd in (one, two, both)] == [
                *(1, 1, 1)
            ]


@pytest.mark.proves(rows=[3, 4])
@asynchronous
async def test_every_round_of_questions_has_its_own_jitter(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    times: list[float] = []
    async with (
        Proxy(nsqlookupd.http_address) as lookupd,
        Consumer(
            topic,
            "ch",
            lookupd=lookupd.address,
            lookupd_poll_interval=0.15,
            lookupd_poll_jitter=1.0,
        ),
    ):
        while len(times) < 9:
            await eventually(lambda: lookupd.connections > len(times))
            times.append(asyncio.get_running_loop().time())
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gaps) > 7 * 0.15  # (of eight: the first may have been seen late)
    # Jitter spreads them over 0.15 s: that all eight are this close is one in a million.
    assert max(gaps) - min(gaps) > 0.02, gaps


@pytest.mark.proves(rows=[13])
@asynchronous
async def test_an_nsqd_that_appears_later_is_found_and_consumed(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    async with Consumer(
        topic, "ch", lookupd=nsqlookupd.http_address, lookupd_poll_interval=OFTEN
    ) as consumer:
        with start_nsqd(folder(tmp_path, "1"), kind=server_kind, lookupd=[nsqlookupd]) as one:
            await publish(one, topic, b"first")
            assert await bodies_from(consumer, 1) == [b"first"]
            with start_nsqd(folder(tmp_path, "2"), kind=server_kind, lookupd=[nsqlookupd]) as two:
                await publish(two, topic, b"second")
                assert await bodies_from(consumer, 1) == [b"second"]


@asynchronous
async def test_when_all_nsqlookupd_are_gone_what_was_found_is_kept(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events: list[ClientEvent] = []
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(tmp_path, kind=server_kind, lookupd=[lookupd]) as nsqd,
    ):
        create(nsqd, topic, lookupd)
        async with Consumer(
            topic,
            "ch",
            lookupd=lookupd.http_address,
            lookupd_poll_interval=0.05,
            on_event=events.append,
        ) as consumer:
            await eventually(lambda: "connected" in kinds(events))
            lookupd.kill()
            await eventually(lambda: kinds(events).count("lookup_failed") >= 3)
            await publish(nsqd, topic, b"still here")
            assert await bodies_from(consumer, 1) == [b"still here"]
        assert "disconnected" not in kinds(events)[: kinds(events).index("lookup_failed") + 3]


@pytest.mark.proves(rows=[20])
@asynchronous
async def test_an_nsqd_that_was_lost_is_connected_again_only_when_nsqlookupd_names_it(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    events: list[ClientEvent] = []
    async with Proxy(nsqlookupd.http_address) as lookupd:
        nsqd = start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd])
        same_ports = [f"-tcp-address={nsqd.tcp_address}", f"-http-address={nsqd.http_address}"]
        async with Consumer(
            topic,
            "ch",
            lookupd=lookupd.address,
            lookupd_poll_interval=OFTEN,
            on_event=events.append,
        ) as consumer:
            with nsqd:
                await publish(nsqd, topic, b"before")
                assert await bodies_from(consumer, 1) == [b"before"]
                await eventually(lambda: not channel_stats(nsqd, topic)["in_flight_count"])
            await eventually(lambda: "disconnected" in kinds(events))
            with start_nsqd(tmp_path, kind=server_kind, options=same_ports) as unnamed:
                rounds = lookupd.connections + 4
                await eventually(lambda: lookupd.connections >= rounds)
                assert channel_stats(unnamed, topic)["client_count"] == 0
            with start_nsqd(
                tmp_path, kind=server_kind, lookupd=[nsqlookupd], options=same_ports
            ) as named:
                await publish(named, topic, b"after")
                assert await bodies_from(consumer, 1) == [b"after"]
                assert kinds(events).count("connected") == 2


@pytest.mark.proves(rows=[20])
@asynchronous
async def test_a_looked_up_nsqd_that_restarts_is_found_long_before_the_next_ordinary_round(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    events: list[ClientEvent] = []
    nsqd = start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd])
    same_ports = [f"-tcp-address={nsqd.tcp_address}", f"-http-address={nsqd.http_address}"]
    with nsqd:
        create(nsqd, topic, nsqlookupd)
        consumer = Consumer(
            topic,
            "ch",
            lookupd=nsqlookupd.http_address,
            lookupd_poll_interval=ONCE,
            on_event=events.append,
        )
        await publish(nsqd, topic, b"before")
        assert await bodies_from(consumer, 1) == [b"before"]
        await eventually(lambda: not channel_stats(nsqd, topic)["in_flight_count"])
    async with consumer:
        await eventually(lambda: "disconnected" in kinds(events))
        # The early rounds go on though nsqlookupd does not name it for a while.
        await asyncio.sleep(2)
        with start_nsqd(
            tmp_path, kind=server_kind, lookupd=[nsqlookupd], options=same_ports
        ) as again:
            await publish(again, topic, b"after")
            assert await bodies_from(consumer, 1) == [b"after"]


@pytest.mark.proves(defects=[2])
@asynchronous
async def test_an_unreachable_nsqd_does_not_disturb_discovery(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events: list[ClientEvent] = []
    nowhere = f"-broadcast-tcp-port={a_port_without_server()}"
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(
            folder(tmp_path, "1"), kind=server_kind, lookupd=[lookupd], options=[nowhere]
        ) as unreachable,
    ):
        create(unreachable, topic, lookupd)
        async with Consumer(
            topic,
            "ch",
            lookupd=lookupd.http_address,
            lookupd_poll_interval=OFTEN,
            on_event=events.append,
        ) as consumer:
            # It is tried whenever it is named, and the asking goes on.
            await eventually(lambda: kinds(events).count("connect_failed") >= 3)
            with start_nsqd(folder(tmp_path, "2"), kind=server_kind, lookupd=[lookupd]) as late:
                await publish(late, topic, b"found")
                assert await bodies_from(consumer, 1) == [b"found"]
                tries = kinds(events).count("connect_failed")
                await eventually(lambda: kinds(events).count("connect_failed") > tries)
                states = {c.nsqd: c for c in consumer.stats().connections}
                assert states.pop(late.tcp_address).connected
                [vain] = states.values()
                assert not vain.connected
                assert vain.failures >= 3


@pytest.mark.proves(rows=[14])
@asynchronous
async def test_an_answer_in_an_envelope_leads_to_the_nsqd(nsqd: Nsqd, topic: str) -> None:
    # Scripted: nsqlookupd wraps its answer only up to 0.3; 1.3.0 has no way to make it do so.
    host, port = nsqd.tcp_address.rsplit(":", 1)
    node = {"broadcast_address": host, "tcp_port": int(port), "http_port": 1}
    data = {"channels": [], "producers": [node]}
    envelope = {"status_code": 200, "status_txt": "OK", "data": data}
    await publish(nsqd, topic, b"wrapped")
    answers = {f"/lookup?topic={topic}": (200, json.dumps(envelope).encode())}
    async with (
        ScriptedLookupd(answers) as lookupd,
        Consumer(topic, "ch", lookupd=lookupd.address) as consumer,
    ):
        assert await bodies_from(consumer, 1) == [b"wrapped"]


@pytest.mark.proves(wishes=[29])
@asynchronous
async def test_an_nsqd_known_by_a_name_of_another_network_is_reached_through_the_address_map(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    inside = "-broadcast-address=nsqd-0.nsqd.invalid"
    with start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd], options=[inside]) as nsqd:
        await publish(nsqd, topic, b"mapped")
        async with Consumer(
            topic,
            "ch",
            lookupd=nsqlookupd.http_address,
            lookupd_poll_interval=OFTEN,
            address_map={"nsqd-0.nsqd.invalid": "127.0.0.1"},
        ) as consumer:
            async with asyncio.timeout(PATIENCE):
                message = await anext(consumer)
            assert message.body == b"mapped"
            assert message.nsqd.startswith("nsqd-0.nsqd.invalid:")
            message.finish()
