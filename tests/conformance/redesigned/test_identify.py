"""IDENTIFY of a redesigned nsqd: the reply, the limits, and what is not echoed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqflow.broker.version import REDESIGNED_VERSION
from tests.conformance.redesigned.wire import (
    OK,
    Connect,
    Wire,
    code_of,
    data_of,
    error,
    identify,
    pub,
)

# As recorded, but for the version: ours is that of the real server with a suffix.
REPLY = (
    '{"max_rdy_count":2500,"version":"VERSION","max_msg_timeout":900000,"msg_timeout":60000,'
    '"tls_v1":false,"deflate":false,"deflate_level":0,"max_deflate_level":6,"snappy":false,'
    '"sample_rate":0,"auth_required":false,"output_buffer_size":100,"output_buffer_timeout":50}'
).replace("VERSION", REDESIGNED_VERSION)

EVERYTHING = {
    "short_id": "s",
    "long_id": "l",
    "client_id": "c",
    "hostname": "h",
    "user_agent": "probe/0",
    "heartbeat_interval": 30000,
    "output_buffer_size": 4096,
    "output_buffer_timeout": 50,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 3,
    "snappy": False,
    "sample_rate": 10,
    "msg_timeout": 2000,
    "desired_tag": "tagA",
    "extend_support": True,
    "ext_filter": {
        "type": 4,
        "inverse": False,
        "filter_ext_key": "any",
        "filter_data": "",
        "filter_data_list": [{"filter_ext_key": "a", "filter_data": "b"}],
    },
}


def test_the_reply_is_that_of_a_real_nsqd_byte_for_byte(wire: Wire) -> None:
    assert data_of(wire.ask(identify({}))).decode() == REPLY


def test_the_version_shows_the_dialect_and_the_server_that_is_emulated(wire: Wire) -> None:
    assert wire.identify()["version"].startswith("0.3.7-HA.1.13.0")


def test_every_field_of_the_request_is_taken_and_only_the_tag_is_added_to_the_reply(
    wire: Wire,
) -> None:
    reply = wire.identify(**EVERYTHING)
    assert [*reply] == [*json.loads(REPLY), "desired_tag"]
    assert (reply["desired_tag"], reply["msg_timeout"], reply["sample_rate"]) == ("tagA", 2000, 10)
    assert (reply["output_buffer_size"], reply["output_buffer_timeout"]) == (4096, 50)


@pytest.mark.parametrize("values", [{"desired_tag": ""}, {"extend_support": True}])
def test_without_a_tag_the_reply_has_no_tag_and_headers_are_not_echoed(
    wire: Wire, values: dict[str, Any]
) -> None:
    assert data_of(wire.ask(identify(values))).decode() == REPLY


def test_without_feature_negotiation_the_answer_is_a_plain_ok(wire: Wire) -> None:
    assert wire.ask(identify({"feature_negotiation": False})) == OK


def test_identify_is_optional(wire: Wire) -> None:
    assert wire.ask(pub("t_part", b"x")) == OK


def test_identify_may_be_repeated_before_sub_and_the_last_one_counts(wire: Wire) -> None:
    assert wire.identify(msg_timeout=2000)["msg_timeout"] == 2000
    assert wire.identify(msg_timeout=3000)["msg_timeout"] == 3000
    wire.subscribe("SUB t_part ch 0", rdy=0)
    assert code_of(wire.ask(identify({}))) == "E_INVALID"
    wire.expect_closed()


@pytest.mark.parametrize(
    "values",
    [
        {"heartbeat_interval": 1000},
        {"heartbeat_interval": 60000},
        {"heartbeat_interval": -1},
        {"msg_timeout": 1000},
        {"msg_timeout": 900000},
        {"output_buffer_timeout": 1000},
        {"sample_rate": 0},
        {"sample_rate": 99},
        {"desired_tag": "x" * 100},
    ],
    ids=str,
)
def test_a_value_at_its_limit_is_granted(wire: Wire, values: dict[str, Any]) -> None:
    reply = wire.identify(**values)
    assert {name: reply.get(name, value) for name, value in values.items()} == values
    wire.expect_open()


@pytest.mark.parametrize(
    "values",
    [
        {"heartbeat_interval": 999},
        {"heartbeat_interval": 60001},
        {"heartbeat_interval": -2},
        {"msg_timeout": 999},
        {"msg_timeout": 900001},
        {"output_buffer_timeout": 1001},
        {"sample_rate": 100},
        {"sample_rate": -1},
        {"desired_tag": "x" * 101},
    ],
    ids=str,
)
def test_a_value_beyond_its_limit_closes(wire: Wire, values: dict[str, Any]) -> None:
    assert data_of(wire.ask(identify(values)), 1).startswith(b"E_BAD_BODY IDENTIFY ")
    wire.expect_closed()


@pytest.mark.parametrize(("asked", "granted"), [(1, 10), (9, 10), (10, 10), (11, 11)])
def test_an_output_buffer_timeout_that_is_too_short_is_raised(
    wire: Wire, asked: int, granted: int
) -> None:
    assert wire.identify(output_buffer_timeout=asked)["output_buffer_timeout"] == granted


def test_deflate_and_snappy_together_close(wire: Wire) -> None:
    answer = wire.ask(identify({"deflate": True, "snappy": True}))
    assert code_of(answer) == "E_IDENTIFY_FAILED"
    wire.expect_closed()


@pytest.mark.parametrize("command", ["SUB", "SUB_ADVANCED", "SUB_ORDERED"])
def test_without_heartbeats_a_client_can_publish_but_not_subscribe(
    connect: Connect, command: str
) -> None:
    wire = connect()
    wire.identify(heartbeat_interval=-1)
    assert wire.ask(pub("t_part", b"x")) == OK
    answer = wire.ask(f"{command} t_part ch 0\n".encode())
    assert answer == error("E_INVALID cannot SUB with heartbeats disabled")
    wire.expect_closed()
