"""What Spark would be started with, without starting it."""

from pathlib import Path

import pytest

import nsqflow.spark
from nsqflow.errors import ConfigError
from nsqflow.spark import startup


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_SUBMIT_ARGS", "MASTER", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_session_is_a_function_however_often_it_is_asked_for() -> None:
    assert nsqflow.spark.session is startup.session
    assert nsqflow.spark.session is startup.session  # an import must not put a module there


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^Spark needs pyspark: pip install 'pyarrow>=18' 'pyspark>=4.2'$"
    ):
        startup.session()


@pytest.mark.parametrize(
    ("arguments", "master"),
    [
        ("", None),
        ("pyspark-shell", None),
        ("--master yarn pyspark-shell", "yarn"),
        ("--master=local[2] pyspark-shell", "local[2]"),
        ("--conf spark.master=spark://h:7077 pyspark-shell", "spark://h:7077"),
    ],
)
def test_a_master_for_spark_submit_is_kept(
    arguments: str, master: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert startup._configured_master() == master


def test_a_master_of_the_defaults_file_wins_over_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER", "local[1]")
    assert startup._configured_master() == "local[1]"
    text = "# spark.master none\nspark.app.name x\nspark.master\t spark://h:7077\n"
    (tmp_path / "spark-defaults.conf").write_text(text)
    assert startup._configured_master() == "spark://h:7077"


def test_the_defaults_for_one_machine_are_not_those_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup, "find_spec", lambda name: object())
    assert startup._defaults("local[*,4]") == {"spark.sql.shuffle.partitions": "4"}
    assert startup._defaults("spark://h:7077") == {}
    monkeypatch.setattr(startup, "find_spec", lambda name: None)
    arrow = {"spark.sql.execution.pythonUDF.arrow.enabled": "false"}
    assert startup._defaults("yarn") == arrow


def test_settings_of_any_type_become_text() -> None:
    assert [startup._text(value) for value in (True, False, 4, 0.5, "x")] == [
        *("true", "false", "4", "0.5", "x")
    ]
