"""The steps of a pipeline as DataFrames, each a temporary view for the next ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsqflow.pipelines.inputs import find_function
from nsqflow.pipelines.keys import TableRef
from nsqflow.pipelines.model import Parse, Sink, Step, Table
from nsqflow.pipelines.parsing import Parser, repeated
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.spark_errors import spark_errors_as_config_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SELECT = "SELECT * FROM ("


class Views:
    """All steps of one stream of messages; reads nothing.

    The next stream replaces the temporary views: a DataFrame keeps its own plan.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline, messages: DataFrame) -> None:
        self._spark = spark
        self._frames: dict[str, DataFrame] = {}
        parse, parser = pipeline.parse, Parser(pipeline.parse)
        self._name("messages", messages)
        self._name("errors", parser.errors(messages))
        parsed = self._parsed(parse, parser, messages)
        self._name("parsed", parsed)
        for table in pipeline.tables:
            _read_table(spark, table).createOrReplaceTempView(table.name)
        before = parsed
        for step in pipeline.steps:
            before.createOrReplaceTempView("input")
            before = self._transformed(step, before)
            self._name(step.name, before)

    def of(self, sink: Sink) -> DataFrame:
        """Return the rows that a sink writes."""
        frame = self._frames[sink.of.lower()]
        if sink.select is None:
            return frame
        return self._query("SELECT ", sink.select, f"\nFROM {sink.of}", sink.ref, "select")

    def __iter__(self) -> Iterator[tuple[str, DataFrame]]:
        return iter(self._frames.items())

    def _name(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._frames[name.lower()] = frame

    def _parsed(self, parse: Parse, parser: Parser, messages: DataFrame) -> DataFrame:
        parser.good(messages).createOrReplaceTempView("input")
        before, keep = f"SELECT {parser.columns()}", f", {parse.keep}" if parse.keep else ""
        frame = self._query(before, keep, "\nFROM input", parse.ref, "keep")
        if twice := repeated(frame.columns):
            problem = f" has a second column {twice!r}; rename it, as in {twice} AS {twice}_2"
            raise parse.ref.error("keep", problem)
        return _with_watermark(frame, parse)

    def _transformed(self, step: Step, before: DataFrame) -> DataFrame:
        if step.sql is not None:
            frame = self._query("", step.sql.rstrip().rstrip(";"), "", step.ref, "sql")
        else:
            frame = _call(step, before)
        return _with_watermark(frame, step)

    def _query(self, before: str, sql: str, after: str, ref: TableRef, key: str) -> DataFrame:
        # Inside another query, a command is a syntax error; by itself, Spark would run it at once.
        before = f"{_SELECT}{before}"
        with spark_errors_as_config_errors(ref, key, len(before)):
            return self._spark.sql(f"{before}{sql}{after}\n)")


def _read_table(spark: SparkSession, table: Table) -> DataFrame:
    with spark_errors_as_config_errors(table.ref, "path" if table.path else ""):
        reader = spark.read.format(table.format).options(**table.options)
        if table.schema is not None:
            reader = reader.schema(table.schema)
        return reader.load(table.path)


def _with_watermark(frame: DataFrame, owner: Parse | Step) -> DataFrame:
    if owner.watermark is None or owner.delay is None:
        return frame
    with spark_errors_as_config_errors(owner.ref, "watermark"):
        return frame.withWatermark(owner.watermark, owner.delay)


# --- functions ----------------------------------------------------------------------------------


def _call(step: Step, before: DataFrame) -> DataFrame:
    from pyspark.sql import DataFrame

    function = find_function(step)
    try:
        frame = function(before, **step.arguments)
    except Exception as error:
        problem = f" {step.python!r} raised {type(error).__name__}: {error}"
        raise step.ref.error("python", problem) from error
    if not isinstance(frame, DataFrame):
        kind = type(frame).__name__
        problem = f" {step.python!r} returned {kind}: must return a DataFrame"
        raise step.ref.error("python", problem)
    return frame
