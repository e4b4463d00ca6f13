"""The bodies of commands: bounded before they arrive, in the words of nsqd 1.3.0."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.body_decoder import BatchBody, Limits, SingleBody
from nsqflow.protocol.commands import Command, Identify
from nsqflow.protocol.frames import ReceiveBuffer
from nsqflow.protocol.publish import Mpub, Pub
from tests.unit.protocol.strategies import pieces

LIMITS = Limits(max_msg_size=100, max_body_size=199)


def batch() -> BatchBody:
    return BatchBody("MPUB", lambda items: Mpub("t", items))


def message() -> SingleBody:
    return SingleBody("PUB", True, lambda body: Pub("t", body))


def identify() -> SingleBody:
    return SingleBody("IDENTIFY", False, Identify)


def read(body: SingleBody | BatchBody, *parts: bytes) -> Command | None:
    """Feed the parts one by one, as the decoder of commands does."""
    buffer, command = ReceiveBuffer(), None
    for part in parts:
        buffer.feed(part)
        while command is None and buffer.ready():
            command = body.read(buffer, LIMITS)
    return command


def test_one_body_is_complete_with_its_last_byte() -> None:
    assert read(message(), b"\x00\x00\x00", b"\x02a") is None
    assert read(message(), b"\x00\x00\x00", b"\x02a", b"b") == Pub("t", b"ab")
    assert read(identify(), b"\x00\x00\x00\x02{}NOP\n") == Identify(b"{}")
    assert read(identify(), b"\x00\x00\x00\x01x") == Identify(b"x")


@pytest.mark.parametrize(
    ("make", "size", "most"),
    [(message, b"\x00\x00\x00\x64", 100), (identify, b"\x00\x00\x00\xc7", 199)],
)
def test_the_largest_body_is_taken(
    make: Callable[[], SingleBody | BatchBody], size: bytes, most: int
) -> None:
    command = read(make(), size, b"x" * most)
    assert command in (Pub("t", b"x" * most), Identify(b"x" * most))


ERRORS = [
    (message, "00000000", "E_BAD_MESSAGE PUB invalid message body size 0"),
    (message, "ffffffff", "E_BAD_MESSAGE PUB invalid message body size -1"),
    (message, "00000065", "E_BAD_MESSAGE PUB message too big 101 > 100"),
    (identify, "00000000", "E_BAD_BODY IDENTIFY invalid body size 0"),
    (identify, "80000000", "E_BAD_BODY IDENTIFY invalid body size -2147483648"),
    (identify, "000000c8", "E_BAD_BODY IDENTIFY body too big 200 > 199"),
    (batch, "00000000", "E_BAD_BODY MPUB invalid body size 0"),
    (batch, "ffffffff", "E_BAD_BODY MPUB invalid body size -1"),
    (batch, "000000c8", "E_BAD_BODY MPUB body too big 200 > 199"),
    (batch, "00000009 00000000", "E_BAD_BODY MPUB invalid message count 0"),
    (batch, "00000009 ffffffff", "E_BAD_BODY MPUB invalid message count -1"),
    (batch, "00000009 00000028", "E_BAD_BODY MPUB invalid message count 40"),  # (199 - 4) // 5 = 39
    (
        batch,
        "00000012 00000002 00000001 61 00000000",
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    (batch, "00000012 00000002 fffffffe", "E_BAD_MESSAGE MPUB invalid message(0) body size -2"),
    (batch, "000000c7 00000001 00000065", "E_BAD_MESSAGE MPUB message too big 101 > 100"),
    # nsqd has no bound for the bodies of all messages; this is where we are stricter.
    (
        batch,
        f"00000001 00000003 00000064 {'61' * 100} 00000063 {'61' * 99} 00000001",
        "E_BAD_BODY MPUB body too big 200 > 199",
    ),
]


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(("make", "data", "complaint"), ERRORS)
def test_a_bad_body_is_refused_as_soon_as_nsqd_would_know(
    make: Callable[[], SingleBody | BatchBody], data: str, complaint: str, bytewise: bool
) -> None:
    raw = bytes.fromhex(data)
    parts = [raw[i : i + 1] for i in range(len(raw))] if bytewise else [raw]
    assert read(make(), *([raw[:-1]] if bytewise else [])) is None
    with pytest.raises(RemoteProtocolError) as caught:
        read(make(), *parts)
    assert str(caught.value) == complaint


@pytest.mark.parametrize("announced", [1, 4, 9, 13, 100, 199])
def test_the_messages_of_a_batch_say_where_it_ends_whatever_size_was_announced(
    announced: int,
) -> None:
    buffer, body = ReceiveBuffer(), batch()
    messages = bytes.fromhex("00000002 00000001 61 00000002 6263")
    buffer.feed(announced.to_bytes(4, "big") + messages + b"NOP\n")
    assert buffer.ready()
    assert body.read(buffer, LIMITS) == Mpub("t", [b"a", b"bc"])
    assert len(buffer) == len(b"NOP\n")


def test_the_bodies_of_a_batch_may_have_the_largest_size_beside_their_own_sizes() -> None:
    items = [b"x" * 100, b"x" * 99]
    data = b"".join(len(item).to_bytes(4, "big") + item for item in items)
    assert read(batch(), bytes.fromhex("000000c7 00000002") + data) == Mpub("t", items)


def test_as_many_messages_as_nsqd_allows_are_taken() -> None:
    body = b"\x00\x00\x00\xc7\x00\x00\x00\x27" + b"\x00\x00\x00\x01x" * 39
    assert read(batch(), body) == Mpub("t", [b"x"] * 39)


@given(st.data())
def test_a_batch_comes_out_whole_wherever_the_network_cut_it(data: st.DataObject) -> None:
    items = data.draw(st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=6))
    inside = b"".join(len(item).to_bytes(4, "big") + item for item in items)
    stream = (4 + len(inside)).to_bytes(4, "big") + len(items).to_bytes(4, "big") + inside
    parts = data.draw(pieces(stream))
    assert read(batch(), *parts) == Mpub("t", items)
    assert read(batch(), stream[:-1]) is None


def test_the_messages_of_a_batch_are_taken_out_of_the_buffer_as_they_arrive() -> None:
    buffer, body = ReceiveBuffer(), batch()
    buffer.feed(b"\x00\x00\x00\x0e\x00\x00\x00\x02\x00\x00\x00\x01a\x00\x00\x00")
    assert buffer.ready()
    assert body.read(buffer, LIMITS) is None
    assert body.items == [b"a"]
    assert len(buffer) == 3
