"""What does a service do when nsqd fails? Ask the embedded broker to fail."""

import asyncio
import logging

import nsqflow
from nsqflow.broker import Broker


async def main() -> None:
    async with (
        Broker() as broker,
        nsqflow.Producer(broker.nsqd_addresses, reconnect_delay=0.1) as producer,
    ):
        broker.fail_next("PUB", "E_PUB_FAILED")
        try:
            await producer.publish("orders", b"refused")
        except nsqflow.ServerError as error:
            print("refused:", error.code)

        await producer.publish("orders", b"stored")
        broker.slow(1)
        try:
            await producer.publish("orders", b"who knows", timeout=0.1)
        except nsqflow.PublishUncertain:
            print("uncertain: sent, and not answered in time")
        broker.slow(0)

        await broker.kill_node(0)
        await broker.start_node(0)
        await producer.publish("orders", b"back again")
        print("stored after a restart")


logging.disable()  # both sides would log what fails here on purpose
asyncio.run(main())
