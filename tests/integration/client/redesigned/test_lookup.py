"""How clients find the leaders of partitions: what they ask which nsqlookupd, and how often."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from nsqflow import Consumer, Producer
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.errors import RequestTimeout
from nsqflow.protocol import Pub, Sub
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import HANG, Answer, ScriptedLookupd
from tests.fixtures.servers import PATIENCE, start_nsqd, start_nsqlookupd
from tests.integration.client.redesigned.scripted_cluster import (
    QUICK,
    lookupd_answers,
    members_answer,
    nodes_answer,
    scripted_cluster,
    topic_answer,
)


def lookups(lookupd: ScriptedLookupd) -> list[dict[str, str]]:
    """The queries of all lookups so far."""
    urls = [urlsplit(request.path) for request in lookupd.requests]
    return [dict(parse_qsl(url.query)) for url in urls if url.path == "/lookup"]


@pytest.mark.proves(rows=[59, 60])
@asynchronous
async def test_producers_ask_for_leaders_to_write_to_with_the_topics_metadata() -> None:
    async with scripted_cluster() as cluster:
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            await producer.publish("orders", b"a")
        asked = lookups(cluster.lookupd)
        assert asked == [{"topic": "orders", "access": "w", "metainfo": "true"}] * len(asked)
        assert asked


@pytest.mark.proves(rows=[59, 60])
@asynchronous
async def test_consumers_ask_for_leaders_to_read_from_with_the_topics_metadata() -> None:
    async with scripted_cluster() as cluster:
        async with Consumer("orders", "billing", lookupd=cluster.lookupd.address) as consumer:
            consumer.start()
            await cluster.nsqd.received(Sub)
        asked = lookups(cluster.lookupd)
        assert asked == [{"topic": "orders", "access": "r", "metainfo": "true"}] * len(asked)
        assert asked


@pytest.mark.proves(rows=[59])
@asynchronous
async def test_a_topic_without_a_channel_is_read_and_not_written_until_it_has_one() -> None:
    async with Broker("redesigned", allow_write_without_channels=False) as broker:
        await broker.create_topic("orders", partitions=2)
        where = broker.lookupd_addresses
        async with Producer(lookupd=where) as producer:
            with pytest.raises(RequestTimeout, match="has no channel: create one on every part"):
                await producer.publish("orders", b"early", timeout=2)
            waiting = producer.send("orders", b"later", timeout=PATIENCE)
            async with Consumer("orders", "billing", lookupd=where) as consumer:
                async with asyncio.timeout(PATIENCE):
                    message = await anext(consumer)
                assert message.body == b"later"
                message.finish()
            await waiting


@asynchronous
async def test_a_topic_that_does_not_exist_is_an_error_and_is_found_once_it_is_created() -> None:
    async with Broker("redesigned") as broker:
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            with pytest.raises(RequestTimeout, match=r"does not exist; .* create it first"):
                await producer.publish("orders", b"early", timeout=2)
            waiting = producer.send("orders", b"later", timeout=PATIENCE)
            await broker.create_topic("orders")
            await waiting
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        assert [message.body async for message in cluster.browse("orders", 0)] == ["later"]


@pytest.mark.proves(rows=[62])
@asynchronous
async def test_while_nsqlookupd_disagree_the_leading_one_counts_and_both_are_asked_again() -> None:
    async with scripted_cluster() as cluster, ScriptedLookupd({}) as other:
        both = [cluster.lookupd.address, other.address]
        listed = members_answer(both, leader=other.address)
        found = topic_answer({0: cluster.nsqd.address})
        # As for a new topic: one names a node that would refuse it for a while.
        cluster.lookupd.answers = {"/listlookup": listed, "/lookup?": found}
        other.answers = {"/listlookup": listed, "/lookup?": topic_answer({}, 1)}
        async with Producer(lookupd=both, **QUICK) as producer:
            waiting = producer.send("orders", b"a", timeout=PATIENCE)
            for _ in range(3):
                await cluster.lookupd.requested("/lookup?")
                await other.requested("/lookup?")
            assert not cluster.published
            other.answers = {"/listlookup": listed, "/lookup?": found}
            await waiting
        assert len(cluster.published) == 1


@pytest.mark.proves(rows=[61])
@asynchronous
async def test_listed_nsqlookupd_are_asked_and_go_on_when_the_configured_one_is_gone() -> None:
    async with scripted_cluster() as cluster, ScriptedLookupd({}) as seed:
        both = [seed.address, cluster.lookupd.address]
        found = topic_answer({0: cluster.nsqd.address})
        listed = members_answer(both, leader=cluster.lookupd.address)
        seed.answers = {"/listlookup": listed, "/lookup?": topic_answer({}, 1)}
        cluster.lookupd.answers = {"/listlookup": listed, "/lookup?": found}
        events = EventLog()
        async with Producer(lookupd=seed.address, on_event=events, **QUICK) as producer:
            await producer.publish("orders", b"a")
            await seed.stop()
            cluster.nsqd.connections[-1].close()
            await events.next("disconnected")
            await producer.publish("orders", b"b")
        assert len(cluster.published) == 2


@pytest.mark.proves(rows=[61])
@pytest.mark.parametrize(
    "listing", [(500, b"{}"), (200, b"[]"), HANG], ids=["error", "nonsense", "silence"]
)
@asynchronous
async def test_without_a_list_the_configured_nsqlookupd_are_asked(listing: Answer) -> None:
    async with scripted_cluster() as cluster:
        found = topic_answer({0: cluster.nsqd.address})
        cluster.lookupd.answers = {"/listlookup": listing, "/lookup?": found}
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            await producer.publish("orders", b"a", partition=0)
        assert [each.name for each in cluster.published] == ["PUB"]


@pytest.mark.parametrize("listing", [(500, b"{}"), HANG], ids=["error", "silence"])
@pytest.mark.parametrize(
    "nothing", [topic_answer({}, 1), (404, b'{"message":"Key not found"}')], ids=["new", "unknown"]
)
@asynchronous
async def test_a_redesigned_nsqd_is_not_taken_for_a_classic_one_without_a_list(
    nothing: Answer, listing: Answer
) -> None:
    # Where no nsqd has a classic topic, the first publish would go to any of them.
    async with scripted_cluster() as cluster:
        nodes = nodes_answer(cluster.nsqd.address)
        found = topic_answer({0: cluster.nsqd.address})
        answers = {"/listlookup": listing, "/nodes": nodes, "/lookup?": nothing}
        cluster.lookupd.answers = answers
        options = QUICK | {"lookupd_poll_interval": 0.2}
        async with Producer(lookupd=cluster.lookupd.address, **options) as producer:
            waiting = producer.send("orders", b"a", timeout=PATIENCE)
            for _ in range(4):
                await cluster.lookupd.requested("/lookup?")
            assert not cluster.nsqd.connections
            cluster.lookupd.answers = answers | {"/lookup?": found}
            await waiting
        (sent,) = cluster.published
        assert isinstance(sent, Pub)
        assert sent.partition == 0


@pytest.mark.proves(rows=[63])
@asynchronous
async def test_an_nsqlookupd_that_fails_is_asked_less_often_until_it_answers() -> None:
    async with scripted_cluster() as cluster, ScriptedLookupd({"/": (500, b"{}")}) as failing:
        both = [cluster.lookupd.address, failing.address]
        options: dict[str, Any] = {"lookupd_poll_interval": 0.01, "lookupd_poll_jitter": 0.0}
        async with Consumer("orders", "billing", lookupd=both, **options) as consumer:
            consumer.start()
            await eventually(lambda: len(lookups(cluster.lookupd)) >= 60)
            assert 3 < len(lookups(failing)) < len(lookups(cluster.lookupd)) / 2
            found = topic_answer({0: cluster.nsqd.address})
            failing.answers = lookupd_answers(found, both)
            before, others = len(lookups(failing)), len(lookups(cluster.lookupd))
            await eventually(lambda: len(lookups(failing)) >= before + 20)
            rounds = len(lookups(cluster.lookupd)) - others
            assert rounds < 20 + 16 + 5, "at most 16 rounds later it is asked in each one again"


@pytest.mark.proves(rows=[65])
@asynchronous
async def test_the_nsqlookupd_of_the_classic_nsq_works_too(tmp_path: Path) -> None:
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path, lookupd=[lookupd]):
        where = lookupd.http_address
        async with Producer(lookupd=where) as producer:
            await producer.publish("orders", b"a")
        async with Consumer("orders", "billing", lookupd=where) as consumer:
            async with asyncio.timeout(PATIENCE):
                message = await anext(consumer)
            assert (message.body, message.partition) == (b"a", None)
            message.finish()
