"""A spool on a path: a disk of this machine, or a file system that all machines mount."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from stat import S_ISREG

from nsqflow.spark.store import Buffers, Store

_TEMPORARY = ".tmp-"
_MOST_VECTORS = 1024  # IOV_MAX of Linux and macOS
_MOST_FOLDERS = 1000
_ATTEMPTS = 10


class LocalStore(Store):
    """Objects as files, which get their name only when they are complete and on disk."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._folders: set[str] = set()  # those that would survive a crash

    def create(self, name: str, data: Buffers) -> bool:
        """Link a complete file to its name, which fails if the name is taken."""
        return self._place(name, data, _link)

    def write(self, name: str, data: bytes) -> None:
        """Rename a complete file to its name, whatever had it before."""
        self._place(name, [data], _replace)

    def read(self, name: str) -> bytes:
        """The whole file, as a copy."""
        # Not mapped: another host may remove the file, and then touching the map is a SIGBUS.
        with open(self._path(name), "rb", buffering=0) as file:
            return file.readall()

    def read_tail(self, name: str, size: int) -> bytes:
        """The end of the file."""
        with open(self._path(name), "rb", buffering=0) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.readall()

    def names(self, folder: str) -> list[str]:
        """Files and folders, without those still being written."""
        return sorted(entry.name for entry in _entries(self._path(folder)) if _is_ours(entry))

    def tree(self, folder: str) -> list[str]:
        """Files at any depth, without those still being written."""
        found: list[str] = []
        _collect(self._path(folder), "", found)
        return sorted(found)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with what crashed writers left in it."""
        path = self._path(name)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except (IsADirectoryError, PermissionError):  # the latter is what macOS says of a folder
            if os.path.isfile(path):
                raise
            _remove_folder(path)
        with suppress(FileNotFoundError):
            _sync_folder(os.path.dirname(path))

    def age(self, name: str) -> float | None:
        """Seconds by the file's modification time and this machine's clock."""
        try:
            status = os.stat(self._path(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return max(0.0, time.time() - status.st_mtime) if S_ISREG(status.st_mode) else None

    def _path(self, name: str) -> str:
        return f"{self.location}/{name}" if name else self.location

    def _place(self, name: str, data: Buffers, give_name: Callable[[str, str], bool]) -> bool:
        path = self._path(name)
        folder = os.path.dirname(path)
        for _ in range(_ATTEMPTS - 1):
            with suppress(FileNotFoundError):
                self._make(folder)
                return _place(folder, path, data, give_name)
            # The folder was removed under our hands, with our temporary file in it.
            self._folders.clear()
        self._make(folder)
        return _place(folder, path, data, give_name)

    def _make(self, folder: str) -> None:
        if folder in self._folders:
            return
        within = len(folder) > len(self.location)
        parent = os.path.dirname(folder)
        if within or not os.path.isdir(parent):
            self._make(parent)
        try:
            os.mkdir(folder)
        except FileExistsError:
            made = False
        else:
            made = True
        # Within the spool also where another process made it: it may not have come to this yet.
        if made or within:
            _sync_folder(parent)
        if len(self._folders) >= _MOST_FOLDERS:
            self._folders.clear()
        self._folders.add(folder)


def _place(folder: str, path: str, data: Buffers, give_name: Callable[[str, str], bool]) -> bool:
    temporary = f"{folder}/{_TEMPORARY}{os.urandom(12).hex()}"
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        placed = give_name(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    # Where we lost too: who goes on with the winner's object must find it again after a crash.
    with suppress(FileNotFoundError):  # removed since, but what is said of the name holds
        _sync_folder(folder)
    return placed


def _link(temporary: str, path: str) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # If the reply is lost, NFS asks again, and is told that the name exists: by our own hand.
        try:
            return os.path.samestat(os.stat(temporary), os.stat(path))
        except FileNotFoundError:
            return False
    return True


def _replace(temporary: str, path: str) -> bool:
    os.replace(temporary, path)
    return True


def _write(file: int, data: Buffers) -> None:
    views = [view.cast("B") for part in data if (view := memoryview(part)).nbytes]
    while views:
        written = os.writev(file, views[:_MOST_VECTORS])
        done = 0
        while done < len(views) and written >= len(views[done]):
            written -= len(views[done])
            done += 1
        del views[:done]
        if written:
            views[0] = views[0][written:]


def _sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    except OSError as error:
        # Some network file systems know no fsync of a folder: there, names are durable at once.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(file)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(_TEMPORARY)


def _collect(folder: str, prefix: str, found: list[str]) -> None:
    for entry in filter(_is_ours, _entries(folder)):
        if entry.is_dir(follow_symlinks=False):
            _collect(entry.path, f"{prefix}{entry.name}/", found)
        else:
            found.append(prefix + entry.name)


def _remove_folder(folder: str) -> None:
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            _remove_folder(entry.path)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        # Somebody created an object in it since.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
