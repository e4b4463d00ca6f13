"""What queries leave in their spools on real nsqd, and what becomes of it; without Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from uuid import uuid4

import pytest

from nsqflow.cli import main
from nsqflow.spark.options import parse_batch, parse_stream
from nsqflow.spark.source.batch_reader import NsqBatchReader
from nsqflow.spark.source.offsets import Offset
from nsqflow.spark.source.partition_reader import read_partition
from nsqflow.spark.source.planner import BatchPlanner
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.inventory import SpoolInventory, read_inventory
from nsqflow.spark.spool.owners import GenerationState
from nsqflow.spark.spool.store import open_store
from tests.fixtures.servers import PATIENCE, Nsqd
from tests.spark.queries import channel_stats, waiting

# A driver whose tasks read a batch, and that then waits. When it goes on, a late task of it and the
# driver say what keeps them from reading more.
DRIVER = """
import json, sys
from nsqflow.errors import SourceInUseError
from nsqflow.spark.options import parse_stream
from nsqflow.spark.source.offsets import Offset
from nsqflow.spark.source.planner import BatchPlanner
from nsqflow.spark.spool.layout import planned_marker
from tests.integration.spark.spool.test_recovery import read_batch

given = json.loads(sys.argv[1])
planner = BatchPlanner(parse_stream(given))
end = planner.next(Offset(), 100)
late = end.next(end.generation, end.plan)
planner.store.write(planned_marker(late.generation, late.seq), b"{}")
print(len(read_batch(planner, end, given)), flush=True)
sys.stdin.readline()
for go_on in (lambda: read_batch(planner, late, given), lambda: planner.next(end, 100)):
    try:
        go_on()
    except SourceInUseError as error:
        print(error, flush=True)
"""


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex[:16]}"


@pytest.fixture
def given(tmp_path: Path, nsqd: Nsqd, topic: str) -> dict[str, str]:
    """The options of a query."""
    return {
        "topic": topic,
        "channel": "spark",
        "nsqd": nsqd.tcp_address,
        "nsqdHttp": nsqd.http_address,
        "spoolLocation": str(tmp_path / "spool"),
        "msgTimeout": "5s",
        "leaseTimeout": "3s",
    }


def partitions_of(planner: BatchPlanner, end: Offset) -> list[NsqInputPartition]:
    return [
        NsqInputPartition(id, end.plan[id.key][id.number], lease=planner.lease)
        for id in end.partition_ids()
    ]


def read_batch(planner: BatchPlanner, end: Offset, given: dict[str, str]) -> list[int]:
    """What the tasks of a batch read."""
    options = parse_stream(given)
    return [
        int(body[:10])
        for partition in partitions_of(planner, end)
        for batch in read_partition(partition, options)
        for body in batch.column("body").to_pylist()
    ]


def inventory(given: dict[str, str]) -> SpoolInventory:
    return read_inventory(open_store(given["spoolLocation"]))


def recovered(given: dict[str, str], path: Path, *words: str) -> list[int]:
    """The numbers of the rows that the command writes to a file."""
    assert main(["spool", "recover", given["spoolLocation"], *words, "--output", str(path)]) == 0
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(json.loads(line)["body"][:10]) for line in lines]


def commit(checkpoint: Path, batch: int, end: Offset) -> None:
    """Log a batch as Spark does, and that it is committed."""
    for name, line in (("offsets", json.dumps(end.encode())), ("commits", "{}")):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        (checkpoint / name / str(batch)).write_text(f"v1\n{{}}\n{line}")


@contextmanager
def driver(given: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", DRIVER, json.dumps(given)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_query_that_ended_leaves_its_last_batch_to_the_next_one_with_its_checkpoint(
    given: dict[str, str], nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    waiting(nsqd, topic, 30)
    with closing(BatchPlanner(parse_stream(given))) as planner:
        first = planner.next(Offset(), 10)
        rows = [read_batch(planner, first, given)]
        commit(tmp_path / "checkpoint", 0, first)
        second = planner.next(first, 10)
        [running] = inventory(given).generations
        assert (running.state, running.committed) == (GenerationState.RUNNING, 1)
        rows.append(read_batch(planner, second, given))
    [stopped] = inventory(given).generations
    assert stopped.state is GenerationState.STOPPED
    assert (stopped.committed, stopped.uncommitted, len(stopped.batches)) == (1, 10, 2)
    assert (stopped.marker.channel, stopped.topics) == ("spark", (topic,))
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoint")]
    assert recovered(given, tmp_path / "1", *checkpoint) == rows[1]
    assert recovered(given, tmp_path / "2") == rows[1]
    with closing(BatchPlanner(parse_stream(given))) as planner:
        planner.claim(second.generation)
        planner.check_replay(second)
        assert read_batch(planner, second, given) == rows[1]
        commit(tmp_path / "checkpoint", 1, second)
        # The spool does not know of the commit before the next batch is planned.
        assert recovered(given, tmp_path / "3", stopped.name) == rows[1]
        assert recovered(given, tmp_path / "4", *checkpoint) == []
        third = planner.next(second, 10)
        rows.append(read_batch(planner, third, given))
    assert sorted(chain(*rows)) == [*range(30)]
    assert recovered(given, tmp_path / "5") == rows[2]


def test_rows_of_an_abandoned_checkpoint_are_recovered_and_its_generation_removed(
    given: dict[str, str],
    nsqd: Nsqd,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting(nsqd, topic, 30)
    with closing(BatchPlanner(parse_stream(given))) as planner:
        lost = read_batch(planner, planner.next(Offset(), 20), given)
    monkeypatch.setattr("os.getppid", lambda: 1)  # another application
    with closing(BatchPlanner(parse_stream(given))) as planner:
        end = planner.next(Offset(), 20)
        rest = read_batch(planner, end, given)
        rows = recovered(given, tmp_path / "rows")
        assert rows == lost
        assert sorted(rows + rest) == [*range(30)]
        [abandoned] = [
            each for each in inventory(given).generations if each.state is GenerationState.ABANDONED
        ]
        location = given["spoolLocation"]
        assert main(["spool", "gc", location, abandoned.name, "--yes"]) == 1
        assert main(["spool", "gc", location, abandoned.name, "--yes", "--force"]) == 0
        assert [each.name for each in inventory(given).generations] == [end.generation]
        assert read_batch(planner, end, given) == rest


def test_a_stalled_driver_that_wakes_after_another_checkpoint_took_its_spool_loses_nothing(
    given: dict[str, str], nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    waiting(nsqd, topic, 20)
    with driver(given) as stalled:
        assert stalled.stdout is not None
        assert stalled.stdout.readline() == "20\n"
        stalled.send_signal(signal.SIGSTOP)
        with closing(BatchPlanner(parse_stream(given))) as planner:
            start = planner.next(Offset(), 100)
            waiting(nsqd, topic, 20, first=20)
            stalled.send_signal(signal.SIGCONT)
            output, _ = stalled.communicate("\n", PATIENCE)
            assert output.count("does not belong to this query any more") == 2
            rows = read_batch(planner, planner.next(start, 100), given)
            finished = recovered(given, tmp_path / "rows")
    assert sorted(finished) == [*range(20)]
    assert sorted(rows) == [*range(20, 40)]
    assert channel_stats(nsqd, topic).depth == 0


def test_a_named_read_is_kept_until_it_is_released(
    given: dict[str, str], nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    del given["leaseTimeout"]
    options = parse_batch(given | {"readId": "nightly"})

    def read() -> Iterator[int]:
        reader = NsqBatchReader(options)
        for partition in reader.partitions():
            for batch in reader.read(partition):
                for body in batch.column("body").to_pylist():
                    yield int(body[:10])

    waiting(nsqd, topic, 10)
    assert sorted(read()) == [*range(10)]
    waiting(nsqd, topic, 10, first=10)
    assert sorted(read()) == [*range(10)]
    [found] = inventory(given).generations
    assert (found.state, found.read_id) == (GenerationState.KEPT, "nightly")
    assert sorted(recovered(given, tmp_path / "rows", "read-nightly")) == [*range(10)]
    assert main(["spool", "release", given["spoolLocation"], "nightly", "--yes"]) == 0
    assert sorted(read()) == [*range(10, 20)]
