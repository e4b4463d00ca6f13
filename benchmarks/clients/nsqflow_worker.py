"""One run of nsqflow, on the standard event loop."""

from __future__ import annotations

import asyncio
from time import perf_counter, perf_counter_ns
from typing import Any

from benchmarks.clients.worker import (
    AHEAD,
    BATCH,
    BODY,
    BY_LOOKUP,
    CHANNEL,
    MAX_IN_FLIGHT,
    OUTPUT_BUFFER_TIMEOUT,
    PACE,
    SURPLUS,
    AsyncScenario,
    Stopwatch,
    Task,
    main,
    on_loop,
    publish_in_turn,
    publish_side_by_side,
)
from nsqflow import Consumer, Message, Producer


def servers(task: Task) -> dict[str, Any]:
    """Where to connect to: an nsqd, or what an nsqlookupd names."""
    address = task.nsqd.removeprefix(BY_LOOKUP)
    return {"nsqd": [address]} if address == task.nsqd else {"lookupd": [address]}


async def publish(task: Task, stopwatch: Stopwatch) -> None:
    async with Producer(**servers(task)) as producer:
        await publish_side_by_side(
            lambda: producer.publish(task.topic, BODY), task.count, stopwatch
        )


async def publish_many(task: Task, stopwatch: Stopwatch) -> None:
    async with Producer(**servers(task)) as producer:
        await publish_in_turn(
            lambda: producer.publish_many(task.topic, BATCH), task.count, stopwatch
        )


def new_consumer(task: Task) -> Consumer:
    return Consumer(task.topic, CHANNEL, max_in_flight=MAX_IN_FLIGHT, **servers(task))


async def consume_by_handler(task: Task, stopwatch: Stopwatch) -> None:
    closing: list[asyncio.Task[object]] = []
    seen = 0

    async def handle(_: Message) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            stopwatch.start()
        if seen == task.count:
            stopwatch.stop()
            closing.append(asyncio.create_task(consumer.close()))

    async with new_consumer(task) as consumer:
        await consumer.run(handle)
    await asyncio.gather(*closing)


async def consume_by_iterator(task: Task, stopwatch: Stopwatch) -> None:
    seen = 0
    async with new_consumer(task) as consumer:
        async for message in consumer:
            seen += 1
            if seen == 1:
                stopwatch.start()
            message.finish()
            if seen == task.count:
                stopwatch.stop()
                break


async def consume_by_context(task: Task, stopwatch: Stopwatch) -> None:
    seen = 0
    async with new_consumer(task) as consumer:
        async for message in consumer:
            async with message:
                seen += 1
                if seen == 1:
                    stopwatch.start()
            if seen == task.count:
                stopwatch.stop()
                break


async def consume_by_batch(task: Task, stopwatch: Stopwatch) -> None:
    seen = 0
    async with new_consumer(task) as consumer:
        async for batch in consumer.batches(size=500, max_wait=0.5):
            if not seen:
                stopwatch.start()
            seen += len(batch)
            batch.finish()
            if seen >= task.count:
                stopwatch.stop()
                stopwatch.figures["messages"] = seen
                break


async def through(task: Task, stopwatch: Stopwatch) -> None:
    """Publish and consume at the same time, in batches of 500."""
    bodies = [BODY] * 500
    room = asyncio.Semaphore(AHEAD // len(bodies))

    async def publish_all() -> None:
        for _ in range(0, task.count + SURPLUS, len(bodies)):
            await room.acquire()
            await producer.publish_many(task.topic, bodies)

    seen = 0
    async with Producer(**servers(task)) as producer, new_consumer(task) as consumer:
        stopwatch.start()
        publishing = asyncio.create_task(publish_all())
        async for batch in consumer.batches(size=len(bodies), max_wait=0.5):
            before = seen
            seen += len(batch)
            batch.finish()
            for _ in range(before // len(bodies), seen // len(bodies)):
                room.release()
            if seen >= task.count:
                stopwatch.stop()
                stopwatch.figures["messages"] = seen
                break
        await publishing


async def latency(task: Task, stopwatch: Stopwatch) -> None:
    took: list[float] = []
    arrived = asyncio.Event()

    async def handle(message: Message) -> None:
        published = int.from_bytes(message.body[:8], "big")
        took.append((perf_counter_ns() - published) / 1e9)
        arrived.set()

    async def send() -> None:
        body = perf_counter_ns().to_bytes(8, "big") + BODY[8:]
        await producer.publish(task.topic, body)

    async def await_arrivals(count: int) -> None:
        while len(took) < count:
            arrived.clear()
            await arrived.wait()

    consumer = Consumer(
        task.topic,
        CHANNEL,
        nsqd=[task.nsqd],
        max_in_flight=MAX_IN_FLIGHT,
        output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT,
    )
    producer = Producer(task.nsqd, output_buffer_timeout=OUTPUT_BUFFER_TIMEOUT)
    async with producer, consumer:
        running = asyncio.create_task(consumer.run(handle))
        await send()  # the first one finds the subscription in place, or waits for it:
        await await_arrivals(1)
        took.clear()  # ... it does not count
        stopwatch.start()
        for number in range(task.count):
            await asyncio.sleep(stopwatch.wall + number * PACE - perf_counter())
            await send()
        await await_arrivals(task.count)
        stopwatch.stop()
        await consumer.close()
        await running
    stopwatch.add_latencies(took)


SCENARIOS: dict[str, AsyncScenario] = {
    "publish": publish,
    "publish_many": publish_many,
    "consume-handler": consume_by_handler,
    "consume-iterator": consume_by_iterator,
    "consume-context": consume_by_context,
    "consume-batch": consume_by_batch,
    "through": through,
    "latency": latency,
}

if __name__ == "__main__":
    main(on_loop(SCENARIOS))
