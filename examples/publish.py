"""Publish: one message, a delayed one, several at once, and a thousand callers at a time."""

import asyncio
import os

import nsqflow

NSQD = os.environ.get("NSQFLOW_NSQD", "127.0.0.1:4150")


async def main() -> None:
    async with nsqflow.Producer(NSQD) as producer:
        await producer.publish("orders", b'{"order": 1}')
        await producer.publish("orders", b'{"order": 2}', delay=0.5)
        await producer.publish_many("orders", [b'{"order": 3}', b'{"order": 4}'])
        # A thousand callers, and as few commands as it takes.
        await asyncio.gather(*(producer.publish("orders", b"%d" % i) for i in range(1000)))
        print("published 1004 messages")


asyncio.run(main())
