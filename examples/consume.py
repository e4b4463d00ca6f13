"""Consume message by message: FIN when the block ends well, REQ when it raises."""

import asyncio
import os

import nsqflow

NSQD = os.environ.get("NSQFLOW_NSQD", "127.0.0.1:4150")


async def main() -> None:
    async with nsqflow.Producer(NSQD) as producer:
        await producer.publish_many("greetings", [b"hello", b"world", b"!"])
    async with nsqflow.Consumer("greetings", "printer", nsqd=NSQD) as consumer:
        seen = 0
        async for message in consumer:
            async with message:
                print(message.body.decode(), "attempt", message.attempts)
            seen += 1
            if seen == 3:
                break


asyncio.run(main())
