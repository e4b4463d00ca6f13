"""What nsqlookupd answers: in all its shapes, and with any part null, missing or wrong."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.address import join_address
from nsqflow.errors import DiscoveryError
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.lookup import (
    ACCEPT_V1,
    LookupAnswer,
    LookupdNode,
    Node,
    TopicMeta,
    parse_listlookup,
    parse_lookup,
)
from tests.unit.protocol.strategies import attempt, json_values

# As measured on 0.3.7-HA.1.13.0.
FIRST = {
    "id": "127.0.0.1:49316",
    "remote_address": "127.0.0.1:49316",
    "hostname": "vm",
    "broadcast_address": "127.0.0.1",
    "tcp_port": 24150,
    "http_port": 24151,
    "version": "0.3.7-HA.1.13.0",
    "distributed_id": "127.0.0.1:24250:24150:101",
}
SECOND = FIRST | {
    "id": "127.0.0.1:49320",
    "tcp_port": 24350,
    "http_port": 24351,
    "distributed_id": "127.0.0.1:24450:24350:102",
}
META = {
    "disable_channel_auto_create": False,
    "extend_support": False,
    "multi_part": False,
    "ordered": True,
    "partition_num": 2,
    "replica": 1,
}
LOOKUP = {
    "channels": ["billing"],
    "meta": META,
    "partitions": {"0": FIRST, "1": SECOND},
    "producers": [FIRST, SECOND],
}
LEADER = {
    "ID": "127.0.0.1:24260:24160:nsqlookup",
    "NodeIP": "127.0.0.1",
    "TcpPort": "24160",
    "HttpPort": "24161",
    "RpcPort": "24260",
    "Epoch": 0,
}
LISTLOOKUP = {"lookupdleader": LEADER, "lookupdnodes": [LEADER, LEADER | {"HttpPort": "24361"}]}

NODES = [
    Node(
        broadcast_address="127.0.0.1",
        tcp_port=port,
        http_port=port + 1,
        hostname="vm",
        version="0.3.7-HA.1.13.0",
        distributed_id=name,
    )
    for port, name in [(24150, "127.0.0.1:24250:24150:101"), (24350, "127.0.0.1:24450:24350:102")]
]


def encode(data: Any) -> bytes:
    return json.dumps(data).encode()


def wrapped(data: Any) -> bytes:
    return encode({"status_code": 200, "status_txt": "OK", "data": data})


@pytest.mark.parametrize("shape", [encode, wrapped])
def test_a_redesigned_answer_names_the_leader_of_each_partition(
    shape: Callable[[Any], bytes],
) -> None:
    answer = parse_lookup(200, shape(LOOKUP))
    assert answer == LookupAnswer(
        producers=tuple(NODES),
        channels=("billing",),
        partitions={0: NODES[0], 1: NODES[1]},
        meta=TopicMeta(partition_num=2, replica=1, ordered=True),
    )
    assert answer.dialect is Dialect.REDESIGNED
    assert [node.address for node in answer.producers] == ["127.0.0.1:24150", "127.0.0.1:24350"]


def test_every_flag_of_a_topic_is_read() -> None:
    for flag in ("extend_support", "multi_part", "disable_channel_auto_create"):
        meta = parse_lookup(200, encode({"meta": {flag: True}})).meta
        assert meta == TopicMeta(**{flag: True})


@pytest.mark.parametrize("shape", [encode, wrapped])
def test_a_classic_answer_has_producers_alone(shape: Callable[[Any], bytes]) -> None:
    node = {
        "remote_address": "127.0.0.1:5",
        "hostname": "h",
        "broadcast_address": "h.example",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }
    answer = parse_lookup(200, shape({"channels": [], "producers": [node]}))
    assert answer == LookupAnswer(
        producers=(
            Node(
                broadcast_address="h.example",
                tcp_port=4150,
                http_port=4151,
                hostname="h",
                version="1.3.0",
            ),
        )
    )
    assert answer.dialect is Dialect.CLASSIC
    assert answer.meta is None


def test_the_nodes_of_a_cluster_read_like_producers() -> None:
    node = {"broadcast_address": "h", "tcp_port": 4150, "topics": ["t"], "tombstones": [False]}
    (producer,) = parse_lookup(200, encode({"producers": [node]})).producers
    assert (producer.address, producer.http_port) == ("h:4150", 0)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"channels": None, "meta": None, "partitions": None, "producers": None},
        {"channels": [], "meta": {}, "partitions": {}, "producers": []},
        {"something": "else"},
    ],
)
@pytest.mark.parametrize("shape", [encode, wrapped])
def test_an_empty_answer_decides_nothing(
    shape: Callable[[Any], bytes], data: dict[str, Any]
) -> None:
    answer = parse_lookup(200, shape(data))
    assert answer == LookupAnswer()
    assert answer.dialect is None


def test_after_a_crash_a_topic_has_its_meta_and_no_partitions() -> None:
    answer = parse_lookup(200, encode({"meta": META, "partitions": {}, "producers": []}))
    assert answer.meta == TopicMeta(partition_num=2, replica=1, ordered=True)
    assert answer.dialect is None


def test_a_classic_nsqd_of_a_redesigned_nsqlookupd_is_classic() -> None:
    answer = parse_lookup(200, encode({"partitions": {}, "producers": [FIRST]}))
    assert answer.dialect is Dialect.CLASSIC


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"message":"TOPIC_NOT_FOUND"}'),
        (404, b'{"message":"Key not found"}'),
        (500, b'{"status_code":500,"status_txt":"Key not found","data":null}'),
        (200, b'{"status_code":404,"status_txt":"TOPIC_NOT_FOUND","data":null}'),
        (200, b'{"status_code":200,"status_txt":"OK","data":null}'),
    ],
)
def test_an_unknown_topic_is_an_answer(status: int, body: bytes) -> None:
    assert parse_lookup(status, body) == LookupAnswer()


_LACKS_CHANNEL = "Topic has no channel, should init at least one for the new topic"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"message": _LACKS_CHANNEL}),
        (500, {"status_code": 500, "status_txt": _LACKS_CHANNEL, "data": None}),
    ],
)
def test_a_topic_refused_for_want_of_a_channel_says_so(
    status: int, body: dict[str, object]
) -> None:
    answer = parse_lookup(status, json.dumps(body).encode())
    assert answer.lacks_channel
    assert answer.partitions == {}
    assert not parse_lookup(404, b'{"message":"Key not found"}').lacks_channel


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (
            500,
            b'{"status_code":500,"status_txt":"INVALID_ACCESS_MODE","data":null}',
            "status 500: 'INVALID_ACCESS_MODE'",
        ),
        (400, b'{"message":"MISSING_ARG_TOPIC"}', "status 400: 'MISSING_ARG_TOPIC'"),
        (200, b'{"status_code":500}', "status 200: b'{\"status_code\":500}'"),
        (404, b"404 page not found\n", "status 404, not JSON: b'404 page not found\\n'"),
        (404, b'{"message":"NOT_FOUND"}', "status 404: 'NOT_FOUND'"),
        (502, b"<html>" + b"x" * 200, f"status 502, not JSON: b'<html>{'x' * 94}'"),
        (400, b'{"message":"' + b"x" * 300 + b'"}', f"status 400: '{'x' * 200}'"),
        (200, b"", "status 200, not JSON: b''"),
        (200, b"[" * 100000, f"status 200, not JSON: {b'[' * 100!r}"),
        (200, b"9" * 5000, f"status 200, not JSON: {b'9' * 100!r}"),  # Python refuses to read it
        (200, b"\xff", "status 200, not JSON: b'\\xff'"),
        (200, b"[]", "the answer is []; expected dict"),
        (200, b"null", "the answer is None; expected dict"),
        (200, b'{"message":5}', "message is 5; expected str"),
        (200, b'{"status_code":200,"data":[1]}', "data is [1]; expected dict"),
        (200, b'{"producers":{"a":1}}', "producers is {'a': 1}; expected list"),
        (200, b'{"producers":["a"]}', "a node is 'a'; expected dict"),
        (200, b'{"producers":[null]}', "a node is None; expected dict"),
        (200, b'{"producers":[{}]}', "a node without broadcast_address: {}"),
        (
            200,
            b'{"producers":[{"broadcast_address":5}]}',
            "broadcast_address is 5; expected str",
        ),
        (
            200,
            b'{"producers":[{"broadcast_address":"\\ud800"}]}',
            "broadcast_address is '\\ud800'; expected text",
        ),
        (200, b'{"channels":[7]}', "a channel is 7; expected str"),
        (200, b'{"channels":"c"}', "channels is 'c'; expected list"),
        (200, b'{"partitions":[1]}', "partitions is [1]; expected dict"),
        (200, b'{"meta":[1]}', "meta is [1]; expected dict"),
        (200, b'{"meta":{"ordered":1}}', "ordered is 1; expected bool"),
    ],
)
def test_an_answer_that_cannot_be_used_says_what_is_wrong_with_it(
    status: int, body: bytes, complaint: str
) -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_lookup(status, body)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1), (65535, 65535), ("1", 1), ("24161", 24161), ("65535", 65535)],
)
def test_a_port_is_a_number_or_the_digits_of_one(value: object, number: int) -> None:
    node = {"broadcast_address": "h", "tcp_port": value}
    assert parse_lookup(200, encode({"producers": [node]})).producers[0].tcp_port == number


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1, "-1"),
        (0, "0"),
        (65536, "65536"),
        ("65536", "65536"),
        ("123456", "'123456'"),
        ("", "''"),
        ("-1", "'-1'"),
        (" 1", "' 1'"),
        ("\N{SUPERSCRIPT TWO}", "'\N{SUPERSCRIPT TWO}'"),
        ("\N{ARABIC-INDIC DIGIT ONE}", "'\N{ARABIC-INDIC DIGIT ONE}'"),
        (1.0, "1.0"),
        (True, "True"),
        (None, "None"),
        ([1], "[1]"),
    ],
)
def test_what_is_not_a_port_is_refused(value: object, shown: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_lookup(200, encode({"producers": [{"broadcast_address": "h", "tcp_port": value}]}))
    assert str(caught.value) == f"tcp_port is {shown}; expected a number from 1 to 65535"


@pytest.mark.parametrize("number", ["", "x", "-1", "65536"])
def test_a_partition_is_named_by_its_number(number: str) -> None:
    with pytest.raises(
        DiscoveryError, match=r"^partition is .*; expected a number from 0 to 65535"
    ):
        parse_lookup(200, encode({"partitions": {number: FIRST}}))


@pytest.mark.parametrize(
    ("host", "address"),
    [("h", "h:4150"), ("10.0.0.1", "10.0.0.1:4150"), ("fe80::1", "[fe80::1]:4150")],
)
def test_an_address_is_host_and_port(host: str, address: str) -> None:
    assert join_address(host, 4150) == address
    assert Node(broadcast_address=host, tcp_port=4150).address == address


def test_the_header_for_plain_status_codes_is_the_exact_string() -> None:
    assert ACCEPT_V1 == "application/vnd.nsq; version=1.0"


@pytest.mark.parametrize("shape", [encode, wrapped])
def test_all_nsqlookupd_are_listed_and_one_leads(shape: Callable[[Any], bytes]) -> None:
    assert parse_listlookup(200, shape(LISTLOOKUP)) == (
        LookupdNode(address="127.0.0.1:24161", leader=True),
        LookupdNode(address="127.0.0.1:24361"),
    )


@pytest.mark.parametrize(
    "leader",
    [
        None,
        {},
        # Go's zero value, while none is elected.
        {"ID": "", "NodeIP": "", "TcpPort": "", "HttpPort": "", "RpcPort": "", "Epoch": 0},
    ],
)
def test_there_may_be_no_leader(leader: object) -> None:
    body = encode({"lookupdleader": leader, "lookupdnodes": [LEADER]})
    assert parse_listlookup(200, body) == (LookupdNode(address="127.0.0.1:24161"),)


@pytest.mark.parametrize(
    ("status", "body", "listed"),
    [
        (404, b'{"message":"NOT_FOUND"}', None),  # classic
        (404, b"404 page not found", None),
        (200, b"", ()),  # redesigned, without a cluster
        (200, b" \n", ()),
        (200, b'{"status_code":200,"status_txt":"OK","data":null}', ()),
        (200, b'{"lookupdleader":null,"lookupdnodes":null}', ()),
    ],
)
def test_an_nsqlookupd_may_know_of_no_other(
    status: int, body: bytes, listed: tuple[LookupdNode, ...] | None
) -> None:
    assert parse_listlookup(status, body) == listed


@pytest.mark.parametrize(
    ("status", "body", "complaint"),
    [
        (500, b"", "status 500, not JSON: b''"),
        (500, b'{"message":"etcd is away"}', "status 500: 'etcd is away'"),
        (200, b'{"lookupdleader":[1]}', "lookupdleader is [1]; expected dict"),
        (200, b'{"lookupdleader":{"NodeIP":5}}', "NodeIP is 5; expected str"),
        (
            200,
            b'{"lookupdleader":{"NodeIP":"h"}}',
            "HttpPort is None; expected a number from 1 to 65535",
        ),
        (200, b'{"lookupdnodes":[5]}', "an nsqlookupd is 5; expected dict"),
        (
            200,
            b'{"lookupdnodes":[{"HttpPort":"1"}]}',
            "an nsqlookupd without NodeIP: {'HttpPort': '1'}",
        ),
        (
            200,
            b'{"lookupdnodes":[{"NodeIP":"h","HttpPort":"x"}]}',
            "HttpPort is 'x'; expected a number from 1 to 65535",
        ),
    ],
)
def test_a_list_that_cannot_be_used_says_what_is_wrong_with_it(
    status: int, body: bytes, complaint: str
) -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_listlookup(status, body)
    assert str(caught.value) == complaint


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container within ``value`` with each of its keys."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@pytest.mark.parametrize(
    ("parse", "whole"),
    [
        (parse_lookup, LOOKUP),
        (parse_lookup, {"status_code": 200, "status_txt": "OK", "data": LOOKUP}),
        (parse_listlookup, LISTLOOKUP),
    ],
)
@given(data=st.data())
def test_any_part_may_be_null_or_missing_or_wrong(
    parse: Callable[[int, bytes], Any], whole: dict[str, Any], data: st.DataObject
) -> None:
    changed = deepcopy(whole)
    container, key = data.draw(st.sampled_from(places(changed)))
    if data.draw(st.booleans()):
        container[key] = data.draw(json_values)
    else:
        del container[key]
    found = attempt(DiscoveryError, parse, 200, encode(changed))
    assert (
        isinstance(found, LookupAnswer | tuple)
        or "; expected " in str(found)
        or (str(found).startswith(("a node without", "an nsqlookupd without", "status 200: ")))
    )


@pytest.mark.parametrize("parse", [parse_lookup, parse_listlookup])
@given(status=st.sampled_from([200, 400, 404, 500]), body=st.binary() | json_values.map(encode))
def test_arbitrary_bytes_raise_a_discovery_error_alone(
    parse: Callable[[int, bytes], Any], status: int, body: bytes
) -> None:
    found = attempt(DiscoveryError, parse, status, body)
    assert isinstance(found, DiscoveryError | LookupAnswer | tuple | None)
    assert str(found) != ""


def test_a_wrong_value_is_shown_in_short_however_deep_it_is() -> None:
    body = b'{"lookupdnodes":[{"NodeIP":' + b"[" * 900 + b"]" * 900 + b"}]}"
    with pytest.raises(DiscoveryError, match=r"^NodeIP is \[\[") as caught:
        parse_listlookup(200, body)
    assert len(str(caught.value)) < 100


def test_a_node_has_an_address_for_clients_and_one_for_its_http_api() -> None:
    node = Node(broadcast_address="::1", tcp_port=4150, http_port=4151)
    assert (node.address, node.http_address) == ("[::1]:4150", "[::1]:4151")
