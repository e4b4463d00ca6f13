"""The receive buffer: whatever is fed comes out again, joined only when it is needed."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import LocalProtocolError, RemoteProtocolError
from nsqflow.protocol import frames as buffer_module
from nsqflow.protocol.frames import ReceiveBuffer


def filled(*parts: bytes) -> ReceiveBuffer:
    buffer = ReceiveBuffer()
    for part in parts:
        buffer.feed(part)
    return buffer


@given(st.lists(st.binary(max_size=20) | st.integers(0, 40), max_size=30))
def test_any_feeds_and_reads_give_the_same_bytes(steps: list[bytes | int]) -> None:
    buffer, rest, need = ReceiveBuffer(), b"", 1
    for step in steps:
        if isinstance(step, bytes):
            buffer.feed(step)
            rest += step
        elif buffer.ready():
            assert len(rest) >= need
            expected = rest[:step] if len(rest) >= step else None
            assert buffer.read(step) == expected
            need = 1 if expected is not None else step
            rest = rest[step:] if expected is not None else rest
        else:
            assert len(rest) < need
        assert len(buffer) == len(rest)
    assert buffer.drain() == rest
    assert len(buffer) == 0


def test_what_arrives_whole_is_not_copied() -> None:
    data = b"x" * 1000
    buffer = filled(data)
    assert buffer.ready()
    assert buffer.data is data
    buffer.take(1000)
    again = b"y" * 1000
    buffer.feed(again)
    assert buffer.data is again
    assert buffer.pos == 0


def test_small_pieces_are_joined_once_and_only_when_all_is_there() -> None:
    first = b"a" * 10
    buffer = filled(first)
    assert buffer.read(100) is None
    for _ in range(8):
        buffer.feed(b"b" * 10)
        assert not buffer.ready()
        assert buffer.data is first
    buffer.feed(b"c" * 15)
    assert buffer.ready()
    assert buffer.read(100) == b"a" * 10 + b"b" * 80 + b"c" * 10
    assert buffer.drain() == b"c" * 5


def test_a_need_is_forgotten_once_it_is_met() -> None:
    buffer = filled(b"ab")
    buffer.need(3)
    assert not buffer.ready()
    buffer.feed(b"c")
    assert buffer.ready()
    assert buffer.take(2) == b"ab"
    assert buffer.ready()
    assert buffer.take(1) == b"c"
    assert not buffer.ready()


def test_nothing_fed_is_nothing_to_read() -> None:
    buffer = filled(b"", b"")
    assert not buffer.ready()
    assert len(buffer) == 0
    assert buffer.drain() == b""


def test_draining_takes_the_later_pieces_too_and_resets() -> None:
    buffer = filled(b"abc", b"def")
    assert buffer.take(1) == b"a"
    buffer.need(100)
    assert len(buffer) == 5
    assert buffer.drain() == b"bcdef"
    buffer.feed(b"g")
    assert buffer.ready()
    assert buffer.read(1) == b"g"


@pytest.mark.parametrize("parts", [(b"12345678", b"901"), (b"1234", b"5678", b"901")])
def test_more_than_offsets_can_address_is_refused(
    parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_module, "MAX_BUFFERED", 10)
    buffer = filled(*parts[:-1])
    with pytest.raises(LocalProtocolError, match=r"^11 bytes are buffered: must be at most 10$"):
        buffer.feed(parts[-1])
    assert buffer.drain() == b"12345678"


def test_what_was_read_does_not_count_towards_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_module, "MAX_BUFFERED", 10)
    buffer = filled(b"12345678")
    assert buffer.read(4) == b"1234"
    buffer.feed(b"abcdef")
    assert buffer.drain() == b"5678abcdef"


def test_the_bound_is_what_a_32_bit_offset_can_address() -> None:
    assert buffer_module.MAX_BUFFERED == 2147483647


def test_lines_come_out_without_their_newline() -> None:
    buffer = filled(b"PUB t\n\nNO")
    assert buffer.read_line(100) == b"PUB t"
    assert buffer.read_line(100) == b""
    assert buffer.read_line(100) is None
    assert not buffer.ready()
    buffer.feed(b"P\n")
    assert buffer.ready()
    assert buffer.read_line(100) == b"NOP"
    assert filled(b"\n" + b"x" * 100).read_line(100) == b""


def test_a_newline_within_the_bytes_to_skip_ends_no_line() -> None:
    buffer = filled(b"FIN a\nb")
    assert buffer.read_line(100, skip=8) is None
    buffer.feed(b"c")
    assert not buffer.ready()  # the newline can't stand before the ninth byte
    buffer.feed(b"\nNOP\n")
    assert buffer.ready()
    assert buffer.read_line(100, skip=8) == b"FIN a\nbc"
    assert buffer.read_line(100) == b"NOP"


@pytest.mark.parametrize("rest", [b"", b"\n", b"0\n"])
def test_a_line_is_bounded_with_its_newline_or_before_it_came(rest: bytes) -> None:
    assert filled(b"123456789\n").read_line(10) == b"123456789"
    with pytest.raises(RemoteProtocolError, match=r"^line of more than 10 bytes$"):
        filled(b"1234567890" + rest).read_line(10)


@pytest.mark.parametrize(
    ("data", "at", "number"),
    [
        (b"\x00\x00\x01\x02", 0, 258),
        (b"\xff\xff\xff\xff", 0, -1),
        (b"abcd\x7f\xff\xff\xff", 4, 2147483647),
        (b"\x00\x00\x01", 0, None),
        (b"abcd\x00\x00\x01", 4, None),
    ],
)
def test_a_number_is_looked_at_and_stays(data: bytes, at: int, number: int | None) -> None:
    buffer = filled(data)
    assert buffer.peek_int32(at) == number
    assert buffer.ready() is (number is not None)
    assert buffer.drain() == data


def test_a_number_is_read_after_what_was_consumed() -> None:
    buffer = filled(b"abc\x00\x00\x00\x05\x00\x00\x00\x06")
    assert buffer.take(3) == b"abc"
    assert buffer.peek_int32() == 5
    assert buffer.peek_int32(4) == 6
    assert buffer.peek_int32(5) is None


def test_an_idle_buffer_keeps_nothing_of_what_was_read() -> None:
    buffer = filled(b"x" * 1000)
    buffer.take(1000)
    assert not buffer.ready()
    assert (buffer.data, buffer.pos) == (b"", 0)


def test_many_small_pieces_take_little_more_memory_than_their_bytes() -> None:
    data = bytes(range(256)) * 400
    tracemalloc.start()
    buffer = filled(b"")
    buffer.need(len(data))
    for i in range(0, len(data), 2):
        buffer.feed(data[i : i + 2])
        assert buffer.ready() is (i + 2 == len(data))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert buffer.drain() == data
    assert peak < 5 * len(data)  # held as pieces of two bytes they would take twenty times it
