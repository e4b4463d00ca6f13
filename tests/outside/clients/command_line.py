"""The command line of the clients; go_nsq in tools/nsqd has the same.

    python -m tests.outside.clients.pynsq_client --nsqd=127.0.0.1:4150 --topic=t publish

``publish`` makes a message of each line of stdin: of every other by PUB, of the rest by one MPUB;
with ``--defer=200ms`` of all by DPUB. ``consume`` makes a line of each message, until it is killed;
with ``--requeue`` it requeues each when it first comes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

MAX_IN_FLIGHT = 100

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, None]]


def main(publish: Command, consume: Command) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nsqd", help="TCP address")
    parser.add_argument("--lookupd", help="HTTP address, to consume")
    parser.add_argument("--topic")
    parser.add_argument("--channel")
    parser.add_argument("--defer", type=milliseconds)
    parser.add_argument("--requeue", action="store_true")
    parser.add_argument("--option", action="append", default=[], help="NAME,VALUE of the client")
    parser.add_argument("action", choices=["publish", "consume"])
    args = parser.parse_args()
    asyncio.run((publish if args.action == "publish" else consume)(args))


def milliseconds(text: str) -> int:
    return int(text.removesuffix("ms"))


def lines() -> Sequence[bytes]:
    return sys.stdin.buffer.read().split(b"\n")[:-1]


def show(body: bytes) -> None:
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.buffer.flush()
