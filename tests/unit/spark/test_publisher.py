"""Publishing over several nsqd: all of it arrives, whichever of them fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from nsqflow.errors import (
    BadBodyError,
    BadMessageError,
    ConfigError,
    InvalidCommandError,
    NetworkError,
    NsqError,
    TlsNotGrantedError,
    UnauthorizedError,
)
from nsqflow.protocol import Dpub, IdentifyReply, MessageBatch, Mpub, Rdy
from nsqflow.spark import publisher as module
from nsqflow.spark.access import Access
from nsqflow.spark.link import Link
from nsqflow.spark.mpub import Encoder, PackedMpub, Places
from nsqflow.spark.publisher import Publication, Publisher
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.loops import BEHAVE, CLOSE, HANG, RESET, Deed, asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

PLAIN = Access()

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


def commands(topic: str, number: int, each: int = 1) -> list[PackedMpub]:
    """So many commands of so many messages each, all of them different."""
    made: list[PackedMpub] = []
    for n in range(number):
        bodies = [b"%d:%d " % (n, m) + b"." * 200 for m in range(each)]
        batch = pa.RecordBatch.from_arrays([pa.array(bodies)], names=["body"])
        (command,) = Encoder(Places(0), topic, 2**30).commands(batch)
        assert isinstance(command, PackedMpub)
        made.append(command)
    return made


def bodies_of(command: PackedMpub) -> list[bytes]:
    bodies = []
    rest = bytes(command.bodies)
    while rest:
        size = 4 + int.from_bytes(rest[:4], "big")
        bodies.append(rest[4:size])
        rest = rest[size:]
    return bodies


def drain(nsqd: Nsqd, topic: str) -> Counter[bytes]:
    """All bodies that an nsqd holds, of a topic that nobody reads yet."""
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])
    depth = sum(each["depth"] for each in stats["topics"])
    received: Counter[bytes] = Counter()
    with closing(
        Link.open(nsqd.tcp_address, PLAIN, topic=topic, channel="c", output_buffer_timeout=0.025)
    ) as link:
        link.send(Rdy(2500))
        while received.total() < depth:
            receive(link, received)
    return received


def receive(link: Link, received: Counter[bytes]) -> None:
    events = link.receive(PATIENCE)
    assert events, "nothing came"
    for event in events:
        assert isinstance(event, MessageBatch)
        received.update(event.columns().bodies())
        link.session.finish_packed(event.columns().ids)
    link.flush()


def publish_all(publisher: Publisher, sent: Iterable[Publication]) -> None:
    for command in sent:
        publisher.publish(command)
    publisher.finish()


def refusal(
    address: str, sent: Iterable[Publication], access: Access = PLAIN, **limits: float
) -> NsqError:
    """What comes of publishing what can't be published."""
    with (
        closing(Publisher([address], access, **limits)) as publisher,
        pytest.raises(NsqError) as caught,
    ):
        publish_all(publisher, sent)
    return caught.value


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


def test_delayed_messages_come_when_they_are_due(pair: list[Nsqd], topic: str) -> None:
    with closing(Publisher([pair[0].tcp_address], PLAIN)) as publisher:
        publish_all(publisher, [Dpub(topic, 1 + n % 20, b"%d" % n) for n in range(500)])
        assert publisher.acknowledged == {pair[0].tcp_address: 500}
    received: Counter[bytes] = Counter()
    with closing(Link.open(pair[0].tcp_address, PLAIN, topic=topic, channel="c")) as link:
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


def test_nothing_is_connected_before_there_is_something_to_publish() -> None:
    with closing(Publisher(["127.0.0.1:1"], PLAIN)) as publisher:
        publisher.finish()
        assert publisher.acknowledged == {}


def test_what_one_nsqd_can_not_take_the_other_does(
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
    sent = Encoder(Places(0), topic, 10**6).commands(batch)
    error = refusal(pair[0].tcp_address, sent)
    assert isinstance(error, BadMessageError)
    assert pair[0].tcp_address in str(error)
    assert "the largest has 100001 bytes, its -max-msg-size allows fewer" in str(error)


def test_a_batch_that_is_too_large_is_an_error_that_says_so(pair: list[Nsqd], topic: str) -> None:
    error = refusal(pair[0].tcp_address, commands(topic, 3, each=2000))
    assert isinstance(error, BadBodyError)
    assert pair[0].tcp_address in str(error)
    assert "maxBatchBytes must not be above its -max-body-size" in str(error)


def test_what_may_not_be_published_is_not_tried_again(tmp_path: Path, topic: str) -> None:
    with (
        AuthServer({"reader": [Authorization(permissions=["subscribe"])]}) as auth,
        start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as strict,
    ):
        access = Access(auth_secret="reader")
        error = refusal(strict.tcp_address, commands(topic, 1), access)
        assert isinstance(error, UnauthorizedError)
        assert strict.tcp_address in str(error)
        assert len(auth.requests) == 1


def test_a_delay_beyond_what_nsqd_takes_is_not_tried_again(tmp_path: Path, topic: str) -> None:
    with start_nsqd(tmp_path, options=["-max-req-timeout=1s"]) as hasty:
        error = refusal(hasty.tcp_address, [Dpub(topic, 1001, b"body")])
        assert isinstance(error, InvalidCommandError)
        assert "out of range" in str(error)


def test_what_is_wrong_with_the_options_is_raised_at_once(pair: list[Nsqd], topic: str) -> None:
    error = refusal(pair[0].tcp_address, commands(topic, 1), Access(tls=True))
    assert isinstance(error, TlsNotGrantedError)


def test_with_nobody_there_it_ends_and_says_why() -> None:
    error = refusal("127.0.0.1:1", commands("t", 1), patience=0.3)
    assert isinstance(error, NetworkError)
    assert str(error).startswith("no nsqd has acknowledged anything for 0.3 s: 127.0.0.1:1: [Errno")


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


@pytest.mark.parametrize("deed", [CLOSE, RESET])
@asynchronous
async def test_what_was_unanswered_goes_again_and_what_was_answered_does_not(deed: Deed) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(Mpub, [BEHAVE, BEHAVE, BEHAVE, deed])
        sent = commands("t", 6)
        with closing(Publisher([peer.address], PLAIN)) as publisher:
            await asyncio.to_thread(publish_all, publisher, sent)
            assert publisher.acknowledged == {peer.address: 6}
        received = Counter(
            body
            for command in peer.commands
            if isinstance(command, Mpub)
            for body in command.bodies
        )
        # The fourth was refused; what is behind it may have been read before the end.
        assert set(received) == set(expected(sent))
        firsts = [body for command in sent[:3] for body in bodies_of(command)]
        assert all(received[body] == 1 for body in firsts)
        assert received[bodies_of(sent[3])[0]] == 2


@asynchronous
async def test_a_failure_of_nsqd_itself_is_tried_again() -> None:
    async with ScriptedNsqd() as peer:

        def fail(connection: Connection, _: Mpub) -> None:
            connection.send_error(b"E_MPUB_FAILED MPUB failed exiting")
            connection.close()

        peer.on(Mpub, [fail])
        with closing(Publisher([peer.address], PLAIN)) as publisher:
            await asyncio.to_thread(publish_all, publisher, commands("t", 3))
            assert publisher.acknowledged == {peer.address: 3}
        assert len(peer.connections) == 2


@asynchronous
async def test_an_nsqd_that_never_answers_is_given_up_for_another() -> None:
    async with ScriptedNsqd() as mute, ScriptedNsqd() as peer:
        mute.on(Mpub, HANG)
        sent = commands("t", 8)
        with closing(Publisher([mute.address, peer.address], PLAIN, silence=0.2)) as publisher:
            await asyncio.to_thread(publish_all, publisher, sent)
            assert publisher.acknowledged == {peer.address: 8}


@asynchronous
async def test_nobody_who_answers_ends_in_an_error() -> None:
    async with ScriptedNsqd() as mute:
        mute.on(Mpub, HANG)
        error = await asyncio.to_thread(
            refusal, mute.address, commands("t", 2), patience=0.5, silence=0.2
        )
        assert "for 0.5 s: " in str(error)
        assert f"{mute.address}: no answer within 0.2 s" in str(error)


@asynchronous
async def test_what_is_unanswered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LANE", 1000)
    monkeypatch.setattr(module, "_ALL", 1500)
    held: list[Connection] = []

    def holds(number: int) -> bool:
        assert len(held) <= number
        return len(held) == number

    async with ScriptedNsqd() as first, ScriptedNsqd() as second:
        for peer in (first, second):
            peer.on(Mpub, lambda connection, _: held.append(connection))
        # Each has some 210 bytes: with 8 of them unanswered the ninth waits.
        with closing(Publisher([first.address, second.address], PLAIN)) as publisher:
            work = asyncio.create_task(asyncio.to_thread(publish_all, publisher, commands("t", 20)))
            for answered in range(20):
                await eventually(partial(holds, min(20, 8 + answered)))
                held[answered].send_response()
            await work


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


@asynchronous
async def test_an_nsqd_of_the_redesigned_nsq_is_refused_at_once() -> None:
    async with ScriptedNsqd(IdentifyReply(version="0.3.7-HA.1.13.0")) as peer:
        error = await asyncio.to_thread(refusal, peer.address, commands("t", 1))
        assert isinstance(error, ConfigError)
        assert "redesigned" in str(error)
