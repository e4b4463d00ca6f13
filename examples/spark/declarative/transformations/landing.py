"""The landing table: all messages of the topic orders. Only this flow reads from NSQ."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def landing() -> DataFrame:
    return (
        spark.readStream.format("nsq")
        .option("lookupd", spark.conf.get("spark.orders.lookupd"))
        .option("topic", "orders")
        .option("channel", "landing")
        .option("spoolLocation", f"{spark.conf.get('spark.orders.spool')}/landing")
        .load()
    )
