"""Pipelines on the session that all tests share: what each part of a file does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from nsqflow.blocking import Consumer, Producer
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import ConfigError, PipelineFailed
from nsqflow.pipelines.dry_run import dry_run
from nsqflow.pipelines.parsing import Parser
from nsqflow.pipelines.pipeline import Pipeline, load_pipeline
from nsqflow.pipelines.runner import BatchProgress, PipelineRun
from nsqflow.pipelines.source import COLUMNS, empty_stream, read_messages
from nsqflow.pipelines.views import Views
from tests.fixtures.servers import Nsqd, start_nsqd, start_nsqlookupd
from tests.fixtures.spark import SPARK_PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1200)

HEAD = """\
[source]
topic = "{topic}"
channel = "c"
nsqd = "{nsqd}"
nsqd_http = "{http}"
options = {{ idleTimeout = "200ms", msgTimeout = "2s" }}
"""


def load(folder: Path, text: str, nsqd: Nsqd | None = None, *settings: str) -> Pipeline:
    """A pipeline whose file has this text, after a source of its own."""
    topic = f"t{uuid4().hex[:16]}"
    addresses = (nsqd.tcp_address, nsqd.http_address) if nsqd else ("127.0.0.1:1", "127.0.0.1:2")
    head = HEAD.format(topic=topic, nsqd=addresses[0], http=addresses[1])
    path = folder / "views.toml"
    path.write_text((head if "[source]" not in text else "") + text)
    return load_pipeline(path, settings)


def publish(nsqd: Nsqd, pipeline: Pipeline, *bodies: str | bytes | dict[str, Any]) -> None:
    encoded = [json.dumps(body) if isinstance(body, dict) else body for body in bodies]
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(
            pipeline.source.topic[0],
            [body.encode() if isinstance(body, str) else body for body in encoded],
        )


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SPARK_PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # Spark has no event for it


@contextmanager
def running(spark: SparkSession, pipeline: Pipeline) -> Iterator[PipelineRun]:
    run = PipelineRun(spark, pipeline)
    try:
        yield run
    finally:
        run.stop()


def run_now(spark: SparkSession, pipeline: Pipeline) -> list[BatchProgress]:
    """Run it on what is there; gives its batches."""
    with running(spark, pipeline.now()) as run:
        until(lambda: not run.is_active())
        run.check()
        return run.new_batches()


def bodies(nsqd: Nsqd, topic: str, count: int) -> list[str]:
    """Return ``count`` messages of a topic."""
    with Consumer(topic, "test", nsqd=nsqd.tcp_address) as consumer:
        (batch,) = [next(consumer.batches(size=count, max_wait=SPARK_PATIENCE))]
        batch.finish()
    return sorted(message.body.decode() for message in batch)


def refusal(call: Callable[[], object], pipeline: Pipeline) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value).removeprefix(f"{pipeline.document.path}:")


# --- parse --------------------------------------------------------------------------------------


def table_of(spark: SparkSession, *texts: str | bytes) -> DataFrame:
    """Messages with these bodies, as a table."""
    rows = [(text.encode() if isinstance(text, str) else text,) for text in texts]
    frame = spark.createDataFrame(rows, "body binary")
    missing = [f"CAST(NULL AS {kind}) AS {name}" for name, kind in COLUMNS.items()][1:]
    return frame.selectExpr("body", *missing)


def errors_of(spark: SparkSession, pipeline: Pipeline, *texts: str | bytes) -> dict[bytes, str]:
    parser, messages = Parser(pipeline.parse), table_of(spark, *texts)
    good = [bytes(row.body) for row in parser.good(messages).collect()]
    bad = {bytes(row.body): row.error for row in parser.errors(messages).collect()}
    assert len(good) + len(bad) == len(texts)
    assert bad.keys().isdisjoint(good)
    return bad


CONSOLE = '\n[[sink]]\nname = "out"\nformat = "console"\n'


def test_json_that_does_not_fit_is_an_error_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "user STRING NOT NULL, ms INT, tags ARRAY<STRING>, `odd name` STRUCT<x: DOUBLE>"
    text = f'[parse]\nformat = "json"\nschema = "{schema}"\n' + CONSOLE
    pipeline = load(tmp_path, text)
    assert errors_of(
        spark,
        pipeline,
        '{"user": "u", "ms": 5}',
        '{"user": "u", "ms": null, "tags": [], "odd name": {"x": 1}, "more": 1}',
        " {}".replace("{}", '{"user": ""}'),
        '{"user": "u"',
        "none",
        "5",
        '[{"user": "u"}]',
        '{"user": "u", "ms": "5"}',
        '{"user": "u", "ms": 5.5}',
        '{"user": "u", "tags": "a"}',
        '{"user": "u", "odd name": {"x": []}}',
        '{"ms": 5}',
        '{"user": null}',
        b'{"user": "\xff"}',
    ) == {
        b'{"user": "u"': "not JSON",
        b"none": "not JSON",
        b"5": "not a JSON object",
        b'[{"user": "u"}]': "not a JSON object",
        b'{"user": "u", "ms": "5"}': "ms is not of type int",
        b'{"user": "u", "ms": 5.5}': "ms is not of type int",
        b'{"user": "u", "tags": "a"}': "tags is not of type array<string>",
        b'{"user": "u", "odd name": {"x": []}}': "odd name is not of type struct<x:double>",
        b'{"ms": 5}': "user is missing",
        b'{"user": null}': "user is missing",
        b'{"user": "\xff"}': "not UTF-8",
    }


def test_csv_that_does_not_fit_is_an_error_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = '[parse]\nformat = "csv"\nschema = "a INT NOT NULL, `b c` DATE, d STRING"\n'
    pipeline = load(tmp_path, text + 'options = { sep = ";" }\n' + CONSOLE)
    assert errors_of(
        spark,
        pipeline,
        '1;2026-01-02;"x;y"',
        "1;;",
        "x;2026-01-02;",
        "1;yesterday;",
        "1;2026-01-02",
        "1,2026-01-02,x",
        ";;",
        b"1;;\xff",
    ) == {
        b"x;2026-01-02;": "a is not of type int",
        b"1;yesterday;": "b c is not of type date",
        b"1;2026-01-02": "not a line of 3 columns",
        b"1,2026-01-02,x": "not a line of 3 columns",
        b";;": "a is missing",
        b"1;;\xff": "not UTF-8",
    }


def test_text_must_be_utf_8_and_raw_anything(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = load(tmp_path, '[parse]\nformat = "text"\n' + CONSOLE)
    assert errors_of(spark, pipeline, "é", b"\xe9") == {b"\xe9": "not UTF-8"}
    frames = dict(Views(spark, pipeline, table_of(spark, "é")))
    assert [row.asDict() for row in frames["parsed"].collect()] == [{"value": "é"}]
    pipeline = load(tmp_path, CONSOLE)
    assert errors_of(spark, pipeline, "é", b"\xe9") == {}


def test_what_is_kept_is_the_messages_own_even_if_the_body_has_such_a_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = '[parse]\nformat = "json"\nschema = "topic STRING, id INT"\n'
    pipeline = load(tmp_path, text + 'keep = "topic AS heard_on, length(body) AS size"' + CONSOLE)
    messages = table_of(spark, '{"topic": "x", "id": 7}').selectExpr(
        "* EXCEPT (topic)", "'views' AS topic"
    )
    parsed = dict(Views(spark, pipeline, messages))["parsed"]
    assert [row.asDict() for row in parsed.collect()] == [
        {"topic": "x", "id": 7, "heard_on": "views", "size": 23}
    ]


# --- steps --------------------------------------------------------------------------------------

PARSE = """
[parse]
format = "json"
schema = "page STRING, ms INT"
"""
STEPS = """
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, udf
from {other} import shared

@udf("int")
def doubled(number):
    return shared(number)

def slow(views: DataFrame, least: int = 0) -> DataFrame:
    return views.where(col("ms") >= least).withColumn("twice", doubled("ms"))

"""


def step(key: str, value: str, name: str = "last") -> str:
    return f'[[transform]]\nname = "{name}"\n{key} = """{value}"""\n'


def frame_of(spark: SparkSession, pipeline: Pipeline, *texts: str) -> DataFrame:
    return Views(spark, pipeline, table_of(spark, *texts)).of(pipeline.sinks[0])


def test_a_step_reads_the_one_before_and_any_by_name(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "pages.csv").write_text("page,section\n/,home\n/x,other\n")
    text = (
        PARSE
        + '[[table]]\nname = "pages"\nformat = "csv"\npath = "pages.csv"\n'
        + 'options = { header = true }\nschema = "page STRING, section STRING"\n'
        + step("sql", "SELECT *, ms * 2 AS twice FROM input; ", "doubled")
        + step("sql", "SELECT section, twice FROM input JOIN pages USING (page)", "joined")
        + step("sql", "SELECT i.*, ms FROM input i JOIN parsed p ON twice = 2 * ms -- end")
        + CONSOLE
        + 'select = "section, ms + 1 AS more"\n'
    )
    rows = frame_of(spark, load(tmp_path, text), '{"page": "/", "ms": 4}', '{"page": "?"}')
    assert [row.asDict() for row in rows.collect()] == [{"section": "home", "more": 5}]


def test_a_function_beside_the_file_is_a_step_and_goes_where_the_tasks_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    module, other = f"steps_{uuid4().hex[:8]}", f"other_{uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(STEPS.format(other=other))
    (tmp_path / f"{other}.py").write_text("def shared(number):\n    return 2 * number\n")
    text = PARSE + step("python", f"{module}:slow") + "arguments = { least = 5 }\n" + CONSOLE
    rows = frame_of(spark, load(tmp_path, text), '{"ms": 4}', '{"ms": 6}')
    assert [row.asDict() for row in rows.collect()] == [{"page": None, "ms": 6, "twice": 12}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            step("sql", "SELECT\n  pge\nFROM input"),
            "13: transform.last.sql: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or "
            "function parameter with name `pge` cannot be resolved. Did you mean one of the "
            "following? [`page`, `ms`].; line 2 pos 2",
        ),
        (
            step("sql", "SELECT page FRM input"),
            "13: transform.last.sql: [PARSE_SYNTAX_ERROR] Syntax error at or near 'input'",
        ),
        (
            step("sql", "DROP TABLE pages"),
            "13: transform.last.sql: [PARSE_SYNTAX_ERROR] Syntax error at or near 'pages'",
        ),
        (
            step("sql", "SELECT 1 AS a FROM nowhere"),
            "13: transform.last.sql: [TABLE_OR_VIEW_NOT_FOUND] The table or view `nowhere` cannot "
            "be found. Verify the spelling and correctness of the schema and catalog.",
        ),
        (
            step("sql", "SELECT * FROM input") + 'watermark = "page"\ndelay = "1 minute"\n',
            "14: transform.last.watermark: [EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE]",
        ),
        (
            step("python", "no_such_module:f"),
            "13: transform.last.python 'no_such_module:f': ModuleNotFoundError: No module named "
            "'no_such_module'; modules are looked for next to the file first, then on Python's "
            "path",
        ),
        (
            step("python", "json:f"),
            "13: transform.last.python 'json:f': json has no function f",
        ),
        (
            step("python", "json:dumps"),
            "13: transform.last.python 'json:dumps' raised TypeError: Object of type DataFrame is "
            "not JSON serializable",
        ),
        (
            step("python", "builtins:type"),
            "13: transform.last.python 'builtins:type' returned type: must return a DataFrame",
        ),
        (
            '[[table]]\nname = "pages"\nformat = "csv"\npath = "none.csv"\n',
            "14: table.pages.path: [PATH_NOT_FOUND] Path does not exist: file:",
        ),
        (
            '[[table]]\nname = "pages"\nformat = "csw"\npath = "none.csv"\n',
            "14: table.pages.path: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: csw.",
        ),
    ],
)
def test_what_spark_refuses_is_reported_with_line_and_key(
    spark: SparkSession, tmp_path: Path, text: str, problem: str
) -> None:
    pipeline = load(tmp_path, PARSE + text + CONSOLE)
    (tmp_path / "empty").mkdir()
    messages = empty_stream(spark, pipeline, tmp_path / "empty")
    said = refusal(lambda: Views(spark, pipeline, messages), pipeline)
    assert said[: len(problem)] == problem
    assert "\n" not in said


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("ms INT", "ms", "10: parse.schema: [PARSE_SYNTAX_ERROR] Syntax error at or near end"),
        ("page STRING, ms INT", "INT", "10: parse.schema 'INT' is a type: must be columns"),
        ("ms INT", "ms INT, Page INT", "10: parse.schema has 'page' twice, ignoring case"),
        ('INT"', 'INT"\nkeep = "mss"', "11: parse.keep: [UNRESOLVED_COLUMN.WITH_SUGGESTION]"),
        ('ms INT"', 'topic INT"\nkeep = "topic"', "11: parse.keep has a second column 'topic'; "),
    ],
)
def test_a_schema_that_spark_refuses_is_reported_with_line_and_key(
    spark: SparkSession, tmp_path: Path, old: str, new: str, problem: str
) -> None:
    pipeline = load(tmp_path, PARSE.replace(old, new) + CONSOLE)
    said = refusal(lambda: frame_of(spark, pipeline), pipeline)
    assert said[: len(problem)] == problem
    assert "\n" not in said


# --- the source ---------------------------------------------------------------------------------


def test_no_messages_have_the_columns_that_messages_have(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = load(tmp_path, CONSOLE)
    (tmp_path / "empty").mkdir()
    some = read_messages(spark, pipeline, pipeline.sinks[0])
    assert empty_stream(spark, pipeline, tmp_path / "empty").schema == some.schema


BACKFILL = """
[source]
files = "old/*"
topic = "views"
[parse]
format = "json"
schema = "n INT"
keep = "topic, timestamp IS NOT NULL AS dated"
[[sink]]
name = "out"
format = "json"
path = "data"
"""


def written(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.json(str(folder)).orderBy("n").collect()]


def test_lines_of_files_are_messages_and_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = load(tmp_path, BACKFILL)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.txt").write_text('{"n": 1}\n\n{"n": 2}\nbroken\n')
    run_now(spark, pipeline)
    (tmp_path / "old" / "b.txt").write_text('{"n": 3}')
    (batch,) = run_now(spark, pipeline)
    assert (batch.sink, batch.batch, batch.backlog) == ("out", 1, None)
    expected = [{"n": n, "topic": "views", "dated": True} for n in (1, 2, 3)]
    assert written(spark, tmp_path / "data") == expected


def test_rows_of_parquet_with_a_body_are_messages(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = load(tmp_path, BACKFILL, None, "source.format=parquet", "source.files=old")
    rows = spark.createDataFrame([('{"n": 1}', "then"), (None, "x")], "Body string, topic string")
    rows.write.parquet(str(tmp_path / "old"))
    run_now(spark, pipeline)
    assert written(spark, tmp_path / "data") == [{"n": 1, "topic": "then", "dated": True}]


def test_files_that_hold_no_messages_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = load(tmp_path, BACKFILL, None, "source.format=parquet", "source.files=old")
    assert ": source.files: [" in refusal(lambda: PipelineRun(spark, pipeline), pipeline)
    spark.createDataFrame([(1, "x")], "n int, text string").write.parquet(str(tmp_path / "old"))
    said = refusal(lambda: PipelineRun(spark, pipeline), pipeline)
    assert said.endswith("source.files have columns n, text: there must be a column body")


def test_a_folder_that_another_checkpoint_has_written_to_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = load(tmp_path, BACKFILL)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.txt").write_text('{"n": 1}\n')
    run_now(spark, pipeline)
    other = load(tmp_path, BACKFILL, None, "run.checkpoint=elsewhere")
    said = refusal(lambda: PipelineRun(spark, other), other)
    assert f"12: sink.out.path '{tmp_path}/data' was written with another checkpoint than " in said
    assert 'name = "..." with the old name keeps the checkpoint' in said
    assert not (tmp_path / "elsewhere").exists()


# --- all of it ----------------------------------------------------------------------------------

WHOLE = (
    PARSE
    + step("sql", "SELECT *, ms DIV 100 AS class FROM input", "classed")
    + """
[[sink]]
name = "archive"
format = "parquet"
path = "data/views"
partition_by = "class"

[[sink]]
name = "topic"
format = "nsq"
topic = "{out}"

[[sink]]
name = "dead"
of = "errors"
select = "body, '{dead}' AS topic"
format = "nsq"
"""
)


def test_every_sink_gets_every_message_even_those_that_came_before_the_channels(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd
) -> None:
    out, dead = f"out-{uuid4().hex[:8]}", f"dead-{uuid4().hex[:8]}"
    pipeline = load(tmp_path, WHOLE.replace("{out}", out).replace("{dead}", dead), nsqd)
    publish(nsqd, pipeline, *({"page": "/", "ms": ms} for ms in (5, 150, 160)), "broken", "}")
    batches = run_now(spark, pipeline)
    assert {batch.sink: batch.messages for batch in batches} == dict.fromkeys(
        ("archive", "topic", "dead"), 5
    )
    # Files do not count what they write, the topic does; all of them are shown.
    assert {batch.sink: batch.rows for batch in batches} == {"archive": 3, "topic": 3, "dead": 2}
    assert {batch.backlog for batch in batches} == {5}
    rows = spark.read.parquet(str(tmp_path / "data" / "views")).orderBy("ms").collect()
    assert [(row.ms, row["class"]) for row in rows] == [(5, 0), (150, 1), (160, 1)]
    assert bodies(nsqd, out, 3) == [
        '{"page":"/","ms":150,"class":1}',
        '{"page":"/","ms":160,"class":1}',
        '{"page":"/","ms":5,"class":0}',
    ]
    assert bodies(nsqd, dead, 2) == ["broken", "}"]
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={pipeline.source.topic[0]}")[1])
    (topic,) = stats["topics"]
    assert not topic["paused"]
    assert {channel["channel_name"] for channel in topic["channels"]} == {
        "c.archive",
        "c.topic",
        "c.dead",
    }


def test_a_topic_without_nsqd_is_registered_with_all_channels(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = WHOLE.replace("{out}", "out").replace("{dead}", "dead")
    source = '[source]\ntopic = "views"\nchannel = "c"\nlookupd = "{}"\n'
    with start_nsqlookupd() as lookupd, start_nsqd(tmp_path, lookupd=[lookupd]) as nsqd:
        pipeline = load(tmp_path, source.format(lookupd.http_address) + text)
        with running(spark, pipeline) as run:
            until(lambda: set(run.states().values()) <= {"waiting"})
            answer = json.loads(lookupd.ask("/channels?topic=views")[1])
            assert sorted(answer["channels"]) == ["c.archive", "c.dead", "c.topic"]
            publish(nsqd, pipeline, {"ms": 1}, {"ms": 2})
            messages: dict[str, int] = {}

            def arrived() -> bool:
                for batch in run.new_batches():
                    messages[batch.sink] = messages.get(batch.sink, 0) + batch.messages
                run.check()
                return len(messages) == 3 and min(messages.values()) >= 2

            until(arrived)
        assert messages == {"archive": 2, "topic": 2, "dead": 2}


AGGREGATE = (
    '[parse]\nformat = "json"\nschema = "page STRING, ms INT, at TIMESTAMP"\n'
    'watermark = "at"\ndelay = "1 minute"\n'
    + step(
        "sql",
        "SELECT window.start, page, sum(ms) AS ms FROM input GROUP BY window(at, '1 hour'), page",
    )
)


def test_windows_are_aggregated_and_updates_published(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd
) -> None:
    out = f"out-{uuid4().hex[:8]}"
    sink = f'[[sink]]\nname = "sums"\nformat = "nsq"\ntopic = "{out}"\nmode = "update"\n'
    pipeline = load(tmp_path, AGGREGATE + sink, nsqd)
    at = "2026-01-01T10:{}:00Z"
    publish(nsqd, pipeline, *({"page": "/", "ms": n, "at": at.format(10 + n)} for n in range(5)))
    run_now(spark, pipeline)
    publish(nsqd, pipeline, {"page": "/", "ms": 90, "at": at.format(20)})
    run_now(spark, pipeline)
    start = '"start":"2026-01-01T10:00:00.000Z"'
    assert bodies(nsqd, out, 2) == [
        f'{{{start},"page":"/","ms":100}}',
        f'{{{start},"page":"/","ms":10}}',
    ]


def test_aggregations_whose_steps_were_changed_are_refused_with_a_hint(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd
) -> None:
    out = f"out-{uuid4().hex[:8]}"
    sink = f'[[sink]]\nname = "sums"\nformat = "nsq"\ntopic = "{out}"\nmode = "update"\n'
    pipeline = load(tmp_path, AGGREGATE + sink, nsqd)
    view = {"page": "/", "ms": 1, "at": "2026-01-01T10:00:00Z"}
    publish(nsqd, pipeline, view)
    run_now(spark, pipeline)
    publish(nsqd, pipeline, view)
    text = (tmp_path / "views.toml").read_text()
    (tmp_path / "views.toml").write_text(text.replace("'), page", "'), page, length(page)"))
    changed = load_pipeline(tmp_path / "views.toml")
    hint = "the steps before an aggregation were changed: restore them, or rename the sink"
    with pytest.raises(PipelineFailed, match=rf"^sink sums: \[STATE_STORE_\w+\] .*; {hint}$"):
        run_now(spark, changed)


def test_nothing_is_started_after_a_stop(spark: SparkSession, tmp_path: Path, nsqd: Nsqd) -> None:
    pipeline = load(tmp_path, CONSOLE, nsqd)
    run = PipelineRun(spark, pipeline, lambda: True)
    assert not run.is_active()
    assert not run.is_busy()
    run.end()
    run.stop()
    run.check()
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={pipeline.source.topic[0]}")[1])
    assert not stats["topics"]
    assert not (tmp_path / "nsqflow-data").exists()


def test_a_table_of_a_database_is_written_batch_by_batch(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"jdbc:derby:memory:{uuid4().hex};create=true"
    monkeypatch.setenv("DATABASE", url)
    sink = (
        '[[sink]]\nname = "table"\nformat = "jdbc"\n'
        'options = { url = "${DATABASE}", dbtable = "views" }\n'
    )
    pipeline = load(tmp_path, PARSE + sink, nsqd)
    for ms in (1, 2):
        publish(nsqd, pipeline, {"page": "/", "ms": ms}, "broken")
        batches = run_now(spark, pipeline)
        assert [(batch.messages, batch.rows) for batch in batches if batch.messages] == [(2, 1)]
    table = spark.read.format("jdbc").options(url=url, dbtable="views").load()
    assert sorted(row.ms for row in table.collect()) == [1, 2]


def test_a_failed_sink_is_reported_in_one_line_without_secrets(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    sink = (
        '[[sink]]\nname = "table"\nformat = "jdbc"\n'
        'options = { url = "jdbc:none://me:${PASSWORD}@x", dbtable = "views" }\n'
    )
    pipeline = load(tmp_path, PARSE + sink, nsqd)
    publish(nsqd, pipeline, {"page": "/", "ms": 1})
    with pytest.raises(PipelineFailed, match=r"^sink table: .*suitable driver") as caught:
        run_now(spark, pipeline)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_nsqd_that_is_down_is_reported_by_the_query(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = load(tmp_path, CONSOLE)
    with pytest.raises(PipelineFailed, match=r"^sink out: NetworkError: no nsqd is reachable: "):
        run_now(spark, pipeline)
    assert "its channels are created when it answers" in caplog.text


# --- the end ------------------------------------------------------------------------------------

GATE = """
from pyspark.sql.functions import udf

@udf("int")
def passed(number):
    print("task", number, file=open({started!r}, "a"), flush=True)
    open({gate!r}).read()
    return number

def wait(frame):
    return frame.withColumn("ms", passed("ms"))
"""


def test_a_batch_that_is_under_way_is_finished_and_no_other_begun(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd
) -> None:
    import os

    module, gate, started = f"gate_{uuid4().hex[:8]}", tmp_path / "gate", tmp_path / "started"
    os.mkfifo(gate)
    (tmp_path / f"{module}.py").write_text(GATE.format(started=str(started), gate=str(gate)))
    sink = '[[sink]]\nname = "out"\nformat = "json"\npath = "data"\n'
    pipeline = load(tmp_path, PARSE + step("python", f"{module}:wait") + sink, nsqd)
    publish(nsqd, pipeline, {"ms": 1})
    with running(spark, pipeline) as run:
        until(started.exists)
        publish(nsqd, pipeline, {"ms": 2})
        run.end()
        assert run.is_busy()
        assert run.states() == {"out": "working"}
        with gate.open("w") as file:
            file.write("go on")
        until(lambda: not run.is_busy())
        assert [batch.messages for batch in run.new_batches()] == [1]
        assert not run.is_active()
        run.check()
    checkpoint = Path(pipeline.checkpoint(pipeline.sinks[0]))
    assert sorted(path.name for path in (checkpoint / "commits").glob("[0-9]*")) == ["0"]
    assert sorted(path.name for path in (checkpoint / "offsets").glob("[0-9]*")) == ["0"]
    with running(spark, pipeline.now()) as run:
        with gate.open("w") as file:
            file.write("go on")
        until(lambda: not run.is_active())
        run.check()
    assert sorted(row.ms for row in spark.read.json(str(tmp_path / "data")).collect()) == [1, 2]


# --- the redesigned NSQ -------------------------------------------------------------------------

ORDERS = """\
[source]
topic = "orders"
channel = "c"
lookupd = "{lookupd}"
options = {{ idleTimeout = "200ms", msgTimeout = "2s" }}
[parse]
format = "json"
schema = "n INT NOT NULL"
keep = "partition, offset, internal_id > 0 AS numbered, tag, headers['region'] AS region"
[[sink]]
name = "archive"
format = "json"
path = "data"
"""
DEAD_LETTERS = """\
[[sink]]
name = "dead"
of = "errors"
select = "body, headers, tag"
format = "nsq"
topic = "orders.dead"
"""


def of_cluster(folder: Path, broker: BackgroundBroker, more: str = "") -> Pipeline:
    path = folder / "orders.toml"
    path.write_text(ORDERS.format(lookupd=broker.lookupd_addresses[0]) + more)
    return load_pipeline(path)


def test_a_new_pipeline_begins_in_the_past_and_no_other(
    spark: SparkSession,
    tmp_path: Path,
    nsq_redesigned_broker: BackgroundBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pipeline = of_cluster(tmp_path, nsq_redesigned_broker)
    nsq_redesigned_broker.create_topic("orders", partitions=2, ordered=True, extended=True)
    nsq_redesigned_broker.create_channel("orders", "other")  # keeps what is published
    with Producer(lookupd=nsq_redesigned_broker.lookupd_addresses) as producer:
        for n in range(6):
            producer.publish(
                "orders", b'{"n": %d}' % n, partition=n % 2, headers={"region": "eu"}, tag="t"
            )
        columns = rehearsed(spark, pipeline, tmp_path_factory.mktemp("scratch"))
        assert columns["parsed"] == (
            "n int, partition int, offset bigint, numbered boolean, tag string, region string"
        )
        run_now(spark, pipeline.starting_at("earliest"))
        rows = written(spark, tmp_path / "data")
        assert [(row["n"], row["partition"]) for row in rows] == [(n, n % 2) for n in range(6)]
        assert {(row["numbered"], row["tag"], row["region"]) for row in rows} == {(True, "t", "eu")}
        for part in (0, 1):
            offsets = [row["offset"] for row in rows if row["partition"] == part]
            assert offsets == sorted({*offsets})
        producer.publish("orders", b'{"n": 6}', partition=0)
    again = pipeline.starting_at("timestamp:1700000000")
    for call in (lambda: PipelineRun(spark, again), lambda: rehearsed(spark, again, tmp_path)):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value).startswith(
            f"{tmp_path}/orders.toml:10: sink.archive can't begin at timestamp:1700000000: it has "
            f"the checkpoint {tmp_path}/nsqflow-data/orders/archive/checkpoint, and goes on where "
            "that ends; set another run.checkpoint"
        )
    run_now(spark, pipeline)
    assert [row["n"] for row in written(spark, tmp_path / "data")] == [*range(7)]


def test_dead_letters_keep_their_headers_and_tags(
    spark: SparkSession, tmp_path: Path, nsq_redesigned_broker: BackgroundBroker
) -> None:
    pipeline = of_cluster(tmp_path, nsq_redesigned_broker, DEAD_LETTERS)
    for topic in ("orders", "orders.dead"):
        nsq_redesigned_broker.create_topic(topic, partitions=2, extended=True)
    nsq_redesigned_broker.create_channel("orders", "other")
    lookupd = nsq_redesigned_broker.lookupd_addresses
    with Producer(lookupd=lookupd, body_compression={"orders": "gzip"}) as producer:
        producer.publish("orders", b'{"n": 1}', headers={"region": "us"})
        producer.publish("orders", b"x" * 500, headers={"region": "eu"}, tag="t")
        producer.publish("orders", b"}")
    with Consumer("orders.dead", "test", lookupd=lookupd) as consumer:
        run_now(spark, pipeline.starting_at("earliest"))
        found = {}
        for message in consumer:
            found[message.body] = (message.headers, message.tag)
            message.finish()
            if len(found) == 2:
                break
    assert [row["n"] for row in written(spark, tmp_path / "data")] == [1]
    (headers, tag), (none, no_tag) = found[b"x" * 500], found[b"}"]
    assert ((headers or {})["region"], tag) == ("eu", "t")
    assert (none or {}, no_tag) == ({}, None)


def test_files_of_messages_have_their_positions(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(ORDERS.format(lookupd="127.0.0.1:1"))
    (tmp_path / "old").mkdir()
    row = '{"body": "{\\"n\\": 5}", "partition": 1, "offset": 33, "headers": {"region": "eu"}}'
    (tmp_path / "rows.json").write_text(row)
    schema = "body STRING, partition INT, offset BIGINT, headers MAP<STRING, STRING>"
    frame = spark.read.schema(schema).json(str(tmp_path / "rows.json"))
    frame.write.parquet(str(tmp_path / "old" / "a"))
    settings = ["source.files=old/a", "source.format=parquet"]
    pipeline = load_pipeline(tmp_path / "orders.toml", settings)
    run_now(spark, pipeline)
    assert written(spark, tmp_path / "data") == [
        {"n": 5, "partition": 1, "offset": 33, "region": "eu"}
    ]


# --- the rehearsal ------------------------------------------------------------------------------


def rehearsed(spark: SparkSession, pipeline: Pipeline, folder: Path) -> dict[str, str]:
    scratch = folder / uuid4().hex
    scratch.mkdir()
    return dry_run(spark, pipeline, scratch)


def test_a_dry_run_returns_columns_and_touches_neither_nsqd_nor_disk(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pipeline = load(tmp_path, WHOLE.replace("{out}", "out").replace("{dead}", "dead"), nsqd)
    columns = rehearsed(spark, pipeline, tmp_path_factory.mktemp("scratch"))
    assert columns["parsed"] == "page string, ms int"
    assert columns["classed"] == "page string, ms int, class bigint"
    assert columns["errors"].endswith(", nsqd string, error string")
    assert columns["sink archive"] == columns["classed"]
    assert columns["sink topic"] == "value string"
    assert columns["sink dead"] == "body binary, topic string"
    assert [path.name for path in tmp_path.iterdir()] == ["views.toml"]
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={pipeline.source.topic[0]}")[1])
    assert not stats["topics"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            step("sql", "SELECT page, count(*) AS n FROM input GROUP BY page")
            + '[[sink]]\nname = "out"\nformat = "json"\npath = "data"\n',
            "14: sink.out.mode: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming "
            "output mode: append.",
        ),
        (
            '[[sink]]\nname = "out"\nformat = "delta9"\npath = "data"\n',
            "13: sink.out.format 'delta9': [DATA_SOURCE_NOT_FOUND] Failed to find the data source",
        ),
        (
            '[[sink]]\nname = "out"\nformat = "csv"\npath = "d"\nselect = "struct(page) AS x"\n',
            "11: sink.out: [UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE] The CSV datasource doesn't "
            'support the column `x` of the type "STRUCT<page: STRING',
        ),
        (
            '[[sink]]\nname = "out"\nformat = "json"\npath = "data"\npartition_by = "pge"\n',
            "11: sink.out: ",
        ),
        (
            '[[sink]]\nname = "out"\nformat = "json"\npath = "data"\nselect = "pge"\n',
            "15: sink.out.select: [UNRESOLVED_COLUMN.WITH_SUGGESTION] ",
        ),
        (
            '[[sink]]\nname = "out"\nformat = "nsq"\n',
            "11: sink.out: there is neither an option topic nor a column topic: give one of them",
        ),
        (
            '[[sink]]\nname = "out"\nformat = "nsq"\nselect = "ms AS body"\ntopic = "x"\n',
            "11: sink.out: column 'body' of type int is invalid: must be body or value (binary or "
            "string), ",
        ),
    ],
)
def test_a_dry_run_finds_what_would_fail(
    spark: SparkSession, tmp_path: Path, text: str, problem: str
) -> None:
    pipeline = load(tmp_path, PARSE + text)
    said = refusal(lambda: rehearsed(spark, pipeline, tmp_path), pipeline)
    assert said[: len(problem)] == problem
    assert "\n" not in said
