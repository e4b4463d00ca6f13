"""The steps of a pipeline as DataFrames, each a temporary view that the next ones can name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.pipelines.keys import Place
from nsqflow.pipelines.model import Parse, Sink, Step, Table
from nsqflow.pipelines.parsing import Parser, repeated
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.refusals import refusals

if TYPE_CHECKING:
    from types import ModuleType

    from pyspark.sql import DataFrame, SparkSession

_SELECT = "SELECT * FROM ("


class Frames:
    """All steps over one stream of messages; nothing is read yet.

    Views are replaced when the next stream gets its own: a DataFrame keeps what it was made of.
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
        """The rows that a sink writes."""
        frame = self._frames[sink.of.lower()]
        if sink.select is None:
            return frame
        return self._query("SELECT ", sink.select, f"\nFROM {sink.of}", sink.place, "select")

    def __iter__(self) -> Iterator[tuple[str, DataFrame]]:
        return iter(self._frames.items())

    def _name(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._frames[name.lower()] = frame

    def _parsed(self, parse: Parse, parser: Parser, messages: DataFrame) -> DataFrame:
        parser.good(messages).createOrReplaceTempView("input")
        before, keep = f"SELECT {parser.columns()}", f", {parse.keep}" if parse.keep else ""
        frame = self._query(before, keep, "\nFROM input", parse.place, "keep")
        if twice := repeated(frame.columns):
            problem = f" gives {twice!r} a second time; rename it, as in {twice} AS {twice}_2"
            raise parse.place.wrong("keep", problem)
        return _with_watermark(frame, parse)

    def _transformed(self, step: Step, before: DataFrame) -> DataFrame:
        if step.sql is not None:
            frame = self._query("", step.sql.rstrip().rstrip(";"), "", step.place, "sql")
        else:
            frame = _call(step, before)
        return _with_watermark(frame, step)

    def _query(self, before: str, sql: str, after: str, place: Place, key: str) -> DataFrame:
        # Inside of another query a command, which Spark would obey at once, is a syntax error.
        before = f"{_SELECT}{before}"
        with refusals(place, key, len(before)):
            return self._spark.sql(f"{before}{sql}{after}\n)")


def _read_table(spark: SparkSession, table: Table) -> DataFrame:
    with refusals(table.place, "path" if table.path else ""):
        reader = spark.read.format(table.format).options(**table.options)
        if table.schema is not None:
            reader = reader.schema(table.schema)
        return reader.load(table.path)


def _with_watermark(frame: DataFrame, owner: Parse | Step) -> DataFrame:
    if owner.watermark is None or owner.delay is None:
        return frame
    with refusals(owner.place, "watermark"):
        return frame.withWatermark(owner.watermark, owner.delay)


# --- functions ----------------------------------------------------------------------------------


def _call(step: Step, before: DataFrame) -> DataFrame:
    from pyspark.sql import DataFrame

    assert step.python
    module, _, name = step.python.partition(":")
    function = getattr(_import(step, module), name, None)
    if not callable(function):
        raise step.place.wrong("python", f" {step.python!r}: {module} has no function {name}")
    try:
        frame = function(before, **step.arguments)
    except Exception as error:
        problem = f" {step.python!r} raised {type(error).__name__}: {error}"
        raise step.place.wrong("python", problem) from error
    if not isinstance(frame, DataFrame):
        kind = type(frame).__name__
        raise step.place.wrong("python", f" {step.python!r} gave {kind}; allowed is a DataFrame")
    return frame


def _import(step: Step, name: str) -> ModuleType:
    folder = step.place.document.path.absolute().parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        problem = f" {step.python!r}: {type(error).__name__}: {error}; modules are looked for "
        raise step.place.wrong(
            "python", f"{problem}beside the file, then as Python does"
        ) from error
    _have_travel(folder)
    return module


def _have_travel(folder: Path) -> None:
    """Have what the modules in a folder hand to Spark travel whole: no executor has them."""
    from pyspark import cloudpickle

    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    for name, module in [*sys.modules.items()]:
        file, place = getattr(module, "__file__", None), folder.joinpath(*name.split("."))
        if file in (f"{place}.py", f"{place}/__init__.py"):
            register(module)
