"""What a pipeline needs on this machine is checked without Spark."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqflow.errors import ConfigError
from nsqflow.pipelines.inputs import check_inputs
from nsqflow.pipelines.pipeline import load_pipeline

STEPS = """
def both(frame, least, most=9):
    return frame

def any(*frames, **arguments):
    return frames[0]

number = 5
"""

TEXT = """\
[source]
topic = "views"
nsqd = "127.0.0.1:4150"
[[table]]
name = "pages"
path = "{path}"
[[transform]]
python = "{function}"
arguments = {{ {arguments} }}
[[sink]]
name = "out"
format = "console"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "nsqflow_test_steps.py").write_text(STEPS)
    (tmp_path / "nsqflow_test_broken.py").write_text("import no_such_module")
    (tmp_path / "pages").mkdir()
    paths, modules = [*sys.path], {*sys.modules}
    yield tmp_path
    sys.path[:] = paths
    for name in {*sys.modules} - modules:
        if name.startswith("nsqflow_test"):
            del sys.modules[name]


def check(
    folder: Path,
    function: str = "nsqflow_test_steps:both",
    arguments: str = "least = 1",
    path: str = "pages",
    *settings: str,
) -> None:
    text = TEXT.format(function=function, arguments=arguments, path=path)
    (folder / "views.toml").write_text(text)
    check_inputs(load_pipeline(folder / "views.toml", settings))


@pytest.mark.parametrize("path", ["pages", "s3a://bucket/pages", "none/*.csv", "no{n,ne}"])
def test_existing_files_and_those_that_only_spark_can_check_are_accepted(
    folder: Path, path: str
) -> None:
    check(folder, path=path)
    check(folder, arguments="least = 1, most = 2", path=path)
    check(folder, function="nsqflow_test_steps:any", path=path)


@pytest.mark.parametrize(
    ("function", "arguments", "problem"),
    [
        ("nsqflow_test_steps:none", "", "nsqflow_test_steps has no function none"),
        ("nsqflow_test_steps:number", "", "nsqflow_test_steps has no function number"),
        ("no_such_module:f", "", "ModuleNotFoundError: No module named 'no_such_module'; modules"),
        ("nsqflow_test_broken:f", "", "ModuleNotFoundError: No module named 'no_such_module'; mo"),
        ("nsqflow_test_steps:both", "", "missing a required argument: 'least'; it is called wi"),
        (
            "nsqflow_test_steps:both",
            "least = 1, moost = 2",
            "got an unexpected keyword argument 'moost'; it is called with a DataFrame",
        ),
    ],
)
def test_a_function_with_other_parameters_is_refused(
    folder: Path, function: str, arguments: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(folder, function, arguments)
    expected = f"{folder}/views.toml:8: transform.1.python {function!r}: {problem}"
    assert str(refusal.value).startswith(expected)


USES_OF_SPARK = {
    "a udf": "udf(lambda number: 2 * number, 'int')",
    "a udf of a type": "udf(lambda number: 2 * number, IntegerType())",
    "a column": "col('ms') > 5",
    "a session": "SparkSession.builder.getOrCreate()",
    "the active session": "SparkSession.active().conf",
    "a context": "SparkContext.getOrCreate().applicationId",
    "another context": "SparkContext('local')",
}


@pytest.mark.parametrize("use", USES_OF_SPARK.values(), ids=USES_OF_SPARK)
def test_a_module_that_uses_spark_when_it_is_imported_is_left_until_spark_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/java")  # for a Spark that is started anyway
    imports = """
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, udf
from pyspark.sql.types import IntegerType
"""
    (folder / "nsqflow_test_early.py").write_text(f"{imports}early = {use}\n{STEPS}")
    check(folder, "nsqflow_test_early:both")
    assert "nsqflow_test_early" not in sys.modules  # so it is imported again
    (folder / "nsqflow_test_early.py").write_text(f"{imports}import no_such_module\nx = {use}")
    with pytest.raises(ConfigError, match="No module named 'no_such_module'"):
        check(folder, "nsqflow_test_early:both")


def test_a_table_or_a_file_that_is_missing_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"views.toml:6: table.pages.path .*: no such file"):
        check(folder, path="none")
    with pytest.raises(ConfigError, match=r"^--set: source.files '/no/where': no such file"):
        check(folder, "nsqflow_test_steps:both", "least = 1", "pages", "source.files=/no/where")
