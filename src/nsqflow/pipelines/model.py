"""The tables of a pipeline file: every key, what it takes and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsqflow.errors import ConfigError
from nsqflow.pipelines.keys import Arguments, Interval, One, Options, Place, Words, key
from nsqflow.protocol.names import check_topic
from nsqflow.spark.values import CHANNEL, TARGET, Choice, Flag, Text, http_address, nsqd_address

FILE_FORMATS = ("parquet", "json", "csv", "orc", "text", "avro", "xml")
"""Formats of Spark whose streaming sink writes files, each row once."""

NOW = "available-now"
"""The trigger that ends when what was there at the start is done with."""

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ConfigError(f"{text!r}; allowed are 1 to 64 letters, digits, '_' and '-'")
    return text


def _view(text: str) -> str:
    if not _VIEW.fullmatch(text):
        raise ConfigError(
            f"{text!r}; allowed are 1 to 64 letters, digits and '_', no digit in the first place"
        )
    return text


def _function(text: str) -> str:
    if not _FUNCTION.fullmatch(text):
        raise ConfigError(f"{text!r}; allowed is package.module:function")
    return text


LABEL = One(Text("letters, digits, '_' and '-'", _label))
VIEW = One(Text("a name as SQL takes it without quotes", _view))
SQL = One(Text("a query in Spark's SQL"))
COLUMNS = One(Text("columns and expressions as after SELECT"))
COLUMN = One(Text("a column's name"))
SCHEMA = One(Text("columns and types as in CREATE TABLE"))
FORMAT = One(Text("parquet, json, csv, orc, text, nsq, console, jdbc or a format that Spark finds"))
TABLE = One(Text("parquet, json, csv, orc, text, jdbc or a format that Spark finds"))
LOCATION = One(Text("a path or a URL that Spark knows"))
HTTP = Words("host:port or a URL", http_address)
NSQD = Words("host:port", nsqd_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where messages come from."""

    topic: tuple[str, ...] = key(
        Words("a topic's name", check_topic),
        "the topics to read; with `files`, what the column `topic` says",
        absent=(),
    )
    channel: str | None = key(
        One(CHANNEL),
        "the channel; each sink reads from `<channel>.<its name>`",
        default="the pipeline's name",
    )
    lookupd: tuple[str, ...] = key(HTTP, "HTTP addresses of nsqlookupd", absent=())
    nsqd: tuple[str, ...] = key(
        NSQD, "TCP addresses of the nsqd, where there is no nsqlookupd", absent=()
    )
    nsqd_http: tuple[str, ...] = key(
        HTTP, "HTTP addresses of the nsqd", default="the ports after those of `nsqd`", absent=()
    )
    options: Mapping[str, str] = key(
        Options(),
        "other [options of the source](spark-options.md); with `files`, of Spark's reader",
    )
    files: str | None = key(
        LOCATION, "files to read instead of a topic, by a path or a pattern such as logs/*.txt"
    )
    format: str = key(
        One(Choice("text", "parquet", "orc")),
        "what the files are: lines of text, or rows with a column `body`",
        default="text",
        absent="text",
    )
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parse:
    """What the bodies of messages are."""

    format: str = key(
        One(Choice("json", "csv", "text", "raw")),
        "what a body is; `text` gives a column `value`, `raw` leaves messages as they are",
        required=True,
        absent="raw",
    )
    schema: str | None = key(
        SCHEMA, "the columns of `json` and `csv`; a row without one that is NOT NULL is an error"
    )
    keep: str | None = key(COLUMNS, "columns of the message to keep beside those of its body")
    options: Mapping[str, str] = key(Options(), "options of Spark's from_json or from_csv")
    watermark: str | None = key(COLUMN, "the column with the time of a row")
    delay: str | None = key(Interval(), "how late a row may be; needed with `watermark`")
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that does not change, for joins."""

    name: str = key(VIEW, "how SQL calls it", required=True)
    path: str | None = key(LOCATION, "the file or the folder")
    format: str = key(TABLE, "how it is read", default="parquet", absent="parquet")
    schema: str | None = key(SCHEMA, "its columns", default="as the files say")
    options: Mapping[str, str] = key(Options(), "options of Spark's reader")
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A transformation."""

    name: str = key(VIEW, "how later steps and sinks call it", default="step1, step2 ...")
    sql: str | None = key(SQL, "a query; `input` is what the step before gives")
    python: str | None = key(
        One(Text("package.module:function", _function)),
        "a function that gets and gives a DataFrame",
    )
    arguments: Mapping[str, Any] = key(Arguments(), "keyword arguments for the function")
    watermark: str | None = key(COLUMN, "the column with the time of a row")
    delay: str | None = key(Interval(), "how late a row may be; needed with `watermark`")
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where rows go to."""

    name: str = key(LABEL, "names its channel, its query and its folders", required=True)
    of: str = key(
        VIEW,
        "what is written: a step, `parsed`, `errors` or `messages`",
        default="the last step",
        absent="",
    )
    select: str | None = key(COLUMNS, "the columns to write", default="all")
    format: str = key(FORMAT, "how it is written", required=True)
    path: str | None = key(LOCATION, "the folder that it is written to")
    topic: str | None = key(One(TARGET), "`nsq`: where rows without a column `topic` go")
    lookupd: tuple[str, ...] = key(
        HTTP, "`nsq`: HTTP addresses of nsqlookupd", default="the source's", absent=()
    )
    nsqd: tuple[str, ...] = key(
        NSQD, "`nsq`: TCP addresses of the nsqd", default="the source's", absent=()
    )
    partition_by: tuple[str, ...] = key(
        Words("a column's name"), "a folder for each value of these columns", absent=()
    )
    mode: str = key(
        One(Choice("append", "update", "complete")),
        "which rows of an aggregation are written, and when",
        default="append",
        absent="append",
    )
    batch: bool | None = key(
        One(Flag()),
        "write each batch as a table: for formats that can't be streamed to",
        default="true where it must be",
    )
    channel: str | None = key(
        One(CHANNEL), "the channel that it reads from", default="`<source.channel>.<name>`"
    )
    trigger: str | None = key(Interval(NOW), "as `run.trigger`, for this sink", default="run's")
    options: Mapping[str, str] = key(Options(), "options of the format")
    place: Place = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How it is run."""

    trigger: str | None = key(
        Interval(NOW), "how often a batch is made", default="as soon as the last is done"
    )
    checkpoint: str = key(
        LOCATION,
        "the folder for `<sink>/checkpoint`",
        default="`nsqflow-data/<pipeline>`",
        absent="",
    )
    spool: str = key(
        One(Text("a path or s3://bucket/prefix")),
        "the folder for `<sink>/spool`",
        default="as `checkpoint`",
        absent="",
    )
    master: str = key(
        One(Text("a master URL of Spark")),
        "which Spark",
        default="local[*,4]",
        absent="local[*,4]",
    )
    conf: Mapping[str, str] = key(Options(), "configuration of Spark")
    place: Place = field(repr=False, compare=False)
