"""Routes: which nsqd a topic may be published to."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from nsqflow.client.config import ProducerConfig
from nsqflow.client.news import News, Newsroom
from nsqflow.client.routes import _FORGET_AFTER, DirectRoutes, LookupRoutes
from nsqflow.errors import DiscoveryError, NsqError
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


class Listening:
    """Routes, and how often they have changed."""

    def __init__(self, *lookupds: str, interval: float = 60.0) -> None:
        self.changes = 0
        self.news: list[News] = []
        config = ProducerConfig(lookupd=lookupds, lookupd_poll_interval=interval)
        self.routes = LookupRoutes(config, Newsroom(self.news.append), self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def heard(self, *addresses: str, topic: str = "t") -> None:
        """Wait until these are the nsqd of the topic."""
        await eventually(
            lambda: self.routes.addresses(topic) == addresses,
            what=f"{addresses}, not {self.routes.addresses(topic)}",
        )


@asynccontextmanager
async def listening(*lookupds: str, interval: float = 60.0) -> AsyncIterator[Listening]:
    watch = Listening(*lookupds, interval=interval)
    try:
        yield watch
    finally:
        await watch.routes.close()


@asynchronous
async def test_nsqd_given_directly_are_those_of_every_topic() -> None:
    routes = DirectRoutes(("a:1", "b:2"))
    assert routes.lasting
    assert routes.addresses("t") == routes.addresses("u") == ("a:1", "b:2")
    assert routes.named() == {"a:1", "b:2"}
    assert routes.trouble() is None
    routes.lost("a:1", worked=True)
    routes.connected("a:1")
    await routes.close()


@asynchronous
async def test_a_topic_is_where_nsqlookupd_says() -> None:
    answers = {"/lookup?topic=t": answer("a:1", "b:2"), "/lookup?topic=u": answer("c:3")}
    async with ScriptedLookupd(answers) as web, listening(web.address) as watch:
        assert watch.routes.addresses("t") == (), "nobody was asked yet"
        assert not watch.routes.lasting
        await watch.heard("a:1", "b:2")
        await watch.heard("c:3", topic="u")
        assert watch.routes.named() == {"a:1", "b:2", "c:3"}
        assert watch.changes == 2
        assert not [r for r in web.requests if r.path.startswith("/nodes")], "no need to"


@asynchronous
async def test_a_topic_that_nobody_has_may_go_to_any_nsqd() -> None:
    nodes = answer("a:1", "b:2")
    answers = {"/lookup": UNKNOWN, "/lookup?topic=t": answer("a:1"), "/nodes": nodes}
    async with ScriptedLookupd(answers) as web, listening(web.address) as watch:
        await watch.heard("a:1")
        assert watch.routes.named() == {"a:1"}
        await watch.heard("a:1", "b:2", topic="new")
        assert watch.routes.named() == {"a:1", "b:2"}
        await watch.heard("a:1")


@asynchronous
async def test_a_topic_that_appears_is_published_to_where_it_is() -> None:
    answers = {"/lookup": UNKNOWN, "/nodes": answer("a:1", "b:2")}
    async with ScriptedLookupd(answers) as web, listening(web.address, interval=0.05) as watch:
        await watch.heard("a:1", "b:2")
        web.answers = answers | {"/lookup?topic=t": answer("b:2")}
        await watch.heard("b:2")
        web.answers = answers
        await watch.heard("a:1", "b:2")


@asynchronous
async def test_why_no_nsqd_is_known_is_told() -> None:
    async with ScriptedLookupd({"/lookup": UNKNOWN, "/nodes": answer()}) as web:
        async with listening(web.address) as watch:
            assert "has not answered yet" in str(watch.routes.trouble())
            watch.routes.addresses("t")
            await web.requested("/lookup")
            await eventually(lambda: watch.routes.addresses("t") == () and watch.changes >= 2)
            assert "names no nsqd" in str(watch.routes.trouble())
        await web.stop()
        async with listening(web.address) as watch:
            watch.routes.addresses("t")
            await eventually(lambda: bool(watch.news))
            assert web.address in str(watch.routes.trouble())
            assert isinstance(watch.routes.trouble(), NsqError)
            assert watch.news[0].kind == "lookup_failed"


@asynchronous
async def test_a_failure_that_is_over_is_not_told_any_more() -> None:
    failing: Answer = 500, b""
    async with (
        ScriptedLookupd({"/nodes": answer(), "/lookup": failing}) as web,
        listening(web.address, interval=0.05) as watch,
    ):
        watch.routes.addresses("t")
        await eventually(lambda: bool(watch.news))
        assert "500" in str(watch.routes.trouble())
        web.answers = {"/lookup": UNKNOWN}
        await eventually(lambda: watch.changes > 0)
        trouble = watch.routes.trouble()
        assert isinstance(trouble, DiscoveryError)
        assert "names no nsqd" in str(trouble)


@asynchronous
async def test_while_nothing_is_known_nsqlookupd_is_asked_again_soon() -> None:
    async with ScriptedLookupd({"/lookup": (500, b"")}) as web, listening(web.address) as watch:
        watch.routes.addresses("t")
        await web.requested("/lookup")
        web.answers = {"/lookup": answer("a:1")}
        await watch.heard("a:1")  # far sooner than after a minute


@asynchronous
async def test_a_lost_connection_makes_it_ask_at_once_for_the_topics_of_that_nsqd() -> None:
    answers = {
        "/lookup": UNKNOWN,
        "/lookup?topic=t": answer("a:1"),
        "/lookup?topic=u": answer("c:3"),
        "/nodes": answer("a:1", "c:3"),
    }
    async with ScriptedLookupd(answers) as web, listening(web.address) as watch:
        await watch.heard("a:1")
        await watch.heard("c:3", topic="u")
        await watch.heard("a:1", "c:3", topic="new")
        web.answers = answers | {"/lookup?topic=t": answer("b:2"), "/nodes": answer("b:2")}
        watch.routes.lost("a:1", worked=True)
        await watch.heard("b:2")
        await watch.heard("b:2", topic="new")
        watch.routes.connected("a:1")
        asked = [request.path for request in web.requests]
        assert asked.count("/lookup?topic=u") == 1, "it was not on the lost one"


@asynchronous
async def test_a_topic_that_nobody_publishes_to_is_forgotten() -> None:
    answers = {"/lookup?topic=t": answer("a:1"), "/lookup?topic=u": answer("b:2")}
    async with ScriptedLookupd(answers) as web, listening(web.address, interval=0.01) as watch:
        await watch.heard("b:2", topic="u")
        watch.routes.addresses("t")

        def t_is_forgotten() -> bool:
            watch.routes.addresses("u")  # this one is in use
            return watch.routes.named() == {"b:2"} and watch.changes > _FORGET_AFTER

        await eventually(t_is_forgotten)
        asked = [request.path for request in web.requests]
        assert asked.count("/lookup?topic=t") <= _FORGET_AFTER + 2
        await watch.heard("a:1")  # and begins anew when it is needed


@pytest.mark.parametrize("interval", [0.01, 60])
@asynchronous
async def test_closing_leaves_nothing_behind(interval: float) -> None:
    async with ScriptedLookupd({"/lookup": answer("a:1")}) as web:
        watch = Listening(web.address, interval=interval)
        for number in range(5):
            watch.routes.addresses(f"t{number}")
        await watch.heard("a:1", topic="t0")
        await watch.routes.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
