"""The tables of a pipeline file: every key, its kind and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsqflow.config.addresses import HTTP, NSQD
from nsqflow.config.kinds import Boolean, Choice, Text, matching
from nsqflow.config.names import CHANNEL, TARGET, TOPIC
from nsqflow.config.options import option
from nsqflow.pipelines.keys import Arguments, Interval, StringList, StringTable, TableRef

FILE_FORMATS = ("parquet", "json", "csv", "orc", "text", "avro", "xml")
"""Formats whose streaming sink in Spark writes files, each row once."""

NOW = "available-now"
"""The trigger that processes what is available at the start, and ends."""

FILE_TRIGGER = "10 seconds"
"""The default trigger of a sink that writes files, because each batch creates new files."""

_TABLE_FORMATS = ("delta", "hudi", "iceberg")

LABEL = Text("1 to 64 letters, digits, '_' and '-'", matching(r"[A-Za-z0-9_-]{1,64}"))

_VIEW = Text(
    "1 to 64 letters, digits and '_', not beginning with a digit",
    matching(r"[A-Za-z_][A-Za-z0-9_]{0,63}"),
)
_FUNCTION = Text("package.module:function", matching(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"))
_SQL = Text("a query in Spark's SQL")
_COLUMNS = Text("columns and expressions as after SELECT")
_COLUMN = Text("a column's name")
_SCHEMA = Text("columns and types as in CREATE TABLE")
_FORMAT = Text("parquet, json, csv, orc, text, nsq, console, jdbc or another format of Spark")
_TABLE_FORMAT = Text("parquet, json, csv, orc, text, jdbc or another format of Spark")
_LOCATION = Text("a path or a URL that Spark knows")
_HTTP_LIST = StringList(HTTP)
_NSQD_LIST = StringList(NSQD)
_STRINGS = StringTable()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where messages come from."""

    topic: tuple[str, ...] = option(
        (), StringList(TOPIC), "the topics to read; with `files`, the value of the column `topic`"
    )
    channel: str | None = option(
        None,
        CHANNEL,
        "the channel; each sink reads from `<channel>.<its name>`",
        default_text="the pipeline's name",
    )
    lookupd: tuple[str, ...] = option((), _HTTP_LIST, "HTTP addresses of nsqlookupd")
    nsqd: tuple[str, ...] = option(
        (), _NSQD_LIST, "TCP addresses of the nsqd, where there is no nsqlookupd"
    )
    nsqd_http: tuple[str, ...] = option(
        (),
        _HTTP_LIST,
        "HTTP addresses of the nsqd",
        default_text="the ports after those of `nsqd`",
    )
    options: Mapping[str, str] = option(
        dict,
        _STRINGS,
        "other [options of the source](spark-options.md); with `files`, of Spark's reader",
    )
    files: str | None = option(
        None,
        _LOCATION,
        "files to read instead of a topic, by a path or a pattern such as logs/*.txt",
    )
    format: str = option(
        "text",
        Choice("text", "parquet", "orc"),
        "the format of the files: lines of text, or rows with a column `body`",
    )
    ref: TableRef = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """How the bodies of messages are parsed."""

    format: str = option(
        "raw",
        Choice("json", "csv", "text", "raw"),
        "the format of a body; `text` makes a column `value`, `raw` leaves messages as they are",
        required=True,
    )
    schema: str | None = option(
        None,
        _SCHEMA,
        "the columns of `json` and `csv`; a row without one that is NOT NULL is an error",
    )
    keep: str | None = option(
        None, _COLUMNS, "columns of the message to keep in addition to those of its body"
    )
    options: Mapping[str, str] = option(dict, _STRINGS, "options of Spark's from_json or from_csv")
    watermark: str | None = option(None, _COLUMN, "the column with the time of a row")
    delay: str | None = option(None, Interval(), "how late a row may be; required with `watermark`")
    ref: TableRef = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that does not change, for joins."""

    name: str = option(None, _VIEW, "its name in SQL", required=True)
    path: str | None = option(None, _LOCATION, "the file or the folder")
    format: str = option("parquet", _TABLE_FORMAT, "its format")
    schema: str | None = option(None, _SCHEMA, "its columns", default_text="as in the files")
    options: Mapping[str, str] = option(dict, _STRINGS, "options of Spark's reader")
    ref: TableRef = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A transformation."""

    name: str = option(
        None, _VIEW, "its name for later steps and sinks", default_text="step1, step2 ..."
    )
    sql: str | None = option(None, _SQL, "a query; `input` is the result of the step before")
    python: str | None = option(None, _FUNCTION, "a function that takes and returns a DataFrame")
    arguments: Mapping[str, Any] = option(dict, Arguments(), "keyword arguments for the function")
    watermark: str | None = option(None, _COLUMN, "the column with the time of a row")
    delay: str | None = option(None, Interval(), "how late a row may be; required with `watermark`")
    ref: TableRef = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where rows are written to."""

    name: str = option(None, LABEL, "names its channel, its query and its folders", required=True)
    of: str = option(
        "",
        _VIEW,
        "the view to write: a step, `parsed`, `errors` or `messages`",
        default_text="the last step",
    )
    select: str | None = option(None, _COLUMNS, "the columns to write", default_text="all")
    format: str = option(None, _FORMAT, "the format to write", required=True)
    path: str | None = option(None, _LOCATION, "the folder to write to")
    topic: str | None = option(None, TARGET, "`nsq`: the topic of rows without a column `topic`")
    lookupd: tuple[str, ...] = option(
        (), _HTTP_LIST, "`nsq`: HTTP addresses of nsqlookupd", default_text="the source's"
    )
    nsqd: tuple[str, ...] = option(
        (), _NSQD_LIST, "`nsq`: TCP addresses of the nsqd", default_text="the source's"
    )
    partition_by: tuple[str, ...] = option(
        (), StringList(_COLUMN), "columns whose values name the folders"
    )
    mode: str = option(
        "append",
        Choice("append", "update", "complete"),
        "which rows of an aggregation are written, and when",
    )
    batch: bool | None = option(
        None,
        Boolean(),
        "write each batch as a table: for formats without a streaming sink",
        default_text="true where it must be",
    )
    channel: str | None = option(
        None, CHANNEL, "the channel to read from", default_text="`<source.channel>.<name>`"
    )
    trigger: str | None = option(
        None, Interval(NOW), "as `run.trigger`, for this sink", default_text="run's"
    )
    options: Mapping[str, str] = option(dict, _STRINGS, "options of the format")
    ref: TableRef = field(repr=False, compare=False)

    @property
    def writes_files(self) -> bool:
        """Whether each batch creates new files."""
        return self.format.lower() in (*FILE_FORMATS, *_TABLE_FORMATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How the pipeline is run."""

    trigger: str | None = option(
        None,
        Interval(NOW),
        "how often a batch is started",
        default_text=f"{FILE_TRIGGER} for files, else as soon as the last one ends",
    )
    checkpoint: str = option(
        "",
        _LOCATION,
        "the folder for `<sink>/checkpoint`",
        default_text="`nsqflow-data/<pipeline>`",
    )
    spool: str = option(
        "",
        Text("a path or s3://bucket/prefix"),
        "the folder for `<sink>/spool`",
        default_text="as `checkpoint`",
    )
    master: str = option("local[*,4]", Text("a master URL of Spark"), "the Spark cluster to run on")
    conf: Mapping[str, str] = option(dict, _STRINGS, "configuration of Spark")
    ref: TableRef = field(repr=False, compare=False)
