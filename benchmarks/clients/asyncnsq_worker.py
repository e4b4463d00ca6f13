"""One run of asyncnsq."""

from __future__ import annotations

import asyncio

from asyncnsq import create_reader, create_writer

from benchmarks.clients.worker import (
    BATCH,
    BODY,
    CHANNEL,
    LINGER,
    MAX_IN_FLIGHT,
    Stopwatch,
    Task,
    main,
    on_loop,
    publish_in_turn,
    publish_side_by_side,
)


async def publish(task: Task, stopwatch: Stopwatch) -> None:
    writer = await create_writer(task.host, task.port)
    await publish_side_by_side(lambda: writer.pub(task.topic, BODY), task.count, stopwatch)
    writer.close()


async def publish_many(task: Task, stopwatch: Stopwatch) -> None:
    writer = await create_writer(task.host, task.port)
    await publish_in_turn(lambda: writer.mpub(task.topic, *BATCH), task.count, stopwatch)
    writer.close()


async def consume(task: Task, stopwatch: Stopwatch) -> None:
    reader = await create_reader([task.nsqd], max_in_flight=MAX_IN_FLIGHT)
    await reader.subscribe(task.topic, CHANNEL)
    seen = 0
    async for message in reader.messages():
        seen += 1
        if seen == 1:
            stopwatch.start()
        await message.fin()
        if seen == task.count:
            break
    stopwatch.stop()
    await asyncio.sleep(LINGER)
    reader.close()


if __name__ == "__main__":
    main(on_loop({"publish": publish, "publish_many": publish_many, "consume": consume}))
