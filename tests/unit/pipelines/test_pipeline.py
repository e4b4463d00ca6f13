"""Pipeline files: each mistake is reported with its line, its key and what is allowed."""

from pathlib import Path

import pytest

from nsqflow.client.position import Position
from nsqflow.errors import ConfigError
from nsqflow.pipelines.pipeline import Pipeline, load_pipeline
from nsqflow.spark.options import parse_sink, parse_stream
from nsqflow.spark.starting_position import position_of

SMALLEST = """\
[source]
topic = "views"
nsqd = "127.0.0.1:4150"

[[sink]]
name = "out"
format = "console"
"""

FULL = """\
name = "reports"
[source]
topic = ["views", "clicks"]
channel = "web"
lookupd = ["a:4161", "b:4161"]
options = { maxMessagesPerTrigger = 1000, tls = true, tlsVerify = false, authSecretEnv = "S" }
[parse]
format = "json"
schema = "page STRING, at TIMESTAMP"
keep = "timestamp AS received"
watermark = "at"
delay = "10 minutes"
[[table]]
name = "pages"
format = "csv"
path = "pages.csv"
options = { header = true }
[[transform]]
sql = "SELECT * FROM input JOIN pages USING (page)"
[[transform]]
name = "last"
python = "steps:last"
arguments = { least = 5 }
[[sink]]
name = "archive"
of = "step1"
format = "PARQUET"
path = "data/views"
partition_by = "day, page"
[[sink]]
name = "topic"
format = "nsq"
topic = "out"
[[sink]]
name = "dead"
of = "errors"
format = "json"
path = "s3a://bucket/dead"
channel = "dead-letters"
[run]
trigger = "10 seconds"
checkpoint = "state"
conf = { "spark.sql.shuffle.partitions" = 8 }
"""


def load(folder: Path, text: str, *settings: str, **environment: str) -> Pipeline:
    (folder / "views.toml").write_text(text)
    return load_pipeline(folder / "views.toml", settings, environment)


def refusal(folder: Path, text: str, *settings: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *settings, **environment)
    return str(caught.value).removeprefix(f"{folder / 'views.toml'}:")


# --- what is left out ---------------------------------------------------------------------------


def test_a_small_file_is_completed(tmp_path: Path) -> None:
    pipeline = load(tmp_path, SMALLEST)
    (sink,) = pipeline.sinks
    assert (pipeline.name, pipeline.parse.format) == ("views", "raw")
    assert (sink.of, sink.mode, sink.batch, sink.channel) == (
        "parsed",
        "append",
        False,
        "views.out",
    )
    assert pipeline.run.master == "local[*,4]"
    assert pipeline.checkpoint(sink) == f"{tmp_path}/nsqflow-data/views/out/checkpoint"
    assert pipeline.spool(sink) == f"{tmp_path}/nsqflow-data/views/out/spool"


def test_the_name_of_a_file_becomes_one_that_folders_and_channels_can_have(tmp_path: Path) -> None:
    (tmp_path / "my views (2).toml").write_text(SMALLEST)
    assert load_pipeline(tmp_path / "my views (2).toml").name == "my-views-2"


def test_each_sink_has_its_own_channel_checkpoint_and_spool(tmp_path: Path) -> None:
    pipeline = load(tmp_path, FULL)
    assert [sink.channel for sink in pipeline.sinks] == ["web.archive", "web.topic", "dead-letters"]
    for part in (pipeline.checkpoint, pipeline.spool):
        assert len({part(sink) for sink in pipeline.sinks}) == 3
    assert pipeline.spool(pipeline.sinks[0]) == f"{tmp_path}/state/archive/spool"


def test_relative_paths_begin_at_the_folder_of_the_file(tmp_path: Path) -> None:
    pipeline = load(tmp_path, FULL)
    assert pipeline.tables[0].path == f"{tmp_path}/pages.csv"
    assert [sink.path for sink in pipeline.sinks] == [
        f"{tmp_path}/data/views",
        None,
        "s3a://bucket/dead",
    ]


def test_steps_without_a_name_are_numbered_and_the_last_is_written(tmp_path: Path) -> None:
    pipeline = load(tmp_path, FULL)
    assert [step.name for step in pipeline.steps] == ["step1", "last"]
    assert [sink.of for sink in pipeline.sinks] == ["step1", "last", "errors"]


def test_the_source_gets_all_options(tmp_path: Path) -> None:
    pipeline = load(tmp_path, FULL)
    assert pipeline.source_options(pipeline.sinks[2]) == {
        "topic": "views,clicks",
        "channel": "dead-letters",
        "lookupd": "a:4161,b:4161",
        "spoolLocation": f"{tmp_path}/state/dead/spool",
        "maxMessagesPerTrigger": "1000",
        "tls": "true",
        "tlsVerify": "false",
        "authSecretEnv": "S",
    }


def test_a_sink_of_nsq_has_the_servers_of_the_source(tmp_path: Path) -> None:
    pipeline = load(tmp_path, FULL)
    assert pipeline.sink_options(pipeline.sinks[1]) == {
        "topic": "out",
        "lookupd": "a:4161,b:4161",
        "tls": "true",
        "tlsVerify": "false",
        "authSecretEnv": "S",
    }


def test_a_sink_of_nsq_with_servers_of_its_own_takes_nothing_from_the_source(
    tmp_path: Path,
) -> None:
    pipeline = load(tmp_path, FULL, "sink.topic.nsqd=c:4150, d:4150")
    options = pipeline.sink_options(pipeline.sinks[1])
    assert options == {"topic": "out", "nsqd": "c:4150,d:4150"}


def test_servers_that_the_file_does_not_name_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "views.toml"
    path.write_text(SMALLEST.replace('nsqd = "127.0.0.1:4150"\n', ""))
    pipeline = load_pipeline(path, servers=lambda: {"nsqd": ["x:1"], "nsqd_http": ["x:2"]})
    options = pipeline.source_options(pipeline.sinks[0])
    assert (options["nsqd"], options["nsqdHttp"]) == ("x:1", "x:2")
    path.write_text(SMALLEST)
    pipeline = load_pipeline(path, servers=lambda: pytest.fail("the file names them"))
    assert pipeline.source.nsqd == ("127.0.0.1:4150",)


def test_files_need_no_nsq_and_have_a_checkpoint_of_their_own(tmp_path: Path) -> None:
    pipeline = load(tmp_path, SMALLEST, "source.files=old/*.txt")
    (sink,) = pipeline.sinks
    assert pipeline.source.files == f"{tmp_path}/old/*.txt"
    assert sink.channel is None
    assert pipeline.checkpoint(sink).endswith("/out/backfill")


REDESIGNED = """\
[source]
topic = "orders"
lookupd = "127.0.0.1:4161"
options = { ordered = true, STARTINGPOSITION = '{"orders": {"0": 330, "1": "latest"}}' }
[[sink]]
name = "copy"
format = "nsq"
topic = "copies"
options = { partitioner = "java" }
"""


def test_source_and_sink_take_the_options_of_the_redesigned_nsq(tmp_path: Path) -> None:
    pipeline = load(tmp_path, REDESIGNED)
    (sink,) = pipeline.sinks
    options = parse_stream(pipeline.source_options(sink))
    assert options.ordered
    assert position_of(options.starting_position, "orders", 0) == Position("virtual_queue", 330)
    assert parse_sink(pipeline.sink_options(sink)).partitioner == "java"


def test_a_pipeline_begins_elsewhere_instead_of_where_its_file_says(tmp_path: Path) -> None:
    pipeline = load(tmp_path, REDESIGNED).starting_at("earliest")
    assert pipeline.begin_at == "earliest"
    options = pipeline.source_options(pipeline.sinks[0])
    assert options["startingPosition"] == "earliest"
    assert "STARTINGPOSITION" not in options


def test_files_are_read_from_the_beginning_only(tmp_path: Path) -> None:
    pipeline = load(tmp_path, SMALLEST, "source.files=old/*.txt")
    with pytest.raises(ConfigError, match=r"--set: source\.files: files are read from"):
        pipeline.starting_at("earliest")


def test_now_is_the_trigger_of_all_sinks(tmp_path: Path) -> None:
    pipeline = load(tmp_path, SMALLEST, "sink.out.trigger=1 hour").now()
    assert pipeline.run.trigger == "available-now"
    assert pipeline.sinks[0].trigger is None


def test_flags_lists_and_numbers_may_come_from_variables(tmp_path: Path) -> None:
    text = SMALLEST.replace('"127.0.0.1:4150"', '"${NSQD}"').replace('"console"', '"foo"')
    text += "batch = '${BATCH}'"
    pipeline = load(tmp_path, text, NSQD="a:1,b:1", BATCH="true")
    assert pipeline.source.nsqd == ("a:1", "b:1")
    assert pipeline.sinks[0].batch is True
    assert "a:1" not in repr(pipeline.source)


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "[source]",
            "[sorce]",
            "1: sorce is not a key; did you mean 'source'? known: name, source, parse, table, "
            "transform, sink, run",
        ),
        (
            "format =",
            "formt =",
            "7: sink.out.formt is not a key; did you mean 'format'? known: name, of, select, "
            "format, path, topic, lookupd, nsqd, partition_by, mode, batch, channel, trigger, "
            "options",
        ),
        (
            'topic = "views"',
            "xyz = 1",
            "2: source.xyz is not a key; known: topic, channel, lookupd, nsqd, nsqd_http, "
            "options, files, format",
        ),
        ('name = "out"', "", "5: sink.1 has no name: must be 1 to 64 letters"),
        (
            'name = "out"',
            'name = "o/t"',
            "6: sink.o/t.name='o/t' is invalid: must be 1 to 64 letters, digits, '_' and '-'",
        ),
        (
            'name = "out"',
            f'name = "{"x" * 60}"',
            f"6: sink.{'x' * 60}.name is part of its channel's name: channel name 'views."
        ),
        (
            'topic = "views"',
            'topic = "vi ews"',
            "2: source.topic: topic name 'vi ews' has ' ' at position 2",
        ),
        (
            'topic = "views"',
            "",
            "1: source: neither topic nor topicPattern is given: give one of them",
        ),
        (
            'nsqd = "127.0.0.1:4150"',
            "",
            "1: source: neither lookupd nor nsqd is given: give one of them",
        ),
        (
            'nsqd = "127.0.0.1:4150"',
            "nsqd = []",
            "3: source.nsqd is empty: must be host:port",
        ),
        (
            'nsqd = "127.0.0.1:4150"',
            "nsqd = { a = 1 }",
            "3: source.nsqd is a table: must be host:port",
        ),
        (
            'topic = "views"',
            'topic = "views"\nchannel = "x#ephemeral"',
            "3: source.channel: 'x#ephemeral' would lose messages: nsqd deletes an ephemeral "
            "channel with its last client, for example between two batches, and keeps it only "
            "in memory",
        ),
        ("[[sink]]", "[sink]", "5: sink is not an array of tables: "),
        ("[source]", "[x]", "1: x is not a key; known: name, source, parse, table, transform, "
         "sink, run"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_line_key_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in SMALLEST
    assert refusal(tmp_path, SMALLEST.replace(old, new, 1)).startswith(problem)


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ('path = "x"', "8: sink.out.path cannot be used with format console"),
        ('topic = "x"', "8: sink.out.topic cannot be used with format console"),
        ('mode = "all"', "8: sink.out.mode='all' is invalid: must be append, update or complete"),
        ('trigger = "now"', "8: sink.out.trigger='now' is invalid: must be available-now "
         "or a duration such as 500 milliseconds"),
        ("of = ''", "8: sink.out.of is empty: must be 1 to 64 letters"),
        ('of = "parse"', "8: sink.out.of='parse' is not a view; did you mean 'parsed'? known: "
         "messages, parsed, errors"),
        ("options = 5", "8: sink.out.options is a single value: must be a table of names and "
         "single values"),
        ("options = { x = [1] }", "8: sink.out.options.x is a list: must be a single value"),
        ('[parse]\nformat = "xml"', "9: parse.format='xml' is invalid: must be json, csv, text or "
         "raw"),
        ('[parse]\nformat = "json"', "8: parse has no schema: format json needs one"),
        ('[parse]\nformat = "text"\nschema = "a INT"', "10: parse.schema cannot be used with "
         "format text"),
        ('[parse]\nformat = "raw"\nkeep = "id"', "10: parse.keep cannot be used with format raw, "
         "which keeps all columns"),
        ('[parse]\nformat = "text"\nwatermark = "at"', "8: parse has no delay: watermark and "
         "delay go together"),
        ('[parse]\nformat = "text"\nwatermark = "at"\ndelay = "soon"', "11: parse.delay='soon' is "
         "invalid: must be a duration such as 500 milliseconds"),
        ("[[transform]]", "8: transform.1: neither sql nor python is given: give one of them"),
        ('[[transform]]\nsql = "x"\npython = "a:b"', "8: transform.1: both sql and python are "
         "given: give one of them"),
        ('[[transform]]\nsql = "x"\narguments = { a = 1 }', "10: transform.1.arguments are "
         "only for a Python function: sql has none"),
        ('[[transform]]\npython = "steps.last"', "9: transform.1.python='steps.last' is "
         "invalid: must be package.module:function"),
        ('[[transform]]\nname = "errors"\nsql = "x"', "9: transform.errors.name='errors' is "
         "the name of another view"),
        ('[[transform]]\nname = "A"\nsql = "x"\n[[table]]\nname = "a"\npath = "x"',
         "9: transform.A.name='A' is the name of another view"),
        ('[[transform]]\nname = "1a"\nsql = "x"', "9: transform.1a.name='1a' is invalid: must "
         "be 1 to 64 letters, digits and '_', not beginning with a digit"),
        ('[[sink]]\nname = "OUT"\nformat = "console"', "9: sink.OUT.name='OUT' is used by "
         "another sink: its channel, checkpoint and spool are named after it"),
        ('[[sink]]\nname = "b"\nformat = "console"\nchannel = "views.out"', "11: sink.b.channel="
         "'views.out' is used by another sink: each of them would get only a part of the messages"),
        ('[[sink]]\nname = "b"\nformat = "parquet"', "8: sink.b has no path: format parquet "
         "needs one"),
        ('[[sink]]\nname = "b"\nformat = "csv"\npath = "x"\nmode = "complete"',
         "12: sink.b.mode='complete' is invalid: format csv needs append"),
        ('[[sink]]\nname = "b"\nformat = "nsq"\npartition_by = "x"', "11: sink.b.partition_by "
         "cannot be used with format nsq"),
        ('[[sink]]\nname = "b"\nformat = "nsq"\noptions = { topic = "x" }', "11: sink.b.options."
         "topic must be set as a key, not in options"),
        ('[[sink]]\nname = "b"\nformat = "nsq"\noptions = { maxBatchByte = "1" }', "11: sink.b."
         "options.maxBatchByte: unknown option 'maxBatchByte'; did you mean 'maxBatchBytes'? "
         "known: authSecret, authSecretEnv, authSecretFile, deflate, lookupd, "
         "maxBatchBytes, nsqd, partitioner, snappy, tls, tlsCaFile, tlsCertFile, tlsKeyFile, "
         "tlsVerify, topic"),
        ('[run]\nmaster = "sc://x"', "9: run.master='sc://x' is invalid: not for Spark Connect"),
        ('[run]\ncheckpoint = "hdfs://x/y"', "9: run.checkpoint: spoolLocation"),
        ('[source.options]\nmsgTimeout = "1d"', "9: source.options.msgTimeout: msgTimeout='1d' is "
         "invalid: must be a duration from 1s to 24h"),
        ('[source.options]\nspoolLocation = "/x"', "9: source.options.spoolLocation must be "
         "set as a key, not in options"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_added_part_is_reported(tmp_path: Path, added: str, problem: str) -> None:
    assert refusal(tmp_path, SMALLEST + added).startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", " sink is missing: a pipeline needs at least one sink"),
        ("[source]\nfiles = 'x'", " sink is missing: a pipeline needs at least one sink"),
        ("source = 5", "1: source is a single value: must be a table"),
        ("sink = 'x'", "1: sink is not an array of tables: each must have a header [[sink]]"),
    ],
)
def test_a_file_without_required_parts_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert refusal(tmp_path, text) == problem


def test_two_sinks_cannot_write_to_one_folder(tmp_path: Path) -> None:
    text = SMALLEST.replace("console", "json") + "path = 'x/'\n"
    text += "[[sink]]\nname = 'b'\nformat = 'csv'\npath = './x'\n"
    assert "is used by another sink: two queries can't write to one folder" in refusal(
        tmp_path, text
    )


def test_two_sinks_cannot_have_one_name_however_short(tmp_path: Path) -> None:
    text = SMALLEST.replace('"out"', '"a"') + "[[sink]]\nname = 'a'\nformat = 'nsq'\n"
    said = refusal(tmp_path, text + "channel = 'other'\n")
    assert said.startswith("9: sink.a.name='a' is used by another sink: ")


def test_dates_and_numbers_are_options_as_they_are_written(tmp_path: Path) -> None:
    text = SMALLEST + "options = { day = 2026-01-31, at = 07:32:00, n = 5, x = 0.5, b = true }"
    (sink,) = load(tmp_path, text).sinks
    assert sink.options == {
        "day": "2026-01-31",
        "at": "07:32:00",
        "n": "5",
        "x": "0.5",
        "b": "true",
    }


def test_of_several_options_the_wrong_one_is_named(tmp_path: Path) -> None:
    text = SMALLEST + "[source.options]\nauthSecret = 'x'\ntls = true\ntlss = true\n"
    said = refusal(tmp_path, text)
    assert said.startswith("11: source.options.tlss: unknown option 'tlss'; did you mean 'tls'?")


def test_a_mistake_in_a_setting_is_reported_for_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "views.toml").write_text(SMALLEST)
    with pytest.raises(ConfigError, match=r"^--set: sink\.out\.mode='x' is invalid: "):
        load_pipeline(tmp_path / "views.toml", ["sink.out.mode=x"])


def test_a_mistake_does_not_show_values_of_the_environment(tmp_path: Path) -> None:
    text = SMALLEST + "mode = '${MODE}'"
    assert refusal(tmp_path, text, MODE="hunter2") == (
        "8: sink.out.mode='${MODE}' is invalid: must be append, update or complete"
    )


def test_the_value_of_an_unknown_key_is_not_shown(tmp_path: Path) -> None:
    assert "hunter2" not in refusal(tmp_path, SMALLEST + "pasword = 'hunter2'")


def test_servers_that_are_given_first_win_over_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "views.toml"
    path.write_text(SMALLEST + '[[sink]]\nname = "back"\nformat = "nsq"\ntopic = "out"\n')

    def never() -> dict[str, list[str]]:
        raise AssertionError("the file names servers")

    first = {"lookupd": ["other:4161"], "nsqd": [], "nsqd_http": []}
    assert load_pipeline(path, servers=never).source.nsqd == ("127.0.0.1:4150",)
    pipeline = load_pipeline(path, servers=never, first=first)
    assert (pipeline.source.lookupd, pipeline.source.nsqd) == (("other:4161",), ())
    assert pipeline.sink_options(pipeline.sinks[1])["lookupd"] == "other:4161"


@pytest.mark.parametrize(
    ("settings", "triggers"),
    [
        ((), {"archive": "10 seconds", "topic": None, "dead": "10 seconds"}),
        (("run.trigger=1 minute",), dict.fromkeys(("archive", "topic", "dead"), "1 minute")),
        (
            ("sink.archive.trigger=0 seconds",),
            {"archive": "0 seconds", "topic": None, "dead": "10 seconds"},
        ),
    ],
)
def test_a_sink_of_files_starts_a_batch_every_ten_seconds_by_default(
    tmp_path: Path, settings: tuple[str, ...], triggers: dict[str, str | None]
) -> None:
    path = tmp_path / "views.toml"
    path.write_text(FULL.partition("[run]\n")[0])
    pipeline = load_pipeline(path, settings)
    assert {sink.name: pipeline.trigger(sink) for sink in pipeline.sinks} == triggers
    assert {pipeline.now().trigger(sink) for sink in pipeline.now().sinks} == {"available-now"}


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "local[2", "spark:/host", "mesos://x"])
def test_a_master_that_spark_would_refuse_is_refused_without_it(
    tmp_path: Path, master: str
) -> None:
    path = tmp_path / "views.toml"
    path.write_text(SMALLEST)
    with pytest.raises(ConfigError) as refusal:
        load_pipeline(path, [f"run.master={master}"])
    assert str(refusal.value).startswith(f"--set: run.master={master!r} is invalid: must be local")


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*, 4]", "local-cluster[2,1,1024]", "yarn", "k8s://h", "spark://h"],
)
def test_a_master_that_spark_knows_is_taken(tmp_path: Path, master: str) -> None:
    path = tmp_path / "views.toml"
    path.write_text(SMALLEST)
    assert load_pipeline(path, [f"run.master={master}"]).run.master == master
