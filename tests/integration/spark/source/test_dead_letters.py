"""Dead letters of the redesigned NSQ: nothing that a message can be keeps it from being one."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from nsqflow import protocol
from nsqflow.blocking import Consumer
from nsqflow.broker import BackgroundBroker
from nsqflow.client.body_compression import compress_body
from nsqflow.client.message import Message
from nsqflow.protocol import Columns, Layout, MessageBatch, encode_messages
from nsqflow.protocol.frames import FrameDecoder, MessageRun
from nsqflow.spark.options import parse_stream
from nsqflow.spark.source import dead_letters
from nsqflow.spark.source.dead_letters import publish_dead_letters
from nsqflow.spark.source.offsets import PartitionId
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.coverage import Coverage
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous

LARGE = b"x" * (2 * 1024 * 1024)
PARTITION = NsqInputPartition(PartitionId("gen", 1, "orders|0", 0), 1000, coverage=Coverage())


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned") as broker:
        yield broker


def columns_of(sent: Sequence[tuple[bytes, Mapping[str, object]]]) -> Columns:
    layout = Layout(extended=True, positioned=True)
    messages = [
        protocol.Message(
            1, 9, b"%016d" % n, body, 4, json.dumps(headers).encode(), offset=n, size=1
        )
        for n, (body, headers) in enumerate(sent)
    ]
    decoder = FrameDecoder()
    decoder.min_message_size = layout.min_size
    decoder.positioned = layout.positioned and not layout.extended
    decoder.buffer.feed(encode_messages(messages, layout))
    run = decoder.next()
    assert isinstance(run, MessageRun)
    return MessageBatch(*run, layout).columns()


def publish(
    broker: BackgroundBroker,
    topic: str,
    sent: Sequence[tuple[bytes, Mapping[str, object]]],
    **more: str,
) -> None:
    given = {"lookupd": ",".join(broker.lookupd_addresses), "topic": "orders", "channel": "c"}
    options = parse_stream(given | {"spoolLocation": "/spool"} | more)
    publish_dead_letters(PARTITION, options, topic, [columns_of(sent)], [*range(len(sent))])


def received(broker: BackgroundBroker, topic: str, count: int) -> list[Message]:
    found: list[Message] = []
    with Consumer(topic, "test", lookupd=broker.lookupd_addresses) as consumer:
        for message in consumer:
            message.finish()
            found.append(message)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_a_compressed_body_stays_so_however_large_it_is(
    broker: BackgroundBroker, codec: str
) -> None:
    topic = f"{codec}.dead"
    broker.create_topic(topic, extended=True)
    broker.create_channel(topic, "test")
    packed, packing = compress_body(codec, LARGE)
    assert len(packed) < 1024 * 1024
    publish(broker, topic, [(packed, packing | {"region": "eu"})])
    [message] = received(broker, topic, 1)
    assert message.body == LARGE
    assert {**(message.headers or {}), **packing, "region": "eu"} == message.headers


def test_headers_that_no_publisher_could_set_are_kept(broker: BackgroundBroker) -> None:
    broker.create_topic("odd.dead", extended=True)
    broker.create_channel("odd.dead", "test")
    odd = {"a": "\ud800", "##trace_id": "7", "##client_dispatch_tag": "t"}
    publish(broker, "odd.dead", [(b"1", odd), (b"2", {}), (b"x" * 1_000_000, {})])
    found = {message.body[:1]: message for message in received(broker, "odd.dead", 3)}
    assert (found[b"1"].headers or {})["a"] == "?"
    assert (found[b"1"].tag, found[b"1"].trace_id) == ("t", 0)
    assert found[b"2"].tag is None


def test_a_topic_without_headers_gets_a_body_unpacked_if_it_fits(
    broker: BackgroundBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("plain.dead")
    broker.create_channel("plain.dead", "test")
    large, how = compress_body("gzip", LARGE)
    small, how_small = compress_body("snappy", LARGE[:5000])
    with caplog.at_level(logging.WARNING, dead_letters.logger.name):
        publish(broker, "plain.dead", [(large, how), (small, how_small), (b"?", how)])
    found = {message.body for message in received(broker, "plain.dead", 3)}
    assert found == {large, LARGE[:5000], b"?"}
    [record] = caplog.records
    assert record.getMessage() == (
        f"dead letter {(b'%016d' % 0).hex()} is published to 'plain.dead' as it came, compressed "
        "by gzip: unpacked it has 2097152 bytes, and nsqd takes 1 to 1048576 by default; "
        "'plain.dead' takes no headers, which would say so"
    )


@asynccontextmanager
async def tls_in_front_of(http: str, certificates: Certificates) -> AsyncIterator[str]:
    """Serve an HTTP server by HTTPS, at the address that is yielded."""
    host, _, port = http.removeprefix("http://").rpartition(":")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(host, int(port))
        await asyncio.gather(forward(reader, requests), forward(answers, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("extended", [False, True])
@asynchronous
async def test_nsqlookupd_is_asked_by_https_if_its_address_says_so(
    broker: BackgroundBroker, certificates: Certificates, extended: bool
) -> None:
    topic = f"tls{extended}.dead"
    broker.create_topic(topic, extended=extended)
    broker.create_channel(topic, "test")
    async with tls_in_front_of(broker.lookupd_addresses[0], certificates) as address:
        more = {"lookupd": address, "tlsCaFile": str(certificates.ca)}
        await asyncio.to_thread(publish, broker, topic, [(b"1", {"a": "b"})], **more)
    assert [message.body for message in received(broker, topic, 1)] == [b"1"]
