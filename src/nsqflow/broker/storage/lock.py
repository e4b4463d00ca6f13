"""One process for one data path."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from nsqflow.errors import ConfigError

_NAME = "nsqd.lock"


class Lock:
    """A data path that is ours; the lock ends with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"data_path {str(folder)!r}: there is no such folder")
        try:
            self._file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"data_path {str(folder)!r} must be a folder that can be written to: "
                f"{error.strerror}"
            ) from error
        try:
            self._take(folder)
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Let others have it."""
        # Not only closed: a forked child may have the same file open.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
            raise ConfigError(
                f"data_path {str(folder)!r} is in use by another nsqd"
                + (f" (process {owner})" if owner else "")
            ) from None
        except OSError as error:
            raise ConfigError(
                f"data_path {str(folder)!r} can't be locked: {error.strerror}"
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d\n" % os.getpid(), 0)
