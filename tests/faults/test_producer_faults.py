"""The producer when things go wrong: one outcome for each call, and a true one.

Most of it is said by a scripted nsqd: when a real one answers, or fails to, can't be chosen.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nsqflow import (
    ClientEvent,
    LocalProtocolError,
    NsqError,
    Producer,
    PublishUncertain,
    RequestTimeout,
)
from nsqflow import protocol as nsq
from nsqflow.errors import (
    BufferFullError,
    DeferredPublishFailedError,
    PublishFailedError,
    TlsNotGrantedError,
    UnauthorizedError,
)
from tests.conformance.driver import Client
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.scripted import (
    BEHAVE,
    CLOSE,
    HANG,
    RESET,
    Connection,
    Deed,
    ScriptedLookupd,
    ScriptedNsqd,
)
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

Refusal = Callable[[Connection, nsq.Command], None]


def refusal(error: bytes) -> Refusal:
    """What nsqd does about a publish: an error, then it closes."""

    def refuse(connection: Connection, _: nsq.Command) -> None:
        connection.send_error(error)
        connection.close()

    return refuse


def published(peer: ScriptedNsqd) -> list[nsq.Publish]:
    return [command for command in peer.commands if isinstance(command, nsq.Publish)]


def bodies(peer: ScriptedNsqd) -> list[bytes]:
    """What was published, in the order it came."""
    found: list[bytes] = []
    for command in published(peer):
        if isinstance(command, nsq.Mpub):
            found += command.bodies
        elif isinstance(command, nsq.Pub | nsq.Dpub):
            found.append(command.body)
    return found


async def begun(*calls: Any) -> list[asyncio.Task[Any]]:
    """Let each call come to where it waits."""
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    return tasks


async def outcomes(*publishes: Any) -> list[Any]:
    """What became of each: None, or the exception."""
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*publishes, return_exceptions=True)


async def answer(peer: ScriptedNsqd, count: int = 1) -> None:
    """Wait for ``count`` publishes, and answer OK."""
    for _ in range(count):
        await peer.received(nsq.Publish)
        peer.connections[-1].send_response()


# Coalescing and pipelining


@pytest.mark.parametrize("uvloop", [False, True])
def test_what_is_published_in_one_turn_is_one_command(uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with ScriptedNsqd() as peer, Producer(peer.address) as producer:
            await producer.publish("t", b"alone")
            await asyncio.gather(*(producer.publish("t", b"%d" % i) for i in range(100)))
            numbers = [b"%d" % i for i in range(100)]
            assert published(peer) == [nsq.Pub("t", b"alone"), nsq.Mpub("t", numbers)]

    run()


@asynchronous
async def test_each_topic_has_its_command() -> None:
    async with ScriptedNsqd() as peer, Producer(peer.address) as producer:
        calls = [producer.publish(topic, b"%d" % i) for i in range(3) for topic in ("a", "b")]
        await asyncio.gather(*calls)
        numbers = [b"0", b"1", b"2"]
        assert published(peer) == [nsq.Mpub("a", numbers), nsq.Mpub("b", numbers)]


@asynchronous
async def test_delayed_messages_are_never_coalesced() -> None:
    async with ScriptedNsqd() as peer, Producer(peer.address) as producer:
        await asyncio.gather(
            producer.publish("t", b"1", delay=2.5),
            producer.publish("t", b"2", delay=2.5),
            producer.publish("t", b"3"),
            producer.publish("t", b"4", delay=0),
        )
        assert published(peer) == [
            nsq.Dpub("t", 2500, b"1"),
            nsq.Dpub("t", 2500, b"2"),
            nsq.Pub("t", b"3"),
            nsq.Dpub("t", 0, b"4"),
        ]


@asynchronous
async def test_a_turn_with_more_than_a_command_takes_is_several() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, max_msg_size=92, max_body_size=100) as producer,
    ):
        await asyncio.gather(*(producer.publish("t", b"%d" % i * 40) for i in range(4)))
        await producer.publish_many("t", [b"x" * 92, b"y" * 44, b"z" * 44])
        sizes = [nsq.Mpub, nsq.Mpub, nsq.Pub, nsq.Mpub]
        assert [type(command) for command in published(peer)] == sizes
        assert b"".join(bodies(peer)).startswith(b"0" * 40 + b"1" * 40 + b"2" * 40)


@asynchronous
async def test_the_next_command_does_not_wait_for_an_answer() -> None:
    async with ScriptedNsqd() as peer, Producer(peer.address) as producer:
        peer.on(nsq.Publish, HANG)
        first = await begun(producer.publish("t", b"1"), producer.publish("t", b"2"))
        assert await peer.received(nsq.Publish) == nsq.Mpub("t", [b"1", b"2"])
        second = await begun(producer.publish("t", b"3"))
        third = await begun(producer.publish_many("t", [b"4", b"5"]))
        assert await peer.received(nsq.Publish) == nsq.Pub("t", b"3")
        assert await peer.received(nsq.Publish) == nsq.Mpub("t", [b"4", b"5"])
        [connection] = peer.connections
        # One answer for each command, in order; both callers of the first have theirs.
        connection.send_response()
        await asyncio.gather(*first)
        assert not second[0].done()
        connection.send_response()
        await second[0]
        assert not third[0].done()
        connection.send_response()
        await third[0]


@asynchronous
async def test_several_nsqd_take_turns_command_by_command() -> None:
    events = EventLog()
    async with ScriptedNsqd() as one, ScriptedNsqd() as two:
        addresses = [one.address, two.address]
        async with Producer(addresses, on_event=events) as producer:
            await events.wait_for("connected", 2)
            for i in range(4):
                await asyncio.gather(*(producer.publish("t", b"%d" % i) for _ in range(3)))
        assert [len(published(peer)) for peer in (one, two)] == [2, 2]
        assert all(isinstance(command, nsq.Mpub) for command in published(one) + published(two))


# Refused by nsqd


@pytest.mark.proves(rows=[56], wishes=[18, 21])
@pytest.mark.parametrize(("delay", "error"), [(None, b"E_PUB_FAILED"), (1.0, b"E_DPUB_FAILED")])
@asynchronous
async def test_what_one_nsqd_could_not_store_goes_to_another(
    delay: float | None, error: bytes
) -> None:
    # (A real nsqd says so when its disk is full.)
    events = EventLog()
    async with ScriptedNsqd() as failing, ScriptedNsqd() as healthy:
        failing.on(nsq.Publish, refusal(error + b" disk is full"))
        addresses = [failing.address, healthy.address]
        async with Producer(addresses, reconnect_delay=0.05, on_event=events) as producer:
            await events.wait_for("connected", 2)
            for i in range(6):
                await producer.publish("t", b"%d" % i, delay=delay)
                await eventually(lambda: bool(failing.connections))
        assert bodies(healthy) == [b"%d" % i for i in range(6)]
        assert len(published(failing)) > 0


@pytest.mark.proves(wishes=[21])
@asynchronous
async def test_what_no_nsqd_could_store_is_raised() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two:
        for peer in (one, two):
            peer.on(nsq.Pub, refusal(b"E_PUB_FAILED disk is full"))
            peer.on(nsq.Dpub, refusal(b"E_DPUB_FAILED disk is full"))
        async with Producer([one.address, two.address], reconnect_delay=0.05) as producer:
            with pytest.raises(PublishFailedError, match="disk is full"):
                await producer.publish("t", b"x")
            with pytest.raises(DeferredPublishFailedError, match="disk is full"):
                await producer.publish("t", b"x", delay=1)
        # Twice or more: one that refused it may be back before the other is.
        assert min(len(published(one)), len(published(two))) >= 2


@asynchronous
async def test_a_batch_that_failed_is_uncertain_as_nsqd_may_have_its_beginning() -> None:
    async with ScriptedNsqd() as one, ScriptedNsqd() as two:
        for peer in (one, two):
            peer.on(nsq.Mpub, refusal(b"E_MPUB_FAILED disk is full"))
        async with Producer([one.address, two.address], reconnect_delay=0.05) as producer:
            results = await outcomes(producer.publish("t", b"1"), producer.publish("t", b"2"))
            with pytest.raises(PublishUncertain, match="disk is full") as raised:
                await producer.publish_many("t", [b"3", b"4"])
        assert [type(result) for result in results] == [PublishUncertain] * 2
        assert raised.value.ranges is not None
        assert raised.value.ranges.uncertain == (range(2),)
        assert len(bodies(one) + bodies(two)) == 4, "nothing was sent twice"


@asynchronous
async def test_a_refusal_is_of_one_topic_and_not_of_the_next() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(
            nsq.Pub,
            lambda connection, command: (
                refusal(b"E_UNAUTHORIZED AUTH failed")(connection, command)
                if command.topic == "theirs"
                else connection.send_response()
            ),
        )
        async with Producer(peer.address, reconnect_delay=0.05) as producer:
            await producer.publish("mine", b"0")
            results = await outcomes(
                producer.publish("theirs", b"1"), producer.publish("mine", b"2")
            )
            assert [type(result) for result in results] == [UnauthorizedError, type(None)]
            await producer.publish("mine", b"3")


@asynchronous
async def test_what_no_retry_can_fix_is_raised_at_once() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, tls=True, reconnect_delay=60) as producer,
    ):
        for _ in range(2):
            with pytest.raises(TlsNotGrantedError):
                await producer.publish("t", b"x", timeout=100)


# Sent and not answered


@pytest.mark.proves(wishes=[17, 21])
@asynchronous
async def test_what_was_sent_and_not_answered_in_time_is_uncertain(
    nsqd: Nsqd, tmp_path: Path
) -> None:
    events = EventLog()
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Producer(proxy.address, on_event=events) as producer,
    ):
        topic = "sent_and_not_answered"
        await producer.publish(topic, b"0")
        proxy.hang()
        results = await outcomes(
            producer.publish(topic, b"1", timeout=0.2),
            producer.publish(topic, b"2", delay=0, timeout=0.2),
            producer.publish_many(topic, [b"3", b"4"], timeout=0.2),
        )
        assert [type(result) for result in results] == [PublishUncertain] * 3
        assert all(proxy.address in str(result) for result in results)
        assert results[2].ranges.uncertain == (range(2),)
        assert events.count("uncertain") == 3
        proxy.resume()
        # The answers come late, and are ignored; the connection is as good as before.
        await producer.publish(topic, b"5")
        assert proxy.connections == 1


@pytest.mark.parametrize("behaviour", [CLOSE, RESET])
@asynchronous
async def test_what_was_sent_when_the_connection_broke_is_uncertain(behaviour: Deed) -> None:
    events = EventLog()
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, reconnect_delay=0.05, on_event=events) as producer,
    ):
        peer.on(nsq.Publish, [BEHAVE, HANG, behaviour])
        await producer.publish("t", b"0")
        first = await begun(producer.publish("t", b"1"))
        await peer.received(nsq.Pub)
        second = await begun(producer.publish("t", b"2"), producer.publish("t", b"3"))
        results = await outcomes(*first, *second)
        assert [type(result) for result in results] == [PublishUncertain] * 3
        assert events.count("uncertain") == 2, "once for each command"
        await producer.publish("t", b"4")
        assert bodies(peer) == [b"%d" % i for i in range(5)], "nothing was sent twice"


@asynchronous
async def test_with_retry_uncertain_messages_are_sent_again() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, reconnect_delay=0.05, retry_uncertain=True) as producer,
    ):
        peer.on(nsq.Publish, [HANG, CLOSE])
        first = await begun(producer.publish("t", b"1"))
        await peer.received(nsq.Pub)
        assert await outcomes(*first, producer.publish_many("t", [b"2", b"3"])) == [None, None]
        assert bodies(peer) == [b"1", b"2", b"3"] * 2


@pytest.mark.proves(wishes=[21])
@asynchronous
async def test_what_was_sent_once_is_uncertain_even_if_it_could_not_be_sent_again() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Publish, CLOSE)
        async with Producer(
            peer.address, reconnect_delay=60, retry_uncertain=True, publish_timeout=0.3
        ) as producer:
            await eventually(lambda: bool(peer.connections))
            results = await outcomes(
                producer.publish("t", b"1"), producer.publish_many("t", [b"2", b"3"])
            )
        assert [type(result) for result in results] == [PublishUncertain] * 2
        assert "sent again, and failed" in str(results[0])


@asynchronous
async def test_a_split_publish_many_says_what_became_of_each_part() -> None:
    async with (
        ScriptedNsqd() as peer,
        # Two parts fit into max_pending.
        Producer(peer.address, max_msg_size=42, max_body_size=50, max_pending=95) as producer,
    ):
        peer.on(nsq.Publish, [BEHAVE, HANG, HANG, BEHAVE])
        with pytest.raises(PublishUncertain) as raised:
            await producer.publish_many("t", [b"%d" % i * 40 for i in range(6)], timeout=0.3)
        ranges = raised.value.ranges
        assert ranges is not None
        assert ranges.accepted == (range(1),)
        assert ranges.uncertain == (range(1, 3),)
        assert ranges.refused == (range(3, 6),)
        assert len(published(peer)) == 3, "what is said to be refused was not sent"
        assert "uncertain: 1 to 2" in raised.value.__notes__[0]


# Not sent


@pytest.mark.proves(wishes=[3, 17])
@asynchronous
async def test_what_could_not_be_sent_in_time_never_will_be() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, [HANG])  # a connection, and not a word on it
        async with Producer(peer.address, dial_timeout=0.5, reconnect_delay=0.05) as producer:
            results = await outcomes(
                producer.publish("t", b"1", timeout=0.1),
                producer.publish("t", b"2", timeout=0.1, delay=1),
                producer.publish_many("t", [b"3", b"4"], timeout=0.1),
            )
            assert [type(result) for result in results] == [RequestTimeout] * 3
            assert all("not connected yet" in str(result) for result in results)
            assert results[2].ranges.refused == (range(2),)
            await producer.publish("t", b"5")
        assert bodies(peer) == [b"5"]


@pytest.mark.proves(wishes=[31])
@asynchronous
async def test_an_nsqd_that_reads_nothing_is_named() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, max_pending=64 * 1024 * 1024) as producer,
    ):
        await producer.publish("t", b"0")
        peer.connections[0].freeze()
        big = b"x" * 1024 * 1024
        calls = [producer.publish("t", big, timeout=0.3) for _ in range(40)]
        results = await outcomes(*calls)
        late = [result for result in results if isinstance(result, RequestTimeout)]
        # What the operating system took may have reached it; the rest certainly not.
        assert late
        assert all("does not read what it is sent" in str(result) for result in late)
        unsure = [result for result in results if isinstance(result, PublishUncertain)]
        assert len(late) + len(unsure) == 40


@pytest.mark.proves(wishes=[17])
@asynchronous
async def test_a_cancelled_publish_that_was_not_sent_never_is() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, [HANG])
        async with Producer(peer.address, dial_timeout=0.2, reconnect_delay=0.05) as producer:
            tasks = await begun(
                producer.publish("t", b"0"),
                producer.publish("t", b"1"),
                producer.publish("t", b"2", delay=1),
                producer.publish("t", b"3"),
                producer.publish_many("t", [b"4", b"5"]),
                producer.publish_many("t", [b"6", b"7"]),
            )
            for number in (1, 2, 4):
                tasks[number].cancel()
            results = await outcomes(*tasks)
            gone = [i for i, r in enumerate(results) if isinstance(r, asyncio.CancelledError)]
            assert gone == [1, 2, 4]
        assert bodies(peer) == [b"0", b"3", b"6", b"7"]


@pytest.mark.proves(wishes=[17])
@asynchronous
async def test_a_publish_cancelled_in_its_first_turn_is_not_sent() -> None:
    async with ScriptedNsqd() as peer, Producer(peer.address) as producer:
        await producer.publish("t", b"0")
        tasks = await begun(*(producer.publish("t", b"%d" % i) for i in range(1, 4)))
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert bodies(peer) == [b"0", b"1", b"3"]


@pytest.mark.proves(wishes=[17])
@asynchronous
async def test_a_cancelled_publish_that_was_sent_leaves_the_others_alone() -> None:
    async with ScriptedNsqd() as peer, Producer(peer.address) as producer:
        peer.on(nsq.Publish, HANG)
        tasks = await begun(producer.publish("t", b"1"), producer.publish("t", b"2"))
        await peer.received(nsq.Mpub)
        tasks += await begun(producer.publish("t", b"3"))
        await peer.received(nsq.Pub)
        tasks += await begun(producer.publish_many("t", [b"4", b"5"]))
        await peer.received(nsq.Mpub)
        tasks += await begun(producer.publish("t", b"6"))
        await peer.received(nsq.Pub)
        for number in (0, 2, 3):
            tasks[number].cancel()
        await asyncio.wait([tasks[number] for number in (0, 2, 3)])
        for _ in range(4):
            peer.connections[0].send_response()
        await asyncio.gather(tasks[1], tasks[4])
        peer.on(nsq.Publish, BEHAVE)
        await producer.publish("t", b"7")


@pytest.mark.proves(wishes=[17])
@asynchronous
async def test_cancelling_publish_many_gives_up_all_its_parts() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, [HANG])
        async with Producer(
            peer.address,
            dial_timeout=0.2,
            reconnect_delay=0.05,
            max_msg_size=42,
            max_body_size=50,
            max_pending=95,
        ) as producer:
            # Two parts wait for a connection, the others for memory.
            [many] = await begun(producer.publish_many("t", [b"x" * 40] * 5))
            [later] = await begun(producer.publish("t", b"y"))
            many.cancel()
            await outcomes(many, later)
        assert many.cancelled()
        assert bodies(peer) == [b"y"]


# max_pending


@pytest.mark.proves(wishes=[31])
@asynchronous
async def test_publishes_wait_in_line_when_max_pending_is_reached() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, max_msg_size=92, max_body_size=100, max_pending=100) as producer,
    ):
        peer.on(nsq.Publish, HANG)
        order: list[int] = []

        async def publish(number: int, size: int) -> None:
            await producer.publish("t", bytes([number]) * size)
            order.append(number)

        # 84 of the 100 bytes are taken; the second does not fit, the third must not overtake it.
        tasks = await begun(publish(1, 80), publish(2, 20), publish(3, 5), publish(4, 90))
        await answer(peer)
        await answer(peer)
        assert bodies(peer) == [b"\1" * 80, b"\2" * 20, b"\3" * 5], "the last still waits"
        await answer(peer)
        await outcomes(*tasks)
        assert order == [1, 2, 3, 4]


@asynchronous
async def test_a_send_beyond_max_pending_is_refused_until_earlier_ones_have_results() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, max_msg_size=92, max_body_size=100, max_pending=100) as producer,
    ):
        peer.on(nsq.Publish, HANG)
        first = producer.send("t", b"1" * 80)
        for delay in (None, 1.0):
            with pytest.raises(BufferFullError, match="max_pending=100"):
                producer.send("t", b"2" * 20, delay=delay)
        [waiting] = await begun(producer.publish("t", b"3" * 20))
        with pytest.raises(BufferFullError):
            producer.send("t", b"4")  # it would fit, but must not overtake
        await answer(peer)
        await asyncio.wait_for(first, PATIENCE)
        last = producer.send("t", b"5")
        await answer(peer, 2)
        assert await outcomes(waiting, last) == [None] * 2
        assert bodies(peer) == [b"1" * 80, b"3" * 20, b"5"]


@asynchronous
async def test_sends_that_may_wait_do_so_in_line_when_max_pending_is_reached() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, max_msg_size=92, max_body_size=100, max_pending=100) as producer,
    ):
        peer.on(nsq.Publish, HANG)
        first = producer.send("t", b"1" * 80)
        second = producer.send("t", b"2" * 20, wait=True)
        cancelled = producer.send("t", b"3" * 90, wait=True)
        late = producer.send("t", b"4" * 90, timeout=0.1, wait=True)
        deferred = producer.send("t", b"5" * 5, delay=1, wait=True)
        last = producer.send("t", b"6" * 5, wait=True)
        cancelled.cancel()
        with pytest.raises(RequestTimeout, match=r"94 bytes .*max_pending="):
            await late
        assert not second.done()
        await answer(peer)
        await asyncio.wait_for(first, PATIENCE)
        await answer(peer, 3)
        assert await outcomes(second, deferred, last) == [None] * 3
        assert bodies(peer) == [b"1" * 80, b"2" * 20, b"5" * 5, b"6" * 5]


@asynchronous
async def test_sends_that_wait_for_memory_fail_when_closing_is_cancelled() -> None:
    async with ScriptedNsqd() as peer:
        producer = Producer(peer.address, max_msg_size=92, max_body_size=100, max_pending=100)
        peer.on(nsq.Publish, HANG)
        sent, waiting = (producer.send("t", body * 90, wait=True) for body in (b"1", b"2"))
        await eventually(lambda: len(bodies(peer)) == 1)
        [closing] = await begun(producer.close())
        assert not closing.done()
        closing.cancel()
        await asyncio.wait([closing])
        assert isinstance(sent.exception(), PublishUncertain)
        assert isinstance(waiting.exception(), LocalProtocolError)


@asynchronous
async def test_publishes_that_waited_for_memory_go_out_together() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, max_msg_size=92, max_body_size=200, max_pending=200) as producer,
    ):
        peer.on(nsq.Publish, [HANG])
        tasks = await begun(producer.publish_many("t", [b"x" * 90, b"x" * 90]))
        tasks += await begun(*(producer.publish("t", b"%d" % i * 15) for i in range(10)))
        await answer(peer)
        await outcomes(*tasks)
        assert [type(command) for command in published(peer)] == [nsq.Mpub, nsq.Mpub]


@pytest.mark.proves(wishes=[17, 31])
@asynchronous
async def test_waiting_for_memory_ends_in_time_and_can_be_cancelled() -> None:
    async with (
        ScriptedNsqd() as peer,
        Producer(peer.address, max_msg_size=92, max_body_size=100, max_pending=100) as producer,
    ):
        peer.on(nsq.Publish, HANG)
        tasks = await begun(
            producer.publish("t", b"1" * 90),
            producer.publish("t", b"2" * 90, timeout=0.1),
            producer.publish("t", b"3" * 90),
            producer.publish_many("t", [b"4" * 90], timeout=0.1),
            producer.publish("t", b"5" * 9),
        )
        tasks[2].cancel()
        with pytest.raises(RequestTimeout, match=r"94 bytes .*max_pending="):
            await tasks[1]
        with pytest.raises(RequestTimeout, match="max_pending=") as raised:
            await tasks[3]
        assert raised.value.ranges is not None
        assert raised.value.ranges.refused == (range(1),)
        await answer(peer, 2)
        await asyncio.gather(tasks[0], tasks[4])
        assert bodies(peer) == [b"1" * 90, b"5" * 9]


@asynchronous
async def test_one_timer_serves_all_publishes() -> None:
    # (Not on uvloop: only asyncio's own loop shows its timers.)
    timers: list[Any] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    async with ScriptedNsqd() as peer, Producer(peer.address) as producer:
        await producer.publish("t", b"0")
        peer.on(nsq.Publish, HANG)
        before = len(timers)
        tasks = []
        for i in range(1000):
            tasks += await begun(producer.publish("t", b"%d" % i, timeout=20 + i / 1000))
        assert len(timers) <= before + 1
        peer.connections[0].close()
        await outcomes(*tasks)


# Closing


@asynchronous
async def test_closing_ends_with_the_timeouts_though_nsqd_hangs(nsqd: Nsqd) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        producer = Producer(proxy.address, publish_timeout=0.3)
        await producer.publish("closing_on_a_hanging_nsqd", b"0")
        proxy.hang()
        [task] = await begun(producer.publish("closing_on_a_hanging_nsqd", b"1"))
        async with asyncio.timeout(PATIENCE):  # heartbeats would be missed only after a minute
            await producer.close()
        assert isinstance(task.exception(), PublishUncertain)
        proxy.resume()
        await eventually(lambda: proxy.open_connections == 0)


@asynchronous
async def test_closing_ends_with_the_timeouts_though_there_is_no_nsqd() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, HANG)
        producer = Producer(peer.address, publish_timeout=0.3)
        [task] = await begun(producer.publish("t", b"1"))
        await producer.close()
        assert isinstance(task.exception(), RequestTimeout)
        await peer.connections[0].ended()


@pytest.mark.parametrize("retry", [False, True])
@asynchronous
async def test_closing_can_be_cancelled(retry: bool) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Publish, HANG)
        producer = Producer(
            peer.address,
            max_msg_size=92,
            max_body_size=100,
            max_pending=100,
            retry_uncertain=retry,
        )
        sent = await begun(producer.publish("t", b"1" * 50))
        await peer.received(nsq.Pub)
        waiting = await begun(
            producer.publish("t", b"2" * 90), producer.publish_many("t", [b"3" * 80, b"4" * 80])
        )
        [closing] = await begun(producer.close())
        closing.cancel()
        results = await outcomes(*sent, *waiting, closing)
        assert [type(result) for result in results] == [
            PublishUncertain,
            LocalProtocolError,
            LocalProtocolError,
            asyncio.CancelledError,
        ]
        assert results[2].ranges.refused == (range(2),)
        await peer.connections[0].ended()
        assert len(published(peer)) == 1


@asynchronous
async def test_closing_does_not_wait_for_cancelled_publishes() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, HANG)
        async with asyncio.timeout(PATIENCE):  # less than the timeout of the publishes
            with pytest.raises(TimeoutError):
                async with (
                    Producer(peer.address, publish_timeout=600, dial_timeout=600) as producer,
                    asyncio.timeout(0.1),
                ):
                    await asyncio.gather(
                        producer.publish("t", b"1"), producer.publish_many("t", [b"2"])
                    )


@pytest.mark.proves(wishes=[32])
@asynchronous
async def test_closing_sends_no_cls() -> None:
    async with ScriptedNsqd() as peer:
        async with Producer(peer.address) as producer:
            await producer.publish("t", b"x")
        [connection] = peer.connections
        await connection.ended()
        assert [type(command) for command in connection.commands] == [nsq.Identify, nsq.Pub]


# Through nsqlookupd


def lookup(*addresses: str) -> tuple[int, bytes]:
    """What nsqlookupd says of these nsqd."""
    pairs = [address.split(":") for address in addresses]
    nodes = [
        {"broadcast_address": host, "tcp_port": int(port), "http_port": 1} for host, port in pairs
    ]
    return 200, json.dumps({"channels": [], "producers": nodes}).encode()


@pytest.mark.proves(wishes=[19, 20])
@asynchronous
async def test_a_dead_nsqd_that_nsqlookupd_still_names_is_not_dialled_all_the_time() -> None:
    # (A real nsqlookupd does so for minutes if the machine of the nsqd has died.)
    events = EventLog()
    async with ScriptedNsqd() as dead:
        pass
    async with (
        ScriptedLookupd({"/lookup": lookup(dead.address)}) as lookupd,
        Producer(lookupd=lookupd.address, on_event=events) as producer,
    ):
        for _ in range(20):  # each of them wants a connection
            with pytest.raises(RequestTimeout, match=re.escape(dead.address)):
                await producer.publish("t", b"x", timeout=0.1)
        # Once per answer of nsqlookupd, which is asked again after one second, then two...
        assert 1 <= events.count("connect_failed") <= 6


@asynchronous
async def test_a_publish_waits_for_an_nsqlookupd_that_comes_back() -> None:
    async with ScriptedNsqd() as peer, ScriptedLookupd({"/lookup": lookup(peer.address)}) as web:
        await web.stop()
        events = EventLog()
        async with Producer(lookupd=web.address, on_event=events) as producer:
            [task] = await begun(producer.publish("t", b"x"))
            await events.wait_for("lookup_failed")
            await web.start()
            # Long before its next turn, which is in a minute.
            await outcomes(task)
            assert task.exception() is None


@asynchronous
async def test_a_lost_connection_is_reopened_once_nsqlookupd_names_the_nsqd() -> None:
    async with (
        ScriptedNsqd() as peer,
        ScriptedLookupd({"/lookup": lookup(peer.address)}) as web,
        Producer(lookupd=web.address, connections_per_nsqd=2) as producer,
    ):
        await producer.publish("t", b"1")
        await eventually(lambda: len(peer.connections) == 2)
        peer.connections[0].close()
        await eventually(lambda: len(peer.connections) == 3, what="the other one still lives")
        await producer.publish("t", b"2")


@asynchronous
async def test_a_looked_up_peer_that_accepts_and_closes_is_dialled_less_and_less_often() -> None:
    events = EventLog()
    async with (
        ScriptedNsqd() as peer,
        ScriptedLookupd({"/lookup": lookup(peer.address)}) as web,
        Producer(lookupd=web.address, on_event=events) as producer,
    ):
        peer.on(nsq.Publish, CLOSE)
        began = time.monotonic()
        while time.monotonic() < began + 2.5:  # each of them wants a connection
            with suppress(NsqError):
                await producer.publish("t", b"x", timeout=0.02)
        assert 2 <= len(peer.connections) <= 4 + 2 * (time.monotonic() - began)
        assert len(web.requests) <= 4 + (time.monotonic() - began)


# Whatever happens


@pytest.fixture(scope="module")
def plain_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that keeps all in memory, however much it is."""
    folder = tmp_path_factory.mktemp("plain-nsqd")
    with start_nsqd(folder, options=["-mem-queue-size=1000000"]) as server:
        yield server


async def disturb(proxies: list[Proxy], rng: random.Random, seconds: float) -> None:
    """Harm connections in every way, now and then."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        await asyncio.sleep(rng.uniform(0.01, 0.1))
        harm = rng.choice([cut, reset, limit, chop, hang, refuse])
        harmed = rng.choice([proxies, *([proxy] for proxy in proxies)])
        for proxy in harmed:
            harm(proxy, rng)
        await asyncio.sleep(rng.uniform(0, 0.3))
        for proxy in harmed:
            proxy.resume()
            proxy.accept()


def cut(proxy: Proxy, _: random.Random) -> None:
    proxy.cut()


def reset(proxy: Proxy, _: random.Random) -> None:
    proxy.reset()


def limit(proxy: Proxy, rng: random.Random) -> None:
    proxy.limit(rng.randrange(1, 200))


def chop(proxy: Proxy, rng: random.Random) -> None:
    proxy.chop = rng.choice([None, 1, 7])


def hang(proxy: Proxy, _: random.Random) -> None:
    proxy.hang()


def refuse(proxy: Proxy, _: random.Random) -> None:
    proxy.refuse()
    proxy.cut()


class Ledger:
    """What was published, and what the producer said became of it."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.refused: dict[bytes, NsqError] = {}
        self.uncertain: set[bytes] = set()
        self.begun = 0

    async def publish(self, producer: Producer, topic: str, rng: random.Random) -> None:
        """Publish one message or several, in any way."""
        count = rng.choice([1, 1, 1, 5])
        sent = [b"%d" % (self.begun + i) for i in range(count)]
        self.begun += count
        timeout = rng.choice([0.02, 0.1, 5.0])
        try:
            if count > 1:
                await producer.publish_many(topic, sent, timeout=timeout)
            else:
                delay = rng.choice([None, None, 0])
                await producer.publish(topic, sent[0], delay=delay, timeout=timeout)
        except NsqError as error:
            self._failed(sent, error)
        else:
            self.acknowledged.update(sent)

    def _failed(self, sent: list[bytes], error: NsqError) -> None:
        if error.ranges is None:
            sorts: dict[str, list[bytes]] = {"accepted": [], "refused": [], "uncertain": []}
            sorts["uncertain" if isinstance(error, PublishUncertain) else "refused"] = sent
        else:
            sorts = {
                name: [sent[i] for part in getattr(error.ranges, name) for i in part]
                for name in ("accepted", "refused", "uncertain")
            }
        self.acknowledged.update(sorts["accepted"])
        self.uncertain.update(sorts["uncertain"])
        self.refused |= dict.fromkeys(sorts["refused"], error)


def stored(nsqd: Nsqd, topic: str) -> list[bytes]:
    """All that nsqd has stored in a topic."""
    _, body = nsqd.ask(f"/stats?format=json&topic={topic}")
    total = json.loads(body)["topics"][0]["message_count"]
    found: list[bytes] = []
    with Client(nsqd.connect(), nsq.IdentifyRequest(output_buffer_size=-1)) as client:
        client.negotiate()
        client.request(nsq.Sub(topic, "reader"), nsq.Subscribed)
        client.send(nsq.Rdy(2500))
        while len(found) < total:
            messages = client.batch().messages()
            client.send(*(nsq.Fin(message.id) for message in messages))
            found += [message.body for message in messages]
    return found


@pytest.mark.proves(rows=[53, 56, 57], wishes=[17, 18, 20, 21])
@pytest.mark.parametrize("uvloop", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_each_outcome_is_true_on_a_network_that_fails(
    plain_nsqd: Nsqd, tmp_path: Path, seed: int, uvloop: bool
) -> None:
    topic = f"true_outcomes_{seed}_{uvloop}"

    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        rng = random.Random(seed)
        ledger = Ledger()
        async with (
            # Two ways to the same nsqd: all that was stored is in one place.
            Proxy(plain_nsqd.tcp_address) as one,
            Proxy(plain_nsqd.tcp_address) as two,
            Producer(
                [one.address, two.address],
                reconnect_delay=0.02,
                max_reconnect_delay=0.1,
                max_msg_size=100,
                max_body_size=200,
                max_pending=200,
            ) as producer,
        ):
            over = asyncio.create_task(disturb([one, two], rng, 2.5))

            async def call() -> None:
                while not over.done():
                    await ledger.publish(producer, topic, rng)

            await asyncio.gather(over, *(call() for _ in range(50)))
        found = stored(plain_nsqd, topic)
        kinds = [ledger.acknowledged, set(ledger.refused), ledger.uncertain]
        assert sum(map(len, kinds)) == ledger.begun, "each has one outcome, and only one"
        assert all(kinds), [len(kind) for kind in kinds]
        assert len(found) == len(set(found)), "nothing is stored twice"
        assert ledger.acknowledged <= set(found), "what was acknowledged is there"
        stored_though_refused = {
            body: ledger.refused[body] for body in set(found) & set(ledger.refused)
        }
        assert stored_though_refused == {}, "certainly not stored, but found"
        assert set(found) <= ledger.acknowledged | ledger.uncertain

    run()


@asynchronous
async def test_retry_uncertain_stores_every_message_at_least_once_on_a_failing_network(
    plain_nsqd: Nsqd,
) -> None:
    rng = random.Random(3)
    async with (
        Proxy(plain_nsqd.tcp_address) as proxy,
        Producer(
            proxy.address, reconnect_delay=0.02, max_reconnect_delay=0.1, retry_uncertain=True
        ) as producer,
    ):
        over = asyncio.create_task(disturb([proxy], rng, 1.5))
        sent: list[bytes] = []

        async def call() -> None:
            while not over.done():
                sent.append(b"%d" % len(sent))
                await producer.publish("at_least_once", sent[-1])

        await asyncio.gather(over, *(call() for _ in range(20)))
    assert set(stored(plain_nsqd, "at_least_once")) == set(sent)


@asynchronous
async def test_an_nsqd_that_refuses_connections_costs_the_others_nothing() -> None:
    async with ScriptedNsqd() as peer, Proxy(peer.address) as proxy:
        proxy.refuse()
        async with Producer([proxy.address, peer.address], reconnect_delay=60) as producer:
            await asyncio.gather(*(producer.publish("t", b"%d" % i) for i in range(10)))
        assert proxy.connections == 0


@pytest.mark.proves(rows=[18])
@asynchronous
async def test_a_peer_that_accepts_and_closes_is_dialled_once_a_second_at_most() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Publish, CLOSE)
        async with Producer(peer.address) as producer:
            began = time.monotonic()
            while time.monotonic() < began + 2.5:  # each of them wants a connection
                with suppress(NsqError):
                    await producer.publish("t", b"x", timeout=0.02)
        assert 2 <= len(peer.connections) <= 3 + 2 * (time.monotonic() - began)


@pytest.mark.proves(rows=[18])
@pytest.mark.parametrize("way", ["nsqd", "lookupd"])
@asynchronous
async def test_a_peer_that_closes_with_an_error_frame_is_dialled_less_and_less_often(
    way: str,
) -> None:
    async with ScriptedNsqd() as peer, ScriptedLookupd({"/lookup": lookup(peer.address)}) as web:
        events = EventLog()

        def throw_out(event: ClientEvent) -> None:
            if event.kind == "connected":
                peer.connections[-1].send_error(b"E_INVALID no reason")
                peer.connections[-1].close()
            events(event)

        addresses: dict[str, str] = {"nsqd": peer.address, "lookupd": web.address}
        options: Any = {way: addresses[way], "on_event": throw_out}
        async with Producer(**options) as producer:
            if way == "lookupd":  # which it asks for a topic
                with suppress(NsqError):
                    await producer.publish("t", b"x", timeout=0.01)
            await asyncio.sleep(4)
        # Now, and after 1, 2 ... s, less the jitter.
        assert 2 <= len(peer.connections) <= 4


@pytest.mark.proves(rows=[18])
@asynchronous
async def test_a_connection_that_is_lost_is_reopened_at_once() -> None:
    events = EventLog()
    async with ScriptedNsqd() as peer, Producer(peer.address, on_event=events):
        await events.wait_for("connected")
        await asyncio.sleep(1.1)  # longer than the reconnect_delay
        lost = time.monotonic()
        peer.connections[0].close()
        await events.wait_for("connected", 2)
        assert time.monotonic() - lost < 4, "of the first delay, 8 s, that was once the default"


@asynchronous
async def test_a_publish_waits_for_whichever_nsqd_may_be_back_in_time() -> None:
    async with ScriptedNsqd() as dead, ScriptedNsqd() as shut:
        await dead.stop()
        shut.on(nsq.Identify, CLOSE)
        events = EventLog()
        async with Producer(
            [dead.address, shut.address], reconnect_delay=1, on_event=events
        ) as producer:
            await events.wait_for("connect_failed", 2)
            [task] = await begun(producer.publish("t", b"x"))
            with pytest.raises(RequestTimeout, match="not sent in time") as raised:
                await producer.publish("t", b"y", timeout=0.01)
            assert all(peer.address in str(raised.value) for peer in (dead, shut))
            shut.on(nsq.Identify, BEHAVE)
            await outcomes(task)
            assert task.exception() is None
        assert bodies(shut) == [b"x"]
