"""A program that uses pynsq."""

from __future__ import annotations

import argparse
import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from nsq import Error, Message, Reader, Writer

from tests.outside.clients.command_line import MAX_IN_FLIGHT, lines, main, show

Callback = Callable[[object, object], None]


async def publish(args: argparse.Namespace) -> None:
    writer = Writer([args.nsqd], **options(args))
    while not writer.conns:  # noqa: ASYNC110 - pynsq has no event for it
        await asyncio.sleep(0.01)
    bodies = lines()
    if args.defer:
        for body in bodies:
            await answered(partial(writer.dpub, args.topic, args.defer, body))
    else:
        for body in bodies[0::2]:
            await answered(partial(writer.pub, args.topic, body))
        await answered(partial(writer.mpub, args.topic, bodies[1::2]))


async def answered(send: Callable[[Callback], object]) -> None:
    """Wait for the response of nsqd: a future of pynsq is set when the command is written."""
    answer = asyncio.get_running_loop().create_future()
    send(lambda _, data: answer.set_result(data))
    if isinstance(await answer, Error):
        raise SystemExit(f"nsqd refuses: {answer.result()}")


async def consume(args: argparse.Namespace) -> None:
    def handle(message: Message) -> bool:
        if args.requeue and message.attempts == 1:
            message.requeue(backoff=False, time_ms=0)
        else:
            show(message.body)
        return True

    Reader(
        args.topic,
        args.channel,
        handle,
        nsqd_tcp_addresses=[args.nsqd] if args.nsqd else None,
        lookupd_http_addresses=[args.lookupd] if args.lookupd else None,
        max_in_flight=MAX_IN_FLIGHT,
        **options(args),
    )
    await asyncio.Event().wait()


def options(args: argparse.Namespace) -> dict[str, Any]:
    given = dict(option.split(",", 1) for option in args.option)
    if ca := given.pop("tls_root_ca_file", None):
        given["tls_options"] = {"ca_certs": ca, "cert_reqs": ssl.CERT_REQUIRED}
    return {name: True if value == "true" else value for name, value in given.items()}


if __name__ == "__main__":
    main(publish, consume)
