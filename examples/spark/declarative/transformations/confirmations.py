"""A message to the topic confirmations for each order."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

dp.create_sink(
    "confirmations",
    "nsq",
    {"lookupd": spark.conf.get("spark.orders.lookupd"), "topic": "confirmations"},
)


@dp.append_flow(target="confirmations")
def confirm() -> DataFrame:
    return spark.readStream.table("orders").selectExpr("to_json(struct(number, shop)) AS body")
