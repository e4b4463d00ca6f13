"""Lines that are read as they come."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from nsqflow.cli.errors import CommandError
from nsqflow.cli.line_reader import read_lines, read_whole
from tests.fixtures.loops import asynchronous


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe; the writer is the test's to close."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


@asynchronous
async def test_a_line_is_returned_as_soon_as_it_arrives(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = read_lines(reader, 100)
    os.write(writer, b"one\ntw")
    assert await anext(lines) == [b"one"]
    second = asyncio.ensure_future(anext(lines))
    os.write(writer, b"o\n\nthree")
    assert await second == [b"two", b""]
    os.close(writer)
    assert await anext(lines) == [b"three"]
    with pytest.raises(StopAsyncIteration):
        await anext(lines)


@asynchronous
async def test_waiting_for_a_line_can_be_given_up(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    waiting = asyncio.ensure_future(anext(read_lines(reader, 100)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert not asyncio.get_running_loop().remove_reader(reader)
    os.close(writer)


@asynchronous
async def test_a_line_that_is_too_long_is_named(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"one\n" + b"x" * 101)
    lines = read_lines(reader, 100)
    assert await anext(lines) == [b"one"]
    with pytest.raises(CommandError, match="line 2 has more than 100 bytes") as caught:
        await anext(lines)
    assert caught.value.code == 1  # not a misuse: the first line was read, and sent
    os.close(writer)


@asynchronous
async def test_a_line_that_is_too_long_is_named_also_if_it_is_there_at_once(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    os.write(writer, b"one\n" + b"x" * 101 + b"\nthree\n")
    lines = read_lines(reader, 100)
    assert await anext(lines) == [b"one"]
    with pytest.raises(CommandError, match="line 2 has more than 100 bytes"):
        await anext(lines)
    os.close(writer)


@asynchronous
async def test_a_line_may_come_in_many_pieces(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = read_lines(reader, 1000)
    first = asyncio.ensure_future(anext(lines))
    for piece in (b"on", b"e", b" and", b" only\ntw"):
        os.write(writer, piece)
        await asyncio.sleep(0)
    assert await first == [b"one and only"]
    os.close(writer)
    assert await anext(lines) == [b"tw"]


@asynchronous
async def test_the_whole_is_bounded_too(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"x" * 101)
    with pytest.raises(CommandError, match="the message has more than 100 bytes"):
        await read_whole(reader, 100)
    os.write(writer, b"one\ntwo")
    os.close(writer)
    assert await read_whole(reader, 100) == b"one\ntwo"
