"""A DataFrame's rows as messages, and a look at them that leaves them where they are."""

import asyncio

from nsqflow.admin import Nsqd
from nsqflow.broker import BackgroundBroker
from nsqflow.spark import session


async def create_channel(nsqds: list[str], topic: str, channel: str) -> None:
    for address in nsqds:
        async with Nsqd(address) as nsqd:
            await nsqd.create_topic(topic)
            await nsqd.create_channel(topic, channel)


def main() -> None:
    spark = session("letters", master="local[2]")
    with BackgroundBroker(nodes=2) as broker:
        http = broker.nsqd_http_addresses
        asyncio.run(create_channel(http, "letters", "readers"))  # a look creates nothing
        nsq = {"nsqd": ",".join(broker.nsqd_addresses), "topic": "letters"}

        letters = spark.range(1000).selectExpr("concat('letter ', id) AS body")
        letters.write.format("nsq").options(**nsq).mode("append").save()

        waiting = (
            spark.read.format("nsq")
            .options(**nsq, nsqdHttp=",".join(http), channel="readers", mode="peek")
            .load()
        )
        print(waiting.count(), "letters wait")
    spark.stop()


if __name__ == "__main__":
    main()
