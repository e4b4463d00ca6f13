"""The summary of a pipeline: everything worth knowing, and nothing from the environment."""

import json
from pathlib import Path

import pytest

from nsqflow.cli.run_view import describe
from nsqflow.errors import ConfigError
from nsqflow.pipelines.pipeline import Pipeline, load_pipeline
from nsqflow.pipelines.summary import summarize

TEXT = """\
[source]
topic = ["views", "clicks"]
channel = "c"
lookupd = "http://me:${PASSWORD}@lookupd:4161"
options = { authSecret = "${PASSWORD}" }
[parse]
format = "json"
schema = "n INT, at TIMESTAMP"
[[table]]
name = "pages"
format = "jdbc"
options = { url = "jdbc:x:${PASSWORD}", dbtable = "pages", password = "${PASSWORD}" }
[[transform]]
name = "views"
sql = "SELECT *, '${PASSWORD}' AS word FROM input"
watermark = "at"
delay = "1 minute"
[[transform]]
python = "steps:slow"
arguments = { word = "${PASSWORD}" }
[[sink]]
name = "files"
of = "views"
format = "parquet"
path = "data/${PASSWORD}"
[[sink]]
name = "table"
format = "jdbc"
options = { url = "jdbc:y:${PASSWORD}", dbtable = "sums", password = "${PASSWORD}" }
[[sink]]
name = "${NAME}"
of = "errors"
format = "nsq"
topic = "dead"
[run]
trigger = "1 minute"
conf = { "spark.hadoop.fs.s3a.secret.key" = "${PASSWORD}" }
"""


def load(folder: Path, *settings: str) -> Pipeline:
    path = folder / "views.toml"
    path.write_text(TEXT)
    return load_pipeline(path, settings, {"PASSWORD": "hunter2", "NAME": "dead-letters"})


def test_the_summary_has_what_is_read_done_and_written(tmp_path: Path) -> None:
    summary = summarize(load(tmp_path))
    data = f"{tmp_path}/nsqflow-data/views"
    assert (summary["pipeline"], summary["master"]) == ("views", "local[*,4]")
    assert summary["source"]["topic"] == "views,clicks"
    assert [step["name"] for step in summary["steps"]] == ["views", "step2"]
    assert summary["steps"][0]["watermark"] == "at, 1 minute"
    assert summary["steps"][1] == {"name": "step2", "python": "steps:slow"}
    assert [sink["once"] for sink in summary["sinks"]] == [True, False, False]
    assert summary["sinks"][1] == {
        "name": "table",
        "of": "step2",
        "format": "jdbc",
        "to": "sums",
        "mode": "append",
        "trigger": "1 minute",
        "once": False,
        "checkpoint": f"{data}/table/checkpoint",
        "channel": "c.table",
        "spool": f"{data}/table/spool",
    }


def test_the_summary_has_no_values_of_the_environment(tmp_path: Path) -> None:
    pipeline = load(tmp_path)
    summary = summarize(pipeline)
    assert summary["sinks"][0]["to"] == f"{tmp_path}/data/${{PASSWORD}}"
    assert "hunter2" not in json.dumps(summary) + describe(summary) + repr(pipeline)


def test_a_sink_has_the_name_by_which_its_batches_go(tmp_path: Path) -> None:
    assert summarize(load(tmp_path))["sinks"][2]["name"] == "dead-letters"


def test_a_backfill_has_no_channel_and_no_spool(tmp_path: Path) -> None:
    summary = summarize(load(tmp_path, "source.files=old/*.txt", "source.format=text"))
    assert summary["source"] == {"files": f"{tmp_path}/old/*.txt", "format": "text"}
    assert {"channel", "spool"}.isdisjoint(summary["sinks"][0])
    assert f"  reads    text files {tmp_path}/old/*.txt\n" in describe(summary)


def test_the_summary_as_text_has_a_line_for_each_part(tmp_path: Path) -> None:
    summary = summarize(load(tmp_path, "source.lookupd=lookupd:4161", "sink.files.path=/data"))
    data = f"{tmp_path}/nsqflow-data/views"
    assert describe(summary).splitlines()[:10] == [
        f"pipeline views of {tmp_path}/views.toml, on local[*,4]",
        "  reads    topic views,clicks, nsqlookupd lookupd:4161",
        "  parses   json n INT, at TIMESTAMP",
        "  joins    pages, jdbc ",
        "  does     views: sql, watermark at, 1 minute",
        "  does     step2: python steps:slow",
        "  writes   files: views as parquet to /data, exactly once, every 1 minute",
        "             channel    c.files",
        f"             checkpoint {data}/files/checkpoint",
        f"             spool      {data}/files/spool",
    ]


def test_the_summary_says_where_and_how_a_topic_is_read(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text("""\
[source]
topic = "orders"
lookupd = "lookupd:4161"
options = { ordered = "TRUE" }
[[sink]]
name = "out"
format = "console"
""")
    pipeline = load_pipeline(tmp_path / "orders.toml").starting_at("timestamp:1700000000")
    summary = summarize(pipeline)
    assert (summary["source"]["from"], summary["source"]["ordered"]) == (pipeline.begin_at, True)
    reads = "  reads    topic orders from timestamp:1700000000 in order, nsqlookupd lookupd:4161"
    assert reads in describe(summary).splitlines()


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    summary = summarize(load(tmp_path, "sink.files.path=/x\x1b[2J"))
    assert "/x\\x1b[2J" in describe(summary)


def test_the_variables_that_a_file_reads_are_in_the_summary_without_their_values(
    tmp_path: Path,
) -> None:
    text = """\
[source]
topic = "views"
nsqd = "127.0.0.1:4150"
options = { authSecretEnv = "NSQ_SECRET" }
[[sink]]
name = "files"
format = "parquet"
path = "/data/${PLACE:-here}"
[run]
conf = { "spark.my.password" = "${PASSWORD}" }
"""
    (tmp_path / "views.toml").write_text(text)
    environment = {"PASSWORD": "hunter2", "NSQ_SECRET": "swordfish"}
    summary = summarize(load_pipeline(tmp_path / "views.toml", (), environment))
    assert summary["variables"] == [
        {"name": "NSQ_SECRET", "set": True, "keys": ["source.options.authSecretEnv"]},
        {"name": "PASSWORD", "set": True, "keys": ["run.conf.spark.my.password"]},
        {"name": "PLACE", "set": False, "keys": ["sink.files.path"]},
    ]
    assert describe(summary).splitlines()[-3:] == [
        "  variable NSQ_SECRET: source.options.authSecretEnv",
        "  variable PASSWORD: run.conf.spark.my.password",
        "  variable PLACE, which is not set: sink.files.path",
    ]
    assert "hunter2" not in str(summary)
    assert "swordfish" not in str(summary)


@pytest.mark.parametrize("owner", ["source", "sink"])
def test_an_option_that_names_a_variable_takes_no_value_of_another(
    tmp_path: Path, owner: str
) -> None:
    options = 'options = { AuthSecretEnv = "${PASSWORD}" }'
    text = f"""\
[source]
topic = "views"
nsqd = "127.0.0.1:4150"
{options if owner == "source" else ""}
[[sink]]
name = "copy"
format = "nsq"
topic = "copies"
{options if owner == "sink" else ""}
"""
    (tmp_path / "views.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_pipeline(tmp_path / "views.toml", (), {"PASSWORD": "hunter2", "hunter2": "x"})
    key = "source.options" if owner == "source" else "sink.copy.options"
    assert str(caught.value).endswith(
        f": {key}.AuthSecretEnv='${{PASSWORD}}' is invalid: must be the name of a variable, "
        "without ${}"
    )


@pytest.mark.parametrize("servers", ["", 'nsqd = "127.0.0.1:4150"'])
def test_a_backfill_lists_the_variables_with_which_its_sinks_reach_nsq(
    tmp_path: Path, servers: str
) -> None:
    text = f"""\
[source]
files = "{tmp_path}"
format = "text"
options = {{ authSecretEnv = "NSQ_SECRET" }}
[parse]
format = "text"
[[sink]]
name = "copy"
format = "nsq"
topic = "copies"
{servers}
"""
    (tmp_path / "views.toml").write_text(text)
    found = {"nsqd": ["127.0.0.1:4150"]}
    path = tmp_path / "views.toml"
    pipeline = load_pipeline(path, (), {"NSQ_SECRET": "swordfish"}, lambda: found)
    keys = ["source.options.authSecretEnv"]
    expected = [] if servers else [{"name": "NSQ_SECRET", "set": True, "keys": keys}]
    assert summarize(pipeline)["variables"] == expected
    assert ("authSecretEnv" in pipeline.sink_options(pipeline.sinks[0])) == bool(expected)
