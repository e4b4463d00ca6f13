"""nsqlookupd as a whole: registration, HTTP API, starting and stopping."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqflow import admin
from nsqflow.http.client import HttpClient
from nsqflow.protocol import Register, Unregister
from tests.fixtures.loops import POLL_INTERVAL, asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Nsqd, Nsqlookupd, start_nsqd
from tests.unit.broker.lookupd.fake_nsqd import FakeNsqd, ask, lookupd, until

unique = itertools.count()


@contextlib.asynccontextmanager
async def registered_nsqd(folder: Path, *addresses: str) -> AsyncIterator[Nsqd]:
    """Start a real nsqd that registers with these nsqlookupd."""
    options = [f"-lookupd-tcp-address={address}" for address in addresses]
    nsqd = await asyncio.to_thread(start_nsqd, folder, options=options)
    try:
        yield nsqd
    finally:
        await asyncio.to_thread(nsqd.stop)


def normal(data: Any) -> Any:
    """Return what two nsqlookupd must agree on: not order, times and ports of peers."""
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
        await eventually(lambda: bool(ours.db.registrations()))
        api = admin.Nsqd(nsqd.http_address, timeout=PATIENCE)
        finder = admin.Lookupd(ours.http_address, timeout=PATIENCE)
        await api.create_topic("orders")
        await api.create_channel("orders", "billing")
        await eventually(lambda: ours.db.channels("orders") == ["billing"])
        [node] = (await finder.lookup("orders")).producers
        assert node.address == nsqd.tcp_address
        assert f"{node.broadcast_address}:{node.http_port}" == nsqd.http_address
        assert node.version == "1.3.0"
        await api.delete_topic("orders")
        await eventually(lambda: len(ours.db.registrations()) == 1)
        assert (await finder.lookup("orders")).producers == ()
    assert ours.db.registrations() == {}


@asynchronous
async def test_a_real_nsqd_reconnects_to_a_restarted_nsqlookupd(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(lookupd())
        address = first.tcp_address
        nsqd = await stack.enter_async_context(registered_nsqd(tmp_path, address))
        await admin.Nsqd(nsqd.http_address, timeout=PATIENCE).create_topic("before")
        await eventually(lambda: first.db.topics() == ["before"])
        await first.stop()
        second = await stack.enter_async_context(lookupd(tcp_address=address))
        # nsqd notices the loss when it sends a change, and reconnects with a later change.
        topics = ["before"]
        async with asyncio.timeout(PATIENCE):
            while not second.db.topics():
                topics.append(f"topic{len(topics)}")
                await admin.Nsqd(nsqd.http_address, timeout=PATIENCE).create_topic(topics[-1])
        await eventually(lambda: set(second.db.topics()) == {*topics})


@asynchronous
async def test_both_nsqlookupd_list_a_real_nsqd_alike(
    tmp_path: Path, nsqlookupd: Nsqlookupd
) -> None:
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


class Scenario:
    """The same commands for one nsqlookupd, on names that no other scenario uses."""

    def __init__(self, prefix: str, tcp_address: str, http_address: str) -> None:
        self._prefix = prefix
        self._tcp = tcp_address
        self._http = http_address
        self._peers: dict[int, FakeNsqd] = {}

    async def start(self) -> None:
        for number in (1, 2):
            await self._join(number)

    async def do(self, what: str, number: int, name: str, channel: str) -> Any:
        topic = self._prefix + name
        if what == "register":
            return await self._peers[number].request(Register(topic, channel))
        if what == "unregister":
            return await self._peers[number].request(Unregister(topic, channel))
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
        """Return the state of nsqlookupd for the names of this scenario."""
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
        self._peers[number] = FakeNsqd(self._tcp)
        await self._peers[number].connect()
        await self._peers[number].identify(number)

    async def _settled(self) -> None:
        """Wait until closed connections are removed."""
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
@given(steps_taken=steps)
def test_random_commands_leave_both_nsqlookupd_in_the_same_state(
    steps_taken: list[tuple[str, int, str, str]], nsqlookupd: Nsqlookupd
) -> None:
    @asynchronous
    async def check() -> None:
        prefix = f"scenario_{os.getpid()}_{next(unique)}_"
        async with lookupd() as ours:
            mine = Scenario(prefix, ours.tcp_address, ours.http_address)
            theirs = Scenario(prefix, nsqlookupd.tcp_address, nsqlookupd.http_address)
            await mine.start()
            await theirs.start()
            for step in steps_taken:
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
        ("GET", "/lookup", {"topic": "unknown topic"}),
        ("GET", "/channels", {}),
        ("GET", "/channels", {"topic": "unknown topic"}),
        ("POST", "/topic/create", {}),
        ("POST", "/topic/create", {"topic": "no name"}),
        ("POST", "/topic/delete", {}),
        ("POST", "/topic/delete", {"topic": "unknown topic"}),
        ("POST", "/topic/tombstone", {}),
        ("POST", "/topic/tombstone", {"topic": "t"}),
        ("POST", "/topic/tombstone", {"topic": "unknown topic", "node": "nowhere"}),
        ("POST", "/channel/create", {}),
        ("POST", "/channel/create", {"topic": "no name"}),
        ("POST", "/channel/create", {"topic": "t"}),
        ("POST", "/channel/create", {"topic": "t", "channel": "no name"}),
        ("POST", "/channel/delete", {}),
        ("POST", "/channel/delete", {"topic": "t", "channel": "unknown_channel"}),
        ("GET", "/topic/create", {}),
        ("POST", "/lookup", {}),
        ("GET", "/nothing", {}),
        ("GET", "/lookup/", {"topic": "x"}),
    ],
)
@asynchronous
async def test_requests_are_answered_as_by_the_real_nsqlookupd(
    method: str, path: str, query: dict[str, str], nsqlookupd: Nsqlookupd
) -> None:
    async with lookupd() as ours:
        answer = await ask(ours.http_address, path, query, method)
    assert answer == await ask(nsqlookupd.http_address, path, query, method)


@asynchronous
async def test_json_is_escaped_as_go_does(
    nsqlookupd: Nsqlookupd,
) -> None:
    topic = f"written_{os.getpid()}"
    bodies = []
    async with lookupd() as ours:
        for server in (ours, nsqlookupd):
            async with FakeNsqd(server.tcp_address) as nsqd:
                await nsqd.identify(
                    1, hostname="<b>&\"'\\/</b>", version="é\u2028\t\b\x7f\x01\U0001f600"
                )
                await nsqd.request(Register(topic, "c"))
                client = HttpClient(timeout=PATIENCE)
                found = await client.get(server.http_address, "/lookup", {"topic": topic})
                bodies.append(found.body.replace(nsqd.address.encode(), b"ADDRESS"))
    assert bodies[0] == bodies[1]
