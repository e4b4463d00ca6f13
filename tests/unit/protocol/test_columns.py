"""Columns by themselves; that they hold what the messages do is in test_messages."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.protocol.columns import Columns, gather, numbers
from nsqflow.protocol.messages import PLAIN, Layout, Message, MessageBatch, encode_messages

ONE = Message(7, 1, b"a" * 16, b"one")
TWO = Message(-8, 2, b"b" * 16, b"three")


def columns_of(stream: bytes, bounds: list[int], layout: Layout = PLAIN) -> Columns:
    headers = [stream[start + 8 : start + 34] for start in bounds[:-1]]
    return MessageBatch(stream, bounds, headers, layout).columns()


def test_columns_point_into_the_bytes_that_arrived() -> None:
    stream = encode_messages([ONE, TWO])
    columns = columns_of(stream, [0, 37, 76])
    assert columns.data is stream
    assert (columns.bounds, columns.body_offset) == (array("i", [0, 37, 76]), 34)
    assert columns.body_starts() == array("i", [34, 71])
    assert columns.bodies() == [b"one", b"three"]
    assert (columns.timestamps, columns.attempts) == (array("q", [7, -8]), array("H", [1, 2]))
    assert columns.ids == b"aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb"
    assert (columns.offsets, columns.sizes, columns.exts) == (None, None, None)
    assert columns.ext_versions is None


def test_headers_move_the_bodies_after_them() -> None:
    one = Message(7, 1, b"a" * 16, b"one", 4, b"{}")
    two = Message(-8, 2, b"b" * 16, b"three", 0)
    columns = columns_of(
        encode_messages([one, two], Layout(extended=True)), [0, 42, 82], Layout(True)
    )
    assert (columns.exts, columns.ext_versions) == ([b"{}", None], b"\x04\x00")
    assert columns.body_starts() == array("i", [39, 77])
    assert columns.bodies() == [b"one", b"three"]


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("positioned", [False, True])
def test_no_messages_are_empty_columns(extended: bool, positioned: bool) -> None:
    columns = columns_of(b"", [], Layout(extended, positioned))
    assert len(columns) == 0
    assert columns.ids == b""
    assert columns.bodies() == []


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("positioned", [False, True])
def test_one_message_has_what_it_has_among_others(extended: bool, positioned: bool) -> None:
    layout = Layout(extended, positioned)
    places = [(120, 33), (153, 35)] if positioned else [(None, None)] * 2
    heads = [(4, b"{}"), (0, None)] if extended else [(None, None)] * 2
    messages = [
        replace(message, ext_version=version, ext=ext, offset=offset, size=size)
        for message, (version, ext), (offset, size) in zip((ONE, TWO), heads, places, strict=True)
    ]
    streams = [encode_messages([each], layout) for each in messages]
    both = columns_of(b"".join(streams), [*accumulate(map(len, streams), initial=0)], layout)
    for index, stream in enumerate(streams):
        alone, one = columns_of(stream, [0, len(stream)], layout), both.one(index)
        assert one.bodies() == alone.bodies() == [messages[index].body]
        for name in ("timestamps", "attempts", "ids", "offsets", "sizes", "exts", "ext_versions"):
            assert getattr(one, name) == getattr(alone, name), name


def test_neither_ids_nor_bodies_are_shown() -> None:
    shown = repr(columns_of(encode_messages([TWO]), [0, 39]))
    assert "bbbb" not in shown
    assert "three" not in shown


def test_bytes_and_numbers_are_gathered_out_of_rows() -> None:
    rows = bytes.fromhex("00 0102 ff 00 fffe ff")
    assert gather(rows, 4, 1, 2) == bytes.fromhex("0102 fffe")
    assert numbers("H", rows, 4, 1) == array("H", [0x0102, 0xFFFE])
    assert numbers("h", rows, 4, 1) == array("h", [0x0102, -2])


@given(st.lists(st.integers(0, 2**31 - 100), max_size=50), st.integers(0, 99))
def test_a_body_begins_at_the_offset_after_its_bound(bounds: list[int], offset: int) -> None:
    columns = Columns(
        data=b"",
        bounds=array("i", [*bounds, 0]),
        body_offset=offset,
        timestamps=array("q"),
        attempts=array("H"),
        ids=b"",
    )
    assert [*columns.body_starts()] == [bound + offset for bound in bounds]
