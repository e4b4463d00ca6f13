"""A redesigned cluster of ours, asked over HTTP as any client asks it.

    with Cluster(nodes=3) as cluster:
        cluster.create("orders", partitions=2)
        cluster.lookupd("GET /topics").json()
        cluster.nsqd("POST /pub?topic=orders&partition=0", b"x")

nsqlookupd has two forms of answers: the bare object for clients that accept version 1.0, and for
all others an envelope, in which every error has the status 500.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, Self

from nsqflow.broker import BackgroundBroker
from nsqflow.protocol.lookup import ACCEPT_V1
from tests.conformance.broker.asking import DONE, JSON, Answer
from tests.fixtures.servers import PATIENCE

TOPIC, CHANNEL = "orders", "billing"

Leaders = dict[str, int]
"""The numbers of the nodes that nsqlookupd names, by partition."""


class Cluster:
    """A cluster on a thread of its own; node 0 leads partition 0 of the first topic."""

    def __init__(self, nodes: int = 3, **options: Any) -> None:
        self.broker = BackgroundBroker("redesigned", nodes, **options)

    def __enter__(self) -> Self:
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def lookupd(self, request: str, number: int = 0, *, v1: bool = True) -> Answer:
        """Ask an nsqlookupd; number 0 leads at first."""
        return ask(self.broker.lookupd_addresses[number], request, v1=v1)

    def nsqd(
        self, request: str, body: bytes | None = None, node: int = 0, *, v1: bool = True
    ) -> Answer:
        """Ask a node."""
        return ask(self.broker.nsqd_http_addresses[node], request, body, v1=v1)

    def create(
        self, topic: str = TOPIC, partitions: int = 1, replicas: int = 1, **on: bool
    ) -> None:
        """Create a topic; ``on`` are its options, under nsqlookupd's names."""
        query = f"topic={topic}&partition_num={partitions}&replicator={replicas}"
        options = "".join(f"&{name}={str(value).lower()}" for name, value in on.items())
        assert self.lookupd(f"POST /topic/create?{query}{options}") == DONE

    def create_channel(self, node: int = 0, partition: int = 0, channel: str = CHANNEL) -> None:
        """Create a channel in one partition of the topic."""
        query = f"topic={TOPIC}&partition={partition}&channel={channel}"
        assert self.nsqd(f"POST /channel/create?{query}", node=node) == DONE

    def publish(self, *bodies: bytes, node: int = 0, partition: int = 0) -> None:
        """Publish to the topic, each body by itself."""
        for body in bodies:
            query = f"topic={TOPIC}&partition={partition}"
            assert self.nsqd(f"POST /pub?{query}", body, node).status == 200

    def leaders(self, access: str = "r", lookupd: int = 0, topic: str = TOPIC) -> Leaders:
        """Return the nodes that an nsqlookupd names."""
        answer = self.lookupd(f"GET /lookup?topic={topic}&access={access}", lookupd).json()
        ports = {int(each.split(":")[1]): i for i, each in enumerate(self.broker.nsqd_addresses)}
        return {number: ports[node["tcp_port"]] for number, node in answer["partitions"].items()}

    def stats(self, query: str = f"topic={TOPIC}", node: int = 0) -> list[dict[str, Any]]:
        """Return the entries of a node's /stats."""
        answer = self.nsqd(f"GET /stats?format=json&{query}", node=node).json()
        topics: list[dict[str, Any]] = answer["topics"]
        return topics

    def channel_stats(self, node: int = 0, channel: str = CHANNEL) -> dict[str, Any]:
        """Return what a node says of a channel in the one partition of the topic that it has."""
        [topic] = self.stats(f"topic={TOPIC}", node)
        [found] = [each for each in topic["channels"] if each["channel_name"] == channel]
        result: dict[str, Any] = found
        return result

    def message(self, mode: str, position: int, more: str = "") -> dict[str, Any]:
        """Return a message of partition 0 that the first node finds."""
        query = f"topic={TOPIC}&partition=0&search_mode={mode}&search_pos={position}{more}"
        found: dict[str, Any] = self.nsqd(f"GET /message/get?{query}").json()
        return found

    def distributed_id(self, node: int) -> str:
        """Return the name of a node within the cluster, as its coordinator has it."""
        host, port = self.broker.nsqd_addresses[node].split(":")
        http_port = self.broker.nsqd_http_addresses[node].split(":")[1]
        return f"{host}:{http_port}:{port}:{node}"


def ask(address: str, request: str, body: bytes | None = None, *, v1: bool = True) -> Answer:
    """Ask a server, with "METHOD /path"."""
    method, path = request.split(" ", 1)
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"Accept": ACCEPT_V1} if v1 else {})
        response = connection.getresponse()
        return Answer(
            response.status,
            response.read(),
            response.headers["Content-Type"],
            response.headers["X-NSQ-Content-Type"],
            response.headers["Allow"],
        )
    finally:
        connection.close()


def opened(answer: Answer) -> Any:
    """Return what is in the envelope of an answer that is not an error."""
    envelope = answer.json()
    assert {**envelope, "data": None} == {"status_code": 200, "status_txt": "OK", "data": None}
    assert answer.nsq_content_type is None
    return envelope["data"]


def refused_in_envelope(text: str) -> Answer:
    """Return how a client that does not accept version 1.0 is refused, whatever the reason."""
    body = json.dumps({"status_code": 500, "status_txt": text, "data": None}, separators=(",", ":"))
    return Answer(500, body.encode(), JSON, nsq_content_type=None)
