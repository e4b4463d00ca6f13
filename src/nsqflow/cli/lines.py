"""The lines of a file or of stdin, as they come."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import takewhile

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
    rest, number = bytearray(), 0  # the beginning of a line, and how many there were before it
    async for data in read(descriptor):
        rest += data
        size, lines = len(rest), list[bytes]()
        if b"\n" in data:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
        short = lines if size <= most else [*takewhile(lambda line: len(line) <= most, lines)]
        if short:
            yield short
        number += len(short)
        if len(short) < len(lines) or len(rest) > most:
            text = f"line {number + 1} has more than {most:,} bytes"
            raise Failure(f"{text}; it and what follows is not sent")
    if rest:
        yield [bytes(rest)]


async def read_whole(descriptor: int, most: int) -> bytes:
    """Give all of it; it may have no more than ``most`` bytes."""
    whole = bytearray()
    async for data in read(descriptor):
        whole += data
        if len(whole) > most:
            raise Failure(f"a message of more than {most:,} bytes", code=MISUSED)
    return bytes(whole)


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
