"""The verbs topics, channels and nodes."""

from __future__ import annotations

import json

import pytest

from nsqflow.broker import BackgroundBroker
from tests.cli.commands import Here
from tests.cli.sites import Site, unique

NOBODY = "127.0.0.1:9"  # where nothing listens


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, site: Site) -> list[str]:
    """The options that name the site, either way."""
    return site.through_lookupd if request.param == "lookupd" else site.directly


def test_topics_are_listed_one_per_line(nsqflow: Here, site: Site, servers: list[str]) -> None:
    one, two = unique(), unique()
    site.create(one)
    site.create(two, node=1)
    done = nsqflow("topics", *servers)
    assert (done.code, done.err) == (0, "")
    names = done.out.splitlines()
    assert {one, two} <= {*names}
    assert names == sorted(names)


def test_topics_are_objects_for_a_program(nsqflow: Here, site: Site, servers: list[str]) -> None:
    topic = unique()
    site.create(topic)
    done = nsqflow("topics", "--json", *servers)
    assert {"topic": topic} in [json.loads(line) for line in done.out.splitlines()]


def test_channels_are_those_of_all_nsqd(nsqflow: Here, site: Site, servers: list[str]) -> None:
    topic = unique()
    site.create(topic, "billing")
    site.create(topic, "mail", node=1)
    assert nsqflow("channels", topic, *servers) == (0, "billing\nmail\n", "")
    done = nsqflow("channels", topic, "--json", *servers)
    first, _ = done.out.splitlines()
    assert json.loads(first) == {"topic": topic, "channel": "billing"}


def test_a_topic_that_is_not_there_is_named_with_a_hint(
    nsqflow: Here, site: Site, servers: list[str]
) -> None:
    topic = unique("orders")
    site.create(topic)
    done = nsqflow("channels", topic[:-1], *servers)
    assert (done.code, done.out) == (1, "")
    assert done.err == (f"nsqflow: there is no topic {topic[:-1]!r}; did you mean {topic!r}?\n")


def test_a_name_that_no_server_takes_is_a_misuse(nsqflow: Here) -> None:
    done = nsqflow("channels", "a b")
    assert done.code == 2
    assert done.err.startswith("nsqflow: topic name 'a b' has ' ' at position 1; allowed are ")


def test_nodes_are_a_table(nsqflow: Here, site: Site, servers: list[str]) -> None:
    done = nsqflow("nodes", *servers)
    assert (done.code, done.err) == (0, "")
    head, *rows = done.out.splitlines()
    assert head.split() == ["NSQD", "HTTP", "HOST", "VERSION", "TOPICS", "DEPTH", "HEALTH"]
    assert sorted(row.split()[:2] for row in rows) == sorted(
        [tcp, http] for tcp, http in zip(site.nsqd, site.nsqd_http, strict=True)
    )
    assert all(row.split()[3].startswith("1.3.0") and row.endswith(" OK") for row in rows)


def test_a_node_tells_what_waits_on_it(nsqflow: Here, nowhere: object) -> None:
    with BackgroundBroker() as broker:
        site = Site(broker.lookupd_addresses[0], broker.nsqd_addresses, broker.nsqd_http_addresses)
        site.publish("waits", b"1", b"2")
        site.create("taken", "billing")
        site.publish("taken", b"3")
        [node] = map(json.loads, nsqflow("nodes", "--json", *site.directly).out.splitlines())
    assert (node["topics"], node["depth"], node["health"]) == (2, 3, "OK")


def test_an_nsqd_that_is_gone_is_listed_and_told_of(nsqflow: Here, site: Site) -> None:
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


def test_an_nsqlookupd_that_knows_no_nsqd_is_remarked_upon(nsqflow: Here) -> None:
    with BackgroundBroker() as broker:
        broker.stop_node(0)
        [lookupd] = broker.lookupd_addresses
        done = nsqflow("nodes", "--lookupd", lookupd)
    assert (done.code, done.out) == (0, "NSQD  HTTP  HOST  VERSION  TOPICS  DEPTH  HEALTH\n")
    assert done.err == (
        f"nsqflow: nsqlookupd {lookupd} knows no nsqd; nsqd's -lookupd-tcp-address names it\n"
    )


def test_what_one_nsqlookupd_does_not_tell_another_does(nsqflow: Here, site: Site) -> None:
    topic = unique()
    site.create(topic)
    done = nsqflow("topics", "--lookupd", NOBODY, "--lookupd", site.lookupd)
    assert topic in done.out.splitlines()
    assert (done.code, done.err) == (1, f"nsqflow: {NOBODY}: Connection refused\n")


@pytest.mark.parametrize("verb", [["topics"], ["nodes"], ["channels", "orders"]])
@pytest.mark.parametrize("option", ["--lookupd", "--nsqd"])
def test_where_nobody_answers_that_is_an_error_in_one_line_with_a_hint(
    nsqflow: Here, verb: list[str], option: str
) -> None:
    done = nsqflow(*verb, option, NOBODY)
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert line.startswith("nsqflow: 127.0.0.1:")
    assert "Connection refused; is it running?" in line
    assert "'nsqflow broker' starts one" in line
