"""Tests of Spark take their time on a busy machine, the first of a process most of all."""

from pathlib import Path

import pytest

from tests.fixtures.spark import SPARK_PATIENCE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = Path(__file__).parent in item.path.parents
        if here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(3 * SPARK_PATIENCE))
