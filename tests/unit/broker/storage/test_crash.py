"""kill -9 at any moment: reported commits are stored, and no commit is stored in part."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.broker.storage.rows import stored_in

COMMIT_SIZE = 7  # messages

SCRIPT = f"""
import asyncio, sys
from pathlib import Path
from nsqflow.broker.engine.journal import Create, Put
from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.storage import Store

async def main():
    store = Store(Path(sys.argv[1]), on_page=print, on_failure=print)
    store.open()
    store.record(Create(1, "t"))
    number = reported = 0

    def report(error):
        nonlocal reported
        print(reported, error, flush=True)
        reported += 1

    while True:
        first = number * {COMMIT_SIZE}
        ids = range(first, first + {COMMIT_SIZE})
        messages = [QueuedMessage(b"%016x" % n, n, b"x" * 300) for n in ids]
        store.record(Put.of(1, messages))
        store.commit(report, 1)
        number += 1
        while number - reported > 60:
            await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.parametrize("reports", [1, 50, 3_000])
def test_reported_commits_survive_a_kill(tmp_path: Path, reports: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as victim:
        assert victim.stdout is not None
        enough = reports + random.randrange(reports)
        lines = [victim.stdout.readline() for _ in range(enough)]
        victim.kill()
        lines += victim.stdout.read().splitlines(keepends=True)
    # The last line may be cut.
    reported = [line.split() for line in lines if line.endswith("\n")]
    assert len(reported) >= enough
    assert reported == [[str(number), "None"] for number in range(len(reported))]

    kept = [int(row[1], 16) for row in stored_in(tmp_path)[1]]
    assert kept == [*range(len(kept))]
    assert len(kept) % COMMIT_SIZE == 0
    assert len(kept) >= len(reported) * COMMIT_SIZE
