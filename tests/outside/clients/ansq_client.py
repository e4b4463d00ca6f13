"""A program that uses ansq."""

from __future__ import annotations

import argparse

from ansq import create_reader, create_writer

from tests.outside.clients.command_line import MAX_IN_FLIGHT, lines, main, show


async def publish(args: argparse.Namespace) -> None:
    writer = await create_writer([args.nsqd])
    bodies = lines()
    if args.defer:
        for body in bodies:
            await writer.dpub(args.topic, body, args.defer)
    else:
        for body in bodies[0::2]:
            await writer.pub(args.topic, body)
        await writer.mpub(args.topic, *bodies[1::2])
    await writer.close()


async def consume(args: argparse.Namespace) -> None:
    reader = await create_reader(
        args.topic,
        args.channel,
        [args.nsqd] if args.nsqd else None,
        [args.lookupd] if args.lookupd else None,
    )
    # It has no max_in_flight: a reader asks each connection for one message at a time.
    for connection in reader.connections:
        await connection.rdy(MAX_IN_FLIGHT)
    async for message in reader.messages():
        if args.requeue and message.attempts == 1:
            await message.req(0)
        else:
            await message.fin()
            show(message.body)


if __name__ == "__main__":
    main(publish, consume)
