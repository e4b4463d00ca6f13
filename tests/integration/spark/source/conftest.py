"""Streams of redesigned topics; each module has a ``broker`` of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from tests.integration.spark.source.batches import BatchRun
from tests.integration.spark.source.clusters import Start


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
def producer(broker: BackgroundBroker) -> Iterator[Producer]:
    with Producer(lookupd=broker.lookupd_addresses) as producer:
        yield producer


@pytest.fixture
def cluster(broker: BackgroundBroker) -> RedesignedCluster:
    return RedesignedCluster(lookupd=broker.lookupd_addresses)


@pytest.fixture
def start(broker: BackgroundBroker, topic: str, tmp_path: Path) -> Iterator[Start]:
    """Starts a query."""
    runs: list[BatchRun] = []

    def make(
        *, available_now: bool = False, positions: bool = True, **more: str | None
    ) -> BatchRun:
        given = {
            "topic": topic,
            "channel": "spark",
            "lookupd": ",".join(broker.lookupd_addresses),
            "spoolLocation": str(tmp_path / f"spool-{len(runs)}"),
        }
        chosen = {name: text for name, text in (given | more).items() if text is not None}
        runs.append(BatchRun(chosen, positions=positions, available_now=available_now))
        return runs[-1]

    yield make
    for run in runs:
        run.close()
