"""docs/architecture.md is true: every name in it exists, and the ways are as short as it says."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import nsqflow
import nsqflow.blocking
from nsqflow.broker import BackgroundBroker
from tests.fixtures.crashing import until
from tests.fixtures.loops import asynchronous

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
STEP = re.compile(r"`(?P<module>[a-z_][a-z_0-9.]*)`: (?P<names>`[^`]+`(?:, `[^`]+`)*)")


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def steps(text: str) -> list[tuple[str, list[str]]]:
    """Return the modules that a text mentions, each with names of it."""
    return [
        (match["module"], [name.strip("`") for name in match["names"].split(", ")])
        for match in STEP.finditer(text)
    ]


@pytest.mark.parametrize(
    ("module", "name"), sorted({(module, name) for module, names in steps(PAGE) for name in names})
)
def test_every_name_exists(module: str, name: str) -> None:
    found: object = import_module(f"nsqflow.{module}")
    for part in name.split("."):
        # Of a dataclass with slots or a field without a default, the class has an annotation.
        assert hasattr(found, part) or part in getattr(found, "__annotations__", {}), name
        found = getattr(found, part, None)


@pytest.mark.parametrize(
    ("section", "at_most"),
    [("A received message", 11), ("A publish", 10), ("A Spark batch", 32)],
)
def test_a_path_touches_few_modules(section: str, at_most: int) -> None:
    modules = {module for module, _ in steps(sections()[section])}
    assert 5 < len(modules) <= at_most


async def steady_modules(work: Callable[[], Awaitable[None]]) -> set[str]:
    """Return the modules of nsqflow whose functions run each time, once the work is warm."""
    runs: list[set[str]] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("nsqflow."):
            runs[-1].add(name.removeprefix("nsqflow."))

    await work()
    for _ in range(5):  # a timer may run in one of them
        runs.append(set())
        sys.setprofile(profile)
        try:
            await work()
        finally:
            sys.setprofile(None)
    return set.intersection(*runs)


@asynchronous
async def test_a_message_runs_the_modules_that_the_page_lists() -> None:
    async def publish() -> None:
        await asyncio.gather(*(producer.publish("t", b"x") for _ in range(500)))

    async def receive() -> None:
        for _ in range(400):  # twice max_in_flight
            (await anext(messages)).finish()

    with BackgroundBroker() as broker:  # in another thread, which is not profiled
        address = broker.nsqd_addresses[0]
        async with nsqflow.Producer(address) as producer:
            published = await steady_modules(publish)
        async with nsqflow.Consumer("t", "c", nsqd=address) as consumer:
            messages = aiter(consumer)
            received = await steady_modules(receive)
    assert published == {module for module, _ in steps(sections()["A publish"])}
    listed = {module for module, _ in steps(sections()["A received message"])}
    assert received == listed


def test_a_spark_batch_runs_the_modules_that_the_page_lists(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from nsqflow.spark.options import parse_stream
    from nsqflow.spark.source.reader import NsqStreamReader

    runs: list[set[str]] = []
    start: dict[str, Any]

    def profile(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("nsqflow.spark."):
            runs[-1].add(name.removeprefix("nsqflow."))

    def run_batch() -> None:
        """Publish, then do what Spark does in a batch, in the driver and in a task."""
        nonlocal start
        runs.append(set())
        producer.publish_many("t", [b"x"] * 1000)
        rows, end = 0, start

        def is_planned() -> bool:
            nonlocal end
            end = reader.latestOffset(start, ReadAllAvailable())
            return end != start

        while rows < 1000:
            until(is_planned)
            for partition in reader.partitions(start, end):
                rows += sum(b.num_rows for b in NsqStreamReader(options).read(partition))
            reader.commit(end)
            start = end

    with BackgroundBroker() as broker, nsqflow.blocking.Producer(broker.nsqd_addresses) as producer:
        addresses = {"nsqd": broker.nsqd_addresses[0], "nsqdHttp": broker.nsqd_http_addresses[0]}
        query = {"topic": "t", "channel": "c", "spoolLocation": str(tmp_path)}
        options = parse_stream(addresses | query)
        reader = NsqStreamReader(options)
        start = reader.initialOffset()
        run_batch()
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            for _ in range(3):
                run_batch()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            reader.stop()
    ran = set.intersection(*runs[1:])
    assert ran == {module for module, _ in steps(sections()["A Spark batch"])}


def test_every_package_is_in_the_diagram() -> None:
    packages = {path.parent.name for path in (ROOT / "src/nsqflow").glob("*/__init__.py")}
    assert [name for name in sorted(packages) if name not in sections()["Layers"]] == []
