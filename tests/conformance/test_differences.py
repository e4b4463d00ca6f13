"""The table of differences is about tests that there are."""

import subprocess
import sys
from pathlib import Path

from tests.conformance.differences import DIFFERENCES, difference_in


def test_every_difference_is_shown_by_a_test(tmp_path: Path) -> None:
    # Collected again: the run that this test is part of may be of some tests only.
    folder = Path(__file__).parent
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", f"-ocache_dir={tmp_path}", folder],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    names = [line.partition("::")[2] for line in collected.stdout.splitlines()]
    assert set(DIFFERENCES) - set(map(difference_in, names)) == set()
