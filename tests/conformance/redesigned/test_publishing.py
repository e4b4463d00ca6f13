"""PUB and its variants on a redesigned nsqd: answers, receipts, and which partition is written."""

from __future__ import annotations

import json

import pytest

from nsqflow.broker import BackgroundBroker
from tests.conformance.redesigned.wire import (
    OK,
    Connect,
    Receipt,
    Wire,
    batch,
    code_of,
    error,
    extended,
    pub,
    pub_ext,
    pub_trace,
    read_receipt,
    sized,
    unhex,
)

TRACE = 0x1122334455667788
RAW = 4 + 26  # bytes of a message on disk besides its body


def headers(**values: object) -> bytes:
    return json.dumps({f"##{name}": value for name, value in values.items()}).encode()


def test_pub_is_answered_by_ok(wire: Wire) -> None:
    sent = "50 55 42 20 74 5f 70 61 72 74 20 30 0a 00 00 00 02 68 69"
    assert wire.ask(unhex(sent)) == unhex("00000006 00000000 4f4b")


def test_pub_trace_is_answered_by_a_receipt_byte_for_byte(wire: Wire) -> None:
    # The recorded message was the twelfth of its partition and began at 389.
    earlier = [b"x" * 5] * 10 + [b"x" * 9]
    assert wire.ask(batch("MPUB t_part 0", *earlier)) == OK
    wire.send(
        unhex(
            "50 55 42 5f 54 52 41 43 45 20 74 5f 70 61 72 74 20 30 0a 00 00 00 0e"
            "11 22 33 44 55 66 77 88 74 72 61 63 65 64"
        )
    )
    assert wire.frame() == unhex(
        "00 00 00 22 00 00 00 00 4f 4b | 00 00 00 00 00 00 00 0d | 11 22 33 44 55 66 77 88 |"
        "00 00 00 00 00 00 01 85 | 00 00 00 24"
    )


def test_the_next_offset_is_the_offset_plus_the_raw_size(wire: Wire) -> None:
    receipts = [read_receipt(wire.ask(pub_trace("t_part", 1, b"x" * size))) for size in (1, 50, 6)]
    assert [each.size for each in receipts] == [RAW + 1, RAW + 50, RAW + 6]
    assert [each.offset for each in receipts] == [0, RAW + 1, 2 * RAW + 51]


def test_an_internal_id_is_the_partition_shifted_by_50_plus_a_number_from_2(wire: Wire) -> None:
    first = read_receipt(wire.ask(pub_trace("t_part", 0, b"x", 1)))
    assert first.internal_id == (1 << 50) + 2
    for _ in range(4):
        assert wire.ask(pub("t_part", b"x", 1)) == OK
    answer = wire.ask(pub_trace("t_part", 0, b"x", 1))
    assert answer[10:18] == unhex("00 04 00 00 00 00 00 07")


def test_mpub_is_answered_by_ok_and_takes_an_id_for_each_message(wire: Wire) -> None:
    assert wire.ask(batch("MPUB t_part 0", b"a", b"b", b"c")) == OK
    assert read_receipt(wire.ask(pub_trace("t_part", 0, b"d"))).internal_id == 5


def test_the_receipt_of_mpub_trace_is_of_the_first_message_without_trace_id(wire: Wire) -> None:
    assert wire.ask(pub("t_part", b"xyz")) == OK
    traced = [bytes(7) + bytes([number]) + b"%02d" % number for number in (7, 8, 9)]
    answer = wire.ask(batch("MPUB_TRACE t_part 0", *traced))
    assert answer == unhex(
        "00 00 00 22 00 00 00 00 4f 4b | 00 00 00 00 00 00 00 03 | 00 00 00 00 00 00 00 00 |"
        "00 00 00 00 00 00 00 21 | 00 00 00 60"
    )


def test_the_trace_ids_of_mpub_trace_are_delivered(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe("SUB t_part ch 0", rdy=2)
    receipt = read_receipt(
        producer.ask(batch("MPUB_TRACE t_part 0", bytes(7) + b"\x07a", bytes(7) + b"\x08b"))
    )
    messages = [consumer.message(), consumer.message()]
    assert [(each.trace_id, each.body) for each in messages] == [(7, b"a"), (8, b"b")]
    assert receipt.internal_id == messages[0].internal_id


@pytest.mark.parametrize("trace", [0, 2**64 - 1])
def test_the_lowest_and_the_highest_trace_id_are_accepted(wire: Wire, trace: int) -> None:
    assert read_receipt(wire.ask(pub_trace("t_part", trace, b"x"))).trace_id == trace


def test_a_trace_id_without_a_body_closes(wire: Wire) -> None:
    assert code_of(wire.ask(pub_trace("t_part", 1, b""))) == "E_BAD_BODY"
    wire.expect_closed()


# Headers


@pytest.mark.parametrize("json_headers", [b"{}", b'{"a":"b"}', b'{"##client_dispatch_tag":"t"}'])
def test_pub_ext_is_answered_by_ok(wire: Wire, json_headers: bytes) -> None:
    assert wire.ask(pub_ext("t_ext", json_headers, b"x")) == OK


def test_pub_ext_with_a_trace_id_in_a_string_is_answered_by_a_receipt(wire: Wire) -> None:
    json_headers = headers(trace_id="7")
    answer = read_receipt(wire.ask(pub_ext("t_ext", json_headers, b"body")))
    # On such topics a version, and with headers their length, are part of the raw size.
    assert answer == Receipt(b"OK", 2, 7, 0, RAW + 1 + 2 + len(json_headers) + 4)


@pytest.mark.parametrize("trace_id", [7, "seven", "", "-1", str(2**64)])
def test_a_trace_id_in_headers_that_is_no_decimal_string_is_refused(
    wire: Wire, trace_id: object
) -> None:
    answer = wire.ask(pub_ext("t_ext", headers(trace_id=trace_id), b"x"))
    assert code_of(answer) == "INVALID_TRACE_ID"
    wire.expect_open()


def test_mpub_ext_is_always_answered_by_a_plain_ok(wire: Wire) -> None:
    items = [extended(headers(trace_id="7"), b"a"), extended(b"{}", b"b")]
    assert wire.ask(batch("MPUB_EXT t_ext 0", *items)) == OK


def test_headers_of_length_0_are_an_error_in_pub_ext_and_legal_in_mpub_ext(wire: Wire) -> None:
    assert code_of(wire.ask(pub_ext("t_ext", b"", b"x"))) == "E_INVALID_JSON_HEADER"
    assert wire.ask(batch("MPUB_EXT t_ext 0", extended(b"", b"x"))) == OK
    wire.expect_open()


def test_plain_and_traced_messages_may_be_published_to_an_extended_topic(wire: Wire) -> None:
    assert wire.ask(pub("t_ext", b"plain")) == OK
    assert read_receipt(wire.ask(pub_trace("t_ext", 7, b"traced"))).size == RAW + 1 + 6


# Connections and partitions


def test_answers_to_pipelined_publishes_come_in_order(wire: Wire) -> None:
    traces = range(1, 101)
    wire.send(*[pub_trace("t_part", trace, b"x", trace % 2) for trace in traces])
    assert [read_receipt(wire.frame()).trace_id for _ in traces] == [*traces]


def test_one_connection_may_publish_to_several_topics_and_partitions(wire: Wire) -> None:
    for topic, partition in (("t_part", 0), ("t_part", 1), ("t_order", 1), ("t_ext", 0)):
        receipt = read_receipt(wire.ask(pub_trace(topic, 0, b"x", partition)))
        assert receipt.internal_id == (partition << 50) + 2


def test_a_subscribed_connection_may_publish(wire: Wire) -> None:
    wire.subscribe("SUB t_part ch 0")
    assert wire.ask(pub("t_part", b"x", 1)) == OK
    wire.expect_open()


@pytest.mark.parametrize("line", ["t_part", "t_part -1", "t_part 1 extra", "t_part 1 "])
def test_without_a_partition_or_with_a_word_too_many_the_default_one_is_used(
    wire: Wire, line: str
) -> None:
    body = sized(bytes(8) + b"x")
    assert read_receipt(wire.ask(f"PUB_TRACE {line}\n".encode(), body)).internal_id == 2
    assert wire.ask(f"PUB {line}\n".encode(), sized(b"x")) == OK
    assert read_receipt(wire.ask(pub_trace("t_part", 0, b"x", 0))).internal_id == 4


def test_the_default_partition_is_one_that_the_node_leads(cluster: BackgroundBroker) -> None:
    cluster.create_topic("t_part", partitions=3)
    found = []
    for address in cluster.nsqd_addresses:
        with Wire(address) as wire:
            answer = wire.ask(b"PUB_TRACE t_part\n", sized(bytes(8) + b"x"))
            found.append(read_receipt(answer).internal_id)
    assert sorted(found) == [(number << 50) + 2 for number in range(3)]


@pytest.mark.parametrize("line", ["t_order", "t_order -1", "t_order 1 extra"])
@pytest.mark.parametrize(
    ("command", "body"),
    [
        ("PUB", sized(b"x")),
        ("PUB_TRACE", sized(bytes(8) + b"x")),
        ("MPUB", batch("", b"x")[1:]),
        ("MPUB_TRACE", batch("", bytes(8) + b"x")[1:]),
    ],
)
def test_an_ordered_topic_has_no_default_partition(
    wire: Wire, command: str, body: bytes, line: str
) -> None:
    assert code_of(wire.ask(f"{command} {line}\n".encode(), body)) == "E_BAD_PARTITION"
    wire.expect_closed()


def test_a_space_and_no_partition_is_a_bad_partition(wire: Wire) -> None:
    assert code_of(wire.ask(b"PUB t_part \n", sized(b"x"))) == "E_BAD_PARTITION"
    wire.expect_closed()


def test_after_an_error_of_mpub_ext_the_next_command_is_read_from_its_body(wire: Wire) -> None:
    items = [extended(b"{}", b"a"), extended(b"{}", b"b")]
    assert code_of(wire.ask(batch("MPUB_EXT t_part 0", *items))) == "E_EXT_NOT_SUPPORT"
    answer = wire.ask(pub("t_part", b"x"))
    assert answer.startswith(error("E_INVALID invalid command ")[4:], 4)
    wire.expect_closed()


def test_nothing_of_a_batch_that_was_refused_is_stored(connect: Connect) -> None:
    refused, other = connect(), connect()
    items = [extended(b"{}", b"a"), extended(b"{", b"b")]
    assert code_of(refused.ask(batch("MPUB_EXT t_ext 0", *items))) == "E_INVALID_JSON_HEADER"
    assert read_receipt(other.ask(pub_trace("t_ext", 0, b"x"))).internal_id == 2
