"""One nsqlookupd that names thousands of addresses must not starve the rest.

The lying one is scripted; nsqd and the honest nsqlookupd are real. The client is a process of its
own with few file descriptors, so that what it uses is what it is allowed.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqflow import Consumer, Producer, RequestTimeout
from tests.conformance.server_side import bodies_from, publish
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import Answer, ScriptedLookupd
from tests.fixtures.servers import PATIENCE, Nsqd, Nsqlookupd, start_nsqd

FALSE_ADDRESSES = 3000
DESCRIPTORS = 256

LIMITED = """
import asyncio, resource, sys
import nsqflow

limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
lookupds, topic = sys.argv[2].split(","), sys.argv[3]
"""

CONSUME = (
    LIMITED
    + """
async def main():
    async with nsqflow.Consumer(topic, "ch", lookupd=lookupds) as consumer:
        for _ in range(10):
            async with await anext(consumer) as message:
                print(message.body.decode(), flush=True)

asyncio.run(main())
"""
)

PUBLISH = (
    LIMITED
    + """
async def main():
    async with nsqflow.Producer(lookupd=lookupds) as producer:
        for number in range(10):
            await producer.publish(topic, b"%d" % number)
            print(number, flush=True)

asyncio.run(main())
"""
)


@pytest.fixture
def mute_port() -> Iterator[int]:
    """A port, on every loopback address, that accepts connections and never answers."""
    # The kernel accepts them by itself: nothing here takes one, or a descriptor for it.
    with socket.create_server(("0.0.0.0", 0), backlog=4096) as listener:
        port: int = listener.getsockname()[1]
        yield port


def false_addresses(port: int) -> Answer:
    hosts = [f"127.0.{number // 250 + 1}.{number % 250 + 1}" for number in range(FALSE_ADDRESSES)]
    nodes = [{"broadcast_address": host, "tcp_port": port, "http_port": 1} for host in hosts]
    return 200, json.dumps({"channels": [], "producers": nodes}).encode()


async def run_limited(script: str, *args: str) -> list[str]:
    """Run a script with few file descriptors; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(DESCRIPTORS), *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    printed = []
    try:
        async with asyncio.timeout(PATIENCE):
            assert process.stdout
            while line := await process.stdout.readline():
                printed.append(line.decode().strip())
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    return printed


def registered(nsqd: Nsqd, lookupd: Nsqlookupd, topic: str) -> None:
    assert nsqd.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
    lookupd.await_log(rf"REGISTER category:topic key:{topic} ")


@asynchronous
async def test_a_consumer_gets_its_messages_though_one_nsqlookupd_names_false_addresses(
    tmp_path: Path, nsqlookupd: Nsqlookupd, mute_port: int
) -> None:
    topic = "lied_about_to_a_consumer"
    with start_nsqd(tmp_path, lookupd=[nsqlookupd]) as nsqd:
        registered(nsqd, nsqlookupd, topic)
        await publish(nsqd, topic, *(b"%d" % number for number in range(10)))
        async with ScriptedLookupd({"/lookup": false_addresses(mute_port)}) as false:
            lookupds = f"{false.address},{nsqlookupd.http_address}"
            printed = await run_limited(CONSUME, lookupds, topic)
    assert sorted(printed) == [str(number) for number in range(10)]


@pytest.mark.parametrize("known", [True, False], ids=["known topic", "new topic"])
@asynchronous
async def test_a_producer_publishes_though_one_nsqlookupd_names_false_addresses(
    tmp_path: Path, nsqlookupd: Nsqlookupd, mute_port: int, known: bool
) -> None:
    topic = f"lied_about_to_a_producer_{known}"
    with start_nsqd(tmp_path, lookupd=[nsqlookupd]) as nsqd:
        answers = {"/nodes": false_addresses(mute_port)}
        if known:
            registered(nsqd, nsqlookupd, topic)
            answers["/lookup"] = false_addresses(mute_port)
        async with ScriptedLookupd(answers) as false:
            lookupds = f"{false.address},{nsqlookupd.http_address}"
            printed = await run_limited(PUBLISH, lookupds, topic)
    assert printed == [str(number) for number in range(10)]


@asynchronous
async def test_what_is_no_longer_named_no_longer_waits_for_its_turn(mute_port: int) -> None:
    async with ScriptedLookupd({"/lookup": false_addresses(mute_port)}) as false:
        async with Consumer(
            "t", "ch", lookupd=false.address, lookupd_poll_interval=0.1, dial_timeout=1
        ) as consumer:
            await eventually(lambda: len(consumer.stats().connections) == FALSE_ADDRESSES)
            assert re.search(r"\d{4} nsqd are queued for dialling: ", consumer.explain())
            assert len(consumer.explain().splitlines()) < 50
            false.answers = {"/lookup": (200, b'{"channels":[],"producers":[]}')}
            await eventually(lambda: not consumer.stats().connections)
        false.answers = {"/lookup": false_addresses(mute_port)}
        async with Producer(
            lookupd=false.address, lookupd_poll_interval=0.1, dial_timeout=1
        ) as producer:
            with pytest.raises(RequestTimeout, match=f"and {FALSE_ADDRESSES - 5} other nsqd"):
                await producer.publish("t", b"x", timeout=3)
            false.answers = {"/lookup": (200, b'{"channels":[],"producers":[]}')}
            assert producer._accumulator is not None
            pool = producer._accumulator._pool
            await eventually(lambda: not pool._reconnectors)


@asynchronous
async def test_a_name_that_is_not_an_address_does_not_end_a_consumer(
    tmp_path: Path, nsqlookupd: Nsqlookupd
) -> None:
    topic = "named_nonsense"
    nodes = [{"broadcast_address": host, "tcp_port": 1, "http_port": 1} for host in ("a b", "a/b")]
    nonsense = 200, json.dumps({"channels": [], "producers": nodes}).encode()
    with start_nsqd(tmp_path, lookupd=[nsqlookupd]) as nsqd:
        registered(nsqd, nsqlookupd, topic)
        async with ScriptedLookupd({"/lookup": nonsense}) as false:
            lookupds = [false.address, nsqlookupd.http_address]
            async with Consumer(topic, "ch", lookupd=lookupds) as consumer:
                await eventually(lambda: "a b:1: not connected: " in consumer.explain())
                await publish(nsqd, topic, b"x")
                assert await bodies_from(consumer, 1) == [b"x"]


# --- allowed_addresses


@asynchronous
async def test_looked_up_nsqd_outside_the_allowed_addresses_are_not_dialled(
    tmp_path: Path, nsqlookupd: Nsqlookupd
) -> None:
    topic, dialled = "allowed_addresses", list[str]()

    def record(address: str) -> str:
        dialled.append(address)
        return address

    with start_nsqd(tmp_path, lookupd=[nsqlookupd]) as nsqd:
        registered(nsqd, nsqlookupd, topic)
        await publish(nsqd, topic, b"x")
        lookupd = nsqlookupd.http_address
        async with Consumer(
            topic, "ch", lookupd=lookupd, address_map=record, allowed_addresses=["10.0.0.0/8"]
        ) as consumer:
            line = f"not dialled, outside allowed_addresses: {nsqd.tcp_address}"
            await eventually(lambda: line in consumer.explain().splitlines())
            assert "no nsqd has the topic" not in consumer.explain()
        async with Producer(
            lookupd=lookupd, address_map=record, allowed_addresses=["10.0.0.0/8", "host"]
        ) as producer:
            with pytest.raises(RequestTimeout, match=rf"allowed_addresses: {nsqd.tcp_address}"):
                await producer.publish(topic, b"y", timeout=1)
        assert dialled == []
        allowed = ["127.0.0.0/8"]
        async with Producer(
            lookupd=lookupd, address_map=record, allowed_addresses=allowed
        ) as producer:
            await producer.publish(topic, b"y")
        async with Consumer(
            topic, "ch", lookupd=lookupd, address_map=record, allowed_addresses=allowed
        ) as consumer:
            assert sorted(await bodies_from(consumer, 2)) == [b"x", b"y"]
        assert dialled == [nsqd.tcp_address] * 2


@asynchronous
async def test_an_address_is_checked_as_nsqlookupd_names_it(nsqd: Nsqd) -> None:
    def node(host: str) -> Answer:
        nodes = [{"broadcast_address": host, "tcp_port": 4150, "http_port": 1}]
        return 200, json.dumps({"channels": [], "producers": nodes}).encode()

    async with (
        ScriptedLookupd({"/lookup": node("Nsqd.Inside")}) as lookupd,
        Producer(
            lookupd=lookupd.address,
            address_map=lambda _: nsqd.tcp_address,
            allowed_addresses=["nsqd.inside"],
        ) as producer,
    ):
        await producer.publish("mapped_and_allowed", b"x")


@asynchronous
async def test_nsqd_given_directly_are_never_restricted(nsqd: Nsqd) -> None:
    async with Producer(nsqd.tcp_address, allowed_addresses=["10.0.0.0/8"]) as producer:
        await producer.publish("given_and_dialled", b"x")
