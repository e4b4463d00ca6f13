"""What leaves the spool: tasks that come after it, and ids that stay in doubt.

A reader that is not Spark's reads shares of an nsqd here; the rules are the same for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from nsqflow.spark import cleaning
from nsqflow.spark.cleaning import Cleaning
from nsqflow.spark.offsets import ShareName, make_key, planned_mark
from nsqflow.spark.options import SourceOptions, parse_stream
from nsqflow.spark.reading import read_share
from nsqflow.spark.rows import STORED
from nsqflow.spark.seen import Seen
from nsqflow.spark.share import Share
from nsqflow.spark.slots import Confirmation, Footer, Slots, SpoolError
from nsqflow.spark.store import Store, open_store
from tests.fixtures.crashing import await_channel, channel, create_channel
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import published

GEN = "generation"
KEY = "orders|127.0.0.1:4150"


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
    store: Store

    def share(self, seq: int, budget: int) -> Share:
        """The only share of a batch, which is planned by this."""
        self.store.write(planned_mark(GEN, seq), b"{}")
        key = make_key(self.topic, self.nsqd.tcp_address)
        return Share(ShareName(GEN, seq, key, 0), budget)

    def bodies(self, share: Share) -> list[bytes]:
        """All that a task reads of a share."""
        return [body for batch in read_share(share, self.options) for body in bodies_of(batch)]

    def await_all_back(self, count: int) -> None:
        """Wait until nsqd has so many messages again, because they were given back."""
        await_channel(self.nsqd, self.topic, depth=count, in_flight_count=0)
        # One it may have been handing out when it was told to stop.
        assert channel(self.nsqd.http_address, self.topic)["timeout_count"] <= 1

    def clean(self, committed: int) -> None:
        """What follows on a commit where only one batch is retained."""
        Cleaning(self.store, retain=1, everything=False).clean(GEN, committed)


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


def test_a_task_whose_batch_left_the_spool_fails_and_gives_all_back(plan: Plan) -> None:
    first = published(plan.nsqd, plan.topic, 25)
    share = plan.share(1, 25)
    assert sorted(plan.bodies(share)) == first

    zombie = read_share(share, plan.options)
    assert len(bodies_of(next(zombie))) == 10
    plan.clean(2)
    second = published(plan.nsqd, plan.topic, 25, first=25)
    with pytest.raises(SpoolError, match="too late"):
        next(zombie)

    plan.await_all_back(25)
    assert sorted(plan.bodies(plan.share(2, 50))) == second


def test_a_task_whose_batch_leaves_while_it_pulls_fails_and_gives_all_back(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = published(plan.nsqd, plan.topic, 10)
    share = plan.share(1, 10)
    create = Slots.create

    def create_too_late(*arguments: object) -> Footer | None:
        plan.clean(2)
        return create(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "create", create_too_late)
        with pytest.raises(SpoolError, match="too late"):
            plan.bodies(share)

    plan.await_all_back(10)
    assert plan.store.tree(GEN) == []
    assert sorted(plan.bodies(plan.share(2, 10))) == bodies


# --- ids in doubt -------------------------------------------------------------------------------


def ids_from(first: int, count: int = 10) -> list[bytes]:
    return [b"%016d" % number for number in range(first, first + count)]


def write_slot(store: Store, seq: int, number: int, ids: list[bytes]) -> None:
    """A slot whose writer died before it could confirm anything."""
    store.write(planned_mark(GEN, seq), b"{}")
    rows = pa.RecordBatch.from_pylist(
        [{"body": b"-", "id": id, "attempts": 1, "timestamp_ns": 0} for id in ids], schema=STORED
    )
    slots = Slots(store, ShareName(GEN, seq, KEY, 0).folder)
    assert slots.create(number, rows, Footer(writer=f"writer-{seq}-{number}"))


def known(store: Store, ids: list[bytes]) -> list[bytes]:
    """Those of the ids that a task would drop."""
    seen = Seen(store, GEN, KEY)
    seen.refresh()
    places = seen.among(b"".join(ids))
    return [ids[place] for place in sorted(places)]


def test_what_a_crash_left_of_a_batch_that_was_being_removed_hides_no_doubt(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write_slot(store, 1, 0, ids_from(0))
    write_slot(store, 1, 1, ids_from(10))
    left = f"{ShareName(GEN, 1, KEY, 0).folder}/000001"
    content = store.read(left)
    clean = Cleaning(store, retain=1, everything=False).clean
    clean(GEN, 2)
    store.write(left, content)  # as if it had come to the other slot only
    clean(GEN, 3)
    assert known(store, ids_from(0, 20)) == ids_from(0, 20)
    assert store.tree(f"{GEN}/batches") == []


def test_a_confirmation_that_comes_after_its_batch_left_hides_no_doubt(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write_slot(store, 1, 0, ids_from(0))
    write_slot(store, 1, 1, ids_from(10))
    clean = Cleaning(store, retain=1, everything=False).clean
    clean(GEN, 2)
    late = Confirmation(slots=[1], failed=ids_from(10)[0])
    Slots(store, ShareName(GEN, 1, KEY, 0).folder).confirm("writer-1-1", late)
    clean(GEN, 3)
    assert known(store, ids_from(0, 20)) == ids_from(0, 20)


def test_beyond_the_cap_the_oldest_ids_in_doubt_are_forgotten_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleaning, "MAX_IDS", 25)
    store = open_store(str(tmp_path))
    for seq in range(1, 5):
        write_slot(store, seq, 0, ids_from(seq * 10))
    cleaner = Cleaning(store, retain=1, everything=False)
    with caplog.at_level(logging.WARNING, "nsqflow.spark.cleaning"):
        cleaner.clean(GEN, 5)
    assert known(store, ids_from(10, 40)) == ids_from(30, 20)
    assert cleaner.forgotten == 20
    assert caplog.messages == [
        f"10 ids in doubt of {KEY} are forgotten: {name}" for name in ("00000001-0", "00000002-0")
    ]
