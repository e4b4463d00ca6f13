from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsqflow.broker.storage.database import DataPathLock
from nsqflow.errors import ConfigError


def test_a_data_path_that_is_in_use_is_refused_until_it_is_released(tmp_path: Path) -> None:
    lock = DataPathLock(tmp_path)
    with pytest.raises(ConfigError, match=f"process {os.getpid()}") as why:
        DataPathLock(tmp_path)
    assert repr(str(tmp_path)) in str(why.value)
    lock.release()
    DataPathLock(tmp_path).release()


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from nsqflow.broker.storage.database import DataPathLock\n"
        "lock = DataPathLock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match=f"process {other.pid}"):
            DataPathLock(tmp_path)
        other.kill()
    DataPathLock(tmp_path).release()


def test_a_missing_data_path_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_path=.*missing"):
        DataPathLock(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_a_data_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data_path=.*file"):
        DataPathLock(tmp_path / "file")


def test_a_data_path_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    # Not even root may write into a folder where the lock's name is taken by a folder.
    (tmp_path / "nsqd.lock").mkdir()
    with pytest.raises(ConfigError, match=r"data_path=.*Is a directory"):
        DataPathLock(tmp_path)
