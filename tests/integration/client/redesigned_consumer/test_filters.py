"""Headers, tags, filters, compressed bodies, long delays and the pacing by the server."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import cramjam
import pytest

from nsqflow import Consumer, Producer
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.client.body_compression import MAX_BODY, decompress_body
from nsqflow.client.header_filter import HeaderFilter
from nsqflow.errors import ConfigError, RemoteProtocolError
from nsqflow.protocol.publish import PubExt
from tests.fixtures.loops import asynchronous, eventually
from tests.integration.client.redesigned_consumer.reading import (
    CHANNEL,
    TOPIC,
    cluster,
    consumer_of,
    consuming,
    finish,
    publish,
    receive,
)

BODY = b"a body that is worth it, " * 20
PACKED: dict[str, bytes] = {
    "1": gzip.compress(BODY),
    "2": bytes(cramjam.snappy.compress_raw(BODY)),
    "3": bytes(cramjam.lz4.compress_block(BODY, store_size=False)),
}


def codec_headers(codec: str, size: int = len(BODY)) -> dict[str, str]:
    return {"nsq.client.compress": codec, "nsq.msg.size": str(size)}


async def publish_as_another_client(broker: Broker, body: bytes, headers: dict[str, str]) -> None:
    """Publish with headers that our producer sets by itself only."""
    host, port = broker.nsqd_addresses[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"  V2" + PubExt(TOPIC, json.dumps(headers).encode(), body, 0).encode())
    assert (await reader.readexactly(10))[8:] == b"OK"
    writer.close()
    await writer.wait_closed()


@asynchronous
async def test_a_message_has_its_headers_and_its_tag() -> None:
    async with cluster(extended=True) as broker, consuming(broker) as (consumer, _):
        await publish(broker, b"a", headers={"region": "eu"}, tag="blue")
        message = await receive(consumer)
        assert message.headers is not None
        assert (message.headers["region"], message.tag) == ("eu", "blue")
        message.finish()


@asynchronous
async def test_a_tagged_message_goes_to_the_consumer_that_asks_for_it() -> None:
    async with (
        cluster(extended=True) as broker,
        consuming(broker, desired_tag="blue") as (blue, _),
        consuming(broker) as (other, _),
    ):
        await publish(broker, b"tagged", tag="blue")
        await publish(broker, b"plain")
        assert await finish(blue, 1) == [b"tagged"]
        assert await finish(other, 1) == [b"plain"]


@pytest.mark.proves(rows=[87])
@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (HeaderFilter.equal("region", "eu"), [b"eu"]),
        (HeaderFilter.regexp("region", "^e|^u"), [b"eu", b"us"]),
        (HeaderFilter.glob("region", "?s"), [b"us"]),
        (HeaderFilter.all_of({"region": "eu", "kind": "new"}), [b"eu"]),
        (HeaderFilter.any_of({"region": "us", "kind": "old"}), [b"us", b"asia"]),
        (HeaderFilter.equal("region", "eu").inverted(), [b"us", b"asia"]),
    ],
    ids=["equal", "regexp", "glob", "all", "any", "inverted"],
)
@asynchronous
async def test_nsqd_delivers_what_the_filter_lets_through(
    rule: HeaderFilter, wanted: list[bytes]
) -> None:
    async with cluster(extended=True) as broker:
        for region, kind in [("eu", "new"), ("us", "new"), ("asia", "old")]:
            await publish(broker, region.encode(), headers={"region": region, "kind": kind})
        await publish(broker, b"end", headers={"region": "eu", "kind": "new"})
        async with consuming(broker, header_filter=rule) as (consumer, _):
            bodies = await finish(consumer, len(wanted))
            assert sorted(bodies) == sorted(wanted)


@pytest.mark.proves(rows=[87])
@pytest.mark.parametrize(
    "option",
    [{"header_filter": HeaderFilter.equal("region", "eu")}, {"desired_tag": "blue"}],
    ids=["filter", "tag"],
)
@asynchronous
async def test_what_nsqd_would_ignore_on_a_topic_without_headers_is_refused(
    option: dict[str, Any],
) -> None:
    async with cluster() as broker, consumer_of(broker, **option) as consumer:
        with pytest.raises(ConfigError, match="has no headers"):
            await receive(consumer)


@pytest.mark.parametrize("tag", ["", "x" * 101, "é" * 51], ids=["empty", "long", "bytes"])
def test_a_tag_that_nsqd_would_refuse_is_refused_before(tag: str) -> None:
    with pytest.raises(ConfigError, match="text of 1 to 100 bytes"):
        Consumer(TOPIC, CHANNEL, lookupd="127.0.0.1:4161", desired_tag=tag)


@pytest.mark.proves(rows=[87])
def test_rules_that_nsqd_would_ignore_are_refused() -> None:
    with pytest.raises(ConfigError, match="pattern"):
        HeaderFilter.regexp("region", "(")
    with pytest.raises(ConfigError, match="not closed"):
        HeaderFilter.glob("region", "[eu")
    with pytest.raises(ConfigError, match="not empty"):
        HeaderFilter.equal("region", "")
    with pytest.raises(ConfigError, match="must name a header"):
        HeaderFilter.any_of({})


@pytest.mark.proves(rows=[88])
@pytest.mark.parametrize("codec", ["1", "2", "3"], ids=["gzip", "snappy", "lz4"])
@asynchronous
async def test_a_body_that_was_compressed_by_a_client_is_unpacked(codec: str) -> None:
    async with cluster(extended=True) as broker, consuming(broker) as (consumer, _):
        await publish_as_another_client(broker, PACKED[codec], codec_headers(codec))
        assert await finish(consumer, 1) == [BODY]


@pytest.mark.proves(rows=[88])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
@asynchronous
async def test_a_producer_compresses_bodies_on_request(codec: str) -> None:
    async with cluster(extended=True) as broker, consuming(broker) as (consumer, _):
        options: dict[str, Any] = {"body_compression": {TOPIC: codec}}
        async with Producer(lookupd=broker.lookupd_addresses, **options) as producer:
            await producer.publish(TOPIC, BODY)
        message = await receive(consumer)
        assert message.headers is not None
        assert message.headers["nsq.msg.size"] == str(len(BODY))
        assert message.body == BODY
        message.finish()


@pytest.mark.proves(rows=[88])
@pytest.mark.parametrize("codec", ["1", "2", "3", "9"], ids=["gzip", "snappy", "lz4", "unknown"])
@asynchronous
async def test_a_damaged_body_is_delivered_as_it_is(codec: str) -> None:
    async with cluster(extended=True) as broker, consuming(broker) as (consumer, _):
        await publish_as_another_client(broker, b"\xff\xff\xffdamaged", codec_headers(codec))
        assert await finish(consumer, 1) == [b"\xff\xff\xffdamaged"]


@pytest.mark.proves(rows=[88])
@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        ("1", gzip.compress(bytes(MAX_BODY + 1))),
        ("2", b"\xff\xff\xff\xff\x0f"),
        ("3", PACKED["3"]),
    ],
    ids=["gzip", "snappy", "lz4"],
)
def test_a_body_that_would_fill_the_memory_is_refused(codec: str, packed: bytes) -> None:
    size = MAX_BODY + 1 if codec == "3" else 10
    with pytest.raises(RemoteProtocolError, match="decompresses to"):
        decompress_body(packed, codec_headers(codec, size))


@pytest.mark.proves(rows=[89])
@asynchronous
async def test_a_requeue_beyond_fifteen_minutes_is_stored_apart() -> None:
    async with (
        cluster() as broker,
        consuming(broker, max_backoff_duration=0) as (consumer, _),
    ):
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await publish(broker, b"later", b"now")
        (await receive(consumer)).requeue(3 * 24 * 3600)
        assert await finish(consumer, 1) == [b"now"]
        await eventually(lambda: consumer.stats().counts.finished == 1)
        await consumer.close()
        found = (await admin.stats(TOPIC))[0].channel(CHANNEL)
        assert found is not None
        assert (found.delayed_count, found.depth) == (1, 0)


@pytest.mark.proves(rows=[90])
@asynchronous
async def test_explain_says_that_nsqd_lets_rdy_count_less() -> None:
    async with cluster() as broker, consuming(broker, max_in_flight=20) as (consumer, events):
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await publish(broker, *(b"%d" % number for number in range(8)))
        held = [await receive(consumer) for _ in range(8)]
        await admin.change_channel("empty", TOPIC, CHANNEL)  # nothing is in flight any more
        for message in held:
            message.finish()
        await events.wait_for("answer_failed", 8)
        waiting = receive(consumer)
        await publish(broker, b"more")
        (await waiting).requeue(0, backoff=False)
        assert "nsqd applies only" in consumer.explain()
        assert await finish(consumer, 1) == [b"more"]
