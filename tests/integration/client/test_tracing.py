"""Tracing on the redesigned NSQ: receipts, trace ids, and the lines of ``nsqflow.trace``."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nsqflow import ConfigError, Consumer, Producer
from nsqflow.broker import Broker
from nsqflow.trace import MAX_TRACE_ID, is_traced, set_tracing
from tests.fixtures.loops import asynchronous, eventually

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


@asynchronous
async def test_receive_finish_and_requeue_are_lines_with_every_field(
    caplog: pytest.LogCaptureFixture,
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
            first.requeue(0, backoff=False)
            second = await anext(consumer)
            second.finish()
        found = lines(caplog, "receive", "finish", "requeue")
        assert [line["event"] for line in found] == ["receive", "requeue", "receive", "finish"]
        assert [line["outcome"] for line in found] == [None, "sent", None, "sent"]
        for line, message in zip(found, [first, first, second, second], strict=True):
            assert list(line) == FIELDS
            assert abs(line["at"] - time.time_ns()) < 60e9
            assert (line["topic"], line["channel"], line["partition"]) == ("orders", "billing", 0)
            assert line["internal_id"] == str(message.internal_id)
            assert line["trace_id"] == str(MAX_TRACE_ID)
            assert (line["offset"], line["size"]) == (message.offset, message.size)
            assert (line["timestamp"], line["attempts"]) == (message.timestamp, message.attempts)
            assert line["client"].startswith("127.0.0.1:")
            assert line["nsqd"] == broker.nsqd_addresses[0] != line["client"]


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
