"""nsqadmin with both kinds of broker."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nsqflow.broker.version import VERSION
from tests.fixtures.servers import PATIENCE, Kind
from tests.outside.brokers import (
    Broker,
    ask,
    await_channel,
    await_equal,
    channel_stats,
    producers,
    publish,
    topic_stats,
    topics,
)
from tests.outside.programs import Program, command_of

BODIES = [b"%d" % number for number in range(10)]


class Nsqadmin(Program):
    """nsqadmin, and requests to its API."""

    def ask(self, path: str, method: str = "GET", **fields: str) -> dict[str, Any]:
        """Return the answer of nsqadmin, which must have no warning."""
        address = self.await_log(rb"HTTP: listening on (\S+)")[1].decode()
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        try:
            connection.request(method, f"/api/{path}", json.dumps(fields) if fields else None)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        assert response.status == 200, body
        answer: dict[str, Any] = json.loads(body)
        assert answer.pop("message") == ""
        return answer


@pytest.fixture(scope="module", params=["lookupd", "nsqd"])
def nsqadmin(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Nsqadmin]:
    """nsqadmin with nsqlookupd, or with the addresses of all nsqd."""
    flags = {
        "lookupd": [f"-lookupd-http-address={broker.lookupd.http_address}"],
        "nsqd": [f"-nsqd-http-address={nsqd.http_address}" for nsqd in (broker.nsqd, broker.other)],
    }
    command = command_of("nsqadmin", http_address="127.0.0.1:0")
    with Nsqadmin([*command, *flags[request.param]]) as program:
        yield program


@pytest.fixture(scope="module")
def nsqadmin_of_lookupd(broker: Broker) -> Iterator[Nsqadmin]:
    lookupd = broker.lookupd.http_address
    command = command_of("nsqadmin", http_address="127.0.0.1:0", lookupd_http_address=lookupd)
    with Nsqadmin(command) as program:
        yield program


def known_channels(broker: Broker, topic: str) -> list[str]:
    channels: list[str] = ask(broker.lookupd, f"/channels?topic={topic}")["channels"]
    return sorted(channels)


def known_topics(broker: Broker) -> list[str]:
    names: list[str] = ask(broker.lookupd, "/topics")["topics"]
    return names


def test_nsqadmin_lists_the_nodes(
    nsqadmin: Nsqadmin, broker: Broker, kind: Kind, topic: str
) -> None:
    broker.create_everywhere(topic)
    nodes = nsqadmin.ask("nodes")["nodes"]
    ports = {(node["tcp_port"], node["http_port"]): node for node in nodes}
    for nsqd in (broker.nsqd, broker.other):
        info = ask(nsqd, "/info")
        node = ports[info["tcp_port"], info["http_port"]]
        for name in ("broadcast_address", "hostname", "version"):
            assert node[name] == info[name]
        assert node["version"] == {"real": "1.3.0", "ours": VERSION}[kind]
        assert topic in [each["topic"] for each in node["topics"]]
    assert len(nodes) == 2


def test_nsqadmin_sums_up_a_topic_over_the_nodes(
    nsqadmin: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic, "ch")
    publish(broker.nsqd, topic, BODIES)
    publish(broker.other, topic, BODIES[:4])
    await_channel(broker.nsqd, topic, "ch", depth=10)
    await_channel(broker.other, topic, "ch", depth=4)
    assert topic in nsqadmin.ask("topics")["topics"]
    shown = nsqadmin.ask(f"topics/{topic}")
    assert (shown["message_count"], shown["depth"], shown["paused"]) == (14, 0, False)
    assert {node["node"]: node["message_count"] for node in shown["nodes"]} == {
        broker.nsqd.http_address: 10,
        broker.other.http_address: 4,
    }
    [channel] = shown["channels"]
    assert (channel["channel_name"], channel["depth"], channel["message_count"]) == ("ch", 14, 14)
    counters = nsqadmin.ask("counter")["stats"].values()
    counted = [each["message_count"] for each in counters if each["topic_name"] == topic]
    assert sorted(counted) == [4, 10]


def test_nsqadmin_lists_the_clients_of_a_channel(
    nsqadmin: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic, "ch")
    publish(broker.nsqd, topic, BODIES)
    tail = command_of("nsq_tail", nsqd_tcp_address=broker.nsqd.tcp_address, topic=topic)
    with Program([*tail, "-channel=ch", "-max-in-flight=5"]) as program:
        program.await_lines(len(BODIES))
        await_channel(broker.nsqd, topic, "ch", depth=0, in_flight_count=0)
        shown = nsqadmin.ask(f"topics/{topic}/ch")
        [client] = shown["clients"]
        node = nsqadmin.ask(f"nodes/{broker.nsqd.http_address}")
    assert (shown["message_count"], shown["depth"], shown["client_count"]) == (10, 0, 1)
    assert client["node"] == broker.nsqd.http_address
    assert client["user_agent"].startswith("nsq_tail/1.3.0 go-nsq/")
    assert (client["ready_count"], client["finish_count"], client["message_count"]) == (5, 10, 10)
    assert node["total_clients"] == 1
    assert topic in [each["topic_name"] for each in node["topics"]]


def test_nsqadmin_pauses_and_unpauses_a_topic(
    nsqadmin: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic, "ch")
    nsqadmin.ask(f"topics/{topic}", "POST", action="pause")
    publish(broker.other, topic, BODIES)
    assert topic_stats(broker.nsqd, topic)["paused"]
    assert topic_stats(broker.other, topic)["paused"]
    assert topic_stats(broker.other, topic)["depth"] == len(BODIES)
    assert nsqadmin.ask(f"topics/{topic}")["paused"]
    nsqadmin.ask(f"topics/{topic}", "POST", action="unpause")
    await_channel(broker.other, topic, "ch", depth=len(BODIES))
    assert not topic_stats(broker.nsqd, topic)["paused"]


def test_nsqadmin_pauses_and_unpauses_a_channel(
    nsqadmin: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic, "ch")
    nsqadmin.ask(f"topics/{topic}/ch", "POST", action="pause")
    assert channel_stats(broker.nsqd, topic, "ch")["paused"]
    assert channel_stats(broker.other, topic, "ch")["paused"]
    tail = command_of("nsq_tail", nsqd_tcp_address=broker.nsqd.tcp_address, topic=topic)
    with Program([*tail, "-channel=ch"]) as program:
        await_channel(broker.nsqd, topic, "ch", client_count=1)
        publish(broker.nsqd, topic, BODIES)
        await_channel(broker.nsqd, topic, "ch", depth=len(BODIES), in_flight_count=0)
        assert program.lines == []
        nsqadmin.ask(f"topics/{topic}/ch", "POST", action="unpause")
        program.await_lines(len(BODIES))
    assert not channel_stats(broker.nsqd, topic, "ch")["paused"]


def test_nsqadmin_empties_a_topic_and_a_channel(
    nsqadmin: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic)
    publish(broker.nsqd, topic, BODIES)
    assert topic_stats(broker.nsqd, topic)["depth"] == len(BODIES)
    nsqadmin.ask(f"topics/{topic}", "POST", action="empty")
    assert topic_stats(broker.nsqd, topic)["depth"] == 0
    broker.create_everywhere(topic, "ch")
    publish(broker.nsqd, topic, BODIES)
    await_channel(broker.nsqd, topic, "ch", depth=len(BODIES))
    nsqadmin.ask(f"topics/{topic}/ch", "POST", action="empty")
    assert channel_stats(broker.nsqd, topic, "ch")["depth"] == 0


def test_nsqadmin_deletes_a_channel_and_a_topic(
    nsqadmin: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic, "ch", "kept")
    nsqadmin.ask(f"topics/{topic}/ch", "DELETE")
    for nsqd in (broker.nsqd, broker.other):
        assert [channel["channel_name"] for channel in topic_stats(nsqd, topic)["channels"]] == [
            "kept"
        ]
    nsqadmin.ask(f"topics/{topic}", "DELETE")
    assert topic not in topics(broker.nsqd) + topics(broker.other)
    await_equal(lambda: producers(broker.lookupd, topic), set())


def test_nsqadmin_deletes_from_nsqlookupd_too(
    nsqadmin_of_lookupd: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic, "ch", "kept")
    await_equal(lambda: known_channels(broker, topic), ["ch", "kept"])
    nsqadmin_of_lookupd.ask(f"topics/{topic}/ch", "DELETE")
    assert known_channels(broker, topic) == ["kept"]
    nsqadmin_of_lookupd.ask(f"topics/{topic}", "DELETE")
    assert topic not in known_topics(broker)


def test_nsqadmin_creates_a_topic_and_a_channel_on_its_nodes(
    nsqadmin_of_lookupd: Nsqadmin, broker: Broker, topic: str
) -> None:
    nsqadmin_of_lookupd.ask("topics", "POST", topic=topic)
    assert topic in known_topics(broker)
    broker.create_everywhere(topic)
    nsqadmin_of_lookupd.ask("topics", "POST", topic=topic, channel="ch")
    assert known_channels(broker, topic) == ["ch"]
    assert channel_stats(broker.nsqd, topic, "ch")
    assert channel_stats(broker.other, topic, "ch")


def test_nsqadmin_removes_a_topic_from_one_node(
    nsqadmin_of_lookupd: Nsqadmin, broker: Broker, topic: str
) -> None:
    broker.create_everywhere(topic)
    nsqadmin_of_lookupd.ask(f"nodes/{broker.nsqd.http_address}", "DELETE", topic=topic)
    assert topic not in topics(broker.nsqd)
    assert topic in topics(broker.other)
    assert producers(broker.lookupd, topic) == {int(broker.other.tcp_address.rpartition(":")[2])}
