"""The redesigned NSQ: an ordered topic, keys, and a leader that moves in the middle."""

import asyncio
import logging

import nsqflow
from nsqflow.broker import Broker

KEYS = [b"anna", b"ben", b"carla"]


async def main() -> None:
    async with Broker(dialect="redesigned", nodes=3) as broker:
        await broker.create_topic("orders", partitions=2, replicas=3, ordered=True)
        lookupd = broker.lookupd_addresses
        subscribed: asyncio.Queue[nsqflow.ClientEvent] = asyncio.Queue()
        consumer = nsqflow.Consumer(
            "orders", "billing", lookupd=lookupd, on_event=subscribed.put_nowait
        )
        async with consumer, nsqflow.Producer(lookupd=lookupd) as producer:
            handled = asyncio.create_task(handle(consumer, 30))
            for _ in range(2):  # a new channel begins at the end: wait for both partitions
                await subscribed.get()
            for number in range(10):
                for key in KEYS:
                    await producer.publish("orders", b"%s %d" % (key, number), key=key)
                if number == 4:
                    await broker.move_leader("orders", 0, 1)
            for key, numbers in (await handled).items():
                print(key, *numbers)


async def handle(consumer: nsqflow.Consumer, count: int) -> dict[str, list[int]]:
    """Return the numbers of each key, in the order in which they came."""
    seen: dict[str, list[int]] = {}
    async for message in consumer:
        async with message:
            key, number = message.body.decode().split()
            numbers = seen.setdefault(key, [])
            if int(number) not in numbers:  # it may come again after the leader has moved
                numbers.append(int(number))
        if sum(map(len, seen.values())) == count:
            break
    return seen


logging.getLogger("nsqflow").setLevel(logging.ERROR)  # a leader that moves is a WARNING
asyncio.run(main())
