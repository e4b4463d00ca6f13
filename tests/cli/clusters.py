"""Clusters that the verbs are tried on: real daemons, and the embedded broker."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from nsqflow.broker import BackgroundBroker
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE, start_nsqd, start_nsqlookupd


@dataclass(frozen=True)
class NsqCluster:
    """An nsqlookupd and two nsqd that it knows."""

    lookupd: str
    nsqd: list[str]
    nsqd_http: list[str]

    @property
    def through_lookupd(self) -> list[str]:
        """The options that name it, one way ..."""
        return ["--lookupd", self.lookupd]

    @property
    def directly(self) -> list[str]:
        """... and the other."""
        return ["--nsqd", ",".join(self.nsqd), "--nsqd-http", ",".join(self.nsqd_http)]

    def publish(self, topic: str, *bodies: bytes, node: int = 0) -> None:
        """Publish without a client; its channels have it then, if there are any."""
        for body in bodies:
            assert ask(self.nsqd_http[node], f"/pub?topic={topic}", "POST", body)[0] == 200
        deadline = time.monotonic() + PATIENCE
        while (found := self.topic(topic, node)) and found["channels"] and found["depth"]:
            assert time.monotonic() < deadline, f"{topic} keeps its messages: {found}"
            time.sleep(POLL_INTERVAL)

    def create(self, topic: str, channel: str | None = None, node: int = 0) -> None:
        """Create a topic, or a channel, on one nsqd; nsqlookupd has heard of it then."""
        assert ask(self.nsqd_http[node], f"/topic/create?topic={topic}", "POST")[0] == 200
        if channel is not None:
            path = f"/channel/create?topic={topic}&channel={channel}"
            assert ask(self.nsqd_http[node], path, "POST")[0] == 200
        path = f"/channels?topic={topic}" if channel else "/topics"
        deadline = time.monotonic() + PATIENCE
        while (channel or topic) not in self.known(path):
            assert time.monotonic() < deadline, f"nsqlookupd does not know {channel or topic}"
            time.sleep(POLL_INTERVAL)

    def topic(self, topic: str, node: int = 0) -> dict[str, Any] | None:
        """The statistics of a topic on one nsqd; None if it has none of that name."""
        _, body = ask(self.nsqd_http[node], f"/stats?format=json&topic={topic}")
        return next(iter(json.loads(body)["topics"] or []), None)

    def channel(self, topic: str, channel: str, node: int = 0) -> dict[str, Any] | None:
        """The statistics of a channel on one nsqd; None if it has none of that name."""
        found = self.topic(topic, node) or {"channels": []}
        channels = {each["channel_name"]: each for each in found["channels"] or []}
        return channels.get(channel)

    def known(self, path: str) -> list[str]:
        """The names that nsqlookupd knows, as of ``/topics``."""
        answer = json.loads(ask(self.lookupd, path)[1])
        names: list[str] = next(iter(answer.values()))
        return names


def ask(address: str, path: str, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
    """The answer over HTTP: status and body."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def unique(name: str = "topic") -> str:
    """A name that no other test has."""
    return f"{name}-{uuid4().hex[:12]}"


@contextmanager
def real_cluster(folder: Path) -> Iterator[NsqCluster]:
    """The real daemons."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(start_nsqlookupd())
        paths = [folder / name for name in ("one", "two")]
        for path in paths:
            path.mkdir()
        nsqds = [stack.enter_context(start_nsqd(path, lookupd=[lookupd])) for path in paths]
        yield NsqCluster(
            lookupd.http_address,
            [nsqd.tcp_address for nsqd in nsqds],
            [nsqd.http_address for nsqd in nsqds],
        )


@contextmanager
def embedded_cluster() -> Iterator[NsqCluster]:
    """The broker, on a thread of this process."""
    with BackgroundBroker(nodes=2) as broker:
        [lookupd] = broker.lookupd_addresses
        yield NsqCluster(lookupd, broker.nsqd_addresses, broker.nsqd_http_addresses)
