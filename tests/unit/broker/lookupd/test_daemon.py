"""nsqlookupd as a whole: real nsqd register with it, and it tells what the real one would."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqflow import admin
from nsqflow.broker.lookupd import daemon
from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.http.client import HttpClient
from nsqflow.protocol import Ping, Register, Unregister
from tests.fixtures.loops import POLL_INTERVAL, asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Nsqd, Nsqlookupd, start_nsqd
from tests.unit.broker.lookupd.registrant import Registrant, ask, lookupd, until

unique = itertools.count()


@contextlib.asynccontextmanager
async def registered_nsqd(folder: Path, *addresses: str) -> AsyncIterator[Nsqd]:
    """A real nsqd that knows these nsqlookupd."""
    options = [f"-lookupd-tcp-address={address}" for address in addresses]
    nsqd = await asyncio.to_thread(start_nsqd, folder, options=options)
    try:
        yield nsqd
    finally:
        await asyncio.to_thread(nsqd.stop)


def normal(data: Any) -> Any:
    """What two nsqlookupd must agree on: not the order, not the times, not the peer's port."""
    if isinstance(data, dict):
        if "tombstones" in data:
            pairs = dict(zip(data["topics"], data["tombstones"], strict=True))
            data = data | {"topics": pairs, "tombstones": None}
        return {
            key: normal(value)
            for key, value in data.items()
            if key not in ("remote_address", "id", "last_update", "tombstoned_at")
        }
    if isinstance(data, list):
        return sorted((normal(each) for each in data), key=repr)
    return data


@asynchronous
async def test_a_real_nsqd_registers_and_unregisters(tmp_path: Path) -> None:
    async with lookupd() as ours, registered_nsqd(tmp_path, ours.tcp_address) as nsqd:
        await eventually(lambda: bool(ours.registry.registrations()))
        api = admin.Nsqd(nsqd.http_address, timeout=PATIENCE)
        finder = admin.Lookupd(ours.http_address, timeout=PATIENCE)
        await api.create_topic("orders")
        await api.create_channel("orders", "billing")
        await eventually(lambda: ours.registry.channels("orders") == ["billing"])
        [node] = (await finder.lookup("orders")).producers
        assert node.address == nsqd.tcp_address
        assert f"{node.broadcast_address}:{node.http_port}" == nsqd.http_address
        assert node.version == "1.3.0"
        await api.delete_topic("orders")
        await eventually(lambda: len(ours.registry.registrations()) == 1)
        assert (await finder.lookup("orders")).producers == ()
    assert ours.registry.registrations() == {}


@asynchronous
async def test_a_real_nsqd_comes_back_to_one_that_was_restarted(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(lookupd())
        address = first.tcp_address
        nsqd = await stack.enter_async_context(registered_nsqd(tmp_path, address))
        await admin.Nsqd(nsqd.http_address, timeout=PATIENCE).create_topic("before")
        await eventually(lambda: first.registry.topics() == ["before"])
        await first.kill()
        second = await stack.enter_async_context(lookupd(tcp_address=address))
        # nsqd notices when it has something to say, and connects when it has something more.
        for topic in ("while", "after"):
            await admin.Nsqd(nsqd.http_address, timeout=PATIENCE).create_topic(topic)
        await eventually(lambda: set(second.registry.topics()) == {"before", "while", "after"})


@asynchronous
async def test_both_tell_the_same_of_a_real_nsqd(tmp_path: Path, nsqlookupd: Nsqlookupd) -> None:
    topics = [f"same_{os.getpid()}_{next(unique)}" for _ in range(2)]
    async with lookupd() as ours:
        addresses = (ours.tcp_address, nsqlookupd.tcp_address)
        async with registered_nsqd(tmp_path, *addresses) as nsqd:
            api = admin.Nsqd(nsqd.http_address, timeout=PATIENCE)
            for topic in topics:
                await api.create_topic(topic)
                await api.create_channel(topic, "c")
            for address in (ours.http_address, nsqlookupd.http_address):
                query = {"topic": topics[0], "node": nsqd.http_address}
                for topic in topics:
                    await until(address, "/channels", topic, {"channels": ["c"]})
                await ask(address, "/topic/tombstone", query, "POST")
            mine, theirs = [
                [await ask(address, "/lookup", {"topic": topic}) for topic in topics]
                for address in (ours.http_address, nsqlookupd.http_address)
            ]
            assert normal([list(each) for each in mine]) == normal([list(each) for each in theirs])
            assert [len(each["producers"]) for _, each in mine] == [0, 1]


names = st.sampled_from(["a", "b", "e#ephemeral"])
channels = st.sampled_from(["", "x", "y#ephemeral"])
peers = st.integers(1, 2)
steps = st.lists(
    st.tuples(st.just("register"), peers, names, channels)
    | st.tuples(st.just("unregister"), peers, names, channels)
    | st.tuples(st.just("return"), peers, names, channels)
    | st.tuples(st.sampled_from(["create", "delete", "tombstone"]), peers, names, channels),
    max_size=12,
)


class Story:
    """The same told to an nsqlookupd of either kind, with names that no other story has."""

    def __init__(self, prefix: str, tcp_address: str, http_address: str) -> None:
        self._prefix = prefix
        self._tcp = tcp_address
        self._http = http_address
        self._peers: dict[int, Registrant] = {}

    async def begin(self) -> None:
        for number in (1, 2):
            await self._join(number)

    async def do(self, what: str, number: int, name: str, channel: str) -> Any:
        topic = self._prefix + name
        if what == "register":
            return await self._peers[number].say(Register(topic, channel))
        if what == "unregister":
            return await self._peers[number].say(Unregister(topic, channel))
        if what == "return":
            self._peers[number].close()
            return await self._join(number)
        query = {"topic": topic}
        if what == "tombstone":
            query["node"] = f"host{number}.example:{5000 + number}"
            return await ask(self._http, "/topic/tombstone", query, "POST")
        if not channel:
            return await ask(self._http, f"/topic/{what}", query, "POST")
        return await ask(self._http, f"/channel/{what}", query | {"channel": channel}, "POST")

    async def known(self) -> Any:
        """What it knows of this story."""
        await self._settled()
        answers: list[Any] = []
        _, debug = await ask(self._http, "/debug")
        answers.append({key: each for key, each in debug.items() if self._prefix in key})
        _, nodes = await ask(self._http, "/nodes")
        own = {peer.address for peer in self._peers.values()}
        answers.append([each for each in nodes["producers"] if each["remote_address"] in own])
        _, topics = await ask(self._http, "/topics")
        answers.append([each for each in topics["topics"] if each.startswith(self._prefix)])
        for name in ("a", "b", "e#ephemeral"):
            query = {"topic": self._prefix + name}
            answers += [list(await ask(self._http, p, query)) for p in ("/lookup", "/channels")]
        return [normal(each) for each in answers]

    def end(self) -> None:
        for each in self._peers.values():
            each.close()

    async def _join(self, number: int) -> None:
        self._peers[number] = Registrant(self._tcp)
        await self._peers[number].connect()
        await self._peers[number].identify(number)

    async def _settled(self) -> None:
        """Wait until it has seen that those who went are gone."""
        own = {peer.address for peer in self._peers.values()}
        async with asyncio.timeout(PATIENCE):
            while True:
                _, debug = await ask(self._http, "/debug")
                mine = [each for key, each in debug.items() if self._prefix in key]
                if {peer["id"] for each in mine for peer in each} <= own:
                    return
                await asyncio.sleep(POLL_INTERVAL)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plot=steps)
def test_whatever_happens_both_know_the_same(
    plot: list[tuple[str, int, str, str]], nsqlookupd: Nsqlookupd
) -> None:
    @asynchronous
    async def check() -> None:
        prefix = f"story_{os.getpid()}_{next(unique)}_"
        async with lookupd() as ours:
            mine = Story(prefix, ours.tcp_address, ours.http_address)
            theirs = Story(prefix, nsqlookupd.tcp_address, nsqlookupd.http_address)
            await mine.begin()
            await theirs.begin()
            for step in plot:
                assert await mine.do(*step) == await theirs.do(*step)
                assert await mine.known() == await theirs.known(), step
            mine.end()
            theirs.end()

    check()


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/ping", {}),
        ("GET", "/lookup", {}),
        ("GET", "/lookup", {"topic": "nobody has it"}),
        ("GET", "/channels", {}),
        ("GET", "/channels", {"topic": "nobody has it"}),
        ("POST", "/topic/create", {}),
        ("POST", "/topic/create", {"topic": "no name"}),
        ("POST", "/topic/delete", {}),
        ("POST", "/topic/delete", {"topic": "nobody has it"}),
        ("POST", "/topic/tombstone", {}),
        ("POST", "/topic/tombstone", {"topic": "t"}),
        ("POST", "/topic/tombstone", {"topic": "nobody has it", "node": "nowhere"}),
        ("POST", "/channel/create", {}),
        ("POST", "/channel/create", {"topic": "no name"}),
        ("POST", "/channel/create", {"topic": "t"}),
        ("POST", "/channel/create", {"topic": "t", "channel": "no name"}),
        ("POST", "/channel/delete", {}),
        ("POST", "/channel/delete", {"topic": "t", "channel": "nobody_has_it"}),
        ("GET", "/topic/create", {}),
        ("POST", "/lookup", {}),
        ("GET", "/nothing", {}),
        ("GET", "/lookup/", {"topic": "x"}),
    ],
)
@asynchronous
async def test_a_question_is_answered_as_by_the_real_one(
    method: str, path: str, query: dict[str, str], nsqlookupd: Nsqlookupd
) -> None:
    async with lookupd() as ours:
        answer = await ask(ours.http_address, path, query, method)
    assert answer == await ask(nsqlookupd.http_address, path, query, method)


@asynchronous
async def test_what_an_nsqd_says_of_itself_is_written_as_go_writes_it(
    nsqlookupd: Nsqlookupd,
) -> None:
    topic = f"written_{os.getpid()}"
    bodies = []
    async with lookupd() as ours:
        for server in (ours, nsqlookupd):
            async with Registrant(server.tcp_address) as nsqd:
                await nsqd.identify(
                    1, hostname="<b>&\"'\\/</b>", version="é\u2028\t\b\x7f\x01\U0001f600"
                )
                await nsqd.say(Register(topic, "c"))
                client = HttpClient(timeout=PATIENCE)
                _, body = await client.get(server.http_address, "/lookup", {"topic": topic})
                bodies.append(body.replace(nsqd.address.encode(), b"ADDRESS"))
    assert bodies[0] == bodies[1]


@asynchronous
async def test_a_star_stands_for_every_topic() -> None:
    async with lookupd() as ours, Registrant(ours.tcp_address) as one:
        await one.identify(1)
        await one.say(Register("a", "x"))
        await one.say(Register("b", "y"))
        _, found = await ask(ours.http_address, "/lookup", {"topic": "*"})
        assert found["channels"] == ["x", "y"]
        assert [each["remote_address"] for each in found["producers"]] == [one.address]
        await ask(ours.http_address, "/topic/delete", {"topic": "*"}, "POST")
        assert await ask(ours.http_address, "/topics") == (200, {"topics": []})


@asynchronous
async def test_an_nsqd_that_is_silent_too_long_is_not_named() -> None:
    impatient = lookupd(inactive_producer_timeout=0.05)
    async with impatient as ours, Registrant(ours.tcp_address) as one:
        await one.identify(1)
        await one.say(Register("t"))
        await until(ours.http_address, "/lookup", "t", {"channels": [], "producers": []})
        assert await ask(ours.http_address, "/nodes") == (200, {"producers": []})
        assert "topic:t:" in (await ask(ours.http_address, "/debug"))[1]


@pytest.mark.parametrize(("inactive", "silence"), [(0.05, 1000.0), (1000.0, 0.05)])
@asynchronous
async def test_an_nsqd_is_cut_off_only_when_it_is_not_named_and_has_missed_its_pings(
    inactive: float, silence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_SILENCE_TIMEOUT", silence)
    monkeypatch.setattr(daemon, "_IDENTIFY_TIMEOUT", 0.2)
    ours = lookupd(inactive_producer_timeout=inactive)
    async with ours, Registrant(ours.tcp_address) as nsqd:
        await nsqd.identify(1)
        async with Registrant(ours.tcp_address) as mute:
            await mute.ended()  # by then more time has passed than the shorter one
        assert (await nsqd.say(Ping())).error is None


@asynchronous
async def test_those_who_are_idle_lock_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_MAX_CONNECTIONS", 5)
    async with lookupd() as ours, contextlib.AsyncExitStack() as stack:
        for address in [ours.tcp_address, ours.http_address] * 10:
            await stack.enter_async_context(Registrant(address))
        async with Registrant(ours.tcp_address) as nsqd:
            await nsqd.identify(1)
            _, found = await ask(ours.http_address, "/nodes")
            assert [each["remote_address"] for each in found["producers"]] == [nsqd.address]


@asynchronous
async def test_it_starts_only_once() -> None:
    ours = lookupd()
    async with ours:
        with pytest.raises(LocalProtocolError, match="starts only once; make a new one"):
            await ours.start()
        assert (await ask(ours.http_address, "/ping"))[0] == 200
    with pytest.raises(LocalProtocolError, match="starts only once; make a new one"):
        await ours.start()


@asynchronous
async def test_it_says_where_it_listens_and_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsqflow.broker.lookupd")
    async with lookupd() as ours:
        assert caplog.messages[0].startswith("nsqlookupd v1.3.0-nsqflow (built w/python3.")
        assert f"TCP: listening on {ours.tcp_address}" in caplog.messages
        assert f"HTTP: listening on {ours.http_address}" in caplog.messages
        assert await ask(ours.http_address, "/info") == (200, {"version": "1.3.0+nsqflow"})
        assert f"TCP: closing {ours.tcp_address}" not in caplog.messages
    assert f"TCP: closing {ours.tcp_address}" in caplog.messages


@asynchronous
async def test_a_door_that_can_not_be_opened_leaves_none_open() -> None:
    async with lookupd() as ours:
        other = lookupd(tcp_address=ours.tcp_address)
        with pytest.raises(
            OSError, match=f"tcp_address {ours.tcp_address}: Address already in use"
        ):
            await other.start()
        with pytest.raises((ConnectionError, OSError)):
            await asyncio.open_connection(*other.http_address.rsplit(":", 1))


@asynchronous
async def test_stopping_closes_every_connection() -> None:
    await check_stopping()


@asynchronous(uvloop=True)
async def test_stopping_closes_every_connection_on_uvloop() -> None:
    await check_stopping()


async def check_stopping() -> None:
    async with lookupd() as ours, Registrant(ours.tcp_address) as one:
        await one.identify(1)
        async with Registrant(ours.tcp_address) as two:
            await two.identify(2)
            assert len((await ask(ours.http_address, "/nodes"))[1]["producers"]) == 2
            await ours.stop()
            await one.ended()
            await two.ended()
    assert ours.registry.registrations() == {}


@asynchronous
async def test_it_listens_on_unix_sockets_too(tmp_path: Path) -> None:
    tcp, web = tmp_path / "lookupd.sock", tmp_path / "http.sock"
    async with lookupd(tcp_address=str(tcp), http_address=str(web)):
        reader, writer = await asyncio.open_unix_connection(tcp)
        writer.write(b"  V1PING\n")
        assert await reader.readexactly(6) == b"\0\0\0\2OK"
        writer.transport.abort()
        reader, writer = await asyncio.open_unix_connection(web)
        writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"OK")
        writer.transport.abort()
    assert not tcp.exists()
    assert not web.exists()


def test_options_are_checked_when_they_are_given() -> None:
    with pytest.raises(ConfigError, match="tcp_address"):
        lookupd(tcp_address="nonsense")
