"""Spark shows no traceback of our own errors in its processes."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from nsqflow.errors import ConfigError
from nsqflow.spark.internals import hide_traceback

VARIABLE = "SPARK_HIDE_TRACEBACK"


@pytest.mark.parametrize(
    ("main", "error", "hidden"),
    [
        ("pyspark.daemon", ConfigError("no"), True),
        ("pyspark.daemon", ValueError("a mistake of ours"), False),
        ("pytest.__main__", ConfigError("no"), False),
        (None, ConfigError("no"), False),
    ],
)
def test_a_traceback_is_hidden_where_the_process_ends_with_the_error(
    monkeypatch: pytest.MonkeyPatch, main: str | None, error: Exception, hidden: bool
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    spec = None if main is None else SimpleNamespace(name=main)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    with pytest.raises(type(error)), hide_traceback():
        raise error
    assert (VARIABLE in os.environ) == hidden
    monkeypatch.delenv(VARIABLE, raising=False)
