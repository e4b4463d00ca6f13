"""A stream of orders, counted by shop and kept as Parquet: each order once, whatever dies.

Nothing needs to run beside it: the NSQ is inside this program, and Spark on this machine.
"""

import json
import random
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

import nsqflow.blocking
from nsqflow.broker import BackgroundBroker
from nsqflow.spark import NsqListener, session


def publish(broker: BackgroundBroker) -> None:
    shops = ["Lisbon", "Oslo", "Turin"]
    orders = [{"order": number, "shop": random.choice(shops)} for number in range(10_000)]
    with nsqflow.blocking.Producer(broker.nsqd_addresses) as producer:
        producer.publish_many("orders", [json.dumps(order).encode() for order in orders])


def read_orders(spark: SparkSession, broker: BackgroundBroker, spool: Path) -> DataFrame:
    messages = (
        spark.readStream.format("nsq")
        .option("lookupd", ",".join(broker.lookupd_addresses))
        .option("topic", "orders")
        .option("channel", "parquet")
        .option("spoolLocation", str(spool))
        .option("maxMessagesPerTrigger", "4000")
        .load()
    )
    order = from_json(col("body").cast("string"), "order long, shop string")
    return messages.select(order.alias("order"), "timestamp").select("order.*", "timestamp")


def main(folder: Path) -> None:
    spark = session("orders", master="local[2]", conf={"spark.sql.shuffle.partitions": 2})
    spark.streams.addListener(NsqListener(print))
    with BackgroundBroker(nodes=2) as broker:
        broker.create_topic("orders")
        publish(broker)
        query = (
            read_orders(spark, broker, folder / "spool")
            .writeStream.format("parquet")
            .option("path", str(folder / "orders"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    spark.read.parquet(str(folder / "orders")).groupBy("shop").count().orderBy("shop").show()
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
