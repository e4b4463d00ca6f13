"""Parses message bodies into columns; separates those that fail, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsqflow.pipelines.model import Parse
from nsqflow.pipelines.spark_errors import spark_errors_as_config_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

_RECORD = "__record"
_CORRUPT = "__corrupt"


class Parser:
    """Separates messages that can be parsed from those that cannot."""

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self._schema = _schema(parse)

    def columns(self) -> str:
        """Return the parsed columns as a SELECT list, for rows of ``good``."""
        if self._parse.format == "raw":
            return "*"
        if self._parse.format == "text":
            return "CAST(body AS STRING) AS value"
        return ", ".join(f"{_RECORD}.{quoted(field.name)}" for field in self._schema.fields)

    def good(self, messages: DataFrame) -> DataFrame:
        """Return the messages that can be parsed."""
        if self._parse.format == "raw":
            return messages
        if self._parse.format == "text":
            return messages.where(_is_text())
        return self._records(messages).where(self._is_good())

    def errors(self, messages: DataFrame) -> DataFrame:
        """Return the messages that cannot be parsed, with a column ``error``."""
        from pyspark.sql.functions import lit, when

        if self._parse.format == "raw":
            return messages.select("*", lit("").alias("error")).where("false")
        if self._parse.format == "text":
            error = lit("not UTF-8").alias("error")
            return messages.where(~_is_text()).select("*", error)
        bad = self._records(messages).where(~self._is_good())
        reasons = when(~_is_text(), lit("not UTF-8"))
        for broken, text in self._faults():
            reasons = reasons.when(broken, lit(text))
        error = reasons.otherwise(lit("does not fit the schema")).alias("error")
        return bad.select(*messages.columns, error)

    def _records(self, messages: DataFrame) -> DataFrame:
        from pyspark.sql.functions import array, inline, struct

        # A generator, although it yields one row: Spark copies the expression of a plain column
        # into every filter on it, and would parse each body twice.
        record = self._read(self._schema).alias(_RECORD)
        return messages.select("*", inline(array(struct(record))))

    def _read(self, schema: StructType) -> Column:
        from pyspark.sql.functions import from_csv, from_json
        from pyspark.sql.types import StringType, StructField, StructType

        marked = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        options = dict(self._parse.options) | {"columnNameOfCorruptRecord": _CORRUPT}
        if self._parse.format == "json":
            return from_json(_text(), marked, options)
        return from_csv(_text(), marked.toDDL(), options)

    def _is_good(self) -> Column:
        from pyspark.sql.functions import col

        record = col(_RECORD)
        good = record.isNotNull() & record[_CORRUPT].isNull() & _is_text()
        for field in self._required():
            good = good & record[field.name].isNotNull()
        return good

    def _required(self) -> list[StructField]:
        return [field for field in self._schema.fields if not field.nullable]

    def _faults(self) -> list[tuple[Column, str]]:
        """Return the possible faults of a body, in the order in which they are checked."""
        from pyspark.sql.functions import col, substring, trim, try_parse_json
        from pyspark.sql.types import StringType, StructField, StructType

        fields = self._schema.fields
        as_text = [StructField(field.name, StringType()) for field in fields]
        if self._parse.format == "json":
            faults = [
                (try_parse_json(_text()).isNull(), "not JSON"),
                (substring(trim(_text()), 1, 1) != "{", "not a JSON object"),
            ]
            alone = [StructType([field]) for field in fields]
        else:
            broken = self._is_corrupt(StructType(as_text))
            faults = [(broken, f"not a line of {len(fields)} columns")]
            alone = [
                StructType([*as_text[:n], field, *as_text[n + 1 :]])
                for n, field in enumerate(fields)
            ]
        for field, schema in zip(fields, alone, strict=True):
            kind = field.dataType.simpleString()
            faults.append((self._is_corrupt(schema), f"{field.name} is not of type {kind}"))
        for field in self._required():
            faults.append((col(_RECORD)[field.name].isNull(), f"{field.name} is missing"))
        return faults

    def _is_corrupt(self, schema: StructType) -> Column:
        return self._read(schema)[_CORRUPT].isNotNull()


def _schema(parse: Parse) -> StructType:
    from pyspark.sql.types import StructType

    if parse.schema is None:
        return StructType()
    with spark_errors_as_config_errors(parse.ref, "schema"):
        schema = StructType.fromDDL(parse.schema)
    if not isinstance(schema, StructType):
        problem = f" {parse.schema!r} is a type: must be columns and types, as in name STRING"
        raise parse.ref.error("schema", problem)
    if twice := repeated(schema.names):
        raise parse.ref.error("schema", f" has {twice!r} twice, ignoring case")
    return schema


def repeated(names: Iterable[str]) -> str | None:
    """Return a name that occurs twice, ignoring case as Spark does; None if there is none."""
    counted = Counter(map(str.lower, names))
    return next((name for name, times in counted.items() if times > 1), None)


def quoted(name: str) -> str:
    """Quote a column's name for SQL."""
    return f"`{name.replace('`', '``')}`"


def _text() -> Column:
    from pyspark.sql.functions import col

    return col("body").cast("string")


def _is_text() -> Column:
    from pyspark.sql.functions import is_valid_utf8

    return is_valid_utf8(_text())
