"""A DataFrame's rows as messages, and a look at them that leaves them where they are."""

import os
import sys

from pyspark.sql import SparkSession

from nsqflow.broker import BackgroundBroker
from nsqflow.spark import prepare_java


def main() -> None:
    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run what we run
    spark = SparkSession.builder.master("local[2]").appName("letters").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with BackgroundBroker(nodes=2) as broker:
        nsq = {"nsqd": ",".join(broker.nsqd_addresses), "topic": "letters"}

        letters = spark.range(1000).selectExpr("concat('letter ', id) AS body")
        letters.write.format("nsq").options(**nsq).mode("append").save()

        http = ",".join(broker.nsqd_http_addresses)
        waiting = (
            spark.read.format("nsq")
            .options(**nsq, nsqdHttp=http, channel="readers", mode="peek")
            .load()
        )
        print(waiting.count(), "letters wait")
    spark.stop()


if __name__ == "__main__":
    main()
