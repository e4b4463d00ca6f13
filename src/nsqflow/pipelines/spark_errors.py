"""Turns Spark's errors into one line that names the key of the pipeline file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nsqflow.pipelines.keys import TableRef

# An exception in Python's and Java's format, and Java's causes.
_EXCEPTION = re.compile(
    r"^(?:: |Caused by: )?(?:[A-Za-z_]\w*\.)*([A-Z]\w*): (?!Traceback)(.+)$", re.MULTILINE
)
_STACK = re.compile(r"Traceback \(most recent call last\)|\n\tat ")
_QUERY = "\n=== Streaming Query ==="
_FAILED = re.compile(r"\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)
# Spark's prefix of an error of the source without a stack.
_SOURCE = re.compile(r"\[PYTHON_\w+\] [^\n:]*: (?:[a-z_]\w*\.)+(?=[A-Z]\w*: )")
_STATE = re.compile(r" SQLSTATE: \w{5}")
_LONGEST = 1000  # characters; Spark's plans can be very long
_FIRST_LINE = re.compile(r"(?<=line 1 pos )\d+|(?<=line 1, pos )\d+")

_HINTS = {
    "no (nsqd|nsqlookupd|server) is reachable|no server answers": "nsqflow doctor shows why",
    "failed to connect back": "the machine was too busy to start Python in ten seconds",
    "CONCURRENT_STREAM_LOG_UPDATE|Race while writing batch": "is the pipeline running twice?",
    r"STATE_STORE_\w*(SCHEMA|FORMAT)|STATEFUL_OPERATOR": (
        "the steps before an aggregation were changed: restore them, or rename the sink"
    ),
    "suitable driver|ClassNotFound": "set spark.jars or spark.jars.packages in [run.conf]",
}
_REPEATED = "when started again, it continues where it was"


@contextmanager
def spark_errors_as_config_errors(ref: TableRef, key: str, shift: int = 0) -> Iterator[None]:
    """Raise Spark's errors in the block as a ``ConfigError`` that names the key.

    ``shift`` is the number of characters that were added before the key's value.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and _java(error) is None:
            raise
        text = _FIRST_LINE.sub(lambda match: str(max(int(match[0]) - shift, 0)), first_line(error))
        raise ref.error(key, f": {text}") from error


def first_line(error: Exception) -> str:
    """Return the reason for a failure in Spark, in one line."""
    java = _java(error)
    text = str(error if java is None else java.getMessage() or java.getClass().getName())
    text = _SOURCE.sub("", _FAILED.sub("", text).partition(_QUERY)[0].strip())
    found = _EXCEPTION.findall(text) if _STACK.search(text) else []
    # The last one is the root cause; Spark wraps errors of tasks and of Python.
    if errors := [f"{kind}: {said}" for kind, said in found if kind != "Py4JJavaError"]:
        text = errors[-1]
    line = next(iter(text.splitlines()), type(error).__name__)
    return _STATE.sub("", line).rstrip("; ")[:_LONGEST]


def with_hint(text: str) -> str:
    """Append a hint to a reason, if there is one."""
    hints = (hint for pattern, hint in _HINTS.items() if re.search(pattern, text))
    return f"{text.rstrip('.')}; {next(hints, _REPEATED)}"


def _java(error: Exception) -> Any:
    return getattr(error, "java_exception", None)
