"""Found by Spark because of its name, so that ``format("nsq")`` needs no registration."""

from nsqflow.spark.datasource import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
