"""The package as its users get it: a wheel in a clean environment."""

import pickle
import sys
import zipfile
from pathlib import Path
from uuid import uuid4

import pytest

import nsqflow
from tests.fixtures.environments import build_wheel, install, run
from tests.fixtures.servers import ROOT, Nsqd
from tests.fixtures.spark import published

# Importing nsqflow must not cost what only a part of it needs.
HEAVY = {
    *("cramjam", "h11", "mmh3", "pyarrow", "pyspark", "rich", "ssl"),
    *("typer", "uvicorn", "uvloop"),
}

# What must work after a plain `pip install nsqflow`.
WITHOUT_EXTRA = [
    *("errors.py", "protocol/*.py", "http/*.py", "client/*.py", "broker/**/*.py"),
    *("admin/*.py", "blocking/*.py", "cli/__init__.py", "__main__.py"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("clean") / "venv")


def test_the_wheel_holds_the_typed_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = f"nsqflow-{nsqflow.__version__}.dist-info/"
    assert "nsqflow/py.typed" in names
    assert f"{info}licenses/LICENSE" in names
    packages = [f"{folder.name}/" for folder in (ROOT / "src").iterdir()]
    assert [name for name in names if not name.startswith((*packages, info))] == []
    in_tree = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert in_tree <= set(names)


def test_the_installed_wheel_imports_and_knows_its_version(clean_python: Path) -> None:
    program = (
        "import nsqflow, importlib.metadata as metadata;"
        "print(nsqflow.__version__, metadata.version('nsqflow'), nsqflow.NsqError.__name__)"
    )
    version = nsqflow.__version__
    assert run(clean_python, "-I", "-c", program).split() == [version, version, "NsqError"]


def test_the_parts_without_an_extra_need_no_more_than_the_wheel_declares(
    clean_python: Path,
) -> None:
    modules = [
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for part in WITHOUT_EXTRA
        for path in sorted((ROOT / "src/nsqflow").glob(part))
        if path.name != "pytest_plugin.py"  # it is pytest that imports it
    ]
    assert modules
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    run(clean_python, "-I", "-W", "error", "-c", program, *modules)


def test_importing_the_package_loads_none_of_its_heavy_parts() -> None:
    program = "import sys; before = {*sys.modules}; import nsqflow; print(*{*sys.modules} - before)"
    loaded = {name.split(".")[0] for name in run(sys.executable, "-I", "-c", program).split()}
    assert "nsqflow" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("module", ["pyspark_nsq", "nsqflow.spark", "nsqflow.spark.options"])
def test_what_spark_imports_for_every_source_loads_nothing_that_only_reads_need(
    module: str,
) -> None:
    # Spark imports pyspark_nsq in the driver of every program that uses a source written in Python.
    program = (
        "import sys, pyspark.sql.datasource; before = {*sys.modules};"
        f"import {module}; print(*{{*sys.modules}} - before)"
    )
    loaded = {name.split(".")[0] for name in run(sys.executable, "-c", program).split()}
    assert "nsqflow" in loaded
    assert loaded & {*HEAVY, "asyncio", "fsspec", "numpy", "pandas", "s3fs"} == set()


# As a task of Spark does it: all that it needs arrives pickled.
READ = """
import pickle, sys
reader, shares = pickle.loads(bytes.fromhex(sys.argv[1]))
print(sum(batch.num_rows for share in shares for batch in reader.read(share)), *sys.modules)
"""


def test_a_task_reads_without_pandas_and_without_an_event_loop(tmp_path: Path, nsqd: Nsqd) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from nsqflow.spark.options import parse_stream
    from nsqflow.spark.source.reader import NsqStreamReader

    topic = f"t{uuid4().hex[:16]}"
    options = {"topic": topic, "channel": "c", "spoolLocation": str(tmp_path / "spool")}
    servers = {"nsqd": nsqd.tcp_address, "nsqdHttp": nsqd.http_address}
    driver, executor = (NsqStreamReader(parse_stream(options | servers)) for _ in range(2))
    published(nsqd, topic, 10)
    start = driver.initialOffset()
    shares = driver.partitions(start, driver.latestOffset(start, ReadAllAvailable()))
    driver.stop()
    rows, *loaded = run(sys.executable, "-c", READ, pickle.dumps((executor, shares)).hex()).split()
    assert int(rows) > 0
    assert "pyarrow" in loaded
    assert {*loaded} & {"asyncio", "fsspec", "pandas", "s3fs", "ssl"} == set()


def test_every_public_name_is_there_when_asked_for() -> None:
    for name in nsqflow.__all__:
        assert getattr(nsqflow, name).__name__ == name
    assert set(nsqflow.__all__) <= set(dir(nsqflow))
    assert set(nsqflow.__all__) == set(vars(nsqflow)["_MODULE_OF"])


def test_every_public_name_of_the_spark_package_is_there_when_asked_for() -> None:
    from nsqflow import spark

    for name in spark.__all__:
        assert getattr(spark, name).__name__ == name
    assert set(spark.__all__) == set(vars(spark)["_HOMES"])


def test_what_starting_spark_raises_is_public() -> None:
    from nsqflow import spark
    from nsqflow.spark import jvm, startup

    raised = {
        name: value
        for module in (jvm, startup)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, nsqflow.NsqError)
    }
    assert {value.__module__ for value in raised.values()} == {"nsqflow.errors"}
    own = {"JavaStartError", "SparkError", "SparkExitedError"}
    assert own <= raised.keys()
    assert own <= set(spark.__all__)


def test_a_mistyped_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'nsqflow' has no attribute 'Prodcer'"):
        _ = nsqflow.Prodcer  # type: ignore[attr-defined]
