"""Routing: which nsqd a topic may be published to."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nsqflow.client.events import ClientEvent, EventEmitter
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.routing import _MAX_UNUSED_POLLS, LookupRouter, TopicRoute
from nsqflow.errors import DiscoveryError, NsqError
from nsqflow.protocol import Dialect, LookupAnswer, Node, TopicMeta
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import Answer, ScriptedLookupd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def answer(*addresses: str) -> Answer:
    """What nsqlookupd says of these nsqd."""
    pairs = [address.split(":") for address in addresses]
    nodes = [
        {"broadcast_address": host, "tcp_port": int(port), "http_port": 1} for host, port in pairs
    ]
    return 200, json.dumps({"channels": [], "producers": nodes}).encode()


UNKNOWN: Answer = 404, b'{"message":"TOPIC_NOT_FOUND"}'


class Routing:
    """A router, and how often it has changed."""

    def __init__(self, *lookupds: str, interval: float = 60.0) -> None:
        self.changes = 0
        self.events: list[ClientEvent] = []
        config = ProducerConfig(lookupd=lookupds, lookupd_poll_interval=interval)
        self.router = LookupRouter(config, EventEmitter(self.events.append), self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def until(self, *addresses: str, topic: str = "t") -> None:
        """Wait until these are the nsqd of the topic."""
        await eventually(
            lambda: self.router.addresses(topic) == addresses,
            what=f"{addresses}, not {self.router.addresses(topic)}",
        )


@asynccontextmanager
async def routing(*lookupds: str, interval: float = 60.0) -> AsyncIterator[Routing]:
    routed = Routing(*lookupds, interval=interval)
    try:
        yield routed
    finally:
        await routed.router.close()


@asynchronous
async def test_a_topic_is_where_nsqlookupd_says() -> None:
    answers = {"/lookup?topic=t": answer("a:1", "b:2"), "/lookup?topic=u": answer("c:3")}
    async with ScriptedLookupd(answers) as web, routing(web.address) as routed:
        assert routed.router.addresses("t") == (), "no nsqlookupd was asked yet"
        await routed.until("a:1", "b:2")
        await routed.until("c:3", topic="u")
        assert routed.router.all_addresses() == {"a:1", "b:2", "c:3"}
        assert routed.changes == 2
        assert not [r for r in web.requests if r.path.startswith("/nodes")], "no need to"


@asynchronous
async def test_a_topic_that_no_nsqd_has_may_go_to_any() -> None:
    nodes = answer("a:1", "b:2")
    answers = {"/lookup": UNKNOWN, "/lookup?topic=t": answer("a:1"), "/nodes": nodes}
    async with ScriptedLookupd(answers) as web, routing(web.address) as routed:
        await routed.until("a:1")
        assert routed.router.all_addresses() == {"a:1"}
        await routed.until("a:1", "b:2", topic="new")
        assert routed.router.all_addresses() == {"a:1", "b:2"}
        await routed.until("a:1")


@asynchronous
async def test_a_topic_that_appears_is_published_to_where_it_is() -> None:
    answers = {"/lookup": UNKNOWN, "/nodes": answer("a:1", "b:2")}
    async with ScriptedLookupd(answers) as web, routing(web.address, interval=0.05) as routed:
        await routed.until("a:1", "b:2")
        web.answers = answers | {"/lookup?topic=t": answer("b:2")}
        await routed.until("b:2")
        web.answers = answers
        await routed.until("a:1", "b:2")


@asynchronous
async def test_why_no_nsqd_is_known_is_described() -> None:
    async with ScriptedLookupd({"/lookup": UNKNOWN, "/nodes": answer()}) as web:
        async with routing(web.address) as routed:
            assert "has not answered yet" in str(routed.router.error("t"))
            routed.router.addresses("t")
            await web.requested("/lookup")
            await eventually(lambda: routed.router.addresses("t") == () and routed.changes >= 2)
            assert "names no nsqd" in str(routed.router.error("t"))
        await web.stop()
        async with routing(web.address) as routed:
            routed.router.addresses("t")
            await eventually(lambda: bool(routed.events))
            assert web.address in str(routed.router.error("t"))
            assert isinstance(routed.router.error("t"), NsqError)
            assert routed.events[0].kind == "lookup_failed"


@asynchronous
async def test_a_failure_that_is_over_is_not_reported_any_more() -> None:
    failing: Answer = 500, b""
    async with (
        ScriptedLookupd({"/nodes": answer(), "/lookup": failing}) as web,
        routing(web.address, interval=0.05) as routed,
    ):
        routed.router.addresses("t")
        await eventually(lambda: bool(routed.events))
        assert "500" in str(routed.router.error("t"))
        web.answers = {"/lookup": UNKNOWN}
        await eventually(lambda: routed.changes > 0)
        error = routed.router.error("t")
        assert isinstance(error, DiscoveryError)
        assert "names no nsqd" in str(error)


@asynchronous
async def test_while_nothing_is_known_nsqlookupd_is_asked_again_soon() -> None:
    async with ScriptedLookupd({"/lookup": (500, b"")}) as web, routing(web.address) as routed:
        routed.router.addresses("t")
        await web.requested("/lookup")
        web.answers = {"/lookup": answer("a:1")}
        await routed.until("a:1")  # far sooner than after a minute


@asynchronous
async def test_a_lost_connection_makes_it_ask_at_once_for_the_topics_of_that_nsqd() -> None:
    answers = {
        "/lookup": UNKNOWN,
        "/lookup?topic=t": answer("a:1"),
        "/lookup?topic=u": answer("c:3"),
        "/nodes": answer("a:1", "c:3"),
    }
    async with ScriptedLookupd(answers) as web, routing(web.address) as routed:
        await routed.until("a:1")
        await routed.until("c:3", topic="u")
        await routed.until("a:1", "c:3", topic="new")
        web.answers = answers | {"/lookup?topic=t": answer("b:2"), "/nodes": answer("b:2")}
        routed.router.on_lost("a:1", worked=True)
        await routed.until("b:2")
        await routed.until("b:2", topic="new")
        routed.router.on_connected("a:1")
        asked = [request.path for request in web.requests]
        assert sum("topic=u&" in path for path in asked) == 1, "it was not on the lost one"


@asynchronous
async def test_a_topic_that_is_not_published_to_is_forgotten() -> None:
    answers = {"/lookup?topic=t": answer("a:1"), "/lookup?topic=u": answer("b:2")}
    async with ScriptedLookupd(answers) as web, routing(web.address, interval=0.01) as routed:
        await routed.until("b:2", topic="u")
        routed.router.addresses("t")

        def t_is_forgotten() -> bool:
            routed.router.addresses("u")  # this one is in use
            return routed.router.all_addresses() == {"b:2"} and routed.changes > _MAX_UNUSED_POLLS

        await eventually(t_is_forgotten)
        asked = [request.path for request in web.requests]
        assert asked.count("/lookup?topic=t") <= _MAX_UNUSED_POLLS + 2
        await routed.until("a:1")  # and is polled again when it is needed


@pytest.mark.parametrize("interval", [0.01, 60])
@asynchronous
async def test_closing_leaves_nothing_behind(interval: float) -> None:
    async with ScriptedLookupd({"/lookup": answer("a:1")}) as web:
        routed = Routing(web.address, interval=interval)
        for number in range(5):
            routed.router.addresses(f"t{number}")
        await routed.until("a:1", topic="t0")
        await routed.router.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_partition_that_is_held_has_no_leader_and_the_reason_is_described() -> None:
    route = TopicRoute("orders")
    node = Node(broadcast_address="10.1.0.1", tcp_port=4150)
    found = LookupAnswer(partitions={0: node}, meta=TopicMeta(partition_num=1))
    route.held.add(0)
    route.update(found, Dialect.REDESIGNED, {node.address})
    assert (route.leaders, route.nsqds) == ({}, (node.address,)), "its connection stays"
    assert "too many publishes wait in 'orders' for partition 0" in route.describe()
    route.held.clear()
    route.update(found, Dialect.REDESIGNED, {node.address})
    assert route.leaders == {0: node.address}


@asynchronous
async def test_a_lookup_that_failed_is_repeated_soon_though_other_topics_are_known() -> None:
    answers: dict[str, Answer] = {
        "/lookup?topic=t": answer("a:1"),
        "/lookup?topic=u": (500, b"{}"),
    }
    async with ScriptedLookupd(answers) as web, routing(web.address) as routed:
        await routed.until("a:1")
        assert routed.router.addresses("u") == ()
        await eventually(lambda: bool(routed.events))
        web.answers = answers | {"/lookup?topic=u": answer("b:2")}
        await routed.until("b:2", topic="u")
