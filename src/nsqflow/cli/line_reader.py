"""Reads lines from a file or stdin without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import takewhile

from nsqflow.cli.errors import USAGE_ERROR, CommandError

_READ_SIZE = 64 * 1024


async def read(descriptor: int) -> AsyncIterator[bytes]:
    """Yield data as it arrives; waiting can be cancelled."""
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, _READ_SIZE)
        if not data:
            return
        yield data


async def read_lines(descriptor: int, max_size: int) -> AsyncIterator[list[bytes]]:
    """Yield the available lines together; raise if one has more than ``max_size`` bytes."""
    rest, number = bytearray(), 0  # an incomplete line, and the number of lines before it
    async for data in read(descriptor):
        rest += data
        size, lines = len(rest), list[bytes]()
        if b"\n" in data:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
        short = (
            lines if size <= max_size else [*takewhile(lambda line: len(line) <= max_size, lines)]
        )
        if short:
            yield short
        number += len(short)
        if len(short) < len(lines) or len(rest) > max_size:
            text = f"line {number + 1} has more than {max_size:,} bytes"
            raise CommandError(f"{text}; this line and all later ones are not sent")
    if rest:
        yield [bytes(rest)]


async def read_whole(descriptor: int, max_size: int) -> bytes:
    """Return everything up to the end; raise if it is more than ``max_size`` bytes."""
    whole = bytearray()
    async for data in read(descriptor):
        whole += data
        if len(whole) > max_size:
            raise CommandError(f"the message has more than {max_size:,} bytes", code=USAGE_ERROR)
    return bytes(whole)


async def _readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a regular file, which epoll does not support
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)  # otherwise it would be called until the data is read
