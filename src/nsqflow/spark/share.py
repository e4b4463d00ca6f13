"""A share of a batch, as it goes from the driver to a task."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from nsqflow.spark.offsets import ShareName, split_key


class Share(InputPartition):
    """What one task may pull from one nsqd; all that it needs beside the options."""

    def __init__(
        self, name: ShareName, budget: int, max_bytes: int | None = None, mean_size: int = 0
    ) -> None:
        super().__init__(name)
        self.name = name
        self.budget = budget
        self.max_bytes = max_bytes
        self.mean_size = mean_size
        """Bytes of a message, by what nsqd tells; 0 if it is not known."""
        self.topic, self.nsqd = split_key(name.key)
