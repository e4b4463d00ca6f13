"""Snappy and deflate: streams cut anywhere, broken anywhere, and never more than a window."""

import zlib
from collections.abc import Callable
from random import Random

import pytest
from cramjam import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.compression import (
    WINDOW,
    Compressor,
    Decompressor,
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
)
from tests.unit.protocol.strategies import attempt, pieces

MEGABYTES = 50
MAX_CHUNK = 65536

METHODS: dict[str, tuple[Callable[[], Compressor], Callable[[], Decompressor]]] = {
    "deflate": (DeflateCompressor, DeflateDecompressor),
    "snappy": (SnappyCompressor, SnappyDecompressor),
}

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
ABC = b"\x01\x07\x00\x00nW\xf1!abc"  # an uncompressed chunk, with its masked CRC-32C


def streams(method: str) -> tuple[Compressor, Decompressor]:
    compressor, decompressor = METHODS[method]
    return compressor(), decompressor()


def read_all(stream: Decompressor, *parts: bytes) -> bytes:
    found = b""
    for part in parts:
        stream.feed(part)
        while data := stream.read():
            found += data
    return found


def read_sizes(stream: Decompressor, wire: bytes) -> list[int]:
    stream.feed(wire)
    return [*map(len, iter(stream.read, b""))]


def raw_deflate(data: bytes, flush: int = zlib.Z_SYNC_FLUSH) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush(flush)


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
def test_any_data_comes_back_wherever_the_network_cut_it(method: str, data: st.DataObject) -> None:
    compressor, decompressor = streams(method)
    for sent in data.draw(st.lists(st.binary(max_size=300), max_size=4)):
        wire = compressor.compress(sent)
        assert read_all(decompressor, *data.draw(pieces(wire))) == sent


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, MAX_CHUNK, MAX_CHUNK + 1, WINDOW - 1, WINDOW, 3 * WINDOW + 5])
def test_data_of_any_size_comes_back(method: str, size: int) -> None:
    compressor, decompressor = streams(method)
    sent = bytes(i * i % 251 for i in range(1000)) * (size // 1000 + 1)
    assert read_all(decompressor, compressor.compress(sent[:size])) == sent[:size]
    assert read_all(decompressor, compressor.compress(b"and on")) == b"and on"


@pytest.mark.parametrize("method", METHODS)
def test_nothing_to_send_does_not_break_the_stream(method: str) -> None:
    compressor, decompressor = streams(method)
    assert read_all(decompressor, compressor.compress(b"")) == b""
    assert read_all(decompressor, compressor.compress(b"first")) == b"first"
    assert read_all(decompressor, compressor.compress(b"")) == b""
    assert read_all(decompressor, compressor.compress(b"second")) == b"second"


@pytest.mark.parametrize("method", METHODS)
def test_nothing_received_is_nothing_to_read(method: str) -> None:
    decompressor = METHODS[method][1]()
    assert decompressor.read() == b""
    decompressor.feed(b"")
    assert decompressor.read() == b""


@pytest.mark.parametrize(("method", "most"), [("deflate", WINDOW), ("snappy", WINDOW + MAX_CHUNK)])
def test_a_decompression_bomb_expands_a_window_at_a_time(method: str, most: int) -> None:
    zeros = bytes(MEGABYTES * 1024 * 1024)
    wire = raw_deflate(zeros) if method == "deflate" else bytes(snappy.compress(zeros))
    sizes = read_sizes(METHODS[method][1](), wire)
    assert sum(sizes) == MEGABYTES * 1024 * 1024
    assert max(sizes) <= most
    assert len(sizes) <= 201  # and no smaller than need be


@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_expand_comes_a_window_at_a_time_too(method: str) -> None:
    compressor, decompressor = streams(method)
    sizes = read_sizes(decompressor, compressor.compress(Random(1).randbytes(2 * 1024 * 1024)))
    assert sum(sizes) == 2 * 1024 * 1024
    assert max(sizes) <= WINDOW + MAX_CHUNK


def test_small_snappy_chunks_fill_a_window() -> None:
    compressor, decompressor = streams("snappy")
    wire = b"".join(compressor.compress(bytes(10000)) for _ in range(60))
    assert read_sizes(decompressor, wire) == [270000, 270000, 60000]


def test_deflate_holds_nothing_back_wherever_the_network_cut_it() -> None:
    wire = raw_deflate(bytes(WINDOW + 2000))
    for end in range(len(wire)):
        expected = zlib.decompressobj(-zlib.MAX_WBITS).decompress(wire[:end])
        assert read_all(DeflateDecompressor(), wire[:end]) == expected


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=200)
@given(data=st.data())
def test_a_corrupted_stream_raises_a_protocol_error_alone(method: str, data: st.DataObject) -> None:
    compressor, decompressor = streams(method)
    sent = data.draw(st.binary(min_size=1, max_size=100)) * 3
    wire = bytearray(compressor.compress(sent))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] ^= data.draw(st.integers(1, 255))
    found = attempt(RemoteProtocolError, read_all, decompressor, bytes(wire))
    if isinstance(found, bytes):
        assert len(found) <= WINDOW
    else:
        assert str(found).startswith((f"{method} stream ", f"{method} chunk "))


@pytest.mark.parametrize("method", METHODS)
@given(st.lists(st.binary(max_size=100), max_size=4))
def test_arbitrary_bytes_raise_a_protocol_error_alone(method: str, parts: list[bytes]) -> None:
    found = attempt(RemoteProtocolError, read_all, METHODS[method][1](), *parts)
    if not isinstance(found, bytes):
        assert str(found).startswith((f"{method} stream ", f"{method} chunk "))


# Deflate: raw, as a stored block shows best.

STORED = b"\x00\x05\x00\xfa\xffhello"
LAST = b"\x01\x05\x00\xfa\xffhello"


def test_deflate_has_no_zlib_header() -> None:
    assert read_all(DeflateDecompressor(), STORED + STORED) == b"hellohello"
    wire = DeflateCompressor().compress(b"hello")
    assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(wire) == b"hello"
    assert wire.endswith(b"\x00\x00\xff\xff")  # a sync flush: the peer can read it all


def test_a_higher_level_of_deflate_costs_fewer_bytes() -> None:
    data = b"".join(b"%d, " % (i * i) for i in range(5000))
    sizes = [len(DeflateCompressor(level).compress(data)) for level in (1, 6, 9)]
    assert sizes[0] > sizes[1] >= sizes[2]
    assert len(DeflateCompressor().compress(data)) == sizes[1]


@pytest.mark.parametrize("rest", [b"", b"anything"])
def test_a_deflate_stream_that_ends_is_an_error_once_it_was_read(rest: bytes) -> None:
    stream = DeflateDecompressor()
    stream.feed(STORED + LAST + rest)
    assert stream.read() == b"hellohello"
    with pytest.raises(RemoteProtocolError, match=r"^deflate stream has ended$"):
        stream.read()


@pytest.mark.parametrize("size", [0, WINDOW, WINDOW + 1])
def test_a_deflate_stream_ends_after_its_last_byte_wherever_that_is(size: int) -> None:
    stream, found = DeflateDecompressor(), []
    stream.feed(raw_deflate(b"x" * size, zlib.Z_FINISH))
    with pytest.raises(RemoteProtocolError, match=r"^deflate stream has ended$"):
        while True:
            found.append(stream.read())
    assert b"".join(found) == b"x" * size


def test_a_broken_deflate_stream_says_so() -> None:
    stream = DeflateDecompressor()
    stream.feed(b"\x07")
    with pytest.raises(RemoteProtocolError, match=r"^deflate stream is damaged: .*invalid block"):
        stream.read()


# Snappy: the framing format.


def test_a_snappy_stream_begins_with_its_identifier_and_says_it_once() -> None:
    compressor = SnappyCompressor()
    assert compressor.compress(b"abc") == IDENTIFIER + ABC
    assert compressor.compress(b"abc") == ABC


def test_a_snappy_stream_may_say_its_identifier_again() -> None:
    assert read_all(SnappyDecompressor(), IDENTIFIER + ABC + IDENTIFIER + ABC) == b"abcabc"
    assert read_all(SnappyDecompressor(), IDENTIFIER, ABC, IDENTIFIER, ABC) == b"abcabc"


@pytest.mark.parametrize("kind", [0x80, 0xAB, 0xFE])
@pytest.mark.parametrize("size", [0, 5, 300])
def test_snappy_chunks_to_be_skipped_are_skipped(kind: int, size: int) -> None:
    padding = bytes([kind]) + size.to_bytes(3, "little") + ABC * (size // 11) + b"x" * (size % 11)
    wire = padding + IDENTIFIER + padding + ABC + padding + padding + ABC
    assert read_all(SnappyDecompressor(), wire) == b"abcabc"
    assert read_all(SnappyDecompressor(), *(bytes([byte]) for byte in wire)) == b"abcabc"


@pytest.mark.parametrize("kind", [0x00, 0x01, 0x02, 0x7F, 0xFF])
def test_a_snappy_chunk_too_large_is_refused_before_it_arrives(kind: int) -> None:
    stream = SnappyDecompressor()
    assert read_all(stream, IDENTIFIER + bytes([kind]) + b"\xce\x2a\x01") == b""  # waits for it
    stream = SnappyDecompressor()
    stream.feed(IDENTIFIER + bytes([kind]) + b"\xcf\x2a\x01")
    with pytest.raises(RemoteProtocolError) as caught:
        stream.read()
    assert (
        str(caught.value) == "snappy stream is damaged: chunk of 76495 bytes: must be at most 76494"
    )


@pytest.mark.parametrize(
    "wire",
    [
        ABC,  # no identifier
        b"\xff\x06\x00\x00sNaPpX",
        b"\xff\x05\x00\x00sNaPp",
        IDENTIFIER + ABC[:-1] + b"d",  # not what the checksum says
        IDENTIFIER + b"\x02\x00\x00\x00",  # a reserved kind that must not be skipped
        IDENTIFIER + b"\x00\x03\x00\x00abc",  # too short for a checksum
        IDENTIFIER + b"\x00\x09\x00\x00\0\0\0\0\xff\xff\xff\xff\x0f",  # says it has 4 GB
        IDENTIFIER + b"\x01\x05\x00\x01" + b"x" * 65541,  # 65537 bytes are one too many
    ],
)
def test_a_broken_snappy_stream_says_so(wire: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^snappy stream is damaged: "):
        read_all(SnappyDecompressor(), wire)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("singly", [False, True])
def test_data_before_the_damage_is_returned(method: str, singly: bool) -> None:
    compressor, decompressor = streams(method)
    good = compressor.compress(b"abc" * 100) + compressor.compress(b"def")
    # No chunk has type 2; a block of type 3 does not exist in deflate.
    wire = good + (b"\x02\x00\x00\x00" if method == "snappy" else b"\x07")
    found = b""
    with pytest.raises(RemoteProtocolError, match=f"^{method} stream is damaged: "):
        for piece in [bytes([byte]) for byte in wire] if singly else [wire]:
            decompressor.feed(piece)
            while data := decompressor.read():
                found += data
    assert found == b"abc" * 100 + b"def"
    with pytest.raises(RemoteProtocolError, match=f"^{method} stream is damaged: "):
        decompressor.read()
