"""Single messages of a redesigned nsqd over HTTP: found, and finished."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conformance.broker.asking import DONE, refused
from tests.conformance.redesigned.http_driver import CHANNEL, TOPIC, Cluster
from tests.conformance.redesigned.wire import OK, Wire, pub_ext

PLACE = f"topic={TOPIC}&partition=0"


@pytest.fixture
def servers() -> Iterator[Cluster]:
    """One node that leads the topic's one partition."""
    with Cluster(nodes=1) as cluster:
        cluster.create()
        yield cluster


def connected(cluster: Cluster) -> Wire:
    return Wire(cluster.broker.nsqd_addresses[0])


@pytest.mark.parametrize(("mode", "position"), [("id", 3), ("count", 2), ("virtual_offset", 33)])
def test_a_message_is_found_by_id_number_and_offset(
    servers: Cluster, mode: str, position: int
) -> None:
    servers.publish(b"one")
    text = '{"n": 2} é'
    assert servers.nsqd(f"POST /pubtrace?{PLACE}&trace_id=7", text.encode()).status == 200
    found = servers.message(mode, position)
    assert found.pop("timestamp") > 10**18
    assert found == {
        "id": 3,
        "trace_id": 7,
        "body": text,
        "attempts": 0,
        "offset": 33,
        "queue_cnt_index": 2,
        "ext": "",
    }


def test_the_body_of_a_message_is_a_string_whatever_bytes_it_has(servers: Cluster) -> None:
    servers.publish(b"\xff\n")
    answer = servers.nsqd(f"GET /message/get?{PLACE}&search_mode=count&search_pos=1")
    assert json.loads(answer.body)["body"] == "\ufffd\n"


def test_the_headers_of_a_message_are_shown_if_they_are_asked_for() -> None:
    with Cluster(nodes=1) as cluster:
        cluster.create(extend=True)
        with connected(cluster) as client:
            assert client.ask(pub_ext(TOPIC, b'{"region":"eu"}', b"x")) == OK
        assert cluster.message("count", 1)["ext"] == ""
        found = cluster.message("count", 1, "&needext=true")
        assert (found["ext"], found["body"]) == ('{"region":"eu"}', "x")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        (f"{PLACE}&search_mode=name&search_pos=1", 400),
        (f"{PLACE}&search_mode=count&search_pos=x", 400),
        (f"{PLACE}&search_mode=count", 400),
        ("topic=none&partition=0&search_mode=count&search_pos=1", 400),
        (f"{PLACE}&search_mode=count&search_pos=2", 500),
    ],
)
def test_a_message_that_there_is_not_is_an_error(servers: Cluster, query: str, status: int) -> None:
    servers.publish(b"x")
    assert servers.nsqd(f"GET /message/get?{query}").status == status


def test_an_empty_partition_has_no_message(servers: Cluster) -> None:
    answer = servers.nsqd(f"GET /message/get?{PLACE}&search_mode=count&search_pos=1")
    assert answer.status == 404


def test_a_message_in_flight_is_finished_by_its_id() -> None:
    with Cluster(nodes=1) as cluster:
        cluster.create(orderedmulti=True)
        with connected(cluster) as client:
            client.subscribe(f"SUB_ORDERED {TOPIC} {CHANNEL} 0")
            cluster.publish(b"bad", b"good")
            bad = client.message(positioned=True)
            finish = f"POST /message/finish?{PLACE}&channel={CHANNEL}&msgid={bad.internal_id}"
            assert cluster.nsqd(finish) == DONE
            good = client.message(positioned=True)
            assert (bad.body, good.body) == (b"bad", b"good")
            again = cluster.nsqd(finish)
        assert again.status == 500
        assert b"Message ID not in flight" in again.body
        for query, answer in {
            f"{PLACE}&channel={CHANNEL}&msgid=x": refused(400, "INVALID_REQUEST"),
            f"{PLACE}&channel=none&msgid=2": refused(404, "CHANNEL_NOT_FOUND"),
            "topic=none&channel=ch&msgid=2": refused(404, "E_TOPIC_NOT_EXIST"),
        }.items():
            assert cluster.nsqd(f"POST /message/finish?{query}") == answer
