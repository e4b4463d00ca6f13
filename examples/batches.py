"""Consume in batches: for stores that like many rows at a time."""

import asyncio
import os

import nsqflow

NSQD = os.environ.get("NSQFLOW_NSQD", "127.0.0.1:4150")
TOTAL = 5000


async def main() -> None:
    async with nsqflow.Producer(NSQD) as producer:
        await producer.publish_many("clicks", [b"click %d" % i for i in range(TOTAL)])
    stored = 0
    async with nsqflow.Consumer("clicks", "store", nsqd=NSQD, max_in_flight=1000) as consumer:
        async for batch in consumer.batches(size=500, max_wait=0.5):
            stored += len({message.body for message in batch})  # here you would write to a database
            batch.finish()
            if stored >= TOTAL:
                break
    print("stored", stored, "rows")


asyncio.run(main())
