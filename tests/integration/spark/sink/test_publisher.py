"""Publishing over several nsqd: all of it arrives, whichever of them fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from nsqflow.errors import (
    BadBodyError,
    BadMessageError,
    InvalidCommandError,
    TlsNotGrantedError,
    UnauthorizedError,
)
from nsqflow.protocol import Dpub, MessageBatch, Rdy
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from nsqflow.spark.sink import publisher as module
from nsqflow.spark.sink.columns import ColumnIndexes
from nsqflow.spark.sink.encoder import PackedMpub
from nsqflow.spark.sink.publisher import Publisher
from nsqflow.transport.sync_connection import SyncConnection
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd
from tests.unit.spark.sink.publications import PLAIN, bodies_of, commands, publish_all, refusal
from tests.unit.spark.sink.record_batches import BatchEncoder

numbers = count(1)


@pytest.fixture
def topic() -> str:
    return f"publisher_{next(numbers)}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Two nsqd that take little."""
    options = ["-max-msg-size=100000", "-max-body-size=200000"]
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp("nsqd") for _ in range(2)]
        yield [stack.enter_context(start_nsqd(folder, options=options)) for folder in folders]


def drain(nsqd: Nsqd, topic: str) -> Counter[bytes]:
    """Return all bodies that an nsqd has of a topic without readers."""
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])
    depth = sum(each["depth"] for each in stats["topics"])
    received: Counter[bytes] = Counter()
    with closing(
        connect(nsqd.tcp_address, PLAIN, topic=topic, channel="c", output_buffer_timeout=0.025)
    ) as link:
        link.send(Rdy(2500))
        while received.total() < depth:
            receive(link, received)
    return received


def receive(link: SyncConnection, received: Counter[bytes]) -> None:
    events = link.receive(PATIENCE)
    assert events, "nothing came"
    for event in events:
        assert isinstance(event, MessageBatch)
        received.update(event.columns().bodies())
        link.session.finish_packed(event.columns().ids)
    link.flush()


def expected(sent: list[PackedMpub]) -> Counter[bytes]:
    return Counter(body for command in sent for body in bodies_of(command))


# With real nsqd


def test_all_is_stored_and_spread_over_all_nsqd(pair: list[Nsqd], topic: str) -> None:
    sent = commands(topic, 40, each=50)
    addresses = [nsqd.tcp_address for nsqd in pair]
    with closing(Publisher(addresses, PLAIN)) as publisher:
        publish_all(publisher, sent)
        assert publisher.acknowledged == dict.fromkeys(addresses, 1000)
    assert drain(pair[0], topic) + drain(pair[1], topic) == expected(sent)


def test_delayed_messages_are_delivered_when_due(pair: list[Nsqd], topic: str) -> None:
    with closing(Publisher([pair[0].tcp_address], PLAIN)) as publisher:
        publish_all(publisher, [Dpub(topic, 1 + n % 20, b"%d" % n) for n in range(500)])
        assert publisher.acknowledged == {pair[0].tcp_address: 500}
    received: Counter[bytes] = Counter()
    with closing(connect(pair[0].tcp_address, PLAIN, topic=topic, channel="c")) as link:
        link.send(Rdy(500))
        while received.total() < 500:
            receive(link, received)
    assert received == Counter(b"%d" % n for n in range(500))


@pytest.mark.parametrize(
    "access", [Access(snappy=True), Access(deflate=True), Access(tls=True, tls_verify=False)]
)
def test_it_compresses_and_encrypts(nsqd: Nsqd, topic: str, access: Access) -> None:
    sent = commands(topic, 20, each=400)
    with closing(Publisher([nsqd.tcp_address], access)) as publisher:
        publish_all(publisher, sent)
    assert drain(nsqd, topic) == expected(sent)


def test_what_one_nsqd_cannot_take_the_other_does(
    pair: list[Nsqd], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = commands(topic, 20)
    with (
        caplog.at_level(logging.WARNING, "nsqflow.spark"),
        closing(Publisher(["127.0.0.1:1", pair[0].tcp_address], PLAIN)) as publisher,
    ):
        publish_all(publisher, sent)
        assert publisher.acknowledged == {pair[0].tcp_address: 20}
    assert drain(pair[0], topic) == expected(sent)
    assert "127.0.0.1:1: " in caplog.text


def test_an_nsqd_that_is_killed_costs_no_message_that_others_can_take(
    tmp_path: Path, pair: list[Nsqd], topic: str
) -> None:
    sent = commands(topic, 60, each=20)
    with (
        start_nsqd(tmp_path) as mortal,
        closing(Publisher([mortal.tcp_address, pair[0].tcp_address], PLAIN)) as publisher,
    ):
        for n, command in enumerate(sent):
            publisher.publish(command)
            if n == 20:
                mortal.kill()
        publisher.finish()
        acknowledged = publisher.acknowledged
    # What the one that was killed had acknowledged is its own loss.
    survived = drain(pair[0], topic)
    assert not survived - expected(sent)
    assert survived.total() + acknowledged.get(mortal.tcp_address, 0) == 60 * 20


def test_an_nsqd_that_comes_back_is_used_again(tmp_path: Path, topic: str) -> None:
    sent = commands(topic, 10)
    with start_nsqd(tmp_path) as first:
        address = first.tcp_address
        publisher = Publisher([address], PLAIN)
        with closing(publisher):
            publisher.publish(sent[0])
            publisher.finish()
            first.stop()
            rest = threading.Thread(target=publish_all, args=(publisher, sent[1:]))
            rest.start()
            with start_nsqd(tmp_path, options=[f"-tcp-address={address}"]) as second:
                rest.join(PATIENCE)
                assert not rest.is_alive()
                assert publisher.acknowledged == {address: 10}
                received = drain(second, topic)
    # At least once: the first that was sent into the void may have gone twice.
    assert set(received) == set(expected(sent))


def test_a_message_that_is_too_large_is_an_error_that_says_so(pair: list[Nsqd], topic: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", bytes(100_001)])], names=["body"])
    sent = BatchEncoder(ColumnIndexes(0), topic, 10**6).commands(batch)
    error = refusal(pair[0].tcp_address, sent)
    assert isinstance(error, BadMessageError)
    assert pair[0].tcp_address in str(error)
    assert "the largest has 100001 bytes, its -max-msg-size allows fewer" in str(error)


def test_a_batch_that_is_too_large_is_an_error_that_says_so(pair: list[Nsqd], topic: str) -> None:
    error = refusal(pair[0].tcp_address, commands(topic, 3, each=2000))
    assert isinstance(error, BadBodyError)
    assert pair[0].tcp_address in str(error)
    assert "maxBatchBytes must not be above its -max-body-size" in str(error)


def test_an_unauthorized_publish_is_not_retried(tmp_path: Path, topic: str) -> None:
    with (
        AuthServer({"reader": [Authorization(permissions=["subscribe"])]}) as auth,
        start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as strict,
    ):
        access = Access(auth_secret="reader")
        error = refusal(strict.tcp_address, commands(topic, 1), access)
        assert isinstance(error, UnauthorizedError)
        assert strict.tcp_address in str(error)
        assert len(auth.requests) == 1


def test_a_delay_above_the_limit_of_nsqd_is_not_retried(tmp_path: Path, topic: str) -> None:
    with start_nsqd(tmp_path, options=["-max-req-timeout=1s"]) as hasty:
        error = refusal(hasty.tcp_address, [Dpub(topic, 1001, b"body")])
        assert isinstance(error, InvalidCommandError)
        assert "out of range" in str(error)


def test_what_is_wrong_with_the_options_is_raised_at_once(pair: list[Nsqd], topic: str) -> None:
    error = refusal(pair[0].tcp_address, commands(topic, 1), Access(tls=True))
    assert isinstance(error, TlsNotGrantedError)


def test_a_dead_nsqd_is_named_at_once_and_tried_until_it_is_back(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with start_nsqd(tmp_path) as nsqd:
        address, options = nsqd.tcp_address, [f"-tcp-address={nsqd.tcp_address}"]
    sent = commands(topic, 2)
    with (
        caplog.at_level(logging.WARNING, "nsqflow.spark.sink.publisher"),
        closing(Publisher([address], PLAIN)) as publisher,
    ):
        publishing = threading.Thread(target=publish_all, args=(publisher, sent))
        publishing.start()
        await_warning(caplog)
        assert publishing.is_alive()
        with start_nsqd(tmp_path, options=options) as nsqd:
            publishing.join(PATIENCE)
            assert drain(nsqd, topic) == expected(sent)
    assert re.fullmatch(
        rf"the sink can't publish to nsqd {address}: \[Errno \d+\] Connection refused; 0 commands "
        r"unanswered, next try in 0.25 s; the task fails when no nsqd answers for 60 s",
        caplog.messages[0],
    )


def test_an_nsqd_that_hangs_is_named_before_five_seconds_are_over(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        max(module._FIRST_CONNECT_TIMEOUT, module._SHORT_CONNECT_TIMEOUT, module._SLOW_RESPONSE)
        <= 4
    )
    monkeypatch.setattr(module, "_FIRST_CONNECT_TIMEOUT", 0.2)
    monkeypatch.setattr(module, "_SLOW_RESPONSE", 0.2)
    sent = commands(topic, 2)
    with (
        caplog.at_level(logging.WARNING, "nsqflow.spark.sink.publisher"),
        start_nsqd(tmp_path) as nsqd,
        closing(Publisher([nsqd.tcp_address], PLAIN)) as publisher,
    ):
        for command, said in [
            (sent[0], f"the sink can't publish to nsqd {nsqd.tcp_address}: "),
            (sent[1], f"the sink waits for nsqd {nsqd.tcp_address}: no answer to 1 commands for "),
        ]:
            caplog.clear()
            nsqd.process.send_signal(signal.SIGSTOP)
            publishing = threading.Thread(target=publish_all, args=(publisher, [command]))
            publishing.start()
            try:
                await_warning(caplog)
                assert publishing.is_alive()
            finally:
                nsqd.process.send_signal(signal.SIGCONT)
            publishing.join(PATIENCE)
            assert caplog.messages[0].startswith(said)
        assert drain(nsqd, topic) == expected(sent)
        assert [message for message in caplog.messages if "waits for" in message][1:] == []


def await_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Wait for the first one."""
    deadline = time.monotonic() + PATIENCE
    while not caplog.messages:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_no_socket_is_left_behind(pair: list[Nsqd], topic: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    publisher = Publisher([nsqd.tcp_address for nsqd in pair], PLAIN)
    for command in commands(topic, 4):
        publisher.publish(command)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    publisher.close()
    publisher.close()
    assert len(os.listdir("/proc/self/fd")) == before


# With peers that misbehave


@asynchronous
async def test_a_network_that_is_cut_again_and_again_loses_nothing(pair: list[Nsqd]) -> None:
    topic = f"publisher_{next(numbers)}"
    sent = commands(topic, 300, each=20)
    async with Proxy(pair[0].tcp_address) as proxy:
        with closing(Publisher([proxy.address], PLAIN)) as publisher:
            work = asyncio.create_task(asyncio.to_thread(publish_all, publisher, sent))
            for _ in range(3):
                proxy.limit(700)  # bytes: the answer to IDENTIFY, and those to some commands
                await eventually(lambda: proxy.left is None)
            await work
        assert proxy.connections == 4
    received = await asyncio.to_thread(drain, pair[0], topic)
    assert set(received) == set(expected(sent))
