"""What a file may say: each mistake is told with its line, its key and what is allowed."""

from pathlib import Path

import pytest

from nsqflow.errors import ConfigError
from nsqflow.pipelines.pipeline import Pipeline, load_pipeline

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
            "1: sorce is no key; did you mean source? allowed are name, source, parse, table, "
            "transform, sink, run",
        ),
        (
            "format =",
            "formt =",
            "7: sink.out.formt is no key; did you mean format? allowed are name, of, select, "
            "format, path, topic, lookupd, nsqd, partition_by, mode, batch, channel, trigger, "
            "options",
        ),
        (
            'topic = "views"',
            "xyz = 1",
            "2: source.xyz is no key; allowed are topic, channel, lookupd, nsqd, nsqd_http, "
            "options, files, format",
        ),
        ('name = "out"', "", "5: sink.1 has no name; it takes letters, digits, '_' and '-'"),
        (
            'name = "out"',
            'name = "o/t"',
            "6: sink.o/t.name: 'o/t'; allowed are 1 to 64 letters, digits, '_' and '-'",
        ),
        (
            'name = "out"',
            f'name = "{"x" * 60}"',
            f"6: sink.{'x' * 60}.name makes its channel's: channel name 'views.{'x' * 60}' has 66 "
            "characters; it takes 1 to 64, #ephemeral included; or give channel",
        ),
        (
            'topic = "views"',
            'topic = "vi ews"',
            "2: source.topic: topic name 'vi ews' has ' ' at position 2; allowed are letters, "
            "digits, '.', '_', '-' and one #ephemeral at the end",
        ),
        (
            'topic = "views"',
            "",
            "1: source: neither of topic and topicPattern; give one of the two",
        ),
        (
            'nsqd = "127.0.0.1:4150"',
            "",
            "1: source: neither of lookupd and nsqd; give one of the two",
        ),
        (
            'nsqd = "127.0.0.1:4150"',
            "nsqd = []",
            "3: source.nsqd is empty; allowed is host:port; several as a list, or with commas "
            "between",
        ),
        (
            'nsqd = "127.0.0.1:4150"',
            "nsqd = { a = 1 }",
            "3: source.nsqd is a table; allowed is host:port; several as a list, or with commas "
            "between",
        ),
        (
            'topic = "views"',
            'topic = "views"\nchannel = "x#ephemeral"',
            "3: source.channel: 'x#ephemeral' would lose messages: nsqd deletes an ephemeral "
            "channel when its last client leaves, as between two batches, and drops what its "
            "memory does not hold",
        ),
        ("[[sink]]", "[sink]", "5: sink is no array of tables; each has a header [[sink]]"),
        ("[source]", "[x]", "1: x is no key; allowed are name, source, parse, table, transform, "
         "sink, run"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_line_key_and_what_is_allowed(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in SMALLEST
    assert refusal(tmp_path, SMALLEST.replace(old, new, 1)) == problem


@pytest.mark.parametrize(
    ("added", "problem"),
    [
        ('path = "x"', "8: sink.out.path has no meaning for format console"),
        ('topic = "x"', "8: sink.out.topic has no meaning for format console"),
        ('mode = "all"', "8: sink.out.mode 'all'; allowed is append, update or complete"),
        ('trigger = "now"', "8: sink.out.trigger 'now'; allowed is available-now, a time such as "
         "500 milliseconds, 10 seconds, 5 minutes"),
        ("of = ''", "8: sink.out.of is empty; allowed is a name as SQL takes it without quotes"),
        ('of = "parse"', "8: sink.out.of 'parse'; did you mean parsed? allowed are messages, "
         "parsed, errors"),
        ("options = 5", "8: sink.out.options is a single value; allowed is a table of names and "
         "single values"),
        ("options = { x = [1] }", "8: sink.out.options.x is a list; allowed is a single value"),
        ('[parse]\nformat = "xml"', "8: parse.format 'xml'; allowed is json, csv, text or raw"
         .replace("8:", "9:")),
        ('[parse]\nformat = "json"', "8: parse has no schema; format json needs one"),
        ('[parse]\nformat = "text"\nschema = "a INT"', "10: parse.schema has no meaning for "
         "format text"),
        ('[parse]\nformat = "raw"\nkeep = "id"', "10: parse.keep has no meaning for format raw, "
         "which keeps all columns"),
        ('[parse]\nformat = "text"\nwatermark = "at"', "8: parse has no delay; watermark and "
         "delay go together"),
        ('[parse]\nformat = "text"\nwatermark = "at"\ndelay = "soon"', "11: parse.delay 'soon'; "
         "allowed is a time such as 500 milliseconds, 10 seconds, 5 minutes"),
        ("[[transform]]", "8: transform.1 has neither of sql and python; give one of the two"),
        ('[[transform]]\nsql = "x"\npython = "a:b"', "8: transform.1 has both of sql and python; "
         "give one of the two"),
        ('[[transform]]\nsql = "x"\narguments = { a = 1 }', "10: transform.1.arguments are for a "
         "function; sql takes none"),
        ('[[transform]]\npython = "steps.last"', "9: transform.1.python: 'steps.last'; allowed "
         "is package.module:function"),
        ('[[transform]]\nname = "errors"\nsql = "x"', "9: transform.errors.name 'errors' is "
         "taken; a view has one name"),
        ('[[transform]]\nname = "A"\nsql = "x"\n[[table]]\nname = "a"\npath = "x"',
         "9: transform.A.name 'A' is taken; a view has one name"),
        ('[[transform]]\nname = "1a"\nsql = "x"', "9: transform.1a.name: '1a'; allowed are 1 to "
         "64 letters, digits and '_', no digit in the first place"),
        ('[[sink]]\nname = "OUT"\nformat = "console"', "9: sink.OUT.name 'OUT' is that of "
         "another sink; a channel, a checkpoint and a spool are named by it"),
        ('[[sink]]\nname = "b"\nformat = "console"\nchannel = "views.out"', "11: sink.b.channel "
         "'views.out' is that of another sink; of two that share a channel each gets a part of "
         "the messages"),
        ('[[sink]]\nname = "b"\nformat = "parquet"', "8: sink.b has no path; format parquet "
         "needs one"),
        ('[[sink]]\nname = "b"\nformat = "csv"\npath = "x"\nmode = "complete"',
         "12: sink.b.mode 'complete'; format csv allows append"),
        ('[[sink]]\nname = "b"\nformat = "nsq"\npartition_by = "x"', "11: sink.b.partition_by "
         "has no meaning for format nsq"),
        ('[[sink]]\nname = "b"\nformat = "nsq"\noptions = { topic = "x" }', "11: sink.b.options."
         "topic has a key of its own, outside of options"),
        ('[[sink]]\nname = "b"\nformat = "nsq"\noptions = { maxBatchByte = "1" }', "11: sink.b."
         "options.maxBatchByte: unknown option 'maxBatchByte'; did you mean maxBatchBytes? "
         "allowed are authSecret, authSecretEnv, authSecretFile, deflate, lookupd, "
         "maxBatchBytes, nsqd, snappy, tls, tlsCaFile, tlsCertFile, tlsKeyFile, tlsVerify, "
         "topic"),
        ('[run]\nmaster = "sc://x"', "9: run.master 'sc://x'; allowed is any but Spark Connect"),
        ('[run]\ncheckpoint = "hdfs://x/y"', "9: run.checkpoint: spoolLocation 'hdfs://x/y': "
         "hdfs is not among the stores proven to create exclusively; allowed: an absolute path, "
         "file:///path, s3://bucket/prefix or s3a://bucket/prefix; the spool is there too unless "
         "run.spool says another place"),
        ('[source.options]\nmsgTimeout = "1d"', "9: source.options.msgTimeout: msgTimeout '1d'; "
         "allowed is a time of 1s to 24h (units: ms, s, m, h; a bare number is seconds)"),
        ('[source.options]\nspoolLocation = "/x"', "9: source.options.spoolLocation has a key of "
         "its own, outside of options"),
    ],
)  # fmt: skip
def test_a_mistake_in_what_is_added_is_told_too(tmp_path: Path, added: str, problem: str) -> None:
    assert refusal(tmp_path, SMALLEST + added) == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", " sink is missing; a pipeline writes to one sink or more"),
        ("[source]\nfiles = 'x'", " sink is missing; a pipeline writes to one sink or more"),
        ("source = 5", "1: source is a single value; allowed is a table"),
        ("sink = 'x'", "1: sink is no array of tables; each has a header [[sink]]"),
    ],
)
def test_files_that_lack_the_most_are_told_so(tmp_path: Path, text: str, problem: str) -> None:
    assert refusal(tmp_path, text) == problem


def test_two_sinks_can_not_write_to_one_folder(tmp_path: Path) -> None:
    text = SMALLEST.replace("console", "json") + "path = 'x/'\n"
    text += "[[sink]]\nname = 'b'\nformat = 'csv'\npath = './x'\n"
    assert "is that of another sink; two queries can't write to one folder" in refusal(
        tmp_path, text
    )


def test_two_sinks_can_not_have_one_name_however_short(tmp_path: Path) -> None:
    text = SMALLEST.replace('"out"', '"a"') + "[[sink]]\nname = 'a'\nformat = 'nsq'\n"
    said = refusal(tmp_path, text + "channel = 'other'\n")
    assert said.startswith("9: sink.a.name 'a' is that of another sink; ")


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
    assert said.startswith("11: source.options.tlss: unknown option 'tlss'; did you mean tls?")


def test_a_mistake_that_was_set_is_told_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "views.toml").write_text(SMALLEST)
    with pytest.raises(ConfigError, match=r"^--set: sink\.out\.mode 'x'; allowed is append, "):
        load_pipeline(tmp_path / "views.toml", ["sink.out.mode=x"])


def test_a_value_from_the_environment_is_not_told_with_a_mistake(tmp_path: Path) -> None:
    text = SMALLEST + "mode = '${MODE}'"
    assert refusal(tmp_path, text, MODE="hunter2") == (
        "8: sink.out.mode '${MODE}'; allowed is append, update or complete"
    )


def test_the_value_of_a_key_that_nobody_knows_is_not_told(tmp_path: Path) -> None:
    assert "hunter2" not in refusal(tmp_path, SMALLEST + "pasword = 'hunter2'")
