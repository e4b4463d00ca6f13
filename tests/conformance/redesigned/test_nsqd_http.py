"""A redesigned nsqd over HTTP: publishing, and the stats of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.broker.asking import OK, PONG, Answer, refused
from tests.conformance.driver import wait_until
from tests.conformance.redesigned import recorded
from tests.conformance.redesigned.http_driver import (
    CHANNEL,
    TOPIC,
    Cluster,
    opened,
    refused_in_envelope,
)
from tests.conformance.redesigned.recorded import mask_changing
from tests.conformance.redesigned.wire import OK as STORED
from tests.conformance.redesigned.wire import Wire, batch, fin, pub, req
from tests.fixtures.certificates import Certificates

PLACE = f"topic={TOPIC}&partition=0"
SUB = f"SUB {TOPIC} {CHANNEL} 0"
MINUTE = 60_000  # milliseconds, as REQ counts

both_forms = pytest.mark.parametrize("v1", [True, False], ids=["v1", "envelope"])


@pytest.fixture
def servers() -> Iterator[Cluster]:
    """Node 0 leads the topic's one partition, node 1 follows, node 2 has no copy."""
    with Cluster() as cluster:
        cluster.create(replicas=2)
        yield cluster


def connected(cluster: Cluster, node: int = 0, **identify: Any) -> Wire:
    wire = Wire(cluster.broker.nsqd_addresses[node])
    if identify:
        wire.identify(**identify)
    return wire


# The shapes that were recorded

PROBE: dict[str, Any] = {"client_id": "probe", "hostname": "probe", "user_agent": "probe/0"}


@both_forms
def test_info_is_that_of_the_real_server(servers: Cluster, v1: bool) -> None:
    answer = servers.nsqd("GET /info", v1=v1)
    found = answer.json() if v1 else opened(answer)
    assert mask_changing(found) == mask_changing(recorded.NSQD_INFO)


@both_forms
def test_stats_are_those_of_the_real_server_after_the_same_commands(
    servers: Cluster, v1: bool
) -> None:
    consumer = connected(servers, **PROBE, output_buffer_size=4096)
    with consumer, connected(servers, **PROBE) as producer:
        consumer.subscribe(SUB, rdy=2)
        for number in range(5):  # of 36 bytes each, with what nsqd adds
            assert producer.ask(pub(TOPIC, b"body %d" % number)) == STORED
        first = consumer.message()
        consumer.send(fin(first.id))
        consumer.bodies(2)
        answer = servers.nsqd(f"GET /stats?format=json&topic={TOPIC}", v1=v1)
        found = answer.json() if v1 else opened(answer)
    assert mask_changing(found) == mask_changing(recorded.STATS)


def test_coordinator_stats_name_the_leader_and_its_followers(servers: Cluster) -> None:
    for node in (0, 1):
        answer = servers.nsqd(f"GET /coordinator/stats?topic={TOPIC}", node=node).json()
        [found] = answer["topic_coord_stats"]
        assert mask_changing(found) == mask_changing(recorded.TOPIC_COORD_STATS)
        names = [each["node_id"] for each in found["isr_stats"]]
        assert names == [servers.distributed_id(each) for each in (0, 1)]
    for node, query in ((2, PLACE), (0, f"topic={TOPIC}&partition=7"), (0, "topic=none")):
        answer = servers.nsqd(f"GET /coordinator/stats?{query}", node=node).json()
        assert answer["topic_coord_stats"] == []


def test_ping(servers: Cluster) -> None:
    assert servers.nsqd("GET /ping") == PONG


# Publishing


def test_a_traced_publish_is_answered_with_its_place(servers: Cluster) -> None:
    servers.publish(b"12345", b"1234567", b"123", b"123456")
    answer = servers.nsqd(f"POST /pubtrace?{PLACE}&trace_id=77", b"x").json()
    # The fifth message: ids begin at 2, and each has 30 bytes besides its body.
    assert answer == recorded.PUB_TRACE | {"queue_offset": 141}


@pytest.mark.parametrize("trace", ["", "x", "-1", "1.5", str(2**64)])
def test_a_trace_id_is_a_number_of_64_bits(servers: Cluster, trace: str) -> None:
    answer = servers.nsqd(f"POST /pubtrace?{PLACE}&trace_id={trace}", b"x")
    assert answer == refused(400, "INVALID_TRACE_ID")
    assert servers.nsqd(f"POST /pubtrace?{PLACE}&trace_id={2**64 - 1}", b"x").status == 200


BATCHES: dict[str, tuple[str, bytes, list[str]]] = {
    "lines": ("", b"a\nb\n\nc", ["a", "b", "c"]),
    "binary": (
        "&binary=true",
        b"\0\0\0\2" + b"\0\0\0\1a" + b"\0\0\0\3b\nc",
        ["a", "b\nc"],
    ),
}


@pytest.mark.parametrize("messages", BATCHES.values(), ids=BATCHES)
def test_several_messages_are_published_at_once(
    servers: Cluster, messages: tuple[str, bytes, list[str]]
) -> None:
    option, body, bodies = messages
    assert servers.nsqd(f"POST /mpub?{PLACE}{option}", body) == OK
    found = [servers.message("count", number)["body"] for number in range(1, len(bodies) + 1)]
    assert found == bodies


def test_without_a_partition_it_is_one_that_the_node_leads(servers: Cluster) -> None:
    for query in ("", "&partition=-1"):
        assert servers.nsqd(f"POST /pub?topic={TOPIC}{query}", b"x") == OK
    assert [each["message_count"] for each in servers.stats()] == [2]


REFUSALS: dict[str, tuple[int, str, bytes, int, str]] = {
    "a follower": (1, PLACE, b"x", 400, "E_FAILED_ON_NOT_LEADER"),
    "a node without a copy": (2, PLACE, b"x", 404, "E_TOPIC_NOT_EXIST"),
    "an unknown topic": (0, "topic=none&partition=0", b"x", 404, "E_TOPIC_NOT_EXIST"),
    "an unknown partition": (0, f"topic={TOPIC}&partition=7", b"x", 404, "E_TOPIC_NOT_EXIST"),
    "no topic": (0, "partition=0", b"x", 400, "MISSING_ARG_TOPIC"),
    "a bad topic": (0, "topic=a$b&partition=0", b"x", 400, "INVALID_ARG_TOPIC"),
}


@pytest.mark.parametrize("verb", ["pub", "mpub"])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_publish_is_refused_in_both_forms(
    servers: Cluster, verb: str, refusal: tuple[int, str, bytes, int, str]
) -> None:
    node, query, body, status, text = refusal
    request = f"POST /{verb}?{query}"
    assert servers.nsqd(request, body, node) == refused(status, text)
    assert servers.nsqd(request, body, node, v1=False) == refused_in_envelope(text)


@pytest.mark.parametrize("verb", ["pub", "pubtrace"])
@pytest.mark.parametrize(
    ("body", "answer"),
    [(b"", refused(406, "MSG_EMPTY")), (b"123456", refused(413, "MSG_TOO_BIG"))],
    ids=["empty", "too big"],
)
def test_a_body_has_at_least_one_byte_and_at_most_those_that_are_configured(
    verb: str, body: bytes, answer: Answer
) -> None:
    with Cluster(nodes=1, max_msg_size=5) as cluster:
        cluster.create()
        assert cluster.nsqd(f"POST /{verb}?{PLACE}&trace_id=1", body) == answer


def test_where_tls_is_required_plain_http_is_refused(certificates: Certificates) -> None:
    options = {"tls_cert": str(certificates.cert), "tls_key": str(certificates.key)}
    with Cluster(nodes=1, tls_required="true", **options) as cluster:
        for request in ("POST /pub?topic=x", "GET /stats"):
            answer = cluster.nsqd(request, b"x" if "POST" in request else None)
            assert (answer.status, answer.body) == (403, b'{"message": "TLS_REQUIRED"}')


# Which stats there are


def test_stats_of_all_topics_leave_out_clients_unless_they_are_asked_for(
    servers: Cluster,
) -> None:
    with connected(servers) as client:
        client.subscribe(SUB)
        for query, shown in {
            "": False,
            "needClients=true": True,
            "needClients=false": False,
            f"topic={TOPIC}": True,
            f"topic={TOPIC}&needClients=true": True,
            f"topic={TOPIC}&needClients=false": False,
        }.items():
            [topic] = servers.stats(query)
            [channel] = topic["channels"]
            assert channel["client_num"] == 1
            found = (topic["client_pub_stats"] is not None, channel["clients"] is not None)
            assert found == (shown, shown), query


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["orders-0", "orders-1", "others-0"]),
        ("topic=orders", ["orders-0", "orders-1"]),
        ("topic=orders&partition=1", ["orders-1"]),
        ("topic=orders&partition=01", []),  # compared as text
        ("topic=orders&partition=7", []),
        ("topic=none", []),
        ("partition=0", ["orders-0", "others-0"]),
        ("leaderOnly=true", ["orders-0", "orders-1", "others-0"]),
    ],
)
def test_stats_have_an_entry_for_each_partition_that_is_asked_for(
    query: str, found: list[str]
) -> None:
    with Cluster(nodes=1) as cluster:
        cluster.create(partitions=2, orderedmulti=True)
        cluster.create("others", extend=True)
        entries = cluster.stats(query)
    assert [each["topic_full_name"] for each in entries] == found
    for each in entries:
        assert each["topic_full_name"] == f"{each['topic_name']}-{each['topic_partition']}"
        assert each["is_multi_ordered"] is (each["topic_name"] == "orders")
        assert each["is_ext"] is (each["topic_name"] == "others")


def test_an_unknown_channel_leaves_in_all_of_them(servers: Cluster) -> None:
    for channel in ("a", "b"):
        servers.create_channel(channel=channel)
    names = {
        query: [
            each["channel_name"]
            for each in servers.stats(f"topic={TOPIC}&channel={query}")[0]["channels"]
        ]
        for query in ("a", "none", "")
    }
    assert names == {"a": ["a"], "none": ["a", "b"], "": ["a", "b"]}


def test_a_follower_lists_the_partition_and_knows_nothing_of_its_channels(
    servers: Cluster,
) -> None:
    servers.create_channel()
    servers.publish(b"x")
    [leader], [follower] = servers.stats(), servers.stats(node=1)
    assert (leader["is_leader"], follower["is_leader"]) == (True, False)
    assert leader["depth"] == follower["depth"] == 31
    assert [each["depth"] for each in leader["channels"]] == [1]
    assert [each["depth"] for each in follower["channels"]] == [0]
    assert servers.stats(f"topic={TOPIC}&leaderOnly=true", node=1) == []
    assert servers.stats(f"topic={TOPIC}", node=2) == []


def test_stats_are_text_without_partitions_unless_json_is_asked_for(servers: Cluster) -> None:
    servers.create_channel()
    text = servers.nsqd("GET /stats").body.decode()
    assert text.startswith(f"nsqd v{recorded.VERSION}")
    assert TOPIC in text
    assert CHANNEL in text
    assert f"{TOPIC}-0" not in text


# What stats count


def counts(servers: Cluster) -> dict[str, Any]:
    names = ("depth", "backlogs", "in_flight_count", "deferred_count", "delayed_queue_count")
    return {name: servers.channel_stats()[name] for name in names}


def test_depth_counts_from_the_oldest_message_that_is_not_finished(servers: Cluster) -> None:
    with connected(servers) as client:
        client.subscribe(SUB, rdy=4)
        assert client.ask(batch(f"MPUB {TOPIC} 0", *[b"x"] * 10)) == STORED
        oldest, *others = [client.message() for _ in range(4)]
        client.send(*(fin(each.id) for each in others))
        more = [client.message() for _ in range(3)]
        stats = servers.channel_stats()
        assert (stats["depth"], stats["depth_size"], stats["in_flight_count"]) == (10, 310, 4)
        assert stats["backlogs"] == 2  # seven were sent, and nsqd reads one ahead
        assert stats["message_count"] == 10  # what was published, not what was delivered
        client.send(fin(oldest.id))
        wait_until(lambda: servers.channel_stats()["depth"] == 6)
        assert len(more) == 3


def test_deferred_messages_are_in_flight_and_long_delayed_ones_are_apart(
    servers: Cluster,
) -> None:
    with connected(servers) as client:
        client.subscribe(SUB, rdy=2)
        servers.publish(b"a", b"b")
        first, second = (client.message() for _ in range(2))
        client.send(req(second.id, 10 * MINUTE))
        wait_until(lambda: servers.channel_stats()["deferred_count"] == 1)
        found = {"depth": 2, "backlogs": 1, "in_flight_count": 2}
        assert counts(servers) == found | {"deferred_count": 1, "delayed_queue_count": 0}
        client.send(req(first.id, 16 * MINUTE))
        wait_until(lambda: servers.channel_stats()["delayed_queue_count"] == 1)
        found = {"depth": 1, "backlogs": 1, "in_flight_count": 1}
        assert counts(servers) == found | {"deferred_count": 1, "delayed_queue_count": 1}
        stats = servers.channel_stats()
        assert stats["delayed_queue_recent_nano"] > first.timestamp
        assert stats["clients"][0]["requeue_count"] == 2


def test_a_topic_counts_bytes_and_a_channel_messages(servers: Cluster) -> None:
    servers.publish(b"before the channel")
    servers.create_channel()
    servers.publish(b"123", b"12345")
    [topic] = servers.stats()
    assert (topic["depth"], topic["backend_start"], topic["message_count"]) == (116, 0, 3)
    assert (topic["channels"][0]["depth"], topic["channels"][0]["depth_size"]) == (2, 68)
