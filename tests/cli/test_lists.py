"""The verbs topics, channels and nodes."""

from __future__ import annotations

import json

import pytest

from nsqflow.broker import BackgroundBroker
from tests.cli.clusters import NsqCluster, unique
from tests.cli.commands import InProcess

CLOSED_PORT = "127.0.0.1:9"  # where nothing listens


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, cluster: NsqCluster) -> list[str]:
    """The options that name the cluster, either way."""
    return cluster.through_lookupd if request.param == "lookupd" else cluster.directly


def test_topics_are_listed_one_per_line(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    one, two = unique(), unique()
    cluster.create(one)
    cluster.create(two, node=1)
    done = nsqflow("topics", *servers)
    assert (done.code, done.err) == (0, "")
    names = done.out.splitlines()
    assert {one, two} <= {*names}
    assert names == sorted(names)


def test_topics_are_objects_for_a_program(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic)
    done = nsqflow("topics", "--json", *servers)
    assert {"topic": topic} in [json.loads(line) for line in done.out.splitlines()]


def test_channels_are_those_of_all_nsqd(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique()
    cluster.create(topic, "billing")
    cluster.create(topic, "mail", node=1)
    assert nsqflow("channels", topic, *servers) == (0, "billing\nmail\n", "")
    done = nsqflow("channels", topic, "--json", *servers)
    first, _ = done.out.splitlines()
    assert json.loads(first) == {"topic": topic, "channel": "billing"}


def test_a_topic_that_is_not_there_is_named_with_a_hint(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    topic = unique("orders")
    cluster.create(topic)
    done = nsqflow("channels", topic[:-1], *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err == (f"nsqflow: there is no topic {topic[:-1]!r}; did you mean {topic!r}?\n")


def test_a_name_that_no_server_takes_is_a_misuse(nsqflow: InProcess) -> None:
    done = nsqflow("channels", "a b")
    assert done.code == 2
    assert done.err.startswith("nsqflow: topic name 'a b' has ' ' at position 1: must consist of ")


def test_nodes_are_a_table(nsqflow: InProcess, cluster: NsqCluster, servers: list[str]) -> None:
    done = nsqflow("nodes", *servers)
    assert (done.code, done.err) == (0, "")
    head, *rows = done.out.splitlines()
    assert head.split() == ["NSQD", "HTTP", "HOST", "VERSION", "TOPICS", "DEPTH", "HEALTH"]
    assert sorted(row.split()[:2] for row in rows) == sorted(
        [tcp, http] for tcp, http in zip(cluster.nsqd, cluster.nsqd_http, strict=True)
    )
    assert all(row.split()[3].startswith("1.3.0") and row.endswith(" OK") for row in rows)


def test_a_node_has_the_number_of_waiting_messages(
    nsqflow: InProcess, empty_folder: object
) -> None:
    with BackgroundBroker() as broker:
        cluster = NsqCluster(
            broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses
        )
        cluster.publish("waits", b"1", b"2")
        cluster.create("taken", "billing")
        cluster.publish("taken", b"3")
        [node] = map(json.loads, nsqflow("nodes", "--json", *cluster.directly).out.splitlines())
    assert (node["topics"], node["depth"], node["health"]) == (2, 3, "OK")


def test_a_stopped_nsqd_is_listed_and_reported(nsqflow: InProcess, cluster: NsqCluster) -> None:
    with BackgroundBroker(nodes=2) as broker:
        gone, stays = broker.nsqd_addresses
        broker.kill_node(0)
        servers = [
            *("--nsqd", f"{gone},{stays}"),
            *("--nsqd-http", ",".join(broker.nsqd_http_addresses)),
        ]
        done = nsqflow("nodes", "--json", *servers)
        http = broker.nsqd_http_addresses[0]
    nodes = {node["nsqd"]: node for node in map(json.loads, done.out.splitlines())}
    assert done.code == 1
    assert nodes[gone]["health"] == "unreachable"
    assert nodes[stays]["health"] == "OK"
    assert done.err == f"nsqflow: {http}: Connection refused\n"


def test_an_nsqlookupd_that_knows_no_nsqd_is_reported(nsqflow: InProcess) -> None:
    with BackgroundBroker() as broker:
        broker.stop_node(0)
        [lookupd] = broker.lookupd_addresses
        done = nsqflow("nodes", "--lookupd", lookupd)
    assert (done.code, done.out) == (0, "NSQD  HTTP  HOST  VERSION  TOPICS  DEPTH  HEALTH\n")
    assert done.err == (
        f"nsqflow: nsqlookupd {lookupd} knows no nsqd; nsqd's -lookupd-tcp-address names it\n"
    )


def test_what_one_nsqlookupd_does_not_know_another_does(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    topic = unique()
    cluster.create(topic)
    done = nsqflow("topics", "--lookupd", CLOSED_PORT, "--lookupd", cluster.lookupd)
    assert topic in done.out.splitlines()
    assert (done.code, done.err) == (1, f"nsqflow: {CLOSED_PORT}: Connection refused\n")


@pytest.mark.parametrize("verb", [["topics"], ["nodes"], ["channels", "orders"]])
@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_without_a_server_it_is_an_error_in_one_line_with_a_hint(
    nsqflow: InProcess, verb: list[str], option: str
) -> None:
    done = nsqflow(*verb, option, CLOSED_PORT)
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert line.startswith("nsqflow: 127.0.0.1:")
    assert "Connection refused; is it running?" in line
    assert "'nsqflow broker' starts one" in line
