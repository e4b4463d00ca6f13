"""RDY on the wire and at nsqd: how max_in_flight is shared, and that it is never exceeded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from pathlib import Path
from random import Random

import pytest

from nsqflow import ClientEvent, Consumer
from nsqflow import protocol as nsq
from nsqflow.errors import ConfigError
from tests.conformance.server_side import (
    bodies_from,
    channel_stats,
    publish,
    rdy_counts,
    reading,
    take,
    topic_of,
    warm_up,
)
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, start_nsqd

FIN_SIZE = len(nsq.Fin(bytes(16)).encode())


@pytest.fixture(scope="module")
def three(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """Three nsqd that know nothing of each other."""
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp("nsqd") for _ in range(3)]
        yield [stack.enter_context(start_nsqd(folder, kind=server_kind)) for folder in folders]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def addresses(nsqds: list[Nsqd]) -> list[str]:
    return [nsqd.tcp_address for nsqd in nsqds]


def sent_rdys(peer: ScriptedNsqd) -> list[int]:
    return [command.count for command in peer.commands if isinstance(command, nsq.Rdy)]


def a_message(number: int) -> nsq.Message:
    return nsq.Message(timestamp=0, attempts=1, id=b"%016d" % number, body=b"%d" % number)


# --- how it begins


@pytest.mark.proves(rows=[37])
@asynchronous
async def test_a_connection_begins_with_1_and_gets_its_share_with_the_first_message(
    nsqd: Nsqd, topic: str
) -> None:
    first: list[int] = []

    def on_event(event: ClientEvent) -> None:
        if event.kind == "connected":
            first.append(consumer.stats().connections[0].rdy)

    async with Consumer(
        topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=10, on_event=on_event
    ) as consumer:
        await warm_up(consumer, nsqd, topic)
        await publish(nsqd, topic, b"first")
        [message] = await take(consumer, 1)
        assert consumer.stats().connections[0].rdy == 10
        assert first == [1]
        await eventually(lambda: rdy_counts([nsqd], topic) == [10])
        message.finish()


@pytest.mark.proves(rows=[37])
@asynchronous
async def test_without_a_message_the_share_comes_after_a_second(nsqd: Nsqd, topic: str) -> None:
    async with (
        ScriptedNsqd() as scripted,
        Consumer(topic, "ch", nsqd=scripted.address, max_in_flight=10) as first,
        reading(first),
        Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=10) as second,
        reading(second),
    ):
        assert await scripted.received(nsq.Rdy) == nsq.Rdy(1)
        began = asyncio.get_running_loop().time()
        assert await scripted.received(nsq.Rdy) == nsq.Rdy(10)
        assert asyncio.get_running_loop().time() - began > 0.8
        await eventually(lambda: rdy_counts([nsqd], topic) == [10])


# --- how it is shared


@pytest.mark.proves(rows=[38, 39])
@asynchronous
async def test_shares_are_even_and_the_remainder_is_given_out(
    three: list[Nsqd], topic: str
) -> None:
    async with (
        Consumer(topic, "ch", nsqd=addresses(three), max_in_flight=8) as consumer,
        reading(consumer),
    ):
        await eventually(lambda: sorted(rdy_counts(three, topic)) == [2, 3, 3])


@pytest.mark.proves(rows=[27])
@asynchronous
async def test_no_more_is_asked_for_than_nsqd_allows(
    server_kind: Kind, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    with start_nsqd(tmp_path, kind=server_kind, options=["-max-rdy-count=5"]) as small:
        both = [small, nsqd]
        async with Consumer(topic, "ch", nsqd=addresses(both), max_in_flight=100) as consumer:
            await warm_up(consumer, nsqd, topic)
            # What the small one can't take is not lost on the other.
            await eventually(lambda: rdy_counts(both, topic) == [5, 95])
            assert not any(c.failures for c in consumer.stats().connections)


@pytest.mark.proves(rows=[5], wishes=[14])
@asynchronous
async def test_never_more_than_max_in_flight_are_out(three: list[Nsqd], topic: str) -> None:
    for nsqd in three:
        await publish(nsqd, topic, *(b"%d" % i for i in range(100)))
    seen = most = held = 0
    done = asyncio.Event()

    async def handle(_: object) -> None:
        nonlocal seen, most, held
        held += 1
        most = max(most, held, sum(channel_stats(n, topic)["in_flight_count"] for n in three))
        await asyncio.sleep(0)
        held -= 1
        seen += 1
        if seen == 300:
            done.set()

    consumer = Consumer(topic, "ch", nsqd=addresses(three), max_in_flight=7)
    async with consumer, asyncio.timeout(PATIENCE):
        running = asyncio.create_task(consumer.run(handle, concurrency=20, signals=False))
        await done.wait()
        await consumer.close()
        await running
    assert 1 < most <= 7


class RdyLedger:
    """Several scripted nsqd that push what RDY allows, and what RDY is in force at them all."""

    def __init__(self, peers: list[ScriptedNsqd]) -> None:
        self.rdy: dict[Connection, int] = {}
        self.in_flight: dict[Connection, set[bytes]] = {}
        self.most_rdy = 0
        self.most_in_flight = 0
        self._numbers = count()
        for peer in peers:
            peer.on(nsq.Rdy, self._ready)
            peer.on(nsq.Fin, self._finished)

    def lose(self, connection: Connection) -> None:
        """Close a connection; nothing of it counts any more."""
        self.rdy.pop(connection, None)
        self.in_flight.pop(connection, None)
        connection.reset()

    def _ready(self, connection: Connection, command: nsq.Rdy) -> None:
        if not connection.transport.is_closing():
            self.rdy[connection] = command.count
            self.most_rdy = max(self.most_rdy, sum(self.rdy.values()))
            self._push(connection)

    def _finished(self, connection: Connection, command: nsq.Fin) -> None:
        if not connection.transport.is_closing():
            self.in_flight[connection].remove(command.id)
            self._push(connection)

    def _push(self, connection: Connection) -> None:
        flying = self.in_flight.setdefault(connection, set())
        messages = [
            a_message(next(self._numbers)) for _ in range(self.rdy[connection] - len(flying))
        ]
        flying.update(message.id for message in messages)
        self.most_in_flight = max(self.most_in_flight, sum(map(len, self.in_flight.values())))
        connection.send_messages(messages)


@pytest.mark.proves(rows=[39], wishes=[14])
@asynchronous
async def test_the_sum_holds_at_every_moment_while_connections_come_and_go(topic: str) -> None:
    # Scripted: only so every RDY is seen in its order, and connections are lost on command.
    random = Random(5)
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(ScriptedNsqd()) for _ in range(4)]
        ledger = RdyLedger(peers)
        consumer = Consumer(
            topic,
            "ch",
            nsqd=[peer.address for peer in peers],
            max_in_flight=9,
            reconnect_delay=0.05,
            max_reconnect_delay=0.1,
            rdy_redistribute_interval=0.05,
        )
        await stack.enter_async_context(consumer)
        max_outstanding = 0
        for _ in range(40):
            for message in await take(consumer, 3):
                max_outstanding = max(max_outstanding, consumer.stats().outstanding)
                message.finish()
            alive = list(ledger.rdy)
            if alive and random.random() < 0.5:
                ledger.lose(random.choice(alive))
            consumer.set_max_in_flight(random.randint(3, 9))
        assert ledger.most_rdy <= 9
        assert ledger.most_in_flight <= 9
        assert max_outstanding <= 9
        consumer.set_max_in_flight(9)
        # And all of it is used again, once there is peace and messages are answered.
        async with asyncio.timeout(PATIENCE):
            while sum(ledger.rdy.values()) < 9:
                (await anext(consumer)).finish()


@pytest.mark.proves(rows=[40])
@asynchronous
async def test_rdy_is_not_repeated_while_the_wanted_one_is_the_last_one(
    nsqd: Nsqd, topic: str
) -> None:
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Consumer(topic, "ch", nsqd=proxy.address, max_in_flight=10) as consumer,
    ):
        async with reading(consumer):
            await eventually(lambda: rdy_counts([nsqd], topic) == [10])
        before = proxy.to_server
        await publish(nsqd, topic, *(b"%d" % i for i in range(100)))
        # Ten by ten: each time there is less than a quarter of its RDY left, which was the
        # reason to send it again when nsqd still counted it down.
        for _ in range(10):
            messages = await take(consumer, 10)
            assert consumer.is_starved()
            for message in messages:
                message.finish()
        await eventually(lambda: not channel_stats(nsqd, topic)["in_flight_count"])
        assert proxy.to_server - before == 100 * FIN_SIZE, "a hundred FIN, and nothing else"


@pytest.mark.proves(rows=[43])
@asynchronous
async def test_a_consumer_is_starved_when_a_connection_has_85_percent_in_flight(
    nsqd: Nsqd, topic: str
) -> None:
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=10) as consumer:
        async with reading(consumer):
            await eventually(lambda: rdy_counts([nsqd], topic) == [10])
        assert not consumer.is_starved()
        await publish(nsqd, topic, *(b"%d" % i for i in range(8)))
        messages = await take(consumer, 8)
        assert not consumer.is_starved()
        await publish(nsqd, topic, b"the ninth")
        messages += await take(consumer, 1)
        assert consumer.is_starved()
        for message in messages:
            message.finish()
        await eventually(lambda: not consumer.is_starved())


# --- more connections than messages allowed


@pytest.mark.proves(rows=[41, 42], wishes=[13])
@asynchronous
async def test_with_more_nsqd_than_messages_allowed_the_one_that_has_some_is_found(
    three: list[Nsqd], topic: str
) -> None:
    async with Consumer(
        topic,
        "ch",
        nsqd=addresses(three),
        max_in_flight=1,
        rdy_redistribute_interval=0.05,
        low_rdy_idle_timeout=0.1,
    ) as consumer:
        await eventually(lambda: sum(c.connected for c in consumer.stats().connections) == 3)
        for nsqd in three:
            await publish(nsqd, topic, b"a", b"b", b"c")
            assert await bodies_from(consumer, 3) == [b"a", b"b", b"c"]
            assert sum(rdy_counts(three, topic)) <= 1


@pytest.mark.proves(rows=[42], wishes=[15])
@asynchronous
async def test_an_nsqd_that_never_runs_dry_does_not_keep_the_only_rdy(
    three: list[Nsqd], topic: str
) -> None:
    busy, quiet = three[:2]
    await publish(quiet, topic, b"waits")
    await publish(busy, topic, b"endless")
    bodies: list[bytes] = []
    async with Consumer(
        topic,
        "ch",
        nsqd=addresses([busy, quiet]),
        max_in_flight=1,
        rdy_redistribute_interval=0.05,
        low_rdy_idle_timeout=60,
        low_rdy_timeout=0.3,
    ) as consumer:
        # Either may have the first turn; after the second change each has had one.
        while bodies.count(b"waits") < 2 or bodies[-1] == b"waits":
            [message] = await take(consumer, 1)
            bodies.append(message.body)
            nsqd = busy if message.body == b"endless" else quiet
            await publish(nsqd, topic, message.body)
            message.finish()
    assert b"endless" in bodies


# --- demand


@pytest.mark.proves(wishes=[16])
@asynchronous
async def test_an_idle_nsqd_lends_its_rdy_to_the_busy_one_and_has_it_back_when_it_needs_it(
    three: list[Nsqd], topic: str
) -> None:
    busy, idle = pair = three[:2]
    async with Consumer(
        topic,
        "ch",
        nsqd=addresses(pair),
        max_in_flight=20,
        rdy_redistribute_interval=0.2,
    ) as consumer:
        await warm_up(consumer, busy, topic)
        # Not before both are there: with one alone, all that is allowed would come from it.
        await eventually(lambda: min(rdy_counts(pair, topic)) > 0)
        await publish(busy, topic, *(b"%d" % i for i in range(200)))
        held = await take(consumer, 10)
        # It has all of its share in flight, and would have more.
        await eventually(lambda: rdy_counts(pair, topic) == [19, 1])
        held += await take(consumer, 9)
        assert {message.nsqd for message in held} == {busy.tcp_address}
        for message in held:
            message.finish()
        await publish(idle, topic, *(b"%d" % i for i in range(20)))
        # What is finished is published again, so that both have messages for as long as it takes.
        while rdy_counts(pair, topic) != [10, 10]:
            for message in await take(consumer, 5):
                nsqd = busy if message.nsqd == busy.tcp_address else idle
                await publish(nsqd, topic, message.body)
                message.finish()


# --- live changes


@pytest.mark.proves(rows=[6])
@asynchronous
async def test_max_in_flight_can_be_changed_at_any_time(three: list[Nsqd], topic: str) -> None:
    pair = three[:2]
    async with Consumer(topic, "ch", nsqd=addresses(pair), max_in_flight=10) as consumer:
        await warm_up(consumer, three[0], topic)
        await eventually(lambda: rdy_counts(pair, topic) == [5, 5])
        consumer.set_max_in_flight(4)
        await eventually(lambda: rdy_counts(pair, topic) == [2, 2])
        consumer.set_max_in_flight(30)
        await eventually(lambda: rdy_counts(pair, topic) == [15, 15])
        assert consumer.stats().max_in_flight == 30


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
@asynchronous
async def test_no_less_than_one_message_can_be_allowed(nsqd: Nsqd, wrong: int) -> None:
    async with Consumer("rdy_wrong", "ch", nsqd=nsqd.tcp_address, max_in_flight=3) as consumer:
        with pytest.raises(ConfigError, match=f"max_in_flight={wrong!r}"):
            consumer.set_max_in_flight(wrong)
        assert consumer.stats().max_in_flight == 3


@pytest.mark.proves(rows=[6])
@asynchronous
async def test_a_waiting_reader_gets_what_a_higher_max_in_flight_allows(
    nsqd: Nsqd, topic: str
) -> None:
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=2) as consumer:
        await warm_up(consumer, nsqd, topic)
        finished = consumer.stats().counts.finished
        await publish(nsqd, topic, b"a", b"b")
        [first] = await take(consumer, 1)
        await eventually(lambda: consumer.stats().queued == 1)
        consumer.set_max_in_flight(1)
        waiter = asyncio.create_task(take(consumer, 1))
        await asyncio.wait([waiter], timeout=0.05)
        assert not waiter.done()
        consumer.set_max_in_flight(2)
        await asyncio.wait([waiter], timeout=5)
        first.finish()
        [second] = await waiter
        second.finish()
        assert consumer.stats().counts.finished == finished, "it came before the first was answered"


@pytest.mark.proves(rows=[6])
@asynchronous
async def test_while_paused_nothing_comes_and_what_has_come_is_handed_out(
    nsqd: Nsqd, topic: str
) -> None:
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=10) as consumer:
        await warm_up(consumer, nsqd, topic)
        await publish(nsqd, topic, *(b"%d" % i for i in range(5)))
        await eventually(lambda: consumer.stats().queued == 5)
        consumer.pause()
        await eventually(lambda: rdy_counts([nsqd], topic) == [0])
        assert consumer.stats().paused
        await publish(nsqd, topic, b"for later")
        assert await bodies_from(consumer, 5) == [b"%d" % i for i in range(5)]
        await eventually(lambda: channel_stats(nsqd, topic)["in_flight_count"] == 0)
        assert channel_stats(nsqd, topic)["depth"] == 1
        consumer.resume()
        assert await bodies_from(consumer, 1) == [b"for later"]
        await eventually(lambda: rdy_counts([nsqd], topic) == [10])
