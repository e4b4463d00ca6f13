"""What Spark refuses, in one line: the reason is found, whatever it is wrapped in."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException

from nsqflow.errors import ConfigError
from nsqflow.pipelines.document import read_file
from nsqflow.pipelines.keys import TableRef
from nsqflow.pipelines.spark_errors import first_line, spark_errors_as_config_errors, with_hint

STREAM_FAILED = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [MISSING] No such table. \
SQLSTATE: 42P01
=== Streaming Query ===
Identifier: views.archive
"""

TASK = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 7, in main
    process()
nsqflow.errors.NetworkError: no nsqd is reachable: 127.0.0.1:1: refused

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""

SOURCE = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: \
nsqflow.errors.ConfigError: dedupe='never' is invalid: must be off
 SQLSTATE: 38000
"""

CAUSE = """\
org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.Job.run(Job.scala:5)
Caused by: java.sql.SQLException: No suitable driver
\tat java.sql.DriverManager.getDriver(DriverManager.java:300)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[X] It is so. SQLSTATE: 42000; line 1 pos 2", "[X] It is so.; line 1 pos 2"),
        (STREAM_FAILED, "[MISSING] No such table."),
        (TASK, "NetworkError: no nsqd is reachable: 127.0.0.1:1: refused"),
        (SOURCE, "ConfigError: dedupe='never' is invalid: must be off"),
        (CAUSE, "SQLException: No suitable driver"),
        ("first line: of two\nthe second", "first line: of two"),
        ("", "RuntimeError"),
        ("x" * 5000, "x" * 1000),
    ],
)
def test_the_reason_is_one_line(text: str, line: str) -> None:
    assert first_line(RuntimeError(text)) == line


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("NetworkError: no nsqd is reachable: x", "nsqflow doctor shows why"),
        ("DiscoveryError: no server answers: x", "nsqflow doctor shows why"),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Two.", "is the pipeline running twice?"),
        (
            "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] No.",
            "the steps before an aggregation were changed: ",
        ),
        ("SQLException: No suitable driver", "set spark.jars or spark.jars.packages in [run.conf]"),
        ("no space left on device", "when started again, it continues where it was"),
    ],
)
def test_a_reason_has_a_hint(text: str, hint: str) -> None:
    assert with_hint(text).startswith(f"{text.rstrip('.')}; {hint}")


@pytest.fixture
def ref(tmp_path: Path) -> TableRef:
    path = tmp_path / "views.toml"
    path.write_text("[source]\ntopic = '${TOPIC}'\n")
    return TableRef(read_file(path, environment={"TOPIC": "hunter2"}), ("source",))


def test_what_spark_refuses_is_an_error_of_the_key_without_secrets(ref: TableRef) -> None:
    with pytest.raises(ConfigError) as caught, spark_errors_as_config_errors(ref, "topic", 14):
        raise AnalysisException("[X] hunter2 is wrong; line 1 pos 20")
    line = f"{ref.document.path}:2: source.topic: [X] ${{TOPIC}} is wrong; line 1 pos 6"
    assert str(caught.value) == line


def test_a_position_on_a_later_line_stays_as_it_is(ref: TableRef) -> None:
    with (
        pytest.raises(ConfigError, match=r"line 2 pos 20$"),
        spark_errors_as_config_errors(ref, "topic", 14),
    ):
        raise AnalysisException("[X] it is wrong; line 2 pos 20")


def test_what_is_not_sparks_is_raised_as_it_is(ref: TableRef) -> None:
    with pytest.raises(ZeroDivisionError), spark_errors_as_config_errors(ref, "topic"):
        raise ZeroDivisionError
