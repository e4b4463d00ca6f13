"""What is made of the landing table. A view over the table can have any number of readers."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

spark = SparkSession.active()


@dp.temporary_view
def orders() -> DataFrame:
    order = from_json(col("body").cast("string"), "number long, shop string, total long")
    rows = spark.readStream.table("landing").select(order.alias("order"), "timestamp")
    return rows.select("order.*", "timestamp")


@dp.table
def paid() -> DataFrame:
    return spark.readStream.table("orders").where("total > 0")
