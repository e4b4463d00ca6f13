"""The sink: publishes the rows of a DataFrame as messages.

At least once: Spark runs a failed task again from its first row, and what it had published before
is published twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from nsqflow.errors import ConfigError
from nsqflow.spark.options import SinkOptions, parse_sink
from nsqflow.spark.sink.columns import ColumnIndexes, check_columns, find_columns
from nsqflow.spark.sink.task import NsqCommitMessage, SinkTask
from nsqflow.spark.sink.topics import TargetTopic, find_target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class RowWriter:
    """What is written, and where; checked in the driver, before there is a task."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._options = parse_sink(options)
        self._columns = find_columns(schema, self._options.topic)
        self._target = find_target(self._options)
        check_columns(self._columns, self._options, self._target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> NsqCommitMessage:
        """Publish the rows of one task."""
        return publish_rows(iterator, self._columns, self._options, self._target)


class NsqWriter(RowWriter, DataSourceArrowWriter):
    """Writes a DataFrame to NSQ."""

    def __init__(
        self, schema: StructType, options: Mapping[str, str], overwrite: bool = False
    ) -> None:
        if overwrite:
            raise ConfigError("mode 'overwrite' is invalid: a topic can only be appended to")
        super().__init__(schema, options)


class NsqStreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """Writes each batch of a stream to NSQ."""


def publish_rows(
    batches: Iterable[pa.RecordBatch],
    columns: ColumnIndexes,
    options: SinkOptions,
    target: TargetTopic | None = None,
) -> NsqCommitMessage:
    """Publish all rows; nsqd has acknowledged every one of them when this returns.

    ``target`` is the topic of the option, if it is known.
    """
    task: SinkTask | None = None
    with ExitStack() as stack:
        for batch in batches:
            if not batch.num_rows:
                continue
            if task is None:  # most tasks of an idle stream have no rows: no nsqd is needed
                task = stack.enter_context(closing(SinkTask(columns, options, target)))
            task.publish(batch)
        return NsqCommitMessage() if task is None else task.finish()
