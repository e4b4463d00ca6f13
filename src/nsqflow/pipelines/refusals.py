"""What Spark refuses, in one line, and said of the key that asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nsqflow.pipelines.keys import Place

# An exception as Python and Java write it below a stack, and what Java names as its cause.
_EXCEPTION = re.compile(
    r"^(?:: |Caused by: )?(?:[A-Za-z_]\w*\.)*([A-Z]\w*): (?!Traceback)(.+)$", re.MULTILINE
)
_STACK = re.compile(r"Traceback \(most recent call last\)|\n\tat ")
_QUERY = "\n=== Streaming Query ==="
_FAILED = re.compile(r"\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)
_STATE = re.compile(r" SQLSTATE: \w{5}")
_LONGEST = 1000  # characters of a reason; a plan of Spark's can be a page
_FIRST_LINE = re.compile(r"(?<=line 1 pos )\d+|(?<=line 1, pos )\d+")

_HINTS = {
    "no nsqd can be asked|no nsqlookupd can be asked": "nsqflow doctor finds out why",
    "failed to connect back": "the machine was too busy to start Python in ten seconds",
    "CONCURRENT_STREAM_LOG_UPDATE|Race while writing batch": "is the pipeline run twice at once?",
    r"STATE_STORE_\w*(SCHEMA|FORMAT)|STATEFUL_OPERATOR": (
        "the steps before a sum were changed: restore them, or give the sink another name"
    ),
    "suitable driver|ClassNotFound": "spark.jars or spark.jars.packages in [run.conf] bring jars",
}
_REPEATED = "started again, it goes on where it was"


@contextmanager
def refusals(place: Place, key: str, shift: int = 0) -> Iterator[None]:
    """Raise what Spark refuses meanwhile as a ``ConfigError`` of that key.

    ``shift`` is how many characters we have put before what the key says.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and _java(error) is None:
            raise
        text = _FIRST_LINE.sub(lambda match: str(max(int(match[0]) - shift, 0)), reason(error))
        raise place.wrong(key, f": {text}") from error


def reason(error: Exception) -> str:
    """Say in one line why something failed in Spark."""
    java = _java(error)
    text = str(error if java is None else java.getMessage() or java.getClass().getName())
    text = _FAILED.sub("", text).partition(_QUERY)[0].strip()
    found = _EXCEPTION.findall(text) if _STACK.search(text) else []
    # The last is the root of it; Spark packs those of tasks and of Python into its own.
    if told := [f"{kind}: {said}" for kind, said in found if kind != "Py4JJavaError"]:
        text = told[-1]
    line = next(iter(text.splitlines()), type(error).__name__)
    return _STATE.sub("", line).rstrip("; ")[:_LONGEST]


def with_hint(text: str) -> str:
    """Add to a reason what to do about it."""
    hints = (hint for pattern, hint in _HINTS.items() if re.search(pattern, text))
    return f"{text.rstrip('.')}; {next(hints, _REPEATED)}"


def _java(error: Exception) -> Any:
    return getattr(error, "java_exception", None)
