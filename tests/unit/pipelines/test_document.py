"""A pipeline file as it is written: syntax, --set and variables."""

from pathlib import Path
from typing import Any

import pytest

from nsqflow.errors import ConfigError
from nsqflow.pipelines.document import Document, Interpolated, read_file, with_same_source

SET_RULE = "is invalid: must be key=value, as in --set run.trigger='10 seconds'"

TEXT = """\
[source]
topic = "views"

[[sink]]
name = "archive"
format = "parquet"
options = { compression = "zstd" }

[[sink]]
format = "console"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "views.toml"
    path.write_text(TEXT)
    return path


def read(path: Path, *settings: str, **environment: str) -> Document:
    return read_file(path, settings, environment)


def refusal(path: Path, *settings: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, *settings, **environment)
    return str(caught.value)


# --- the text -----------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert refusal(path) == f"{path}: No such file or directory"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"a = 1\nb 2\n", ":2: Expected '=' after a key in a key/value pair, at column 3"),
        (b"a = 1\nb = '''x\n", ":3: Expected \"'''\""),
        (b"a = 1\na = 2\n", ":2: Cannot overwrite a value, at column 6"),
        (b"a = 1\n\xff = 2\n", ":2: the file is not UTF-8"),
        (b"a = " + b"[" * 9999, ": lists or tables are nested too deeply"),
        (b"#" * (1 << 20) + b"#", ": the file has more than 1048576 bytes"),
    ],
)
def test_invalid_toml_is_reported_with_its_line(file: Path, text: bytes, problem: str) -> None:
    file.write_bytes(text)
    assert refusal(file) == f"{file}{problem}"


def test_an_error_names_the_line_and_the_key_as_set_would(file: Path) -> None:
    document = read(file)
    places = {
        ("source", "topic"): ":2: source.topic",
        ("sink", 0, "format"): ":6: sink.archive.format",
        ("sink", 0, "options", "compression"): ":7: sink.archive.options.compression",
        ("sink", 0, "path"): ":4: sink.archive.path",
        ("sink", 1, "format"): ":10: sink.2.format",
        ("run", "master"): ": run.master",
    }
    for path, place in places.items():
        assert str(document.error(path, " is wrong")) == f"{file}{place} is wrong"


# --- --set --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("source.topic=orders", ("source", "topic"), "orders"),
        ("source.topic=a=b", ("source", "topic"), "a=b"),
        ("source.channel=", ("source", "channel"), ""),
        ("run.master=local[2]", ("run", "master"), "local[2]"),
        ("run.conf.spark.ui.enabled=false", ("run", "conf", "spark.ui.enabled"), "false"),
        ("sink.archive.format=json", ("sink", 0, "format"), "json"),
        ("sink.2.format=json", ("sink", 1, "format"), "json"),
        ("sink.archive.options.a.b=1", ("sink", 0, "options", "a.b"), "1"),
        ("name=other", ("name",), "other"),
    ],
)
def test_a_setting_reaches_every_key(
    file: Path, setting: str, path: tuple[Any, ...], value: str
) -> None:
    document = read(file, setting)
    found: Any = document.data
    for part in path:
        found = found[part]
    assert found == value
    assert str(document.error(path, "")).startswith("--set: ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500", 500),
        ("0.5", 0.5),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("'500'", "500"),
        ("shop", "shop"),
        ("", ""),
        ("1\nb = 2", "1\nb = 2"),
        ("[" * 9999, "[" * 9999),
    ],
)
def test_a_setting_of_an_argument_has_the_type_that_it_is_written_as(
    file: Path, text: str, value: object
) -> None:
    file.write_text('[[transform]]\nname = "slow"\n')
    document = read(file, f"transform.slow.arguments.least={text}")
    assert document.data["transform"][0]["arguments"] == {"least": value}


def test_the_last_of_two_settings_counts(file: Path) -> None:
    assert read(file, "name=a", "name=b").data["name"] == "b"


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            "topic",
            "--set 'topic' is invalid: must be key=value, as in --set run.trigger='10 seconds'",
        ),
        ("=x", "--set '' is invalid: must be key=value, as in --set run.trigger='10 seconds'"),
        (
            "a..b=x",
            "--set 'a..b' is invalid: must be key=value, as in --set run.trigger='10 seconds'",
        ),
        ("source.topic.x=y", "--set source.topic.x: source.topic is not a table"),
        ("sink.archve.path=y", "--set sink.archve does not exist; there are archive, 2"),
        ("sink.path=y", "--set sink.path: sink is not a table"),
    ],
)
def test_a_setting_that_leads_nowhere_is_refused(file: Path, setting: str, problem: str) -> None:
    assert refusal(file, setting) == problem


# --- variables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${A}", "one"),
        ("x${A}-${B}y", "xone-twoy"),
        ("${C:-three}", "three"),
        ("${A:-three}", "one"),
        ("${C:-}", ""),
        ("$${A}", "${A}"),
        ("$A {A} $$ ${B}", "$A {A} $$ two"),
        ("${D}", "${A}"),
    ],
)
def test_variables_are_filled_in_once(file: Path, written: str, value: str) -> None:
    file.write_text(f"name = '{written}'\nlist = [{{ x = '{written}' }}]\n")
    document = read(file, A="one", B="two", D="${A}")
    assert document.data == {"name": value, "list": [{"x": value}]}


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            "${SECRET}",
            "SECRET is not in the environment; ${SECRET:-...} sets a default",
        ),
        ("${a b}", "'${a b}' is not a variable; write $${ for a literal ${"),
        ("x${A", "'${A' is not a variable; write $${ for a literal ${"),
        ("${}", "'${}' is not a variable; write $${ for a literal ${"),
    ],
)
def test_a_variable_that_is_missing_is_named_with_its_line(
    file: Path, written: str, problem: str
) -> None:
    file.write_text(f"\n[source]\ntopic = '{written}'\n")
    assert refusal(file, A="one") == f"{file}:3: source.topic: {problem}"


def test_a_key_that_is_set_needs_no_variable(file: Path) -> None:
    file.write_text("name = '${NAME}'")
    assert read(file, "name=x").data == {"name": "x"}
    assert refusal(file, "name=${OTHER}").startswith("--set: name: OTHER is not in")


def test_what_came_from_the_environment_is_never_shown(file: Path) -> None:
    file.write_text("[source]\nurl = 'db://me:${PASSWORD}@host'\n")
    document = read(file, PASSWORD="s3cret", UNUSED="host")
    url = document.data["source"]["url"]
    assert url == "db://me:s3cret@host"
    assert isinstance(url, Interpolated)
    assert "s3cret" not in repr(document) + repr(url) + repr(with_same_source(url, url[5:]))
    error = document.error(("source", "url"), f" {url}; no s3cret here")
    assert str(error) == f"{file}:2: source.url db://me:${{PASSWORD}}@host; no ${{PASSWORD}} here"


def test_what_is_too_short_for_a_secret_leaves_errors_readable(file: Path) -> None:
    file.write_text("a = '${N}'")
    assert read(file, N="a").hide("a table") == "a table"


def test_all_variables_that_are_missing_are_named_at_once(file: Path) -> None:
    file.write_text("a = '${ONE}${TWO:-x}'\nb = ['${THREE}', '${ONE}']\n")
    assert refusal(file, FOUR="4") == (
        f"{file}:1: a: ONE is not in the environment; ${{ONE:-...}} sets a default; "
        "neither is THREE; the file also reads TWO"
    )


def test_the_variables_that_a_file_reads_are_listed_by_name_with_their_keys(file: Path) -> None:
    file.write_text(
        "[source]\ntopic = '${TOPIC:-views}'\nurl = 'db://${USER}:${PASSWORD}@host/${USER}'\n"
        "[[sink]]\nname = 'out'\noptions = { 'a.b' = '${USER}', c = '$${OTHER}' }\n"
    )
    document = read(file, USER="me", PASSWORD="s3cret", OTHER="not read")
    assert document.variables_read() == [
        {"name": "PASSWORD", "set": True, "keys": ["source.url"]},
        {"name": "TOPIC", "set": False, "keys": ["source.topic"]},
        {"name": "USER", "set": True, "keys": ["source.url", "sink.out.options.a.b"]},
    ]
