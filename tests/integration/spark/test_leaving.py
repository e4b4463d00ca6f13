"""What leaves the spool: tasks that come after it, and ids that stay unconfirmed.

A reader that is not Spark's reads shares of an nsqd here; the rules are the same for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from nsqflow.errors import SpoolError
from nsqflow.spark.options import SourceOptions, parse_stream
from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.source.partition_reader import read_partition
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.cleaner import SpoolCleaner
from nsqflow.spark.spool.layout import planned_marker
from nsqflow.spark.spool.slot_format import SlotFooter
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import ObjectStore, open_store
from tests.fixtures.crashing import await_channel, channel, create_channel
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import published

if TYPE_CHECKING:
    import pyarrow as pa

GEN = "generation"


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that fills slots of 10 messages."""
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), options=["-max-rdy-count=10"]) as server:
        yield server


@dataclass(frozen=True)
class Plan:
    """What a driver would have: options, the spool, and where to read."""

    nsqd: Nsqd
    topic: str
    options: SourceOptions
    store: ObjectStore

    def share(self, seq: int, budget: int) -> NsqInputPartition:
        """The only share of a batch, which is planned by this."""
        self.store.write(planned_marker(GEN, seq), b"{}")
        key = make_key(self.topic, self.nsqd.tcp_address)
        return NsqInputPartition(PartitionId(GEN, seq, key, 0), budget)

    def bodies(self, share: NsqInputPartition) -> list[bytes]:
        """All that a task reads of a share."""
        return [body for batch in read_partition(share, self.options) for body in bodies_of(batch)]

    def await_all_back(self, count: int) -> None:
        """Wait until nsqd has ``count`` messages again, because they were requeued."""
        await_channel(self.nsqd, self.topic, depth=count, in_flight_count=0)
        # It may have been delivering one when it was stopped.
        assert channel(self.nsqd.http_address, self.topic)["timeout_count"] <= 1

    def clean(self, committed: int) -> None:
        """What follows on a commit where only one batch is retained."""
        SpoolCleaner(self.store, retain=1, everything=False).clean(GEN, committed)


@pytest.fixture
def plan(nsqd: Nsqd, tmp_path: Path) -> Plan:
    topic = f"leaving-{uuid4().hex[:8]}"
    options = {
        "topic": topic,
        "channel": "spark",
        "nsqd": nsqd.tcp_address,
        "nsqdHttp": nsqd.http_address,
        "spoolLocation": str(tmp_path),
        "idleTimeout": "200ms",
        "msgTimeout": "5s",
    }
    create_channel(nsqd, topic)
    return Plan(nsqd, topic, parse_stream(options), open_store(str(tmp_path)))


def bodies_of(batch: pa.RecordBatch) -> list[bytes]:
    bodies: list[bytes] = batch.column("body").to_pylist()
    return bodies


# --- tasks that come too late -------------------------------------------------------------------


def test_a_task_whose_batch_left_the_spool_fails_and_requeues_everything(plan: Plan) -> None:
    first = published(plan.nsqd, plan.topic, 25)
    share = plan.share(1, 25)
    assert sorted(plan.bodies(share)) == first

    zombie = read_partition(share, plan.options)
    assert len(bodies_of(next(zombie))) == 10
    plan.clean(2)
    second = published(plan.nsqd, plan.topic, 25, first=25)
    with pytest.raises(SpoolError, match="too late"):
        next(zombie)

    plan.await_all_back(25)
    assert sorted(plan.bodies(plan.share(2, 50))) == second


def test_a_task_whose_batch_leaves_while_it_pulls_fails_and_requeues_everything(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = published(plan.nsqd, plan.topic, 10)
    share = plan.share(1, 10)
    create = Slots.create

    def create_too_late(*arguments: object) -> SlotFooter | None:
        plan.clean(2)
        return create(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "create", create_too_late)
        with pytest.raises(SpoolError, match="too late"):
            plan.bodies(share)

    plan.await_all_back(10)
    assert plan.store.tree(GEN) == []
    assert sorted(plan.bodies(plan.share(2, 10))) == bodies
