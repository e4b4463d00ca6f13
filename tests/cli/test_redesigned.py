"""The verbs on a cluster of the redesigned NSQ: it is known by what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from nsqflow.cli.cluster import NEEDS_LOOKUPD
from nsqflow.protocol import Dialect, Identify, IdentifyReply
from tests.cli.commands import Result, run
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import Answer, ScriptedLookupd, ScriptedNsqd

pytestmark = pytest.mark.usefixtures("empty_folder")

VERSION = "0.3.7-HA.1.9.7"
LISTLOOKUP = {
    "lookupdleader": {"NodeIP": "127.0.0.1", "HttpPort": "4161", "TcpPort": "4160"},
    "lookupdnodes": [{"NodeIP": "127.0.0.1", "HttpPort": "4161", "TcpPort": "4160"}],
}
# A topic of two partitions: each has a row of its own, and its depth is in bytes.
PARTITION = {"topic_name": "orders", "depth": 4096, "is_leader": True, "channels": []}
STATS = {
    "version": VERSION,
    "health": "OK",
    "topics": [PARTITION | {"topic_partition": number} for number in ("0", "1")],
}


class Redesigned(NamedTuple):
    """A cluster of one nsqlookupd and one nsqd."""

    lookupd: ScriptedLookupd
    nsqd: ScriptedNsqd
    http: ScriptedLookupd

    @property
    def directly(self) -> list[str]:
        return ["--nsqd", self.nsqd.address, "--nsqd-http", self.http.address]

    @property
    def through_lookupd(self) -> list[str]:
        return ["--lookupd", self.lookupd.address]


def answer(value: object) -> Answer:
    return 200, json.dumps(value).encode()


@asynccontextmanager
async def redesigned(version: str = VERSION) -> AsyncIterator[Redesigned]:
    """Start one; ``version`` is what its nsqlookupd says of itself."""
    http = ScriptedLookupd({"/ping": (200, b"OK"), "/stats": answer(STATS)})
    nsqd = ScriptedNsqd(IdentifyReply(version=VERSION), Dialect.REDESIGNED)
    lookupd = ScriptedLookupd(
        {
            "/info": answer({"version": version, "ha_support": True}),
            "/listlookup": answer(LISTLOOKUP),
            "/ping": (200, b"OK"),
            "/topics": answer({"topics": ["orders"]}),
            "/channels": answer({"channels": ["billing"]}),
        }
    )
    async with http, nsqd, lookupd:
        ports = {"tcp_port": int(nsqd.address.split(":")[1])}
        ports["http_port"] = int(http.address.split(":")[1])
        assert isinstance(http.answers, dict)
        assert isinstance(lookupd.answers, dict)
        http.answers["/info"] = answer({"version": VERSION, "hostname": "vm", **ports})
        node = {"broadcast_address": "127.0.0.1", "hostname": "vm", "version": VERSION, **ports}
        lookupd.answers["/nodes"] = answer({"producers": [node]})
        yield Redesigned(lookupd, nsqd, http)


async def command(*words: str) -> Result:
    """Run a command while the servers go on."""
    return await asyncio.to_thread(run, *words)


@pytest.mark.parametrize("version", [VERSION, "1.0"])
@asynchronous
async def test_doctor_names_it(version: str) -> None:
    async with redesigned(version) as cluster:
        done = await command("doctor", *cluster.through_lookupd)
    lookupd, nsqd = cluster.lookupd.address, cluster.nsqd.address
    assert f"ok     nsqlookupd {lookupd}: version {version}, redesigned\n" in done.out
    assert f"ok     nsqd {nsqd}: version {VERSION}, redesigned\n" in done.out
    assert f"ok     HTTP of {nsqd}: {cluster.http.address}, nsqd is healthy\n" in done.out


@asynchronous
async def test_doctor_knows_an_nsqd_of_it_without_nsqlookupd() -> None:
    async with redesigned() as cluster:
        done = await command("doctor", "--json", *cluster.directly)
    found = {each["subject"]: each for each in map(json.loads, done.out.splitlines())}
    finding = found[f"nsqd {cluster.nsqd.address}"]
    assert (done.code, finding["state"]) == (0, "note")
    assert finding["text"] == f"version {VERSION}, redesigned"
    assert finding["remedy"] == NEEDS_LOOKUPD


@asynchronous
async def test_what_it_has_is_listed() -> None:
    async with redesigned() as cluster:
        servers = cluster.through_lookupd
        assert await command("channels", "orders", *servers) == (0, "billing\n", "")
        done = await command("nodes", "--json", *cluster.directly)
    node = json.loads(done.out)
    # Without nsqlookupd it is not known what it leads.
    assert (node["nsqd"], node["version"]) == (cluster.nsqd.address, VERSION)
    assert (node["topics"], node["depth"], node["leads"]) == (1, None, None)


@pytest.mark.parametrize(
    "words",
    [
        ["stat", "--once"],
        ["create", "orders"],
        ["create", "orders", "billing"],
        ["delete", "orders", "--yes"],
        ["empty", "orders", "billing", "--yes"],
        ["pause", "orders"],
    ],
)
@asynchronous
async def test_nothing_is_changed_without_nsqlookupd(words: list[str]) -> None:
    async with redesigned() as cluster:
        done = await command(*words, *cluster.directly)
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            f"nsqflow: {cluster.nsqd.address} is of the redesigned NSQ (version {VERSION}); "
            f"{NEEDS_LOOKUPD}\n"
        )
        asked = [request.path for request in cluster.http.requests]
        assert not [path for path in asked if path.startswith(("/topic/", "/channel/"))]
        assert {type(each) for each in cluster.nsqd.commands} <= {Identify}


@pytest.mark.parametrize("words", [["pub", "orders", "x"], ["tail", "orders", "-n", "1"]])
@asynchronous
async def test_messages_go_through_nsqlookupd_alone(words: list[str]) -> None:
    async with redesigned() as cluster:
        done = await command(*words, *cluster.directly)
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            f"nsqflow: {cluster.nsqd.address} is of the redesigned NSQ (version {VERSION}); "
            f"{NEEDS_LOOKUPD}\n"
        )
        assert {type(each) for each in cluster.nsqd.commands} <= {Identify}
