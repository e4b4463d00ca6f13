"""Starts Spark; the only place in this package that does.

    from nsqflow.spark import session

    spark = session("orders")
    spark.readStream.format("nsq")...

Driver and workers run this Python, Java is found or taken from the extra ``java``, and the format
``nsq`` is registered: nothing has to be configured before.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from nsqflow.errors import ConfigError, SparkError, SparkExitedError
from nsqflow.extras import install_hint
from nsqflow.spark import internals, jvm
from nsqflow.spark.java import prepare_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOCAL = "local[*,4]"
"""The default master: all cores of this machine, and up to four attempts for each task."""

_LOG = Path(__file__).parent / "log4j2.properties"
_MASTER = re.compile(r"^\s*spark\.master[\s=:]+(\S+)", re.MULTILINE)
# The names of settings that Spark itself redacts.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def session(
    app_name: str | None = None,
    *,
    master: str | None = None,
    conf: Mapping[str, str | int | float | bool] | None = None,
) -> SparkSession:
    """Return a ``SparkSession`` that knows ``format("nsq")``; start Spark if none runs.

    ``app_name`` is what Spark's UI shows, ``nsqflow`` if not given. ``master`` is the Spark to run
    on; without it the one that is configured (``spark.master`` in ``conf``, spark-submit,
    ``PYSPARK_SUBMIT_ARGS``, ``spark-defaults.conf``, ``MASTER``), else all cores of this machine.
    ``conf`` are settings of Spark such as ``{"spark.driver.memory": "4g"}``; they override the
    defaults here and Spark's own files.

    A session that is already active is returned unchanged, and the arguments have no effect. What
    spark-submit configures overrides the defaults here. ``docs/spark.md`` lists the defaults.
    """
    _check_packages()
    from pyspark.sql import SparkSession

    if active := SparkSession.getActiveSession():
        return _with_nsq(active)
    settings = {name: _text(value) for name, value in (conf or {}).items()}
    settings |= {"spark.app.name": app_name} if app_name else {}
    settings |= {"spark.master": master} if master else {}
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    remote = "SPARK_REMOTE" in os.environ or settings.get("spark.master", "").startswith("sc:")
    if internals.running_gateway() is not None or submitted or remote:
        return _with_nsq(_built(settings))
    spark = start_spark(settings, on_stderr=_show_java)
    if threading.current_thread() is threading.main_thread():
        _interrupt_jobs(spark)
    return spark


def start_spark(
    settings: Mapping[str, str],
    *,
    log_level: str = "error",
    on_stderr: jvm.Lines | None = None,
    translate_errors: AbstractContextManager[object] | None = None,
) -> SparkSession:
    """Start a JVM, and Spark in it, with the format ``nsq``; end both on any error.

    ``on_stderr`` gets each line that the JVM writes to stderr; by default they go to our stderr.
    ``translate_errors`` may raise another error for an error of Spark while the JVM, which has its
    text, still runs; otherwise it is raised as ``SparkError``.
    """
    prepare_java()
    _set_python()
    settings = {
        "spark.app.name": "nsqflow",
        "spark.master": _configured_master() or LOCAL,
        "spark.ui.showConsoleProgress": "false",  # spark-submit would turn it on
        **settings,
    }
    # On a thread, which signals do not interrupt: pyspark would lose a JVM that is starting, and
    # would read the answer to an interrupted call as that to the next one.
    with ThreadPoolExecutor(1, "nsqflow-start") as thread:
        launched = thread.submit(_launch, settings, log_level, on_stderr)
        context = thread.submit(_start_context, settings, launched)
        try:
            with translate_errors or nullcontext():
                return _with_nsq(_session_of(context.result()))
        except BaseException as error:
            if (failure := launched.exception()) is not None:
                raise failure from None
            text = _text_of(error)
            jvm.end(launched.result())
            if text and "stopped SparkContext" in text:
                master = settings["spark.master"]
                raise SparkExitedError(f"{master} can't be reached, or refuses Spark") from None
            if text:
                raise SparkError(text) from None
            raise


def end_spark(spark: SparkSession) -> None:
    """End Spark that ``start_spark`` started, and wait until its JVM has ended."""
    gateway = internals.running_gateway()
    try:
        if gateway.proc.poll() is None:
            spark.stop()
    finally:
        jvm.end(gateway)


def _set_python() -> None:
    """Have Spark run this Python: another one may not have nsqflow, and so not the format ``nsq``.

    The executors of a cluster may need another path, so ``PYSPARK_PYTHON`` is kept if it is set.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable  # it may name a notebook server


def _launch(settings: Mapping[str, str], log_level: str, on_stderr: jvm.Lines | None) -> Any:
    options = f"-Dlog4j2.configurationFile={_LOG.as_uri()} -Dnsqflow.log={log_level}"
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    environment = {"SPARK_SUBMIT_OPTS": f"{options} {given}".strip(), **_import_path()}
    if settings["spark.master"].startswith("local"):
        # Its ports, including that of the UI, are reachable from this machine only.
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"
    # Every user of the machine can read the command line of a process.
    plain = {name: text for name, text in settings.items() if not _SECRET.search(name)}
    return jvm.launch(plain, environment, on_stderr)


def _import_path() -> dict[str, str]:
    """Return the variables that have workers import what we import, and nothing else.

    Spark starts them with ``python -m``, which searches the current folder first: a file there,
    such as ``queue.py``, would be imported by them.
    """
    ours = sys.path[0] if sys.path and not sys.flags.safe_path else None
    if ours == "":  # an interactive Python imports from the current folder
        return {}
    known = [ours, os.environ.get("PYTHONPATH")]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, known))}


def _start_context(settings: Mapping[str, str], launched: Future[Any]) -> SparkContext:
    from pyspark import SparkContext

    gateway = launched.result()
    conf = internals.submitted_conf(gateway)
    for name, text in settings.items():
        conf.set(name, text)
    for name, text in _defaults(conf.get("spark.master") or "").items():
        conf.setIfMissing(name, text)
    return SparkContext(conf=conf, gateway=gateway)


def _defaults(master: str) -> dict[str, str]:
    """Return the defaults for what is not configured."""
    defaults = {}
    if master.startswith("local"):
        # Spark's default of 200 is for a cluster: as many state stores slow down one machine.
        defaults["spark.sql.shuffle.partitions"] = "4"
    if find_spec("pandas") is None:
        # Otherwise each udf warns that pandas is missing, and falls back.
        defaults["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    return defaults


def _session_of(context: SparkContext) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession(context)


def _text_of(error: BaseException) -> str | None:
    """Return the first line of Spark's error, None for other errors; the JVM must still run."""
    from pyspark.errors import PySparkException

    java = getattr(error, "java_exception", None)
    if java is None and not isinstance(error, PySparkException):
        return str(error) if "stopped SparkContext" in str(error) else None
    text = str(error if java is None else java.getMessage() or java.getClass().getName())
    return next(iter(text.splitlines()), type(error).__name__)


def _built(settings: Mapping[str, str]) -> SparkSession:
    """Return a session of a JVM or server that is already running."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, text in settings.items():
        builder = builder.remote(text) if text.startswith("sc:") else builder.config(name, text)
    return builder.getOrCreate()


def _with_nsq(spark: SparkSession) -> SparkSession:
    # Spark finds the format by itself only if every module pyspark_* can be imported.
    from nsqflow.spark.datasource import NsqDataSource

    spark.dataSource.register(NsqDataSource)
    return spark


def _interrupt_jobs(spark: SparkSession) -> None:
    """Have Ctrl-C cancel running jobs, as pyspark does when its context is started."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        # On a thread: this one may be in the middle of a call to the JVM.
        threading.Thread(target=cancel, name="nsqflow-cancel", daemon=True).start()
        raise KeyboardInterrupt

    def cancel() -> None:
        with suppress(Exception):  # it may be ending
            spark.sparkContext.cancelAllJobs()

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
        # py4j logs that it was interrupted, with its stack, and raises KeyboardInterrupt as well.
        logging.getLogger().addFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    interrupted = record.exc_info is not None and record.exc_info[0] is KeyboardInterrupt
    return not (interrupted and record.module in ("clientserver", "java_gateway"))


def _show_java(line: str) -> None:
    if not jvm.is_noise(line):
        print(line, file=sys.stderr, flush=True)


def _configured_master() -> str | None:
    """Return the master that spark-submit would find, None if there is none."""
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for word, following in pairwise([*words, ""]):
        if word == "--master":
            return following
        if word.startswith(("--master=", "spark.master=")):
            return word.partition("=")[2]
    import pyspark

    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    folder = os.environ.get("SPARK_CONF_DIR") or Path(home, "conf")
    try:
        found = _MASTER.search(Path(folder, "spark-defaults.conf").read_text())
    except OSError:
        found = None
    return found[1] if found else os.environ.get("MASTER")


def _check_packages() -> None:
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise ConfigError(f"Spark needs {package}: {install_hint('spark')}")


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
