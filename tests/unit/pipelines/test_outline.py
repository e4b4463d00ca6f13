"""What is told of a pipeline: all that is worth knowing, and nothing from the environment."""

import json
from pathlib import Path

from nsqflow.cli.progress import describe
from nsqflow.pipelines.outline import outline
from nsqflow.pipelines.pipeline import Pipeline, load_pipeline

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


def test_the_outline_tells_what_is_read_done_and_written(tmp_path: Path) -> None:
    told = outline(load(tmp_path))
    data = f"{tmp_path}/nsqflow-data/views"
    assert (told["pipeline"], told["master"]) == ("views", "local[*,4]")
    assert told["source"]["topic"] == "views,clicks"
    assert [step["name"] for step in told["steps"]] == ["views", "step2"]
    assert told["steps"][0]["watermark"] == "at, 1 minute"
    assert told["steps"][1] == {"name": "step2", "python": "steps:slow"}
    assert [sink["once"] for sink in told["sinks"]] == [True, False, False]
    assert told["sinks"][1] == {
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


def test_nothing_from_the_environment_is_told(tmp_path: Path) -> None:
    pipeline = load(tmp_path)
    told = outline(pipeline)
    assert told["sinks"][0]["to"] == f"{tmp_path}/data/${{PASSWORD}}"
    assert "hunter2" not in json.dumps(told) + describe(told) + repr(pipeline)


def test_a_sink_has_the_name_by_which_its_batches_go(tmp_path: Path) -> None:
    assert outline(load(tmp_path))["sinks"][2]["name"] == "dead-letters"


def test_a_backfill_has_no_channel_and_no_spool(tmp_path: Path) -> None:
    told = outline(load(tmp_path, "source.files=old/*.txt", "source.format=text"))
    assert told["source"] == {"files": f"{tmp_path}/old/*.txt", "format": "text"}
    assert {"channel", "spool"}.isdisjoint(told["sinks"][0])
    assert f"  reads    text files {tmp_path}/old/*.txt\n" in describe(told)


def test_the_outline_for_people_has_a_line_for_each_part(tmp_path: Path) -> None:
    told = outline(load(tmp_path, "source.lookupd=lookupd:4161", "sink.files.path=/data"))
    data = f"{tmp_path}/nsqflow-data/views"
    assert describe(told).splitlines()[:10] == [
        f"pipeline views of {tmp_path}/views.toml, on local[*,4]",
        "  reads    topic views,clicks, nsqlookupd lookupd:4161",
        "  parses   json n INT, at TIMESTAMP",
        "  joins    pages, jdbc ",
        "  does     views: sql, watermark at, 1 minute",
        "  does     step2: python steps:slow",
        "  writes   files: views as parquet to /data, each row once",
        "             channel    c.files",
        f"             checkpoint {data}/files/checkpoint",
        f"             spool      {data}/files/spool",
    ]


def test_what_would_talk_to_a_terminal_is_escaped(tmp_path: Path) -> None:
    told = outline(load(tmp_path, "sink.files.path=/x\x1b[2J"))
    assert "/x\\x1b[2J" in describe(told)
