"""Messages: four layouts, as objects and as columns."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.errors import LocalProtocolError, RemoteProtocolError
from nsqflow.protocol.frames import FrameDecoder, MessageRun
from nsqflow.protocol.messages import (
    JSON_HEADERS,
    PLAIN,
    Layout,
    Message,
    MessageBatch,
    Receipt,
    encode_messages,
    encode_plain_messages,
    message_id,
    read_header,
)
from tests.unit.protocol.strategies import ids, pieces

LAYOUTS = [
    Layout(extended, positioned) for extended in (False, True) for positioned in (False, True)
]

TAG = b'{"##client_dispatch_tag":"tagA","k":"v"}'

# As measured on 0.3.7-HA.1.13.0, and the classic layout.
VECTORS = [
    (
        PLAIN,
        Message(1700000000000000000, 1, b"0123456789abcdef", b"hello"),
        "00000023 00000002 17979cfe362a0000 0001 30313233343536373839616263646566 68656c6c6f",
    ),
    (
        Layout(positioned=True),
        Message(
            0x18E84D8F2DD5B923, 1, b"\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\7", b"o-0", offset=33, size=33
        ),
        "0000002d 00000002 18e84d8f2dd5b923 0001 0000000000000003 0000000000000007"
        "0000000000000021 00000021 6f2d30",
    ),
    (
        Layout(extended=True),
        Message(0x18E84D74F96A865B, 1, b"\0" * 7 + b"\2" + b"\0" * 8, b"extbody", 4, TAG),
        "00000050 00000002 18e84d74f96a865b 0001 0000000000000002 0000000000000000"
        f"04 0028 {TAG.hex()} 657874626f6479",
    ),
    (
        Layout(extended=True),
        Message(0x18E84D75174B1342, 1, b"\0" * 7 + b"\3" + b"\0" * 8, b"again", 0),
        "00000024 00000002 18e84d75174b1342 0001 0000000000000003 0000000000000000 00 616761696e",
    ),
    (
        Layout(extended=True, positioned=True),
        Message(-1, 65535, b"\n" * 16, b"", 4, b"{}", 2**64 - 1, 2**32 - 1),
        "0000002f 00000002 ffffffffffffffff ffff 0a0a0a0a0a0a0a0a 0a0a0a0a0a0a0a0a"
        "04 0002 7b7d ffffffffffffffff ffffffff",
    ),
]


@st.composite
def messages(draw: st.DrawFn, layout: Layout) -> Message:
    message = Message(
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(st.integers(0, 65535)),
        draw(ids),
        draw(st.binary(max_size=20)),
    )
    if layout.extended:
        message.ext_version = draw(st.sampled_from([0, JSON_HEADERS, 255]))
        message.ext = draw(st.binary(max_size=300)) if message.ext_version else None
    if layout.positioned:
        message.offset = draw(st.integers(0, 2**64 - 1))
        message.size = draw(st.integers(0, 2**32 - 1))
    return message


def batches(layout: Layout, *parts: bytes) -> list[MessageBatch]:
    frames, found = FrameDecoder(), []
    frames.min_message_size = layout.min_size
    frames.positioned = layout.positioned and not layout.extended
    for part in parts:
        frames.buffer.feed(part)
        while (run := frames.next()) is not None:
            assert isinstance(run, MessageRun)
            found.append(MessageBatch(*run, layout))
    return found


@pytest.mark.parametrize(("layout", "message", "frame"), VECTORS)
def test_a_message_stands_on_the_wire_as_it_was_measured(
    layout: Layout, message: Message, frame: str
) -> None:
    assert encode_messages([message], layout) == bytes.fromhex(frame)
    (batch,) = batches(layout, bytes.fromhex(frame))
    assert batch.messages() == [message]
    assert len(batch) == 1


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (Layout(), 26),
        (Layout(extended=True), 27),
        (Layout(positioned=True), 38),
        (Layout(extended=True, positioned=True), 39),
    ],
)
def test_the_shortest_message_of_a_layout_has_an_empty_body(layout: Layout, size: int) -> None:
    assert layout.min_size == size
    frame = encode_messages([Message(0, 0, b"\0" * 16, b"")], layout)
    assert len(frame) == 8 + size
    assert batches(layout, frame)[0].messages()[0].body == b""


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=50)
@given(data=st.data())
def test_messages_come_back_equal_wherever_the_network_cut_them(
    layout: Layout, data: st.DataObject
) -> None:
    sent = data.draw(st.lists(messages(layout), max_size=6))
    found = batches(layout, *data.draw(pieces(encode_messages(sent, layout))))
    assert [message for batch in found for message in batch.messages()] == sent


@given(sent=st.lists(messages(PLAIN), max_size=6))
def test_a_broker_encodes_plain_messages_in_its_own_quicker_way(sent: list[Message]) -> None:
    assert encode_plain_messages(sent) == encode_messages(sent)


@given(sent=st.lists(messages(PLAIN), min_size=1, max_size=6))
def test_messages_can_be_had_apart_and_read_later(sent: list[Message]) -> None:
    (batch,) = batches(PLAIN, encode_messages(sent))
    pairs = batch.build(lambda header, body: (header, body))
    assert [Message(*read_header(header), body) for header, body in pairs] == sent
    assert batch.most_attempts == max(message.attempts for message in sent)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=50)
@given(data=st.data())
def test_messages_of_any_layout_can_be_had_apart(layout: Layout, data: st.DataObject) -> None:
    sent = data.draw(st.lists(messages(layout), min_size=1, max_size=6))
    (batch,) = batches(layout, encode_messages(sent, layout))
    parts = batch.build_extended(lambda *parts: parts)
    assert [Message(*read_header(header), *rest) for header, *rest in parts] == sent


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=50)
@given(data=st.data())
def test_columns_hold_what_the_messages_do(layout: Layout, data: st.DataObject) -> None:
    sent = data.draw(st.lists(messages(layout), min_size=1, max_size=6))
    (batch,) = batches(layout, encode_messages(sent, layout))
    columns = batch.columns()
    assert len(columns) == len(batch) == len(sent)
    assert columns.bodies() == [message.body for message in sent]
    assert columns.timestamps == array("q", [message.timestamp for message in sent])
    assert columns.attempts == array("H", [message.attempts for message in sent])
    assert columns.ids == b"".join(message.id for message in sent)
    optional = (columns.offsets, columns.sizes, columns.exts)
    assert [column is not None for column in optional] == [
        layout.positioned,
        layout.positioned,
        layout.extended,
    ]
    assert [*(columns.offsets or ())] == [m.offset for m in sent if layout.positioned]
    assert [*(columns.sizes or ())] == [m.size for m in sent if layout.positioned]
    assert [*(columns.exts or ())] == [m.ext for m in sent if layout.extended]
    assert [*(columns.ext_versions or ())] == [m.ext_version for m in sent if layout.extended]


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (PLAIN, ()),
        (Layout(extended=True), (4, b"{}", None, None)),
        (Layout(positioned=True), (None, None, 5, 6)),
        (Layout(True, True), (4, b"{}", 5, 6)),
    ],
)
def test_a_factory_gets_the_values_in_order_and_no_more_than_the_layout_has(
    layout: Layout, more: tuple[Any, ...]
) -> None:
    def collect(*values: Any) -> tuple[Any, ...]:
        return values

    message = Message(1, 2, b"i" * 16, b"body", 4, b"{}", 5, 6)
    (batch,) = batches(layout, encode_messages([message], layout))
    assert batch.messages(collect) == [(1, 2, b"i" * 16, b"body", *more)]


def test_messages_do_not_keep_what_they_arrived_in_but_a_batch_does() -> None:
    stream = encode_messages([Message(1, 1, b"i" * 16, b"body")])
    (batch,) = batches(PLAIN, stream)
    assert batch.data is stream
    assert batch.messages()[0].body == b"body"
    assert "body" not in repr(batch)
    assert "body'" not in repr(batch.columns())
    assert "iiii" not in repr(batch.columns())


def extended(ext: str, positioned: bool = False) -> MessageBatch:
    message = b"\0" * 26 + bytes.fromhex(ext)
    frame = (4 + len(message)).to_bytes(4, "big") + b"\0\0\0\2" + message
    (batch,) = batches(Layout(extended=True, positioned=positioned), frame)
    return batch


@pytest.mark.parametrize(
    ("ext", "positioned", "size"),
    [
        ("04", False, 27),  # no length
        ("04 00", False, 28),  # half a length
        ("04 0001", False, 29),  # no headers
        ("04 ffff 7b7d", False, 31),
        ("04 0003 7b7d 000000000000000000000000", True, 43),  # would reach into the position
        ("04 000000000000000000000000", True, 39),
    ],
)
def test_headers_that_reach_beyond_their_message_are_refused(
    ext: str, positioned: bool, size: int
) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        extended(ext, positioned)
    assert str(caught.value) == f"message of {size} bytes ends within its extended headers"


@pytest.mark.parametrize(
    ("ext", "expected"),
    [
        ("04 0000", (b"", 4, b"")),
        ("04 0002 7b7d", (b"", 4, b"{}")),
        ("04 0002 7b7d 78", (b"x", 4, b"{}")),
        ("00", (b"", 0, None)),
        ("00 ffff", (b"\xff\xff", 0, None)),  # a version of 0 has no length: this is the body
    ],
)
def test_headers_may_fill_their_message(ext: str, expected: tuple[Any, ...]) -> None:
    (message,) = extended(ext).messages()
    assert (message.body, message.ext_version, message.ext) == expected


def test_an_id_is_two_numbers_to_the_redesigned_nsq() -> None:
    id = bytes.fromhex("0004000000000007 1122334455667788")
    assert message_id(0x0004000000000007, 0x1122334455667788) == id
    message = Message(0, 1, id, b"")
    assert (message.internal_id, message.trace_id) == (0x0004000000000007, 0x1122334455667788)


@pytest.mark.parametrize(("internal_id", "trace_id"), [(-1, 5), (5, 2**64)])
def test_an_id_of_numbers_that_do_not_fit_is_refused(internal_id: int, trace_id: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        message_id(internal_id, trace_id)
    assert str(caught.value) == (
        f"message id of {internal_id} and {trace_id}: must be 0 to 18446744073709551615"
    )


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Message(0, 0, b"short", b""), "message id b'short' of 5 bytes: must have 16"),
        (Message(0, 65536, b"i" * 16, b""), "attempts 65536"),
        (Message(2**63, 0, b"i" * 16, b""), "timestamp 9223372036854775808"),
        (Message(0, 0, b"i" * 16, b"", 256, b""), "ext_version 256"),
        (Message(0, 0, b"i" * 16, b"", 4, b"x" * 65536), "ext of 65536 bytes"),
        (Message(0, 0, b"i" * 16, b"", offset=-1), "offset -1"),
        (Message(0, 0, b"i" * 16, b"", size=2**32), "size 4294967296"),
    ],
)
def test_a_message_that_does_not_fit_the_wire_is_refused(message: Message, complaint: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode_messages([message], Layout(True, True))
    assert str(caught.value).startswith(f"message {'id ' if len(message.id) != 16 else ''}b'")
    assert complaint in str(caught.value)


RECEIPT = bytes.fromhex("4f4b 000000000000000d 1122334455667788 0000000000000185 00000024")


def test_a_receipt_stands_on_the_wire_as_it_was_measured() -> None:
    receipt = Receipt(13, 0x1122334455667788, 389, 36)
    assert receipt.encode() == RECEIPT
    assert Receipt.decode(RECEIPT) == receipt


def test_the_partition_of_a_receipt_is_in_its_internal_id() -> None:
    # As measured: the counter has 50 bits, and starts again in each partition.
    assert (
        Receipt(int.from_bytes(bytes.fromhex("0004000000000007"), "big"), 7, 0, 36).partition == 1
    )
    assert Receipt(13, 7, 389, 36).partition == 0


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"OK", "receipt of 2 bytes, b'OK'; expected OK and 28 bytes"),
        (b"NO" + RECEIPT[2:], "receipt of 30 bytes, b'NO\\x00"),
        (RECEIPT + b"x", "receipt of 31 bytes, b'OK\\x00"),
        (b"", "receipt of 0 bytes, b''; expected OK and 28 bytes"),
    ],
)
def test_what_is_not_a_receipt_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        Receipt.decode(data)
    assert str(caught.value).startswith(complaint)


def test_a_receipt_that_does_not_fit_the_wire_is_refused() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Receipt(1, 2, -3, 4).encode()
    assert str(caught.value).startswith("Receipt(internal_id=1, trace_id=2, offset=-3, size=4): ")
