"""Dead letters: what fails too often goes to a topic of its own."""

import asyncio
import logging
import os

import nsqflow

NSQD = os.environ.get("NSQFLOW_NSQD", "127.0.0.1:4150")


async def fail(message: nsqflow.Message) -> None:
    raise ValueError(f"attempt {message.attempts} failed")


async def main() -> None:
    async with nsqflow.Producer(NSQD) as producer:
        await producer.publish("imports", b"not what I expected")
    consumer = nsqflow.Consumer(
        "imports",
        "parser",
        nsqd=NSQD,
        max_attempts=2,
        dead_letter="imports.dead",
        default_requeue_delay=0,  # at once; by default it waits 90 seconds, then 180, ...
        max_backoff_duration=0,
    )
    running = asyncio.create_task(consumer.run(fail))
    async with nsqflow.Consumer("imports.dead", "inspector", nsqd=NSQD) as inspector:
        letter = await anext(inspector)
        print("dead letter:", letter.body.decode())
        letter.finish()
    await consumer.close()
    await running


logging.basicConfig(level=logging.CRITICAL)  # the failures are expected
asyncio.run(main())
