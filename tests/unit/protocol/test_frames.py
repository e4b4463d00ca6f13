"""Frames: cut out of the stream whole, or refused before they are waited for."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.frames import (
    DEFAULT_MAX_FRAME_SIZE,
    Frame,
    FrameDecoder,
    FrameType,
    MessageRun,
    encode_frame,
)
from tests.unit.protocol.strategies import pieces

OK = bytes.fromhex("00000006 00000000 4f4b")
ERROR = b"\x00\x00\x00\x0d\x00\x00\x00\x01E_INVALID"
HEADER = b"timestamp,id and attempts."  # what is in these 26 bytes is no matter here
MESSAGE = b"\x00\x00\x00\x21\x00\x00\x00\x02" + HEADER + b"one"
EMPTY_MESSAGE = b"\x00\x00\x00\x1e\x00\x00\x00\x02" + HEADER


def decoder(data: bytes = b"", max_frame_size: int = 1000) -> FrameDecoder:
    frames = FrameDecoder(max_frame_size)
    frames.buffer.feed(data)
    return frames


def read_all(frames: FrameDecoder) -> list[tuple[int, bytes]]:
    """All that is complete, each message as a frame of its own."""
    found: list[tuple[int, bytes]] = []
    while (item := frames.next()) is not None:
        if isinstance(item, MessageRun):
            places = zip(item.headers, pairwise(item.bounds), strict=True)
            found += [(2, header + item.data[at + 34 : end]) for header, (at, end) in places]
        else:
            found.append((item.type, item.data))
    return found


@pytest.mark.parametrize(
    ("type", "data", "frame"),
    [
        (FrameType.RESPONSE, b"OK", OK),
        (FrameType.ERROR, b"E_INVALID", ERROR),
        (FrameType.MESSAGE, HEADER + b"one", MESSAGE),
        (FrameType.MESSAGE, HEADER, EMPTY_MESSAGE),
        (FrameType.RESPONSE, b"", b"\x00\x00\x00\x04\x00\x00\x00\x00"),
    ],
)
def test_a_frame_is_its_size_its_type_and_its_data(
    type: FrameType, data: bytes, frame: bytes
) -> None:
    assert encode_frame(type, data) == frame
    assert read_all(decoder(frame)) == [(type, data)]


def test_a_response_and_an_error_come_one_by_one() -> None:
    frames = decoder(OK + ERROR)
    assert frames.next() == Frame(FrameType.RESPONSE, b"OK")
    assert frames.next() == Frame(FrameType.ERROR, b"E_INVALID")
    assert frames.next() is None


def test_messages_in_a_row_come_as_places_in_the_bytes_that_arrived() -> None:
    data = MESSAGE + EMPTY_MESSAGE + OK + MESSAGE + b"\x00"
    frames = decoder(data)
    first = frames.next()
    assert first == MessageRun(data, [0, 37, 71], [HEADER, HEADER])
    assert first.data is data
    assert frames.next() == Frame(FrameType.RESPONSE, b"OK")
    assert frames.next() == MessageRun(data, [81, 118], [HEADER])
    assert frames.next() is None


@given(st.data())
def test_frames_come_out_whole_wherever_the_network_cut_them(data: st.DataObject) -> None:
    answer = st.tuples(st.sampled_from(FrameType), st.binary(max_size=30))
    message = st.tuples(st.just(FrameType.MESSAGE), st.binary(min_size=26, max_size=40))
    answer = answer.filter(lambda frame: frame[0] is not FrameType.MESSAGE)
    expected = data.draw(st.lists(answer | message, max_size=8))
    stream = b"".join(encode_frame(*each) for each in expected)
    frames, found = decoder(), []
    for piece in data.draw(pieces(stream)):
        frames.buffer.feed(piece)
        found += read_all(frames)
    assert found == expected
    assert frames.buffer.drain() == b""


def test_a_frame_is_waited_for_until_its_last_byte() -> None:
    frames = decoder()
    for i in range(len(OK) - 1):
        frames.buffer.feed(OK[i : i + 1])
        assert frames.next() is None
    frames.buffer.feed(OK[-1:])
    assert frames.next() == Frame(FrameType.RESPONSE, b"OK")


WRONG_PORT = "(is this the TCP port of an nsqd?)"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"HTTP", f"frame of 1213486160 bytes: must be 4 to 67108864 {WRONG_PORT}"),
        # A TLS alert is seven bytes: the whole header of a frame never comes.
        (
            bytes.fromhex("15030100020246"),
            f"frame of 352518400 bytes: must be 4 to 67108864 {WRONG_PORT}",
        ),
        (b"\x00\x00\x00\x03", f"frame of 3 bytes: must be 4 to 67108864 {WRONG_PORT}"),
        (b"\xff\xff\xff\xff", f"frame of -1 bytes: must be 4 to 67108864 {WRONG_PORT}"),
        (
            b"\x80\x00\x00\x00\x00\x00\x00\x02",
            f"frame of -2147483648 bytes: must be 4 to 67108864 {WRONG_PORT}",
        ),
        (b"\x04\x00\x00\x01", f"frame of 67108865 bytes: must be 4 to 67108864 {WRONG_PORT}"),
        (
            b"\x00\x00\x00\x04\x00\x00\x00\x03",
            f"frame of unknown type 3: must be 0 to 2 {WRONG_PORT}",
        ),
        (
            b"\x00\x00\x00\x04\xff\xff\xff\xff",
            f"frame of unknown type -1: must be 0 to 2 {WRONG_PORT}",
        ),
        # What nsqlookupd answers on its TCP port: its protocol has frames without a type.
        (
            b"\x00\x00\x00\x0eE_BAD_PROTOCOL",
            f"frame of unknown type 1163870785: must be 0 to 2 {WRONG_PORT}",
        ),
    ],
)
def test_what_is_not_a_frame_is_refused_by_its_header_alone(data: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decoder(data, max_frame_size=DEFAULT_MAX_FRAME_SIZE).next()
    assert str(caught.value) == complaint
    assert caught.value.code == ""


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_the_largest_frame_is_taken_and_one_byte_more_is_not(kind: int) -> None:
    largest = b"\x00\x00\x00\x21\x00\x00\x00" + bytes([kind]) + HEADER + b"one"
    assert read_all(decoder(largest, max_frame_size=33)) == [(kind, HEADER + b"one")]
    with pytest.raises(RemoteProtocolError, match=r"^frame of 33 bytes: must be 4 to 32"):
        decoder(largest, max_frame_size=32).next()


@pytest.mark.parametrize("rest", [b"", MESSAGE])
@pytest.mark.parametrize(
    ("frame", "smallest", "complaint"),
    [
        (MESSAGE, 30, "message of 29 bytes: its header has 30"),
        (MESSAGE[:8], 30, "message of 29 bytes: its header has 30"),
        (b"\x00\x00\x00\x07\x00\x00\x00\x02one", 26, "message of 3 bytes: its header has 26"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x02", 26, "message of 0 bytes: its header has 26"),
    ],
)
def test_a_message_too_short_for_its_own_header_is_refused(
    frame: bytes, smallest: int, complaint: str, rest: bytes
) -> None:
    frames = decoder(frame + rest)
    assert frames.min_message_size == 26
    frames.min_message_size = smallest
    with pytest.raises(RemoteProtocolError) as caught:
        frames.next()
    assert str(caught.value) == complaint


def test_messages_before_a_broken_frame_come_out_first() -> None:
    data = MESSAGE + b"\x00\x00\x00\x00"
    frames = decoder(data)
    assert frames.next() == MessageRun(data, [0, 37], [HEADER])
    with pytest.raises(RemoteProtocolError, match=r"^frame of 0 bytes: must be 4 to 1000"):
        frames.next()
