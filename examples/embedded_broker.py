"""A whole NSQ inside this program: nothing to install, nothing left running."""

import asyncio

import nsqflow
from nsqflow.broker import Broker


async def main() -> None:
    async with Broker(nodes=2) as broker:
        print("nsqd at", len(broker.nsqd_addresses), "addresses, and an nsqlookupd")
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            for number in range(10):
                await producer.publish("orders", b"order %d" % number)
        async with nsqflow.Consumer(
            "orders", "billing", lookupd=broker.lookupd_addresses
        ) as consumer:
            for _ in range(10):
                async with await anext(consumer) as message:
                    print("charging", message.body.decode())


asyncio.run(main())
