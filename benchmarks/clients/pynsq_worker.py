"""One run of pynsq, whose Tornado runs on the standard event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nsq import Error, Message, Reader, Writer

from benchmarks.clients.worker import (
    BATCH,
    BODY,
    CHANNEL,
    IN_FLIGHT,
    LINGER,
    MAX_IN_FLIGHT,
    Stopwatch,
    Task,
    main,
    on_loop,
)

Callback = Callable[[object, object], None]


async def publish(task: Task, stopwatch: Stopwatch) -> None:
    writer = await connected_writer(task)
    await publish_by_callbacks(
        lambda callback: writer.pub(task.topic, BODY, callback), task.count, IN_FLIGHT, stopwatch
    )


async def publish_many(task: Task, stopwatch: Stopwatch) -> None:
    writer = await connected_writer(task)
    await publish_by_callbacks(
        lambda callback: writer.mpub(task.topic, BATCH, callback),
        task.count // len(BATCH),
        1,
        stopwatch,
    )


async def connected_writer(task: Task) -> Writer:
    writer = Writer([task.nsqd])
    while not writer.conns:  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(0.01)
    return writer


async def publish_by_callbacks(
    send: Callable[[Callback], object], count: int, in_flight: int, stopwatch: Stopwatch
) -> None:
    """Each answer of nsqd sends the next: a future of pynsq only says that it was written."""
    done = asyncio.get_running_loop().create_future()
    unsent = unanswered = count

    def next_one(_: object, answer: object) -> None:
        nonlocal unsent, unanswered
        if isinstance(answer, Error):
            raise SystemExit(f"nsqd refuses: {answer}")
        unanswered -= 1
        if unsent:
            unsent -= 1
            send(next_one)
        elif not unanswered:
            stopwatch.stop()
            done.set_result(None)

    stopwatch.start()
    unsent -= min(in_flight, count)
    for _ in range(count - unsent):
        send(next_one)
    await done


async def consume(task: Task, stopwatch: Stopwatch) -> None:
    done = asyncio.get_running_loop().create_future()
    seen = 0

    def handle(_: Message) -> bool:
        nonlocal seen
        seen += 1
        if seen == 1:
            stopwatch.start()
        if seen == task.count:
            stopwatch.stop()
            done.set_result(None)
        return True

    reader = Reader(
        task.topic, CHANNEL, handle, nsqd_tcp_addresses=[task.nsqd], max_in_flight=MAX_IN_FLIGHT
    )
    await done
    await asyncio.sleep(LINGER)
    reader.close()


if __name__ == "__main__":
    main(on_loop({"publish": publish, "publish_many": publish_many, "consume": consume}))
