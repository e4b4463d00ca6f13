"""Checks the functions and files of a pipeline before Spark is started."""

from __future__ import annotations

import glob
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqflow.errors import ConfigError
from nsqflow.pipelines.keys import TableRef
from nsqflow.pipelines.model import Step
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.validation import is_url
from nsqflow.spark.internals import absent_spark

if TYPE_CHECKING:
    from types import ModuleType


def check_inputs(pipeline: Pipeline) -> None:
    """Raise ``ConfigError`` for a function with wrong arguments, or a missing file."""
    for step in pipeline.steps:
        if step.python:
            _check_function(step)
    for table in pipeline.tables:
        _check_path(table.ref, "path", table.path)
    _check_path(pipeline.source.ref, "files", pipeline.source.files)


def find_function(step: Step) -> Callable[..., Any]:
    """Import the function of a step."""
    assert step.python
    module, _, name = step.python.partition(":")
    function: Callable[..., Any] | None = getattr(_import(step, module), name, None)
    if not callable(function):
        raise step.ref.error("python", f" {step.python!r}: {module} has no function {name}")
    return function


def _check_function(step: Step) -> None:
    """Check the function of a step, unless its module uses Spark when it is imported."""
    with absent_spark() as spark:
        try:
            function = find_function(step)
        except ConfigError:
            if spark.was_used:  # it is imported again once Spark is started
                return
            raise
    _check_arguments(step, function)


def _check_arguments(step: Step, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have no signature
        return
    try:
        signature.bind(None, **step.arguments)
    except TypeError as error:
        problem = f" {step.python!r}: {error}; it is called with a DataFrame and the arguments"
        raise step.ref.error("python", problem) from None


def _check_path(ref: TableRef, key: str, path: str | None) -> None:
    """Raise for a missing local path; Spark checks URLs and patterns."""
    if path is None or is_url(path) or glob.has_magic(path) or "{" in path:
        return
    if not os.path.exists(path):
        raise ref.error(key, f" {path!r}: no such file or folder")


def _import(step: Step, name: str) -> ModuleType:
    folder = step.ref.document.path.absolute().parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        problem = f" {step.python!r}: {type(error).__name__}: {error}; modules are looked for "
        raise step.ref.error(
            "python", f"{problem}next to the file first, then on Python's path"
        ) from error
    _pickle_by_value(folder)
    return module


def _pickle_by_value(folder: Path) -> None:
    """Pickle the modules of a folder by value: executors do not have them."""
    from pyspark import cloudpickle

    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    for name, module in [*sys.modules.items()]:
        file, module_path = getattr(module, "__file__", None), folder.joinpath(*name.split("."))
        if file in (f"{module_path}.py", f"{module_path}/__init__.py"):
            register(module)
