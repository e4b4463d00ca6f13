"""Tracing on the redesigned NSQ: receipts, trace ids, and the lines of ``nsqflow.trace``."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nsqflow import ConfigError, Consumer, NsqError, Producer, PublishUncertain
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.errors import BadBodyError, RequestTimeout
from nsqflow.protocol import PubTrace, Receipt
from nsqflow.trace import MAX_TRACE_ID, is_traced, set_tracing
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import CLOSE, HANG, Reaction
from tests.fixtures.servers import PATIENCE, Nsqd
from tests.integration.client.redesigned.scripted_cluster import (
    QUICK,
    lookupd_answers,
    scripted_cluster,
    topic_answer,
)

FIELDS = [
    "event", "at", "topic", "channel", "partition", "internal_id", "trace_id", "offset", "size",
    "timestamp", "attempts", "client", "nsqd", "outcome",
]  # fmt: skip


@pytest.fixture(autouse=True)
def untraced(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "nsqflow.trace")
    yield
    set_tracing("orders", False)


def lines(caplog: pytest.LogCaptureFixture, *events: str) -> list[dict[str, Any]]:
    """The trace lines of these kinds of events, in their order."""
    records = [record for record in caplog.records if record.name == "nsqflow.trace"]
    found = [json.loads(record.getMessage()) for record in records]
    return [line for line in found if line["event"] in events]


@pytest.mark.proves(rows=[80, 81])
@pytest.mark.parametrize("trace", [0, 7, 0x0A200A200A200A0A, MAX_TRACE_ID])
@asynchronous
async def test_a_traced_publish_has_the_receipt_of_what_arrives(trace: int) -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders", ordered=True)
        await broker.create_channel("orders", "billing")
        where = broker.lookupd_addresses
        async with (
            Producer(lookupd=where) as producer,
            Consumer("orders", "billing", lookupd=where) as consumer,
        ):
            receipt = await producer.publish("orders", b"traced", trace=trace)
            message = await anext(consumer)
            message.finish()
        assert receipt is not None
        assert (receipt.trace_id, message.trace_id) == (trace, trace)
        assert (receipt.internal_id, receipt.offset, receipt.size) == (
            message.internal_id,
            message.offset,
            message.size,
        )
        assert message.id == receipt.internal_id.to_bytes(8, "big") + trace.to_bytes(8, "big")


@pytest.mark.proves(rows=[81])
@asynchronous
async def test_a_traced_message_with_headers_carries_its_trace_id() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders", extended=True)
        await broker.create_channel("orders", "billing")
        where = broker.lookupd_addresses
        async with (
            Producer(lookupd=where) as producer,
            Consumer("orders", "billing", lookupd=where) as consumer,
        ):
            receipt = await producer.publish("orders", b"x", headers={"region": "eu"}, trace=7)
            message = await anext(consumer)
            message.finish()
        assert receipt is not None
        assert (receipt.trace_id, receipt.internal_id) == (7, message.internal_id)
        assert message.headers == {"region": "eu", "##trace_id": "7"}
        assert message.trace_id == 7


@pytest.mark.proves(rows=[82])
@asynchronous
async def test_tracing_is_switched_while_clients_run(caplog: pytest.LogCaptureFixture) -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        await broker.create_channel("orders", "billing")
        where = broker.lookupd_addresses
        async with (
            Producer(lookupd=where) as producer,
            Consumer("orders", "billing", lookupd=where) as consumer,
        ):
            seen = []
            for on in (False, True, False, True):
                set_tracing("orders", on)
                assert is_traced("orders") is on
                receipt = await producer.publish("orders", b"x")
                message = await anext(consumer)
                message.finish()
                assert receipt is None or receipt.trace_id == message.trace_id
                seen.append((receipt is not None, bool(message.trace_id)))
                expected = sum(traced for traced, _ in seen)
                assert len(lines(caplog, "receive")) == expected
                await eventually(lambda n=expected: len(lines(caplog, "finish")) == n)  # type: ignore[misc]
        assert seen == [(on, on) for on in (False, True, False, True)]


@pytest.mark.proves(rows=[82])
@asynchronous
async def test_each_message_of_publish_many_has_a_trace_id_of_its_own() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        await broker.create_channel("orders", "billing")
        where = broker.lookupd_addresses
        set_tracing("orders", True)
        async with (
            Producer(lookupd=where) as producer,
            Consumer("orders", "billing", lookupd=where) as consumer,
        ):
            await producer.publish_many("orders", [b"a", b"b", b"c"])
            messages = [await anext(consumer) for _ in range(3)]
            for message in messages:
                message.finish()
        assert [message.body for message in messages] == [b"a", b"b", b"c"]
        assert len({message.trace_id for message in messages} - {0}) == 3


@pytest.mark.proves(rows=[82])
@asynchronous
async def test_publish_many_sends_its_traced_messages_without_waiting_for_answers() -> None:
    async with scripted_cluster() as cluster:
        set_tracing("orders", True)
        cluster.nsqd.on(PubTrace, HANG)
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            many = asyncio.create_task(producer.publish_many("orders", [b"a", b"b", b"c"]))
            sent = [await cluster.nsqd.received(PubTrace) for _ in range(3)]
            assert not many.done()
            for number, command in enumerate(sent):
                receipt = Receipt(number, command.trace_id, number * 100, 100)
                cluster.nsqd.connections[0].send_response(receipt.encode())
            await many
        assert [command.body for command in sent] == [b"a", b"b", b"c"]


@pytest.mark.proves(rows=[82])
@asynchronous
async def test_traced_messages_with_headers_are_pub_ext_with_the_trace_id_among_them() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders", extended=True)
        set_tracing("orders", True)
        options: dict[str, Any] = {"body_compression": {"orders": "gzip"}}
        async with Producer(lookupd=broker.lookupd_addresses, **options) as producer:
            await producer.publish_many("orders", [b"a" * 1000, b"b" * 1000])
            receipt = await producer.publish("orders", b"c", headers={"region": "eu"})
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        found = [message async for message in admin.browse("orders", 0)]
        headers = [message.headers or {} for message in found]
        assert [each["##trace_id"] for each in headers] == [str(each.trace_id) for each in found]
        assert len({each.trace_id for each in found} - {0}) == 3
        assert receipt is not None
        assert (receipt.trace_id, headers[2]["region"]) == (found[2].trace_id, "eu")


# The lines of the log


@pytest.mark.proves(rows=[83])
@asynchronous
async def test_a_publish_is_a_line_with_every_field(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_cluster(partitions=2) as cluster:
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            receipt = await producer.publish("orders", b"x", partition=1, trace=MAX_TRACE_ID)
        assert receipt is not None
        (line,) = lines(caplog, "publish")
        assert list(line) == FIELDS
        assert abs(line["at"] - time.time_ns()) < 60e9
        host, port = cluster.nsqd.connections[0].transport.get_extra_info("peername")
        assert line == {
            "event": "publish",
            "at": line["at"],
            "topic": "orders",
            "channel": None,
            "partition": 1,
            "internal_id": str(receipt.internal_id),
            "trace_id": str(MAX_TRACE_ID),
            "offset": receipt.offset,
            "size": receipt.size,
            "timestamp": None,
            "attempts": None,
            "client": f"{host}:{port}",
            "nsqd": cluster.nsqd.address,
            "outcome": "stored",
        }


@pytest.mark.proves(rows=[83])
@pytest.mark.parametrize(
    ("reaction", "error", "outcome"),
    [
        (lambda wire, _: wire.send_error(b"E_BAD_BODY"), BadBodyError, "refused"),
        (CLOSE, PublishUncertain, "uncertain"),
        (HANG, PublishUncertain, "uncertain"),
    ],
    ids=["refused", "lost", "silence"],
)
@asynchronous
async def test_a_publish_that_fails_is_a_line_too(
    reaction: Reaction[PubTrace],
    error: type[NsqError],
    outcome: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_cluster() as cluster:
        cluster.nsqd.on(PubTrace, reaction)
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            sent = producer.send("orders", b"x", trace=7, timeout=2)
            with pytest.raises(error):
                await sent
        (line,) = lines(caplog, "publish")
        assert (line["trace_id"], line["outcome"]) == ("7", outcome)
        assert (line["partition"], line["nsqd"]) == (0, cluster.nsqd.address)
        assert line["internal_id"] is line["offset"] is line["size"] is None


@pytest.mark.proves(rows=[83])
@asynchronous
async def test_a_publish_that_was_not_sent_is_a_line_without_addresses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_cluster() as cluster:
        cluster.lookupd.answers = lookupd_answers(topic_answer({}, 1), [cluster.lookupd.address])
        async with Producer(lookupd=cluster.lookupd.address, **QUICK) as producer:
            with pytest.raises(RequestTimeout):
                await producer.publish("orders", b"x", trace=7, timeout=0.2)
        (line,) = lines(caplog, "publish")
        assert (line["trace_id"], line["outcome"]) == ("7", "not sent")
        assert (line["client"], line["nsqd"]) == (None, None)


@pytest.mark.proves(rows=[83])
@pytest.mark.parametrize("delay", [0, 0.2], ids=["at once", "after a wait in the client"])
@asynchronous
async def test_receive_finish_and_requeue_are_lines_with_every_field(
    delay: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders", ordered=True)
        await broker.create_channel("orders", "billing")
        where = broker.lookupd_addresses
        set_tracing("orders", True)
        async with (
            Producer(lookupd=where) as producer,
            Consumer("orders", "billing", lookupd=where) as consumer,
        ):
            await producer.publish("orders", b"x", trace=MAX_TRACE_ID)
            first = await anext(consumer)
            first.requeue(delay, backoff=False)
            second = await anext(consumer)
            stats = await RedesignedCluster(lookupd=where).stats("orders", include_clients=True)
            channel = stats[0].channel("billing")
            second.finish()
        found = lines(caplog, "receive", "finish", "requeue")
        assert [line["event"] for line in found] == ["receive", "requeue", "receive", "finish"]
        assert [line["outcome"] for line in found] == [None, "sent", None, "sent"]
        assert found[1]["at"] - found[0]["at"] >= delay * 1e9, "written when REQ is sent"
        assert channel is not None
        for line, message in zip(found, [first, first, second, second], strict=True):
            assert list(line) == FIELDS
            assert abs(line["at"] - time.time_ns()) < 60e9
            assert (line["topic"], line["channel"], line["partition"]) == ("orders", "billing", 0)
            assert line["internal_id"] == str(message.internal_id)
            assert line["trace_id"] == str(MAX_TRACE_ID)
            assert (line["offset"], line["size"]) == (message.offset, message.size)
            assert (line["timestamp"], line["attempts"]) == (message.timestamp, message.attempts)
            assert line["client"] == channel.clients[0]["remote_address"]
            assert line["nsqd"] == broker.nsqd_addresses[0]


@pytest.mark.proves(rows=[83])
@asynchronous
async def test_lines_of_a_subscription_without_order_have_no_position(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        await broker.create_channel("orders", "billing")
        where = broker.lookupd_addresses
        set_tracing("orders", True)
        async with (
            Producer(lookupd=where) as producer,
            Consumer("orders", "billing", lookupd=where) as consumer,
        ):
            receipt = await producer.publish("orders", b"x")
            message = await anext(consumer)
            message.finish()
        assert receipt is not None
        for line in lines(caplog, "receive", "finish"):
            assert (line["offset"], line["size"]) == (None, None)
            assert line["internal_id"] == str(receipt.internal_id)
            assert line["trace_id"] == str(receipt.trace_id)
            assert line["timestamp"] == message.timestamp


@pytest.mark.parametrize("trace", [-1, MAX_TRACE_ID + 1, 1.0, True, "7"], ids=repr)
@asynchronous
async def test_what_is_no_trace_id_is_refused(trace: Any) -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            with pytest.raises(ConfigError, match="trace="):
                await producer.publish("orders", b"x", trace=trace)


@asynchronous
async def test_a_classic_topic_refuses_a_trace_id_and_warns_once_of_tracing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker() as broker:
        await broker.create_topic("orders")
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            with pytest.raises(ConfigError, match=r"trace=7 is invalid.*classic NSQ"):
                await producer.publish("orders", b"x", trace=7)
            set_tracing("orders", True)
            for _ in range(3):
                assert await producer.publish("orders", b"x") is None
        warnings = [each for each in caplog.messages if "it is not traced" in each]
        assert len(warnings) == 1


@asynchronous
async def test_clients_of_an_nsqd_given_directly_warn_once_too(
    nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    set_tracing("orders", True)
    async with (
        Producer(nsqd.tcp_address) as producer,
        Consumer("orders", "traced#ephemeral", nsqd=nsqd.tcp_address) as consumer,
    ):
        consumer.start()
        await eventually(lambda: consumer.stats().connections[0].connected)
        await producer.publish_many("orders", [b"a", b"b"])
        async with asyncio.timeout(PATIENCE):
            for _ in range(2):
                (await anext(consumer)).finish()
        with pytest.raises(ConfigError, match=r"trace=7 is invalid.*pass lookupd="):
            await producer.publish("orders", b"x", trace=7)
    assert len([each for each in caplog.messages if "it is not traced" in each]) == 1
    assert lines(caplog, "publish", "receive", "finish") == []
