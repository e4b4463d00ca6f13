"""IDENTIFY: what can be agreed upon, and both sides of every limit."""

from __future__ import annotations

import json

import pytest

from tests.conformance.broker.dialogue import (
    CLOSED,
    MAGIC,
    OK,
    Client,
    Dialogue,
    agreed,
    error,
    hold,
    identify,
    negotiate,
    size,
    sized,
    table,
)
from tests.fixtures.servers import Nsqd

ANSWER = {
    "max_rdy_count": 2500,
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}


def test_the_answer_to_identify_has_what_was_negotiated(nsqd: Nsqd, version: str) -> None:
    with Client(nsqd, negotiate()) as client:
        frame = client.hear()
        assert (frame.type, json.loads(frame.data)) == (0, ANSWER | {"version": version})
        client.expect_nothing()


def body(content: bytes) -> bytes:
    return MAGIC + b"IDENTIFY\n" + sized(content)


def refused(command: bytes, text: str) -> Dialogue:
    return (command, error(text), CLOSED)


UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"

BODIES = {
    "nothing to negotiate": (identify(), OK),
    "no feature negotiation": (identify(feature_negotiation=False, snappy=True), OK),
    "unknown values": (identify(short_id="x", long_id="y", mood=None), OK),
    "the keys in capitals": (
        identify(HEARTBEAT_INTERVAL=-2),
        error("E_BAD_BODY IDENTIFY heartbeat interval (-2) is invalid"),
        CLOSED,
    ),
    "null instead of an object": (body(b"null"), OK),
    "null for a value": (identify(client_id=None, heartbeat_interval=None), OK),
    "white space around it": (body(b" \r\n\t{} \n"), OK),
    "a parameter is ignored": (MAGIC + b"IDENTIFY 1\n" + sized(b"{}"), OK),
    "no JSON": refused(body(b"hello"), UNDECODABLE),
    "half an object": refused(body(b'{"client_id":'), UNDECODABLE),
    "two objects": refused(body(b"{}{}"), UNDECODABLE),
    "a list": refused(body(b"[]"), UNDECODABLE),
    "a number": refused(body(b"1"), UNDECODABLE),
    "a number for a string": refused(identify(client_id=1), UNDECODABLE),
    "a string for a number": refused(identify(heartbeat_interval="1000"), UNDECODABLE),
    "a fraction for a number": refused(identify(heartbeat_interval=1000.5), UNDECODABLE),
    "a number for a truth": refused(identify(feature_negotiation=1), UNDECODABLE),
    "a sample rate beyond 32 bits": refused(identify(sample_rate=2**31), UNDECODABLE),
    "a value beyond 64 bits": refused(identify(msg_timeout=2**63), UNDECODABLE),
    "an empty body": refused(body(b""), "E_BAD_BODY IDENTIFY invalid body size 0"),
    "a negative size": refused(
        MAGIC + b"IDENTIFY\n" + size(-1), "E_BAD_BODY IDENTIFY invalid body size -1"
    ),
    "the largest body": (body(b"{" + b" " * 998 + b"}"), OK),
    "a body one byte too large": refused(
        MAGIC + b"IDENTIFY\n" + size(1001), "E_BAD_BODY IDENTIFY body too big 1001 > 1000"
    ),
    "twice": (identify(), OK, body(b"{}")[4:], OK),
    "after SUB": (
        MAGIC + b"SUB {topic} ch\n",
        OK,
        body(b"{}")[4:],
        error("E_INVALID cannot IDENTIFY in current state"),
        CLOSED,
    ),
    "after PUB": (MAGIC + b"PUB {topic}\n" + sized(b"x"), OK, body(b"{}")[4:], OK),
    "in pieces": (MAGIC + b"IDEN", b"TIFY\n\x00", b"\x00\x00\x02", b"{", b"}", OK),
}


@table(BODIES)
def test_identify(small_nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(small_nsqd, topic, dialogue)


def bad_heartbeat(value: int) -> Dialogue:
    text = f"E_BAD_BODY IDENTIFY heartbeat interval ({value}) is invalid"
    return refused(negotiate(heartbeat_interval=value), text)


def bad_size(value: int) -> Dialogue:
    text = f"E_BAD_BODY IDENTIFY output buffer size ({value}) is invalid"
    return refused(negotiate(output_buffer_size=value), text)


def bad_timeout(value: int) -> Dialogue:
    text = f"E_BAD_BODY IDENTIFY output buffer timeout ({value}) is invalid"
    return refused(negotiate(output_buffer_timeout=value), text)


def bad_rate(value: int) -> Dialogue:
    text = f"E_BAD_BODY IDENTIFY sample rate ({value}) is invalid"
    return refused(negotiate(sample_rate=value), text)


def bad_msg_timeout(value: int) -> Dialogue:
    text = f"E_BAD_BODY IDENTIFY msg timeout ({value}) is invalid"
    return refused(negotiate(msg_timeout=value), text)


# Against small_nsqd, so that no limit is a constant by accident.
VALUES = {
    "heartbeat_interval -2": bad_heartbeat(-2),
    "heartbeat_interval -1": (negotiate(heartbeat_interval=-1), agreed()),
    "heartbeat_interval 0": (negotiate(heartbeat_interval=0), agreed(), b"SUB {topic} ch\n", OK),
    "heartbeat_interval 1": bad_heartbeat(1),
    "heartbeat_interval 999": bad_heartbeat(999),
    "heartbeat_interval 1000": (negotiate(heartbeat_interval=1000), agreed()),
    "heartbeat_interval 2000": (negotiate(heartbeat_interval=2000), agreed()),
    "heartbeat_interval 2001": bad_heartbeat(2001),
    "output_buffer_size -2": bad_size(-2),
    "output_buffer_size -1": (
        negotiate(output_buffer_size=-1),
        agreed(output_buffer_size=1, output_buffer_timeout=0),
    ),
    "output_buffer_size -1 with a timeout": (
        negotiate(output_buffer_size=-1, output_buffer_timeout=200),
        agreed(output_buffer_size=1, output_buffer_timeout=0),
    ),
    "output_buffer_size 0": (negotiate(output_buffer_size=0), agreed(output_buffer_size=16384)),
    "output_buffer_size 1": bad_size(1),
    "output_buffer_size 63": bad_size(63),
    "output_buffer_size 64": (negotiate(output_buffer_size=64), agreed(output_buffer_size=64)),
    "output_buffer_size 1000": (
        negotiate(output_buffer_size=1000),
        agreed(output_buffer_size=1000),
    ),
    "output_buffer_size 1001": bad_size(1001),
    "output_buffer_timeout -2": bad_timeout(-2),
    "output_buffer_timeout -1": (
        negotiate(output_buffer_timeout=-1),
        agreed(output_buffer_timeout=0, output_buffer_size=16384),
    ),
    "output_buffer_timeout 0": (
        negotiate(output_buffer_timeout=0),
        agreed(output_buffer_timeout=100),
    ),
    "output_buffer_timeout 49": bad_timeout(49),
    "output_buffer_timeout 50": (
        negotiate(output_buffer_timeout=50),
        agreed(output_buffer_timeout=50),
    ),
    "output_buffer_timeout 500": (
        negotiate(output_buffer_timeout=500),
        agreed(output_buffer_timeout=500),
    ),
    "output_buffer_timeout 501": bad_timeout(501),
    "sample_rate -1": bad_rate(-1),
    "sample_rate 0": (negotiate(sample_rate=0), agreed(sample_rate=0)),
    "sample_rate 1": (negotiate(sample_rate=1), agreed(sample_rate=1)),
    "sample_rate 99": (negotiate(sample_rate=99), agreed(sample_rate=99)),
    "sample_rate 100": bad_rate(100),
    "msg_timeout -1": bad_msg_timeout(-1),
    "msg_timeout 0": (
        negotiate(msg_timeout=0),
        agreed(msg_timeout=60000, max_msg_timeout=10000),
    ),
    "msg_timeout 999": bad_msg_timeout(999),
    "msg_timeout 1000": (negotiate(msg_timeout=1000), agreed(msg_timeout=1000)),
    "msg_timeout 10000": (negotiate(msg_timeout=10000), agreed(msg_timeout=10000)),
    "msg_timeout 10001": bad_msg_timeout(10001),
    "several bad values": (
        negotiate(msg_timeout=-1, sample_rate=-1, output_buffer_size=-2, heartbeat_interval=-2),
        error("E_BAD_BODY IDENTIFY heartbeat interval (-2) is invalid"),
        CLOSED,
    ),
    "a bad size and a bad timeout": (
        negotiate(output_buffer_size=-2, output_buffer_timeout=-2),
        error("E_BAD_BODY IDENTIFY output buffer timeout (-2) is invalid"),
        CLOSED,
    ),
    "TLS that there is none of": (negotiate(tls_v1=True), agreed(tls_v1=False)),
    "both compressions": refused(
        negotiate(snappy=True, deflate=True),
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
    ),
    "a level without deflate": (
        negotiate(deflate_level=2),
        agreed(deflate=False, deflate_level=3, max_deflate_level=3),
    ),
    "values of a client that does not negotiate": (
        identify(heartbeat_interval=-1, msg_timeout=1000),
        OK,
        b"SUB {topic} ch\n",
        error("E_INVALID cannot SUB with heartbeats disabled"),
        CLOSED,
    ),
}


@table(VALUES)
def test_values_of_identify(small_nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(small_nsqd, topic, dialogue)


DEFAULT_LIMITS = {
    "heartbeat_interval 60000": (negotiate(heartbeat_interval=60000), agreed()),
    "heartbeat_interval 60001": bad_heartbeat(60001),
    "output_buffer_size 65536": (
        negotiate(output_buffer_size=65536),
        agreed(output_buffer_size=65536),
    ),
    "output_buffer_size 65537": bad_size(65537),
    "output_buffer_timeout 24": bad_timeout(24),
    "output_buffer_timeout 25": (
        negotiate(output_buffer_timeout=25),
        agreed(output_buffer_timeout=25),
    ),
    "output_buffer_timeout 30000": (
        negotiate(output_buffer_timeout=30000),
        agreed(output_buffer_timeout=30000),
    ),
    "output_buffer_timeout 30001": bad_timeout(30001),
    "msg_timeout 900000": (negotiate(msg_timeout=900000), agreed(msg_timeout=900000)),
    "msg_timeout 900001": bad_msg_timeout(900001),
}


@table(DEFAULT_LIMITS)
def test_limits_that_were_not_set(nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(nsqd, topic, dialogue)


@pytest.mark.parametrize(
    ("asked", "agreed_upon"), [(-1, 3), (0, 3), (1, 1), (3, 3), (4, 3), (9, 3), (99, 3)]
)
def test_the_deflate_level_is_cut_to_what_nsqd_allows(
    small_nsqd: Nsqd, asked: int, agreed_upon: int
) -> None:
    with Client(small_nsqd, negotiate(deflate=True, deflate_level=asked)) as client:
        answer = json.loads(client.hear().data)
    assert answer["deflate"] is True
    assert answer["deflate_level"] == agreed_upon


NOT_OFFERED = {
    "snappy": (negotiate(snappy=True), agreed(snappy=False)),
    "deflate": (negotiate(deflate=True), agreed(deflate=False)),
    "both": (negotiate(snappy=True, deflate=True), agreed(snappy=False, deflate=False)),
    "TLS": (negotiate(tls_v1=True), agreed(tls_v1=False)),
}


@table(NOT_OFFERED)
def test_what_nsqd_does_not_offer_is_left_out(
    modest_nsqd: Nsqd, topic: str, dialogue: Dialogue
) -> None:
    hold(modest_nsqd, topic, dialogue)
