"""nsqd over HTTP: every endpoint, its answers, and both sides of its limits."""

from __future__ import annotations

import json
import re
import socket

import pytest

from tests.conformance.broker.asking import (
    DONE,
    JSON,
    OK,
    PONG,
    TEXT,
    Answer,
    Question,
    ask,
    check,
    questions,
    refused,
    shape,
)
from tests.conformance.broker.dialogue import (
    MAGIC,
    Client,
    identify,
    several,
    size,
    sized,
)
from tests.conformance.broker.dialogue import OK as OK_FRAME
from tests.conformance.driver import stats_of, wait_until
from tests.fixtures.servers import Nsqd

NOT_FOUND = refused(404, "NOT_FOUND")
BAD_REQUEST = refused(400, "INVALID_REQUEST")
ONLY_GET = refused(405, "METHOD_NOT_ALLOWED", allow="GET, OPTIONS")
ONLY_POST = refused(405, "METHOD_NOT_ALLOWED", allow="OPTIONS, POST")

ROUTES: dict[str, Question] = {
    "ping": ("GET /ping", None, PONG),
    "ping with a query that is none": ("GET /ping?x=%zz", None, PONG),
    "ping in percent": ("GET /%70ing", None, PONG),
    "POST instead of GET": ("POST /ping", b"", ONLY_GET),
    "GET instead of POST": ("GET /pub", None, ONLY_POST),
    "PUT instead of POST": ("PUT /mpub", b"x", ONLY_POST),
    "PATCH instead of POST": ("PATCH /topic/create?topic={topic}", None, ONLY_POST),
    "POST instead of PUT": (
        "POST /config/log_level",
        b"info",
        refused(405, "METHOD_NOT_ALLOWED", allow="GET, OPTIONS, PUT"),
    ),
    "HEAD instead of GET": (
        "HEAD /ping",
        None,
        Answer(405, b"", JSON, allow="GET, OPTIONS"),
    ),
    "OPTIONS": ("OPTIONS /ping", None, Answer(200, nsq_content_type=None, allow="GET, OPTIONS")),
    "an unknown path": ("GET /nothing", None, NOT_FOUND),
    "no path": ("GET /", None, NOT_FOUND),
    "a path of the past": ("POST /put?topic={topic}", b"x", NOT_FOUND),
    "a path of nsqlookupd": ("GET /lookup?topic={topic}", None, NOT_FOUND),
    "no option": ("GET /config/", None, NOT_FOUND),
    "a path below an option": ("GET /config/log_level/x", None, NOT_FOUND),
}


@questions(ROUTES)
def test_routes(nsqd: Nsqd, topic: str, question: Question) -> None:
    check(nsqd, topic, question)


MISSING_TOPIC = refused(400, "MISSING_ARG_TOPIC")
MISSING_CHANNEL = refused(400, "MISSING_ARG_CHANNEL")
BAD_TOPIC = refused(400, "INVALID_TOPIC")
BAD_ARG_TOPIC = refused(400, "INVALID_ARG_TOPIC")
BAD_ARG_CHANNEL = refused(400, "INVALID_ARG_CHANNEL")
NO_TOPIC = refused(404, "TOPIC_NOT_FOUND")
NO_CHANNEL = refused(404, "CHANNEL_NOT_FOUND")
NO_MESSAGE = refused(400, "MSG_EMPTY")
BIG_MESSAGE = refused(413, "MSG_TOO_BIG")
BIG_BODY = refused(413, "BODY_TOO_BIG")
BAD_DEFER = refused(400, "INVALID_DEFER")

PUB: dict[str, Question] = {
    "a message": ("POST /pub?topic={topic}", b"x", OK),
    "the largest message": ("POST /pub?topic={topic}", b"x" * 100, OK),
    "a message one byte too large": ("POST /pub?topic={topic}", b"x" * 101, BIG_MESSAGE),
    "an empty message": ("POST /pub?topic={topic}", b"", NO_MESSAGE),
    "no message": ("POST /pub?topic={topic}", None, NO_MESSAGE),
    "no topic": ("POST /pub", b"x", MISSING_TOPIC),
    "no topic and no message": ("POST /pub", b"", NO_MESSAGE),
    "an empty topic": ("POST /pub?topic=", b"x", BAD_TOPIC),
    "a topic without a value": ("POST /pub?topic", b"x", BAD_TOPIC),
    "a bad topic": ("POST /pub?topic=a$b", b"x", BAD_TOPIC),
    "a topic of 64 letters": ("POST /pub?topic=" + "t" * 64, b"x", OK),
    "a topic of 65 letters": ("POST /pub?topic=" + "t" * 65, b"x", BAD_TOPIC),
    "an ephemeral topic": ("POST /pub?topic={topic}%23ephemeral", b"x", OK),
    "two topics": ("POST /pub?topic={topic}&topic=a$b", b"x", OK),
    "a percent sign too many": ("POST /pub?topic=%zz", b"x", BAD_REQUEST),
    "a semicolon": ("POST /pub?topic={topic};x=1", b"x", BAD_REQUEST),
    "no delay": ("POST /pub?topic={topic}&defer=0", b"x", OK),
    "the longest delay": ("POST /pub?topic={topic}&defer=5000", b"x", OK),
    "a delay that is too long": ("POST /pub?topic={topic}&defer=5001", b"x", BAD_DEFER),
    "a negative delay": ("POST /pub?topic={topic}&defer=-1", b"x", BAD_DEFER),
    "a signed delay": ("POST /pub?topic={topic}&defer=%2B1", b"x", OK),
    "an empty delay": ("POST /pub?topic={topic}&defer=", b"x", BAD_DEFER),
    "a word for a delay": ("POST /pub?topic={topic}&defer=later", b"x", BAD_DEFER),
    "a fraction of a delay": ("POST /pub?topic={topic}&defer=1.5", b"x", BAD_DEFER),
}


@questions(PUB)
def test_pub(small_nsqd: Nsqd, topic: str, question: Question) -> None:
    check(small_nsqd, topic, question)


@pytest.mark.parametrize(("body", "answer"), [(b"x" * 100, OK), (b"x" * 101, BIG_MESSAGE)])
def test_pub_in_chunks(small_nsqd: Nsqd, topic: str, body: bytes, answer: Answer) -> None:
    assert ask(small_nsqd, f"POST /pub?topic={topic}", body, chunked=True) == answer


def test_what_was_published_over_http_is_what_comes(nsqd: Nsqd, topic: str) -> None:
    everything = bytes(range(256))
    assert ask(nsqd, f"POST /pub?topic={topic}", everything) == OK
    assert ask(nsqd, f"POST /mpub?topic={topic}", b"a\n\nb\r\nc") == OK
    assert ask(nsqd, f"POST /mpub?topic={topic}&binary=true", several(b"d\n", b"e")[4:]) == OK
    with Client(nsqd, MAGIC) as client:
        client.subscribe(topic, ready=10)
        bodies = [client.message().body for _ in range(6)]
    assert bodies == [everything, b"a", b"b\r", b"c", b"d\n", b"e"]


def test_a_message_can_be_deferred_over_http(nsqd: Nsqd, topic: str) -> None:
    assert ask(nsqd, f"POST /topic/create?topic={topic}") == DONE
    assert ask(nsqd, f"POST /channel/create?topic={topic}&channel=ch") == DONE
    assert ask(nsqd, f"POST /pub?topic={topic}&defer=60000", b"x") == OK
    wait_until(lambda: stats_of(nsqd, topic)["channels"][0]["deferred_count"] == 1)


BAD_BODY = refused(413, "BAD_BODY")
BAD_MESSAGE = refused(413, "BAD_MESSAGE")


def in_binary(body: bytes, answer: Answer, flag: str = "true") -> Question:
    return (f"POST /mpub?topic={{topic}}&binary={flag}", body, answer)


MPUB: dict[str, Question] = {
    "lines": ("POST /mpub?topic={topic}", b"a\nb\nc", OK),
    "nothing at all": ("POST /mpub?topic={topic}", b"", OK),
    "nothing but empty lines": ("POST /mpub?topic={topic}", b"\n\n\n", OK),
    "the longest line": ("POST /mpub?topic={topic}", b"a\n" + b"x" * 100 + b"\n", OK),
    "a line one byte too long": ("POST /mpub?topic={topic}", b"a\n" + b"x" * 101, BIG_MESSAGE),
    "the largest body": ("POST /mpub?topic={topic}", b"123456789\n" * 100, OK),
    "a body one byte too large": (
        "POST /mpub?topic={topic}",
        b"123456789\n" * 100 + b"x",
        BIG_BODY,
    ),
    "no topic": ("POST /mpub", b"a", MISSING_TOPIC),
    "a bad topic": ("POST /mpub?topic=a$b", b"a", BAD_TOPIC),
    "a body that is too large for no topic": ("POST /mpub", b"x" * 1001, BIG_BODY),
    "a percent sign too many": ("POST /mpub?topic=%zz", b"a", BAD_REQUEST),
    "binary": in_binary(several(b"a", b"b")[4:], OK),
    "binary=1": in_binary(several(b"a", b"b")[4:], OK, "1"),
    "binary=yes": in_binary(several(b"a", b"b")[4:], OK, "yes"),
    "binary= is meant as true": in_binary(several(b"a", b"b")[4:], OK, ""),
    "binary=false": in_binary(b"a\nb", OK, "false"),
    "binary=0": in_binary(b"a\nb", OK, "0"),
    "the largest body in binary": in_binary(several(*[b"x" * 96] * 9, b"x" * 92)[4:], OK),
    "a body one byte too large in binary": in_binary(
        several(*[b"x" * 96] * 9, b"x" * 93)[4:], BIG_BODY
    ),
    "nothing at all in binary": in_binary(b"", BAD_BODY),
    "half a count": in_binary(b"\x00\x00", BAD_BODY),
    "no messages in binary": in_binary(several()[4:], BAD_BODY),
    "a negative count": in_binary(size(-1), BAD_BODY),
    "one message more than there can be": in_binary(size(200), BAD_BODY),
    "the largest message in binary": in_binary(several(b"x" * 100)[4:], OK),
    "a message one byte too large in binary": in_binary(several(b"x" * 101)[4:], BAD_MESSAGE),
    "an empty message in binary": in_binary(several(b"a", b"")[4:], BAD_MESSAGE),
    "a message of negative size": in_binary(size(1) + size(-1), BAD_MESSAGE),
    "fewer messages than were counted": in_binary(size(2) + sized(b"a"), BAD_MESSAGE),
    "half a message": in_binary(several(b"a", b"bc")[4:-1], BAD_MESSAGE),
    "more bytes than were counted": in_binary(several(b"a")[4:] + b"rest", OK),
}


@questions(MPUB)
def test_mpub(small_nsqd: Nsqd, topic: str, question: Question) -> None:
    check(small_nsqd, topic, question)


@pytest.mark.parametrize(
    ("body", "answer"),
    [(b"123456789\n" * 100, OK), (b"123456789\n" * 100 + b"x", BIG_BODY)],
    ids=["the largest", "one byte more"],
)
def test_mpub_in_chunks(small_nsqd: Nsqd, topic: str, body: bytes, answer: Answer) -> None:
    assert ask(small_nsqd, f"POST /mpub?topic={topic}", body, chunked=True) == answer


def test_nothing_of_a_bad_mpub_is_stored(small_nsqd: Nsqd, topic: str) -> None:
    path = f"POST /mpub?topic={topic}"
    assert ask(small_nsqd, path, b"a\nb\n" + b"x" * 101) == BIG_MESSAGE
    assert ask(small_nsqd, f"{path}&binary=true", several(b"a", b"b", b"")[4:]) == BAD_MESSAGE
    assert stats_of(small_nsqd, topic)["message_count"] == 0


# What there is to do with topics and channels. "there" is a topic with a channel "ch".

ORDERS: dict[str, Question] = {
    "create a topic": ("POST /topic/create?topic={topic}", None, DONE),
    "create a topic that exists": ("POST /topic/create?topic=there", None, DONE),
    "create a topic with a body": ("POST /topic/create?topic={topic}", b"ignored", DONE),
    "create no topic": ("POST /topic/create", None, MISSING_TOPIC),
    "create a bad topic": ("POST /topic/create?topic=a$b", None, BAD_TOPIC),
    "create a topic of a bad query": ("POST /topic/create?topic=%zz", None, BAD_REQUEST),
    "delete no topic": ("POST /topic/delete", None, MISSING_TOPIC),
    "delete a topic that is not there": ("POST /topic/delete?topic={topic}", None, NO_TOPIC),
    "delete a bad topic": ("POST /topic/delete?topic=a$b", None, NO_TOPIC),
    "delete a topic of a bad query": ("POST /topic/delete?topic=%zz", None, BAD_REQUEST),
    "empty a topic": ("POST /topic/empty?topic=there", None, DONE),
    "empty no topic": ("POST /topic/empty", None, MISSING_TOPIC),
    "empty a topic that is not there": ("POST /topic/empty?topic={topic}", None, NO_TOPIC),
    "empty a bad topic": ("POST /topic/empty?topic=a$b", None, BAD_TOPIC),
    "pause a topic": ("POST /topic/pause?topic=there", None, DONE),
    "pause no topic": ("POST /topic/pause", None, MISSING_TOPIC),
    "pause a topic that is not there": ("POST /topic/pause?topic={topic}", None, NO_TOPIC),
    "pause a bad topic": ("POST /topic/pause?topic=a$b", None, NO_TOPIC),
    "unpause a topic": ("POST /topic/unpause?topic=there", None, DONE),
    "unpause a topic that is not there": ("POST /topic/unpause?topic={topic}", None, NO_TOPIC),
    "create a channel": ("POST /channel/create?topic=there&channel=new", None, DONE),
    "create a channel that exists": ("POST /channel/create?topic=there&channel=ch", None, DONE),
    "create a channel of a topic that is not there": (
        "POST /channel/create?topic={topic}&channel=ch",
        None,
        NO_TOPIC,
    ),
    "create a bad channel": ("POST /channel/create?topic=there&channel=$", None, BAD_ARG_CHANNEL),
    "create a channel of 65 letters": (
        "POST /channel/create?topic=there&channel=" + "c" * 65,
        None,
        BAD_ARG_CHANNEL,
    ),
}
for verb in ("create", "delete", "empty", "pause", "unpause"):
    ORDERS |= {
        f"{verb} no channel": (f"POST /channel/{verb}?topic=there", None, MISSING_CHANNEL),
        f"{verb} a channel of no topic": (f"POST /channel/{verb}?channel=ch", None, MISSING_TOPIC),
        f"{verb} a channel of a bad topic": (
            f"POST /channel/{verb}?topic=$&channel=ch",
            None,
            BAD_ARG_TOPIC,
        ),
        f"{verb} a channel of a bad query": (f"POST /channel/{verb}?topic=%zz", None, BAD_REQUEST),
        f"{verb} a channel by GET": (
            f"GET /channel/{verb}?topic=there&channel=ch",
            None,
            ONLY_POST,
        ),
    }
for verb in ("delete", "empty", "pause", "unpause"):
    ORDERS |= {
        f"{verb} a channel that is not there": (
            f"POST /channel/{verb}?topic=there&channel=none",
            None,
            NO_CHANNEL,
        ),
        f"{verb} a channel of a topic that is not there": (
            f"POST /channel/{verb}?topic={{topic}}&channel=ch",
            None,
            NO_TOPIC,
        ),
    }
for verb in ("empty", "pause", "unpause"):
    ORDERS[f"{verb} a channel"] = (f"POST /channel/{verb}?topic=there&channel=ch", None, DONE)


@questions(ORDERS)
def test_orders(nsqd: Nsqd, topic: str, question: Question) -> None:
    ask(nsqd, "POST /topic/create?topic=there")
    ask(nsqd, "POST /channel/create?topic=there&channel=ch")
    check(nsqd, topic, question)


def test_what_is_deleted_is_gone(nsqd: Nsqd, topic: str) -> None:
    ask(nsqd, f"POST /topic/create?topic={topic}")
    ask(nsqd, f"POST /channel/create?topic={topic}&channel=ch")
    assert ask(nsqd, f"POST /channel/delete?topic={topic}&channel=ch") == DONE
    assert ask(nsqd, f"POST /channel/delete?topic={topic}&channel=ch") == NO_CHANNEL
    assert ask(nsqd, f"POST /topic/delete?topic={topic}") == DONE
    assert ask(nsqd, f"POST /topic/delete?topic={topic}") == NO_TOPIC


def test_info(nsqd: Nsqd, version: str) -> None:
    info = ask(nsqd, "GET /info").json()
    assert info.pop("start_time") > 1_600_000_000
    assert info == {
        "version": version,
        "broadcast_address": "127.0.0.1",
        "hostname": socket.gethostname(),
        "http_port": int(nsqd.http_address.rsplit(":", 1)[1]),
        "tcp_port": int(nsqd.tcp_address.rsplit(":", 1)[1]),
        "max_heartbeat_interval": 60_000_000_000,
        "max_output_buffer_size": 65536,
        "max_output_buffer_timeout": 30_000_000_000,
        "max_deflate_level": 6,
    }


# Stats.

MEMORY = dict.fromkeys(
    [
        "heap_objects",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_released_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
        "next_gc_bytes",
        "gc_total_runs",
    ],
    int,
)
CLIENT = {
    "client_id": str,
    "hostname": str,
    "version": str,
    "remote_address": str,
    "state": int,
    "ready_count": int,
    "in_flight_count": int,
    "message_count": int,
    "finish_count": int,
    "requeue_count": int,
    "connect_ts": int,
    "sample_rate": int,
    "deflate": bool,
    "snappy": bool,
    "user_agent": str,
    "tls": bool,
    "tls_cipher_suite": str,
    "tls_version": str,
    "tls_negotiated_protocol": str,
    "tls_negotiated_protocol_is_mutual": bool,
}
PRODUCER = CLIENT | {"pub_counts": [{"topic": str, "count": int}]}
LATENCY = {"count": int, "percentiles": None}
CHANNEL = {
    "channel_name": str,
    "depth": int,
    "backend_depth": int,
    "in_flight_count": int,
    "deferred_count": int,
    "message_count": int,
    "requeue_count": int,
    "timeout_count": int,
    "client_count": int,
    "clients": [CLIENT],
    "paused": bool,
    "e2e_processing_latency": LATENCY,
}
TOPIC = {
    "topic_name": str,
    "channels": [CHANNEL],
    "depth": int,
    "backend_depth": int,
    "message_count": int,
    "message_bytes": int,
    "paused": bool,
    "e2e_processing_latency": LATENCY,
}
STATS = {"version": str, "health": str, "start_time": int, "topics": [TOPIC], "memory": MEMORY}


def test_stats_have_all_that_tools_look_for(nsqd: Nsqd, topic: str) -> None:
    path = f"GET /stats?format=json&topic={topic}"
    with Client(nsqd, MAGIC) as producer, Client(nsqd, identify()) as consumer:
        consumer.expect(OK_FRAME)
        consumer.subscribe(topic)
        producer.publish(topic, b"hello", b"you")
        consumer.message()
        stats = ask(nsqd, path).json()
        # The producers are those of all topics; only ours has a count for this one.
        producers = [each for each in stats.pop("producers") if "pub_counts" in each]
        assert shape(stats) == STATS
        assert [shape(each) for each in producers] == [PRODUCER]
        assert producers[0]["pub_counts"] == [{"topic": topic, "count": 2}]
        [entry] = stats["topics"]
        assert (entry["topic_name"], entry["message_count"], entry["message_bytes"]) == (
            topic,
            2,
            8,
        )
        assert shape(ask(nsqd, f"{path}&include_mem=false").json()["topics"]) == [TOPIC]
        assert "memory" not in ask(nsqd, f"{path}&include_mem=false").json()
        assert "memory" not in ask(nsqd, f"{path}&include_mem=0").json()
        assert "memory" in ask(nsqd, f"{path}&include_mem=no").json()
        bare = ask(nsqd, f"{path}&include_clients=false").json()
        assert bare["producers"] is None
        [channel] = bare["topics"][0]["channels"]
        assert (channel["client_count"], channel["clients"]) == (1, None)


def test_stats_of_one_topic_or_channel(nsqd: Nsqd, topic: str) -> None:
    for channel in ("b", "a"):
        ask(nsqd, f"POST /topic/create?topic={topic}")
        ask(nsqd, f"POST /channel/create?topic={topic}&channel={channel}")

    def names(query: str) -> object:
        topics = ask(nsqd, f"GET /stats?format=json&{query}").json()["topics"]
        return topics and [
            (each["topic_name"], [channel["channel_name"] for channel in each["channels"]])
            for each in topics
        ]

    assert names(f"topic={topic}") == [(topic, ["a", "b"])]
    assert names(f"topic={topic}&channel=b") == [(topic, ["b"])]
    assert names(f"topic={topic}&channel=none") == []
    assert names(f"topic={topic}none") is None
    everything = names("")
    assert isinstance(everything, list)
    assert (topic, ["a", "b"]) in everything
    assert everything == sorted(everything)


def test_an_invalid_query_gets_no_stats(nsqd: Nsqd) -> None:
    assert ask(nsqd, "GET /stats?topic=%zz") == BAD_REQUEST


HEAD = r"""nsqd v1\.3\.0\S* \(built w/.+\)
start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)
uptime (\d+h)?(\d+m)?\d+(\.\d+)?(m|µ)?s

Health: OK
"""
MEMORY_LINES = "\nMemory:\n" + "".join(rf"   {name:25}\t\d+\n" for name in MEMORY)


def test_stats_as_text(nsqd: Nsqd, topic: str) -> None:
    with (
        Client(nsqd, MAGIC) as producer,
        Client(nsqd, identify(hostname="h", user_agent="u")) as consumer,
    ):
        consumer.expect(OK_FRAME)
        consumer.subscribe(topic, ready=2)
        producer.publish(topic, b"hello")
        consumer.message()
        wait_until(lambda: stats_of(nsqd, topic)["channels"][0]["message_count"] == 1)
        answer = ask(nsqd, f"GET /stats?topic={topic}")
        lean = ask(nsqd, f"GET /stats?topic={topic}&include_mem=false&include_clients=false")
        ask(nsqd, f"POST /topic/pause?topic={topic}")
        ask(nsqd, f"POST /channel/pause?topic={topic}&channel=ch")
        paused = ask(nsqd, f"GET /stats?topic={topic}").body.decode()
    assert (answer.status, answer.content_type) == (200, TEXT)
    topic_line = rf"   \[{topic:15}\] depth: 0     be-depth: 0     msgs: 1        e2e%: \n"
    channel_line = (
        rf"      \[{'ch':25}\] depth: 0     be-depth: 0     inflt: 1    def: 0    re-q: 0     "
        r"timeout: 0     msgs: 1        e2e%: \n"
    )
    consumer_line = (
        r"        \[V2 h:\d+ u {8,}\] state: 3 inflt: 1    rdy: 2    fin: 0        re-q: 0        "
        r"msgs: 1        connected: \d+s\n"
    )
    producer_line = (
        rf"   \[V2 127\.0\.0\.1:\d+ +\] msgs: 1        topics: {topic}=1 connected: \d+s\n"
    )
    text = answer.body.decode()
    everything = (
        f"{HEAD}{MEMORY_LINES}\nTopics:\n{topic_line}{channel_line}{consumer_line}\nProducers:\n"
    )
    assert re.match(everything, text), text
    assert re.search(producer_line, text), text
    bare = f"{HEAD}\nTopics:\n{topic_line}{channel_line}\nProducers: None\n"
    assert re.fullmatch(bare, lean.body.decode()), lean
    assert f"\n*P [{topic:15}] depth: " in paused
    assert f"\n   *P [{'ch':25}] depth: " in paused


def test_stats_of_nothing_as_text(nsqd: Nsqd, topic: str) -> None:
    text = ask(nsqd, f"GET /stats?topic={topic}&include_mem=0").body.decode()
    assert re.fullmatch(HEAD + "\nTopics: None\n\nProducers: None\n", text)


# Options.

SECOND = 1_000_000_000

OPTIONS: dict[str, object] = {
    "id": 5,
    "log_level": 2,
    "log_prefix": "[nsqd] ",
    "tcp_address": "127.0.0.1:0",
    "http_address": "127.0.0.1:0",
    "broadcast_address": "127.0.0.1",
    "nsqlookupd_tcp_addresses": [],
    "auth_http_addresses": [],
    "http_client_connect_timeout": 2 * SECOND,
    "http_client_request_timeout": 5 * SECOND,
    "mem_queue_size": 10000,
    "msg_timeout": 60 * SECOND,
    "max_msg_timeout": 10 * SECOND,
    "max_msg_size": 100,
    "max_body_size": 1000,
    "max_req_timeout": 5 * SECOND,
    "max_heartbeat_interval": 2 * SECOND,
    "max_rdy_count": 7,
    "max_output_buffer_size": 1000,
    "max_output_buffer_timeout": SECOND // 2,
    "min_output_buffer_timeout": SECOND // 20,
    "output_buffer_timeout": SECOND // 10,
    "max_channel_consumers": 1,
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
    "tls_required": 0,
    "deflate": True,
    "max_deflate_level": 3,
    "snappy": True,
}

OPTIONS_OF_GO: dict[str, object] = {
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "sync_timeout": 2 * SECOND,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "statsd_address": "",
    "statsd_interval": 60 * SECOND,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_window_time": 600 * SECOND,
    "e2e_processing_latency_percentiles": [],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_can_be_read(small_nsqd: Nsqd, name: str) -> None:
    check_option(small_nsqd, name, OPTIONS[name])


@pytest.mark.parametrize("name", OPTIONS_OF_GO)
def test_an_option_that_only_go_has_a_use_for_can_be_read(small_nsqd: Nsqd, name: str) -> None:
    check_option(small_nsqd, name, OPTIONS_OF_GO[name])


def check_option(nsqd: Nsqd, name: str, value: object) -> None:
    expected = Answer(200, json.dumps(value).encode(), JSON)
    if isinstance(value, str):  # goes as it is, and if it is empty nothing can be said of it
        expected = Answer(200, value.encode(), TEXT if value else None)
    assert ask(nsqd, f"GET /config/{name}") == expected


def test_the_ports_that_nsqd_chose_are_options_too(small_nsqd: Nsqd) -> None:
    for option, address in (
        ("broadcast_tcp_port", small_nsqd.tcp_address),
        ("broadcast_http_port", small_nsqd.http_address),
    ):
        assert ask(small_nsqd, f"GET /config/{option}").json() == int(address.rsplit(":", 1)[1])


BAD_VALUE = refused(400, "INVALID_VALUE")
BAD_OPTION = refused(400, "INVALID_OPTION")

CHANGES: dict[str, Question] = {
    "an unknown option": ("GET /config/mood", None, BAD_OPTION),
    "an option by the name of its flag": ("GET /config/lookupd_tcp_address", None, BAD_OPTION),
    "set an unknown option": ("PUT /config/mood", b"1", BAD_OPTION),
    "set an option that stays": ("PUT /config/mem_queue_size", b"1", BAD_OPTION),
    "set nothing": ("PUT /config/log_level", b"", refused(413, "INVALID_VALUE")),
    "set too much": ("PUT /config/log_level", b"x" * 101, refused(413, "INVALID_VALUE")),
    "set an unknown level": ("PUT /config/log_level", b"x" * 100, BAD_VALUE),
    "set addresses that are none": ("PUT /config/nsqlookupd_tcp_addresses", b"here", BAD_VALUE),
    "set an address alone": ("PUT /config/nsqlookupd_tcp_addresses", b'"127.0.0.1:1"', BAD_VALUE),
    "set no addresses": ("PUT /config/nsqlookupd_tcp_addresses", b"[]", Answer(200, b"[]", JSON)),
}


@questions(CHANGES)
def test_changes_of_options(small_nsqd: Nsqd, topic: str, question: Question) -> None:
    check(small_nsqd, topic, question)


@pytest.mark.parametrize(
    ("name", "level"), [("debug", 1), ("WARN", 3), ("error", 4), ("Fatal", 5), ("info", 2)]
)
def test_the_log_level_can_be_changed(small_nsqd: Nsqd, name: str, level: int) -> None:
    expected = Answer(200, b"%d" % level, JSON)
    assert ask(small_nsqd, "PUT /config/log_level", name.encode()) == expected
    assert ask(small_nsqd, "GET /config/log_level") == expected
    ask(small_nsqd, "PUT /config/log_level", b"info")
