"""The classic and the redesigned NSQ in one process: the same code on both."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nsqflow import ConfigError, Consumer, HeaderFilter, NsqError, Producer, blocking
from nsqflow.broker import BackgroundBroker, Broker
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import start_nsqd, start_nsqlookupd


@asynccontextmanager
async def running(dialect: str) -> AsyncIterator[list[str]]:
    """A broker with a topic and a channel; yields the addresses of its nsqlookupd."""
    async with Broker(dialect) as broker:
        await broker.create_topic("orders")
        await broker.create_channel("orders", "billing")
        yield broker.lookupd_addresses


async def application(lookupd: list[str], body: bytes) -> bytes:
    """Publish and consume, as code does that knows nothing of dialects."""
    async with (
        Producer(lookupd=lookupd) as producer,
        Consumer("orders", "billing", lookupd=lookupd) as consumer,
    ):
        await producer.publish("orders", body)
        message = await anext(consumer)
        message.finish()
        return message.body


@asynchronous
async def test_the_same_code_runs_on_both_at_once() -> None:
    async with running("classic") as classic, running("redesigned") as redesigned:
        assert await application(classic, b"on classic") == b"on classic"
        assert await application(redesigned, b"on redesigned") == b"on redesigned"
        assert await application(classic, b"again") == b"again"


@asynchronous
async def test_the_real_classic_nsq_and_the_redesigned_one_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd:
        nsqd.ask("/topic/create?topic=orders", "POST")
        await eventually(lambda: lookupd.ask("/lookup?topic=orders")[0] == 200)
        async with running("redesigned") as redesigned:
            bodies = await asyncio.gather(
                *(application([lookupd.http_address], b"classic") for _ in range(2)),
                *(application(redesigned, b"redesigned") for _ in range(2)),
            )
    assert bodies == [b"classic", b"classic", b"redesigned", b"redesigned"]


@pytest.mark.parametrize("dialect", ["classic", "redesigned"])
@asynchronous
async def test_a_message_has_what_its_dialect_has(dialect: str) -> None:
    async with (
        running(dialect) as lookupd,
        Producer(lookupd=lookupd) as producer,
        Consumer("orders", "billing", lookupd=lookupd) as consumer,
    ):
        assert await producer.publish("orders", b"x") is None
        message = await anext(consumer)
        message.finish()
        is_classic = dialect == "classic"
        assert [each is None for each in (message.partition, message.internal_id)] == [
            is_classic,
            is_classic,
        ]
        assert message.trace_id == (None if is_classic else 0)
        assert (message.headers, message.tag, message.offset, message.size) == (None,) * 4


@pytest.mark.parametrize(
    "arguments",
    [{"key": b"a"}, {"partition": 0}, {"trace": 7}, {"headers": {"a": 1}}, {"tag": "a"}],
    ids=lambda arguments: next(iter(arguments)),
)
@asynchronous
async def test_a_classic_topic_names_the_argument_that_it_lacks(arguments: Any) -> None:
    (name,) = arguments
    async with running("classic") as lookupd, Producer(lookupd=lookupd) as producer:
        await producer.publish("orders", b"plain")
        with pytest.raises(ConfigError, match=rf"{name}.*invalid.*classic NSQ"):
            await producer.publish("orders", b"x", **arguments)


@asynchronous
async def test_a_redesigned_topic_refuses_a_delay() -> None:
    async with running("redesigned") as lookupd, Producer(lookupd=lookupd) as producer:
        await producer.publish("orders", b"plain")
        with pytest.raises(ConfigError, match=r"delay=5 is invalid.*redesigned NSQ"):
            await producer.publish("orders", b"x", delay=5)


@pytest.mark.parametrize(
    "options",
    [
        {"ordered": True},
        {"ordered": "force"},
        {"desired_tag": "a"},
        {"header_filter": HeaderFilter.equal("region", "eu")},
        {"start_from": "earliest"},
    ],
    ids=lambda options: "-".join(map(str, [*options][:1])),
)
@asynchronous
async def test_a_classic_topic_names_the_option_that_it_lacks(options: Any) -> None:
    (name,) = options
    async with (
        running("classic") as lookupd,
        Consumer("orders", "billing", lookupd=lookupd, **options) as consumer,
    ):
        with pytest.raises(ConfigError, match=rf"{name}=.*classic NSQ"):
            await anext(consumer)


@asynchronous
async def test_an_option_of_the_redesigned_nsq_needs_nsqlookupd() -> None:
    with pytest.raises(ConfigError, match=r"start_from=.*pass lookupd="):
        Consumer("orders", "billing", nsqd="127.0.0.1:1", start_from="earliest")


@asynchronous
async def test_a_redesigned_nsqd_given_directly_is_an_error_that_asks_for_lookupd() -> None:
    async with Broker("redesigned") as broker:
        async with Producer(broker.nsqd_addresses, publish_timeout=5) as producer:
            with pytest.raises(NsqError, match="lookupd="):
                await producer.publish("orders", b"x")
        async with Consumer("orders", "billing", nsqd=broker.nsqd_addresses) as consumer:
            with pytest.raises(NsqError, match="lookupd="):
                await anext(consumer)


@pytest.mark.parametrize(
    ("actual", "wanted"), [("classic", "redesigned"), ("redesigned", "classic")]
)
@asynchronous
async def test_the_option_dialect_refuses_the_other_one(actual: str, wanted: str) -> None:
    text = re.escape(f"dialect='{wanted}' is invalid for topic 'orders'") + f".*the {actual} NSQ"
    async with running(actual) as lookupd:
        async with Producer(lookupd=lookupd, dialect=wanted) as producer:
            with pytest.raises(ConfigError, match=text):
                await producer.publish("orders", b"x")
        async with Consumer("orders", "billing", lookupd=lookupd, dialect=wanted) as consumer:
            with pytest.raises(ConfigError, match=text):
                await anext(consumer)


def test_plain_code_publishes_by_key_and_consumes_in_order(
    nsq_redesigned_broker: BackgroundBroker,
) -> None:
    nsq_redesigned_broker.create_topic("orders", partitions=2, ordered=True)
    nsq_redesigned_broker.create_channel("orders", "billing")
    where = nsq_redesigned_broker.lookupd_addresses
    bodies = [f"{number}".encode() for number in range(5)]
    with blocking.Producer(lookupd=where) as producer:
        receipts = [producer.publish("orders", each, key=b"user-1", trace=7) for each in bodies]
    seen = []
    with blocking.Consumer("orders", "billing", lookupd=where, ordered=True) as consumer:
        for message in consumer:
            with message:
                seen.append((message.body, message.internal_id, message.trace_id))
            if len(seen) == len(bodies):
                break
    assert seen == [
        (body, receipt and receipt.internal_id, 7)
        for body, receipt in zip(bodies, receipts, strict=True)
    ]


@pytest.mark.nsq_redesigned_broker(nodes=2)
def test_the_marker_sets_the_options_of_the_cluster(
    nsq_redesigned_broker: BackgroundBroker,
) -> None:
    assert len(nsq_redesigned_broker.nsqd_addresses) == 2
    assert len(nsq_redesigned_broker.lookupd_addresses) == 2


def test_a_redesigned_broker_has_no_data_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_path=.*always in memory"):
        BackgroundBroker(dialect="redesigned", data_path=tmp_path)
