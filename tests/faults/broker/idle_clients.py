"""Thousands of connections that are almost idle, in a process of their own.

    python -m tests.faults.broker.idle_clients HOST PORT COUNT

It prints a line when all are connected, and ends with its stdin.
"""

from __future__ import annotations

import resource
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice

MAGIC = b"  V2"


def openings() -> Iterator[list[bytes]]:
    """Yield what each connection sends: parts of a session."""
    identify = b'IDENTIFY\n\0\0\0\x1c{"feature_negotiation":true}'
    subscribe = b"SUB idle idle#ephemeral\nRDY 0\n"
    large = b"PUB idle\n" + struct.pack(">i", 1024 * 1024)
    while True:
        yield []
        yield [MAGIC]
        yield [MAGIC[:2]]
        yield [MAGIC, identify]
        yield [MAGIC, identify, subscribe]
        yield [MAGIC, subscribe]
        yield [MAGIC, large]
        yield [MAGIC, large, b"half of a message"]
        yield [MAGIC, b"MPUB idle\n" + struct.pack(">ii", 5_000_000, 100_000)]


def main(host: str, port: int, count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        for pieces in islice(openings(), count):
            connection = stack.enter_context(closing(socket.create_connection((host, port))))
            for piece in pieces:
                connection.sendall(piece)
        print("connected", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
