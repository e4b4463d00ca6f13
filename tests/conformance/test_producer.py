"""The producer against real servers: what it promises is what nsqd has."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nsqflow import (
    ConfigError,
    LocalProtocolError,
    NsqError,
    Producer,
    RequestTimeout,
    admin,
)
from nsqflow.errors import (
    AuthFailedError,
    BadMessageError,
    InvalidCommandError,
    UnauthorizedError,
)
from nsqflow.protocol import Fin, IdentifyRequest, Rdy, Sub, Subscribed
from tests.conformance.driver import Client
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, on an nsqd that it shares with others."""
    return re.sub(r"\W", "_", request.node.name)[-60:]


@pytest.fixture(scope="module")
def strict_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that takes less than the client believes."""
    folder = tmp_path_factory.mktemp("strict-nsqd")
    with start_nsqd(
        folder, kind=server_kind, options=["-max-msg-size=1000", "-max-body-size=10000"]
    ) as server:
        yield server


@pytest.fixture(scope="module")
def pair(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Two nsqd."""
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")]
        yield [stack.enter_context(start_nsqd(folder, kind=server_kind)) for folder in folders]


def topic_stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    status, body = nsqd.ask(f"/stats?format=json&topic={topic.replace('#', '%23')}")
    assert status == 200, body
    topics = json.loads(body)["topics"] or [{"message_count": 0, "channels": []}]
    stats: dict[str, Any] = topics[0]
    return stats


def count_of(nsqd: Nsqd, topic: str) -> int:
    """Return how many messages nsqd has stored in a topic since its start."""
    count: int = topic_stats(nsqd, topic)["message_count"]
    return count


def stored(nsqd: Nsqd, topic: str, channel: str = "reader") -> list[bytes]:
    """All that nsqd has stored in a topic, in its order."""
    total = count_of(nsqd, topic)
    bodies: list[bytes] = []
    with Client(nsqd.connect(), IdentifyRequest(output_buffer_size=-1)) as client:
        client.negotiate()
        client.request(Sub(topic, channel), Subscribed)
        client.send(Rdy(100))
        while len(bodies) < total:
            messages = client.batch().messages()
            client.send(*(Fin(message.id) for message in messages))
            bodies += [message.body for message in messages]
    return bodies


def connections(nsqd: Nsqd) -> int:
    """How many clients nsqd has had so far, by its log."""
    return sum("TCP: new client" in line for line in nsqd.log)


async def outcomes(*publishes: Any) -> list[Any]:
    """What became of each: None, or the exception."""
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*publishes, return_exceptions=True)


# Publishing


@pytest.mark.proves(rows=[53], wishes=[3])
@asynchronous
async def test_a_publish_returns_when_nsqd_has_the_message(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        assert await producer.publish(topic, b"hello") is None
        assert count_of(nsqd, topic) == 1
        assert stored(nsqd, topic) == [b"hello"]


@asynchronous
async def test_send_returns_a_future_for_each_message_and_keeps_the_order(
    nsqd: Nsqd, topic: str
) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(100)]
        assert not any(future.done() for future in futures), "nothing is sent within the call"
        assert await asyncio.gather(*futures) == [None] * 100
        await producer.send(topic, b"deferred", delay=0.1)
        assert count_of(nsqd, topic) == 101
    assert stored(nsqd, topic)[:100] == [b"%d" % number for number in range(100)]


@asynchronous
async def test_send_raises_at_once_for_wrong_arguments_and_when_closed(
    nsqd: Nsqd, topic: str
) -> None:
    wrong: list[tuple[str, Any, dict[str, Any]]] = [
        (topic, b"", {}),
        ("no topic!", b"x", {}),
        ("no topic!", b"x", {"delay": 1}),
        (topic, b"x", {"delay": -1}),
        (topic, b"x", {"timeout": 0}),
        (topic, b"x", {"key": b"k"}),
    ]
    async with Producer(nsqd.tcp_address) as producer:
        for name, body, options in wrong:
            with pytest.raises(ConfigError):
                producer.send(name, body, **options)
        with pytest.raises(TypeError):
            producer.send(topic, "text")  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="closed"):
        producer.send(topic, b"x")
    assert count_of(nsqd, topic) == 0


@asynchronous
async def test_close_waits_for_what_was_sent(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(10)]
    assert [future.result() for future in futures] == [None] * 10
    assert count_of(nsqd, topic) == 10


@asynchronous
async def test_a_send_that_is_cancelled_in_time_is_not_published(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        futures = [producer.send(topic, body) for body in (b"1", b"2", b"3")]
        assert futures[1].cancel()
        await asyncio.gather(futures[0], futures[2])
    assert stored(nsqd, topic) == [b"1", b"3"]


@asynchronous(uvloop=True)
async def test_all_ways_to_publish_work_on_uvloop(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await asyncio.gather(*(producer.publish(topic, b"%d" % i) for i in range(100)))
        await producer.publish_many(topic, [b"%d" % i for i in range(100, 200)])
        await producer.publish(topic, b"200", delay=0)
        assert stored(nsqd, topic) == [b"%d" % i for i in range(201)]


@pytest.mark.proves(rows=[54])
@asynchronous
async def test_many_messages_are_published_by_one_call(nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % i for i in range(1000)]
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, bodies)
        assert stored(nsqd, topic) == bodies


@asynchronous
async def test_publish_many_of_no_messages_sends_nothing(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, [])
        assert count_of(nsqd, topic) == 0


@asynchronous
async def test_more_than_one_command_takes_is_split(nsqd: Nsqd, topic: str) -> None:
    # nsqd takes 5 MiB in a command, and these are 12.
    bodies = [bytes([i]) * 1024 * 1024 for i in range(1, 13)]
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, bodies)
        assert stored(nsqd, topic) == bodies


@pytest.mark.proves(rows=[55])
@asynchronous
async def test_a_delayed_message_is_deferred_by_nsqd(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        async with admin.Nsqd(nsqd.http_address) as api:
            await api.create_topic(topic)
            await api.create_channel(topic, "ch")
        await producer.publish(topic, b"later", delay=3000)
        await producer.publish(topic, b"now", delay=0)

        def channel() -> Any:
            [channel] = topic_stats(nsqd, topic)["channels"]
            return channel

        await eventually(lambda: bool(channel()["message_count"] == 2))
        assert channel()["deferred_count"] == 1
        assert channel()["depth"] == 1


@asynchronous
async def test_what_one_caller_publishes_arrives_in_its_order(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        tasks = []
        for i in range(0, 600, 6):
            # One after the other without waiting, by every way, and with timeouts of all kinds.
            many = [b"%d" % (i + 4), b"%d" % (i + 5)]
            tasks += [
                asyncio.create_task(producer.publish(topic, b"%d" % i)),
                asyncio.create_task(producer.publish(topic, b"%d" % (i + 1), timeout=19)),
                asyncio.create_task(producer.publish(topic, b"%d" % (i + 2), delay=0)),
                asyncio.create_task(producer.publish(topic, b"%d" % (i + 3))),
                asyncio.create_task(producer.publish_many(topic, many)),
            ]
        await asyncio.gather(*tasks)
        assert stored(nsqd, topic) == [b"%d" % i for i in range(600)]


@asynchronous
async def test_many_topics_are_published_to_at_once(nsqd: Nsqd, topic: str) -> None:
    topics = [f"{topic}_{i}" for i in range(100)]
    async with Producer(nsqd.tcp_address) as producer:
        await asyncio.gather(
            *(producer.publish(each, b"%d" % i) for i in range(10) for each in topics)
        )
    assert {count_of(nsqd, each) for each in topics} == {10}


@pytest.mark.proves(defects=[4])
@asynchronous
async def test_names_of_one_letter_and_of_64_are_published_to(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        for name in ("t", "T" * 64, "producer_brief#ephemeral"):
            await producer.publish(name, b"x")
            assert count_of(nsqd, name) == 1


@asynchronous
async def test_bodies_may_be_any_kind_of_bytes(nsqd: Nsqd, topic: str) -> None:
    given = bytearray(b"two")
    async with Producer(nsqd.tcp_address) as producer:
        publish = asyncio.create_task(producer.publish(topic, given))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        given[:] = b"???"  # what the caller does with it afterwards is no matter
        await publish
        await producer.publish_many(topic, [b"one", bytearray(b"three"), memoryview(b"four")])  # type: ignore[list-item]
    assert stored(nsqd, topic) == [b"two", b"one", b"three", b"four"]


@pytest.mark.proves(defects=[8])
@pytest.mark.parametrize("compression", ["none", "snappy", "deflate"])
@pytest.mark.parametrize("encrypted", [False, True])
@asynchronous
async def test_publishing_works_through_tls_and_compression(
    nsqd: Nsqd, topic: str, certificates: Certificates, compression: str, encrypted: bool
) -> None:
    async with Producer(
        nsqd.tcp_address,
        tls=ssl.create_default_context(cafile=certificates.ca) if encrypted else None,
        snappy=compression == "snappy",
        deflate=compression == "deflate",
    ) as producer:
        await producer.publish(topic, b"one")
        await producer.publish_many(topic, [b"two" * 10_000, b"three"])
    assert stored(nsqd, topic) == [b"one", b"two" * 10_000, b"three"]


@asynchronous
async def test_a_producer_works_without_async_with(nsqd: Nsqd, topic: str) -> None:
    producer = Producer(nsqd.tcp_address)
    await producer.publish(topic, b"x")
    await producer.close()
    assert count_of(nsqd, topic) == 1


@asynchronous
async def test_a_producer_that_was_never_used_closes(nsqd: Nsqd) -> None:
    await Producer(nsqd.tcp_address).close()
    async with Producer(nsqd.tcp_address):
        pass


# What is refused


@pytest.mark.proves(defects=[5])
@asynchronous
async def test_an_empty_body_is_refused_and_the_next_publish_succeeds(
    nsqd: Nsqd, topic: str
) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(ConfigError, match="body of 0 bytes"):
            await producer.publish(topic, b"")
        with pytest.raises(ConfigError, match="body 1 of 0 bytes"):
            await producer.publish_many(topic, [b"a", b"", b"b"])
        with pytest.raises(ConfigError, match="body of 0 bytes"):
            await producer.publish(topic, b"", delay=1)
        await producer.publish(topic, b"next")
    assert stored(nsqd, topic) == [b"next"]


@asynchronous
async def test_what_is_wrong_by_itself_is_refused_before_anything_is_sent(
    nsqd: Nsqd, topic: str
) -> None:
    async with Producer(nsqd.tcp_address, max_msg_size=10) as producer:
        for body in (b"x" * 11, bytearray(11)):
            with pytest.raises(ConfigError, match=r"body of 11 bytes .* 1 to 10 "):
                await producer.publish(topic, body)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="body 1 of 11 bytes"):
            await producer.publish_many(topic, [b"x", b"x" * 11])
        with pytest.raises(TypeError, match="body is str: must be bytes"):
            await producer.publish(topic, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="body 0 is int"):
            await producer.publish_many(topic, [1, b"x"])  # type: ignore[list-item]
        for name in ("", "a b", "x" * 65, "ä"):
            for call in (producer.publish(name, b"x"), producer.publish_many(name, [b"x"])):
                with pytest.raises(NsqError, match=re.escape(repr(name))):
                    await call
            with pytest.raises(NsqError, match=re.escape(repr(name))):
                await producer.publish(name, b"x", delay=1)
        delays: list[Any] = [-1.0, float("nan"), float("inf"), 2e9, "5", True]
        for delay in delays:
            with pytest.raises(ConfigError, match=f"delay={delay!r}"):
                await producer.publish(topic, b"x", delay=delay)
        timeouts: list[Any] = [0.0, -1.0, float("nan"), float("inf"), "5", True]
        for timeout in timeouts:
            refused = f"timeout={timeout!r} is invalid: must be a number > 0"
            with pytest.raises(ConfigError, match=refused):
                await producer.publish(topic, b"x", timeout=timeout)
            with pytest.raises(ConfigError, match=refused):
                await producer.publish_many(topic, [b"x"], timeout=timeout)
    assert count_of(nsqd, topic) == 0


@pytest.mark.parametrize(
    "option", [{"key": b"k"}, {"partition": 0}, {"trace": 0}, {"headers": {}}, {"tag": "t"}]
)
@asynchronous
async def test_what_classic_nsq_does_not_have_is_refused(
    nsqd: Nsqd, topic: str, option: dict[str, Any]
) -> None:
    [name] = option
    async with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(ConfigError, match=name):
            await producer.publish(topic, b"x", **option)
        if name in ("key", "partition"):
            with pytest.raises(ConfigError, match=name):
                await producer.publish_many(topic, [b"x"], **option)
    assert count_of(nsqd, topic) == 0


@pytest.mark.proves(defects=[4], wishes=[21])
@asynchronous
async def test_what_nsqd_refuses_is_raised(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address, reconnect_delay=0.1) as producer:
        with pytest.raises(InvalidCommandError, match="E_INVALID DPUB timeout"):
            await producer.publish(topic, b"x", delay=1_000_000)  # nsqd defers by an hour at most
        await producer.publish(topic, b"next")
    assert stored(nsqd, topic) == [b"next"]


@pytest.mark.proves(wishes=[21])
@asynchronous
async def test_of_a_batch_only_the_bad_message_fails(strict_nsqd: Nsqd, topic: str) -> None:
    bodies = [b"%d" % i for i in range(20)]
    bodies[7] = b"7" * 1001
    async with Producer(strict_nsqd.tcp_address, reconnect_delay=0.1) as producer:
        results = await outcomes(*(producer.publish(topic, body) for body in bodies))
    assert isinstance(results[7], BadMessageError)
    assert [*filter(None, results)] == [results[7]]
    assert stored(strict_nsqd, topic) == bodies[:7] + bodies[8:]


@asynchronous
async def test_a_bad_message_does_not_hold_up_its_neighbours(strict_nsqd: Nsqd, topic: str) -> None:
    # nsqd closes the connection over it, but there is no reason to wait: nsqd is well.
    async with Producer(
        strict_nsqd.tcp_address, reconnect_delay=60, publish_timeout=PATIENCE
    ) as producer:
        bodies = [b"1", b"!" * 1001, b"2", b"?" * 1001, b"3"]
        results = await outcomes(*(producer.publish(topic, body) for body in bodies))
        failed = [type(result) for result in results]
    assert failed == [type(None), BadMessageError, type(None), BadMessageError, type(None)]
    assert stored(strict_nsqd, topic) == [b"1", b"2", b"3"]


@asynchronous
async def test_the_last_error_frame_is_read_though_a_write_fails(
    strict_nsqd: Nsqd, topic: str
) -> None:
    async with Producer(strict_nsqd.tcp_address, reconnect_delay=0.1) as producer:
        await producer.publish(topic, b"connected")
        bad = asyncio.create_task(producer.publish_many(topic, [b"!" * 1001]))
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - nsqd refuses it and closes, and nothing here reads that
        # Two writes in one turn: the first is answered by a reset, the second fails.
        results = await outcomes(
            bad, producer.publish_many(topic, [b"1"]), producer.publish_many(topic, [b"2"])
        )
    assert [type(result) for result in results] == [BadMessageError, type(None), type(None)]
    assert stored(strict_nsqd, topic) == [b"connected", b"1", b"2"]


@asynchronous
async def test_publishes_after_one_that_is_refused_are_stored_once(
    strict_nsqd: Nsqd, topic: str
) -> None:
    bad = b"!" * 1001
    async with Producer(strict_nsqd.tcp_address, reconnect_delay=0.1) as producer:
        await producer.publish(topic, b"connected")
        tasks = []
        for i in range(20):
            # Each turn is a command of its own, and none waits for the answer before it.
            body = bad if i % 5 == 3 else b"%d" % i
            tasks.append(asyncio.create_task(producer.publish(topic, body)))
            await asyncio.sleep(0)
        results = await outcomes(*tasks)
    failed = [i for i, result in enumerate(results) if result is not None]
    assert failed == [3, 8, 13, 18]
    assert all(isinstance(results[i], BadMessageError) for i in failed)
    expected = [b"%d" % i for i in range(20) if i not in failed]
    assert stored(strict_nsqd, topic) == [b"connected", *expected]


@asynchronous
async def test_publish_many_says_which_of_its_messages_were_refused(
    strict_nsqd: Nsqd, topic: str
) -> None:
    bodies = [b"%d" % i * 100 for i in range(10)]
    bodies[2], bodies[7], bodies[8] = b"a" * 1001, b"b" * 1001, b"c" * 1001
    async with Producer(strict_nsqd.tcp_address, reconnect_delay=0.1) as producer:
        with pytest.raises(BadMessageError) as raised:
            await producer.publish_many(topic, bodies)
    ranges = raised.value.ranges
    assert ranges is not None
    assert ranges.accepted == (range(2), range(3, 7), range(9, 10))
    assert ranges.refused == (range(2, 3), range(7, 9))
    assert ranges.uncertain == ()
    assert "refused: 2 to 2, 7 to 8" in raised.value.__notes__[0]
    accepted = [body for body in bodies if len(body) <= 1000]
    assert stored(strict_nsqd, topic) == accepted


@asynchronous
async def test_batches_above_what_nsqd_takes_go_singly(strict_nsqd: Nsqd, topic: str) -> None:
    # 20 times 900 bytes are more than its -max-body-size, each is less than its -max-msg-size.
    bodies = [b"%02d" % i * 450 for i in range(20)]
    async with Producer(strict_nsqd.tcp_address, reconnect_delay=0.1) as producer:
        await producer.publish_many(topic, bodies)
        await asyncio.gather(*(producer.publish(topic, body) for body in bodies))
    assert stored(strict_nsqd, topic) == bodies * 2


# AUTH


@asynchronous
async def test_errors_of_auth_are_raised_with_nsqds_text(server_kind: Kind, tmp_path: Path) -> None:
    with (
        AuthServer({"s3cret": [Authorization(topic="mine")]}) as auth,
        start_nsqd(
            tmp_path, kind=server_kind, options=[f"-auth-http-address={auth.address}"]
        ) as nsqd,
    ):
        async with Producer(nsqd.tcp_address, auth_secret="wrong") as producer:
            with pytest.raises(AuthFailedError):
                await producer.publish("mine", b"x")
            with pytest.raises(AuthFailedError):  # no waiting for the next try, either
                await producer.publish_many("mine", [b"x", b"y"])
        async with Producer(nsqd.tcp_address) as producer:
            with pytest.raises(ConfigError, match="asks for AUTH"):
                await producer.publish("mine", b"x")
        async with Producer(
            nsqd.tcp_address, auth_secret="s3cret", reconnect_delay=0.1
        ) as producer:
            results = await outcomes(
                producer.publish("mine", b"1"),
                producer.publish("theirs", b"2"),
                producer.publish("mine", b"3", delay=0),
                producer.publish("theirs", b"4", delay=0),
            )
            await producer.publish("mine", b"5")
        refused = [type(result) for result in results]
        assert refused == [type(None), UnauthorizedError, type(None), UnauthorizedError]
        assert "s3cret" not in repr(producer)
        with Client(nsqd.connect()) as client:
            client.negotiate()
            assert client.session.reply.auth_required
        assert count_of(nsqd, "mine") == 3
        assert count_of(nsqd, "theirs") == 0


# Several nsqd


@pytest.mark.proves(wishes=[18])
@asynchronous
async def test_nsqd_take_turns(pair: list[Nsqd], topic: str) -> None:
    events = EventLog()
    addresses = [nsqd.tcp_address for nsqd in pair]
    async with Producer(addresses, on_event=events) as producer:
        await events.wait_for("connected", 2)
        for i in range(10):
            await producer.publish(topic, b"%d" % i)
    assert [count_of(nsqd, topic) for nsqd in pair] == [5, 5]


@pytest.mark.proves(rows=[56], wishes=[18])
@asynchronous
async def test_another_nsqd_takes_over_from_one_that_is_gone(
    server_kind: Kind, tmp_path: Path, pair: list[Nsqd], topic: str
) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as dying:
        addresses = [dying.tcp_address, pair[0].tcp_address]
        async with Producer(addresses, reconnect_delay=60, on_event=events) as producer:
            await events.wait_for("connected", 2)  # else there is nothing to lose
            await producer.publish(topic, b"0")
            dying.stop()
            await events.wait_for("disconnected")
            # Not one of them fails, or waits for the one that is gone: that would be a minute.
            for i in range(1, 50):
                async with asyncio.timeout(PATIENCE):
                    await producer.publish(topic, b"%d" % i)
    assert count_of(pair[0], topic) >= 49


@pytest.mark.proves(rows=[56])
@asynchronous
async def test_an_nsqd_that_is_down_from_the_start_is_skipped(
    server_kind: Kind, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as gone:
        pass
    async with Producer([gone.tcp_address, nsqd.tcp_address]) as producer:
        await asyncio.gather(*(producer.publish(topic, b"%d" % i) for i in range(10)))
        await producer.publish_many(topic, [b"10", b"11"])
    assert count_of(nsqd, topic) == 12


@pytest.mark.proves(rows=[57], wishes=[20])
@asynchronous
async def test_a_producer_reconnects_to_an_nsqd_that_comes_back(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as first:
        async with Producer(first.tcp_address, reconnect_delay=0.1, on_event=events) as producer:
            await producer.publish(topic, b"before")
            first.stop()
            await events.wait_for("disconnected")
            waiting = asyncio.create_task(producer.publish(topic, b"while it was gone"))
            options = [f"-tcp-address={first.tcp_address}"]
            with start_nsqd(tmp_path, kind=server_kind, options=options) as second:
                async with asyncio.timeout(PATIENCE):
                    await waiting
                    await producer.publish(topic, b"after")
                kept = stored_after_restart(second, topic)
    assert kept == [b"before", b"while it was gone", b"after"]


def stored_after_restart(nsqd: Nsqd, topic: str) -> list[bytes]:
    """Return all that nsqd holds: its count begins again with each start."""
    depth = topic_stats(nsqd, topic)["depth"]
    with Client(nsqd.connect(), IdentifyRequest(output_buffer_size=-1)) as client:
        client.negotiate()
        client.request(Sub(topic, "reader"), Subscribed)
        client.send(Rdy(100))
        # What was on disk and what is in memory come in any order.
        bodies = [message.body for message in client.messages(depth)]
    order = [b"before", b"while it was gone", b"after"]
    return sorted(bodies, key=order.index)


@asynchronous
async def test_connections_per_nsqd_are_all_used(server_kind: Kind, tmp_path: Path) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        async with Producer(nsqd.tcp_address, connections_per_nsqd=3, on_event=events) as producer:
            await events.wait_for("connected", 3)
            for i in range(9):
                await producer.publish("t", b"%d" % i)
            _, body = nsqd.ask("/stats?format=json&include_clients=true")
            clients = json.loads(body)["producers"]
            published = [client["pub_counts"][0]["count"] for client in clients]
        assert published == [3, 3, 3]


# Time


@pytest.mark.proves(wishes=[12])
@asynchronous
async def test_an_idle_producer_answers_heartbeats_and_loses_nothing(
    server_kind: Kind, tmp_path: Path
) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        async with Producer(nsqd.tcp_address, heartbeat_interval=1, on_event=events) as producer:
            await events.wait_for("connected")
            # nsqd drops a client that is silent for two intervals.
            await asyncio.sleep(3.5)
            await producer.publish("t", b"first")
            assert count_of(nsqd, "t") == 1
            assert events.kinds == ["connected"]
        assert connections(nsqd) == 1


@pytest.mark.proves(wishes=[17, 20])
@asynchronous
async def test_a_publish_without_a_connection_waits_until_its_timeout_and_says_why(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as gone:
        pass
    async with Producer(
        gone.tcp_address, reconnect_delay=1000, max_reconnect_delay=1000, on_event=events
    ) as producer:
        await events.wait_for("connect_failed")
        why = rf"not sent in time: {re.escape(gone.tcp_address)}: .*[Cc]onnect"
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=why):
            await producer.publish(topic, b"x", timeout=0.3)
        assert time.monotonic() - began >= 0.3
        with pytest.raises(RequestTimeout, match=why) as raised:
            await producer.publish_many(topic, [b"x", b"y"], timeout=0.3)
        assert raised.value.ranges is not None
        assert raised.value.ranges.refused == (range(2),)


@pytest.mark.proves(wishes=[20])
@asynchronous
async def test_a_publish_has_an_nsqd_dialled_at_once_that_waits_for_its_next_dial(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as first:
        pass
    async with Producer(
        first.tcp_address,
        reconnect_delay=1000,
        max_reconnect_delay=1000,
        connections_per_nsqd=3,
        on_event=events,
    ) as producer:
        await events.wait_for("connect_failed", 3)
        options = [f"-tcp-address={first.tcp_address}"]
        with start_nsqd(tmp_path, kind=server_kind, options=options) as second:
            await producer.publish(topic, b"x", timeout=PATIENCE)
            assert count_of(second, topic) == 1
            await events.wait_for("connected", 3)  # nor do its other connections wait


@pytest.mark.proves(wishes=[20])
@asynchronous
async def test_a_publish_that_waits_already_finds_an_nsqd_that_comes_back(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as first:
        pass
    async with Producer(
        first.tcp_address, reconnect_delay=1000, max_reconnect_delay=1000, on_event=events
    ) as producer:
        waiting = asyncio.create_task(producer.publish(topic, b"x", timeout=PATIENCE))
        await events.wait_for("connect_failed", 2)
        options = [f"-tcp-address={first.tcp_address}"]
        with start_nsqd(tmp_path, kind=server_kind, options=options) as second:
            await waiting
            assert count_of(second, topic) == 1


@pytest.mark.proves(rows=[57], wishes=[20])
@asynchronous
async def test_no_publisher_fails_while_the_only_nsqd_restarts_and_dials_are_few(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events, dials, publishes = EventLog(), list[float](), list[asyncio.Task[Any]]()

    def count(address: str) -> str:
        dials.append(time.monotonic())
        return address

    with start_nsqd(tmp_path, kind=server_kind) as first:
        async with Producer(first.tcp_address, address_map=count, on_event=events) as producer:
            await producer.publish(topic, b"before")
            first.stop()
            await events.wait_for("disconnected")
            lost, dials[:] = time.monotonic(), []
            while events.kinds.count("connect_failed") < 4:
                for _ in range(10):
                    publish = producer.publish(topic, b"%d" % len(publishes), timeout=PATIENCE)
                    publishes.append(asyncio.create_task(publish))
                await asyncio.sleep(0.01)
            options = [f"-tcp-address={first.tcp_address}"]
            with start_nsqd(tmp_path, kind=server_kind, options=options) as second:
                await asyncio.gather(*publishes)
                seconds = time.monotonic() - lost
                assert count_of(second, topic) == len(publishes) >= 100
    # One at once, one per second that publishes asked for, and the planned ones.
    assert len(dials) <= 3 + 2 * seconds, (dials, seconds)


@pytest.mark.proves(wishes=[20])
@asynchronous
async def test_a_publish_with_time_enough_waits_for_the_next_try(
    server_kind: Kind, tmp_path: Path
) -> None:
    events = EventLog()
    with start_nsqd(tmp_path, kind=server_kind) as first:
        pass
    async with Producer(first.tcp_address, reconnect_delay=1, on_event=events) as producer:
        await events.wait_for("connect_failed")
        waiting = asyncio.create_task(producer.publish("t", b"x"))
        with start_nsqd(
            tmp_path, kind=server_kind, options=[f"-tcp-address={first.tcp_address}"]
        ) as second:
            async with asyncio.timeout(PATIENCE):
                await waiting
            assert count_of(second, "t") == 1


# Through nsqlookupd


def known(nsqd: Nsqd, topic: str, lookupd: Nsqlookupd) -> None:
    """Create a topic, and wait until nsqlookupd has heard of it."""
    assert nsqd.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
    lookupd.await_log(rf"REGISTER category:topic key:{topic} ")


@pytest.mark.proves(wishes=[19])
@asynchronous
async def test_nsqlookupd_returns_where_a_topic_is(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(tmp_path / "1", kind=server_kind, lookupd=[lookupd]) as one,
        start_nsqd(tmp_path / "2", kind=server_kind, lookupd=[lookupd]) as two,
    ):
        known(two, topic, lookupd)
        async with Producer(lookupd=lookupd.http_address) as producer:
            for i in range(6):
                await producer.publish(topic, b"%d" % i)
            await producer.publish_many(topic, [b"6", b"7"])
            assert (count_of(one, topic), count_of(two, topic)) == (0, 8)
            # A topic that no nsqlookupd knows goes to any nsqd, which then has it.
            await producer.publish(f"{topic}_new", b"x")
            assert count_of(one, f"{topic}_new") + count_of(two, f"{topic}_new") == 1


@pytest.mark.proves(wishes=[19])
@asynchronous
async def test_an_nsqd_that_comes_later_gets_its_share(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(tmp_path / "1", kind=server_kind, lookupd=[lookupd]) as one,
    ):
        known(one, topic, lookupd)
        async with Producer(lookupd=lookupd.http_address, lookupd_poll_interval=0.2) as producer:
            await producer.publish(topic, b"x")
            with start_nsqd(tmp_path / "2", kind=server_kind, lookupd=[lookupd]) as two:
                assert two.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
                async with asyncio.timeout(PATIENCE):
                    while not count_of(two, topic):
                        await producer.publish(topic, b"x")
                assert count_of(one, topic) > 0


@pytest.mark.proves(rows=[57], wishes=[19, 20])
@asynchronous
async def test_an_nsqd_found_by_nsqlookupd_is_dialled_again_when_it_is_named_again(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events = EventLog()
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(tmp_path, kind=server_kind, lookupd=[lookupd]) as first,
    ):
        known(first, topic, lookupd)
        async with Producer(
            lookupd=lookupd.http_address, lookupd_poll_interval=0.2, on_event=events
        ) as producer:
            await producer.publish(topic, b"before")
            first.stop()
            await events.wait_for("disconnected")
            waiting = asyncio.create_task(producer.publish(topic, b"x"))
            address = f"-tcp-address={first.tcp_address}"
            with start_nsqd(
                tmp_path, kind=server_kind, lookupd=[lookupd], options=[address]
            ) as second:
                async with asyncio.timeout(PATIENCE):
                    await waiting
                assert count_of(second, topic) == 1


@pytest.mark.proves(rows=[57], wishes=[19, 20])
@asynchronous
async def test_publishes_wait_for_a_looked_up_nsqd_that_restarts(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events = EventLog()
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(tmp_path, kind=server_kind, lookupd=[lookupd]) as first,
    ):
        known(first, topic, lookupd)
        async with Producer(
            lookupd=lookupd.http_address, lookupd_poll_interval=3600, on_event=events
        ) as producer:
            await producer.publish(topic, b"before")
            first.stop()
            await events.wait_for("disconnected")
            waiting = [asyncio.create_task(producer.publish(topic, b"%d" % i)) for i in range(9)]
            await asyncio.sleep(2)  # nsqlookupd names no nsqd meanwhile
            address = f"-tcp-address={first.tcp_address}"
            with start_nsqd(
                tmp_path, kind=server_kind, lookupd=[lookupd], options=[address]
            ) as second:
                await asyncio.gather(*waiting)
                assert count_of(second, topic) == 9


@pytest.mark.proves(rows=[57], wishes=[19, 20])
@asynchronous
async def test_a_publish_that_waits_already_finds_its_nsqd_without_nsqlookupd(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    events = EventLog()
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(tmp_path, kind=server_kind, lookupd=[lookupd]) as first,
    ):
        known(first, topic, lookupd)
        async with Producer(lookupd=lookupd.http_address, on_event=events) as producer:
            await producer.publish(topic, b"before")
            lookupd.stop()
            first.stop()
            await events.wait_for("disconnected")
            waiting = asyncio.create_task(producer.publish(topic, b"x", timeout=PATIENCE))
            await events.wait_for("connect_failed")
            address = f"-tcp-address={first.tcp_address}"
            with start_nsqd(tmp_path, kind=server_kind, options=[address]) as second:
                await waiting
                assert count_of(second, topic) == 1


@asynchronous
async def test_a_timeout_names_the_nsqlookupd_that_is_down(server_kind: Kind, topic: str) -> None:
    with start_nsqlookupd(kind=server_kind) as lookupd:
        pass
    async with Producer(lookupd=lookupd.http_address) as producer:
        with pytest.raises(RequestTimeout, match=re.escape(lookupd.http_address)):
            await producer.publish(topic, b"x", timeout=0.5)


@asynchronous
async def test_a_timeout_says_that_nsqlookupd_knows_no_nsqd(server_kind: Kind, topic: str) -> None:
    with start_nsqlookupd(kind=server_kind) as lookupd:
        async with Producer(lookupd=lookupd.http_address) as producer:
            with pytest.raises(RequestTimeout, match="nsqlookupd names no nsqd"):
                await producer.publish(topic, b"x", timeout=0.5)


@asynchronous
async def test_errors_of_auth_are_raised_through_nsqlookupd_too(
    server_kind: Kind, tmp_path: Path
) -> None:
    with (
        AuthServer({}) as auth,
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(
            tmp_path,
            kind=server_kind,
            lookupd=[lookupd],
            options=[f"-auth-http-address={auth.address}"],
        ),
    ):
        async with Producer(lookupd=lookupd.http_address, auth_secret="wrong") as producer:
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(AuthFailedError):
                    await producer.publish("t", b"x", timeout=600)


# Closing


@asynchronous
async def test_closing_waits_for_the_outcomes_and_then_publishing_raises(
    nsqd: Nsqd, topic: str
) -> None:
    producer = Producer(nsqd.tcp_address)
    tasks = [asyncio.create_task(producer.publish(topic, b"%d" % i)) for i in range(100)]
    tasks.append(asyncio.create_task(producer.publish_many(topic, [b"100", b"101"])))
    await asyncio.sleep(0)  # they have all begun; the connection has not
    await asyncio.gather(producer.close(), producer.close())
    assert all(task.done() and task.exception() is None for task in tasks)
    assert count_of(nsqd, topic) == 102
    for call in (producer.publish(topic, b"x"), producer.publish_many(topic, [b"x"])):
        with pytest.raises(LocalProtocolError, match="the producer is closed"):
            await call
    with pytest.raises(LocalProtocolError, match="closed"):
        async with producer:
            pass
    await producer.close()
    assert count_of(nsqd, topic) == 102


@pytest.mark.proves(wishes=[32])
@asynchronous
async def test_closing_ends_the_connection_without_cls(server_kind: Kind, tmp_path: Path) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as nsqd:
        async with Producer(nsqd.tcp_address) as producer:
            await producer.publish("t", b"x")
        nsqd.await_log(r"PROTOCOL\(V2\): \[[^]]+\] exiting ioloop")
        # A CLS would be answered with E_INVALID, and logged as an error.
        assert [line for line in nsqd.log if "E_INVALID" in line] == []


@asynchronous
async def test_a_body_of_exactly_the_limit_is_published(strict_nsqd: Nsqd, topic: str) -> None:
    async with Producer(
        strict_nsqd.tcp_address, max_msg_size=1000, max_body_size=10_000
    ) as producer:
        await producer.publish(topic, b"x" * 1000)
        # Nine of them with their sizes are 9040 bytes, and ten would be too many.
        await producer.publish_many(topic, [b"x" * 1000] * 19)
        await asyncio.gather(*(producer.publish(topic, b"x" * 1000) for _ in range(19)))
    assert count_of(strict_nsqd, topic) == 39
    assert not [line for line in strict_nsqd.log if topic in line and "E_BAD" in line]
