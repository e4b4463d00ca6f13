"""The brokers for programs of other projects, and their stats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from nsqflow import Consumer
from nsqflow.blocking import Producer
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE, Nsqd, Nsqlookupd, Server

NOTHING_LEFT = {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "timeout_count": 0}


@dataclass(frozen=True)
class Broker:
    """Two nsqd of one kind, and their nsqlookupd."""

    nsqd: Nsqd
    other: Nsqd
    lookupd: Nsqlookupd

    def create_everywhere(self, topic: str, *channels: str) -> None:
        """Create a topic on both nsqd and wait until nsqlookupd lists them."""
        create(self.nsqd, topic, *channels)
        create(self.other, topic, *channels)
        ports = {int(nsqd.tcp_address.rpartition(":")[2]) for nsqd in (self.nsqd, self.other)}
        await_equal(lambda: producers(self.lookupd, topic), ports)


def ask(server: Server, path: str) -> dict[str, Any]:
    """Return the JSON object that a server answers with."""
    status, body = server.ask(path)
    assert status == 200, f"{path}: {body!r}"
    answer: dict[str, Any] = json.loads(body)
    return answer


def create(nsqd: Nsqd, topic: str, *channels: str) -> None:
    """Create a topic with these channels."""
    assert nsqd.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
    for channel in channels:
        path = f"/channel/create?topic={topic}&channel={channel}"
        assert nsqd.ask(path, "POST")[0] == 200


def publish(nsqd: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    """Publish with our client."""
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, bodies)


def consume(nsqd: Nsqd, topic: str, channel: str, count: int) -> list[bytes]:
    """Consume ``count`` messages with our client."""

    async def take() -> list[bytes]:
        bodies: list[bytes] = []
        async with (
            asyncio.timeout(PATIENCE),
            Consumer(topic, channel, nsqd=[nsqd.tcp_address]) as consumer,
        ):
            while len(bodies) < count:
                message = await anext(consumer)
                message.finish()
                bodies.append(message.body)
        return bodies

    return asyncio.run(take())


def topics(nsqd: Nsqd) -> list[str]:
    return [topic["topic_name"] for topic in ask(nsqd, "/stats?format=json")["topics"]]


def topic_stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    """Return the stats of a topic; empty if there is none."""
    return next(iter(ask(nsqd, f"/stats?format=json&topic={topic}")["topics"]), {})


def channel_stats(nsqd: Nsqd, topic: str, channel: str) -> dict[str, Any]:
    """Return the stats of a channel; empty if there is none."""
    channels = topic_stats(nsqd, topic).get("channels", [])
    return next((each for each in channels if each["channel_name"] == channel), {})


def producers(lookupd: Nsqlookupd, topic: str) -> set[int]:
    """Return the TCP ports of the nsqd that nsqlookupd lists for a topic."""
    status, body = lookupd.ask(f"/lookup?topic={topic}")
    return {each["tcp_port"] for each in json.loads(body)["producers"]} if status == 200 else set()


def await_channel(nsqd: Nsqd, topic: str, channel: str, **figures: int) -> None:
    """Wait until the stats of a channel have these values."""

    def named() -> dict[str, Any]:
        stats = channel_stats(nsqd, topic, channel)
        return {name: stats.get(name) for name in figures}

    await_equal(named, figures)


def await_equal(state: Callable[[], object], wanted: object) -> None:
    """Wait until the state of another process, which has no event for it, is ``wanted``."""
    deadline = monotonic() + PATIENCE
    while (now := state()) != wanted:
        assert monotonic() < deadline, f"{now} and not {wanted}"
        sleep(POLL_INTERVAL)
