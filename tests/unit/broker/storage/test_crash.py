"""kill -9 at any moment: what was reported to be safe is there, and no unit is there by half."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.broker.storage.rows import stored_in

UNIT = 7  # messages of each unit

SCRIPT = f"""
import asyncio, sys
from pathlib import Path
from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.storage import Store

async def main():
    store = Store(Path(sys.argv[1]), on_page=print, on_failure=print)
    store.open()
    store.create(1, "t", None)
    number = reported = 0

    def report(error):
        nonlocal reported
        print(reported, error, flush=True)
        reported += 1

    while True:
        first = number * {UNIT}
        store.put(1, [Entry(b"%016x" % n, n, b"x" * 300) for n in range(first, first + {UNIT})])
        store.commit(report, 1)
        number += 1
        while number - reported > 60:
            await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.parametrize("reports", [1, 50, 3_000])
def test_what_was_reported_survives_a_kill(tmp_path: Path, reports: int) -> None:
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
    assert len(kept) % UNIT == 0
    assert len(kept) >= len(reported) * UNIT
