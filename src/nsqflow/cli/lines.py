"""The lines of a file or of stdin, as they come."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from nsqflow.cli.errors import MISUSED, Failure

_READ_SIZE = 64 * 1024


async def read(descriptor: int) -> AsyncIterator[bytes]:
    """Give what can be read, piece by piece; to wait for more can be cancelled."""
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, _READ_SIZE)
        if not data:
            return
        yield data


async def read_lines(descriptor: int, most: int) -> AsyncIterator[list[bytes]]:
    """Give the lines, those that are there together; none may have more than ``most`` bytes."""
    rest, number = b"", 0
    async for data in read(descriptor):
        *lines, rest = (rest + data).split(b"\n")
        number += len(lines)
        if len(rest) > most:
            raise Failure(f"line {number + 1} has more than {most:,} bytes", code=MISUSED)
        if lines:
            yield lines
    if rest:
        yield [rest]


async def read_whole(descriptor: int, most: int) -> bytes:
    """Give all of it; it may have no more than ``most`` bytes."""
    pieces, size = [], 0
    async for data in read(descriptor):
        pieces.append(data)
        size += len(data)
        if size > most:
            raise Failure(f"a message of more than {most:,} bytes", code=MISUSED)
    return b"".join(pieces)


async def _readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a file on a disk, which epoll does not wait for
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)  # else it would be called all the time until it is read
