"""Groups of servers: all are asked at once, and those that don't answer delay no other."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from nsqflow.errors import AdminError, ConfigError, NetworkError, RequestTimeout
from nsqflow.protocol.lookup import LookupAnswer
from nsqflow.spark.source import topic_lookup
from nsqflow.spark.source.allocation import MIN_WAIT
from nsqflow.spark.source.topic_lookup import ServerGroup, TopicLookup
from tests.fixtures.loops import asynchronous
from tests.unit.spark.source.monitors import options

Question = Callable[[], Awaitable[str]]


class Clock:
    """Time that passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(topic_lookup, "monotonic", clock)
    return clock


async def say(word: str) -> str:
    return word


async def fail(reason: str) -> str:
    raise NetworkError(reason)


async def hang() -> str:
    await asyncio.Event().wait()
    raise AssertionError("it was never set")


def question(answer: str, asked: list[str]) -> Question:
    """A question that is answered so, and noted when it is put."""

    async def put() -> str:
        asked.append(answer)
        return await (fail("broken") if answer == "fails" else say(answer))

    return put


@asynchronous
async def test_servers_that_do_not_answer_are_unreachable() -> None:
    servers = ServerGroup("nsqd")
    questions: dict[str, Question] = {
        "a": partial(say, "A"),
        "b": partial(fail, "b is broken"),
        "c": hang,
    }
    assert await servers.ask(questions, timeout=0.05) == {"a": "A"}
    assert servers.unreachable == {"b": "b is broken", "c": "c: no answer within 0.05 s"}


@asynchronous
async def test_a_server_that_failed_is_skipped_for_a_while_and_then_asked_again(
    clock: Clock,
) -> None:
    servers, asked = ServerGroup("nsqd"), list[str]()
    well = question("well", asked)
    await servers.ask({"a": well, "b": question("fails", asked)}, 5)
    assert await servers.ask({"a": well, "b": question("again", asked)}, 5) == {"a": "well"}
    assert asked == ["well", "fails", "well"]
    assert "b" in servers.unreachable
    clock.now += MIN_WAIT
    answers = await servers.ask({"a": well, "b": question("again", asked)}, 5)
    assert answers == {"a": "well", "b": "again"}
    assert servers.unreachable == {}


@asynchronous
async def test_if_there_is_no_other_server_failed_ones_are_asked_at_once(clock: Clock) -> None:
    servers = ServerGroup("nsqd")
    await servers.ask({"a": partial(fail, "broken")}, 5)
    assert await servers.ask({"a": partial(say, "A")}, 5) == {"a": "A"}


@asynchronous
async def test_a_server_that_failed_before_gets_a_short_timeout(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_lookup, "SHORT_TIMEOUT", 0.01)
    servers = ServerGroup("nsqd")
    await servers.ask({"a": partial(fail, "broken")}, 3600)
    assert await servers.ask({"a": hang}, 3600) == {}
    assert servers.unreachable == {"a": "a: no answer within 0.01 s"}


@asynchronous
async def test_a_configuration_error_is_raised_when_all_have_answered() -> None:
    heard = asyncio.Event()

    async def late() -> str:
        await asyncio.sleep(0)
        heard.set()
        return "late"

    async def misled() -> str:
        raise ConfigError("no such file")

    with pytest.raises(ConfigError, match="no such file"):
        await ServerGroup("nsqd").ask({"a": misled, "b": late}, 5)
    assert heard.is_set()


@asynchronous
async def test_a_timeout_of_the_request_itself_keeps_its_reason() -> None:
    async def late() -> str:
        raise RequestTimeout("no connection within 2 s")

    servers = ServerGroup("nsqd")
    assert await servers.ask({"a": late}, 5) == {}
    assert servers.unreachable == {"a": "no connection within 2 s"}


@asynchronous
async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nsqflow.spark.source.topic_lookup")
    servers = ServerGroup("nsqlookupd")
    for _ in range(3):
        await servers.ask({"a": partial(fail, "it burns")}, 5)
    for _ in range(3):
        await servers.ask({"a": partial(say, "A")}, 5)
    assert caplog.messages == [
        "nsqlookupd a does not answer: it burns",
        "nsqlookupd a answers again",
    ]


@asynchronous
async def test_those_that_are_gone_are_forgotten(clock: Clock) -> None:
    servers = ServerGroup("nsqd")
    await servers.ask({"a": partial(fail, "broken"), "b": partial(fail, "broken")}, 5)
    servers.keep(["b"])
    assert servers.unreachable == {"b": "broken"}
    assert await servers.ask({"a": partial(say, "A"), "b": partial(say, "B")}, 5) == {"a": "A"}


@asynchronous
async def test_what_another_attempt_can_not_help_with_is_raised() -> None:
    group = ServerGroup("nsqd", lambda error: not isinstance(error, AdminError))

    async def refuse() -> str:
        raise AdminError(403, "no")

    assert await group.ask({"a": partial(fail, "gone")}, 1.0) == {}
    with pytest.raises(AdminError):
        await group.ask({"a": refuse}, 1.0)


@asynchronous
async def test_urgent_topics_are_looked_up_each_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the others, some each time."""
    asked: list[str] = []

    async def look_up(http: object, address: str, topic: str) -> LookupAnswer:
        asked.append(topic)
        return LookupAnswer()

    monkeypatch.setattr(topic_lookup, "lookup_topic", look_up)
    topics = [f"t{number}" for number in range(50)]
    lookup = TopicLookup(options(*topics, lookupd=["http://127.0.0.1:4161"]), ssl_context)
    await lookup.refresh(1.0)
    assert asked == topics
    lookup.urgent = {"t40"}
    others: list[str] = []
    for _ in range(4):
        asked.clear()
        clock.now += topic_lookup.INTERVAL
        await lookup.refresh(1.0)
        assert asked[0] == "t40"
        others += asked[1:]
    assert {*others} == {*topics} - {"t40"}
    assert lookup.answers.keys() == {*topics}


def ssl_context() -> ssl.SSLContext:
    raise AssertionError("these servers have no TLS")
