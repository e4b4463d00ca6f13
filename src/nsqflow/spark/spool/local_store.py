"""A spool on a path: a local disk, or a file system that all machines mount."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from stat import S_IMODE, S_ISGID, S_ISLNK, S_ISREG, S_ISVTX, S_IWOTH
from typing import NamedTuple

from nsqflow.errors import ConfigError
from nsqflow.spark.spool.store import Buffers, ObjectStore

logger = logging.getLogger(__name__)

_TEMPORARY = ".tmp-"
_MAX_VECTORS = 1024  # IOV_MAX of Linux and macOS
_MAX_FOLDERS = 1000
_ATTEMPTS = 10


class _Modes(NamedTuple):
    """The modes of created folders and files."""

    folder: int
    file: int
    exact: bool = True
    """Regardless of the umask."""


_MODES = {
    "owner": _Modes(0o700, 0o600),
    "group": _Modes(0o770, 0o660),
    "umask": _Modes(0o777, 0o666, exact=False),
}
_PARENT_MODES = _Modes(0o755, 0o644, exact=False)
"""For created folders above the spool: other users may traverse them."""


class LocalStore(ObjectStore):
    """Objects as files, which get their names only when they are complete and synced."""

    unreadable = frozenset({errno.EIO, errno.EISDIR})

    def __init__(self, location: str, permissions: str = "owner") -> None:
        self.location = location
        self._permissions = permissions
        self._modes = _MODES[permissions]
        self._folders: set[str] = set()  # folders known to be synced

    def create(self, name: str, data: Buffers, *, durable: bool = True) -> bool:
        """Link a complete file to its name, which fails if the name is taken."""
        return self._place(name, data, _link, durable)

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Rename a complete file to its name, replacing an existing one."""
        self._place(name, [data], _replace, durable)

    def read(self, name: str) -> bytes:
        """Return a copy of the whole file."""
        # Not mapped: if another host removes the file, accessing the map raises SIGBUS.
        with self._reaching(name) as path, open(path, "rb", buffering=0) as file:
            return file.readall()

    def read_tail(self, name: str, size: int) -> bytes:
        """Return the end of the file."""
        with self._reaching(name) as path, open(path, "rb", buffering=0) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.readall()

    def names(self, folder: str) -> list[str]:
        """Return files and folders, without those still being written."""
        with self._reaching(folder) as path:
            return sorted(entry.name for entry in _entries(path) if _is_ours(entry))

    def tree(self, folder: str) -> list[str]:
        """Return files at any depth, without those still being written."""
        with self._reaching(folder) as path:
            return sorted(name for name, entry in _walk(path) if _is_ours(entry))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of files at any depth, without those still being written."""
        found: dict[str, int] = {}
        with self._reaching(folder) as path:
            for name, entry in _walk(path):
                if _is_ours(entry) and (status := _status(entry)) is not None:
                    found[name] = status.st_size
        return dict(sorted(found.items()))

    def unfinished(self, folder: str, min_age: float) -> list[str]:
        """Return files that never got their names, by their modification time."""
        prefix, latest = f"{folder}/" if folder else "", time.time() - min_age
        with self._reaching(folder) as path:
            return sorted(
                prefix + name
                for name, entry in _walk(path)
                if not _is_ours(entry)
                and (status := _status(entry)) is not None
                and status.st_mtime <= latest
            )

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with what crashed writers left in it."""
        with self._reaching(name) as path:
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                return
            except (IsADirectoryError, PermissionError):  # the latter is macOS's for a folder
                if os.path.isfile(path):
                    raise
                _remove_folder(path)
            with suppress(FileNotFoundError):
                _sync_folder(os.path.dirname(path))

    def age(self, name: str) -> float | None:
        """Return the seconds since the file's modification time, by this machine's clock."""
        try:
            with self._reaching(name) as path:
                status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return max(0.0, time.time() - status.st_mtime) if S_ISREG(status.st_mode) else None

    def refresh(self, folder: str) -> None:
        """Create a file and remove it: then an NFS client notices that the folder has changed.

        Otherwise it may cache for a minute that a name is free.
        """
        self._folders.clear()  # the folder itself may not be visible yet
        name = f"{folder}/{_TEMPORARY}{os.urandom(12).hex()}"
        self.create(name, [b""], durable=False)
        self.remove(name)

    def probe(self) -> None:
        """Check also the owner of the folder, who can replace everything in it."""
        self._check_owner()
        super().probe()

    def _check_owner(self) -> None:
        try:
            states = [os.lstat(self.location), os.stat(self.location)]
        except OSError:
            return  # it will be created, or its creation reports the error
        foreign = [state.st_uid for state in states if state.st_uid not in (os.geteuid(), 0)]
        if foreign and self._permissions == "owner":
            text = (
                f"spoolLocation {self.location!r} belongs to user {foreign[0]}, who can read and "
                "replace what is in it; give a folder of your own, or spoolPermissions=group or "
                "umask"
            )
            # To root, folders of other users are normal in a container; links of theirs are not.
            if os.geteuid() != 0 or S_ISLNK(states[0].st_mode):
                raise ConfigError(text)
            logger.warning("%s", text)
        mode = states[-1].st_mode
        if mode & S_IWOTH and not mode & S_ISVTX:
            logger.warning(
                "spoolLocation %r can be written by all users of this machine: they can read and "
                "replace what is in it",
                self.location,
            )

    def _path(self, name: str) -> str:
        return f"{self.location}/{name}" if name else self.location

    @contextmanager
    def _reaching(self, name: str) -> Iterator[str]:
        """Yield the path of an object; raise ConfigError if this user has no access."""
        path = self._path(name)
        try:
            yield path
        except PermissionError as error:
            if error.errno != errno.EACCES:
                raise
            raise ConfigError(
                f"spoolLocation {self.location!r}: user {os.geteuid()} has no access to "
                f"{_owned(path)}; run the driver and all executors as one user, now and later, or "
                "give spoolPermissions=group or umask from the start"
            ) from error

    def _place(
        self, name: str, data: Buffers, give_name: Callable[[str, str], bool], durable: bool
    ) -> bool:
        with self._reaching(name) as path:
            folder = os.path.dirname(path)
            place = _FileWriter(folder, path, give_name, self._modes, durable).place
            for _ in range(_ATTEMPTS - 1):
                with suppress(FileNotFoundError):
                    self._make(folder)
                    return place(data)
                # The folder was removed meanwhile, with our temporary file.
                self._folders.clear()
            self._make(folder)
            return place(data)

    def _make(self, folder: str) -> None:
        if folder in self._folders:
            return
        within = len(folder) > len(self.location)
        parent = os.path.dirname(folder)
        if within or not os.path.isdir(parent):
            self._make(parent)
        ours = within or folder == self.location
        made = _make_folder(folder, self._modes if ours else _PARENT_MODES, complete=within)
        # Within the spool also if another process created it: it may not have synced it yet.
        if made or within:
            _sync_folder(parent)
        if len(self._folders) >= _MAX_FOLDERS:
            self._folders.clear()
        self._folders.add(folder)


@dataclass(frozen=True, slots=True)
class _FileWriter:
    """Writes one object under a temporary name, then gives it its own."""

    folder: str
    path: str
    give_name: Callable[[str, str], bool]
    modes: _Modes
    durable: bool

    def place(self, data: Buffers) -> bool:
        """Write a file and give it the name; False if the name is taken."""
        temporary = f"{self.folder}/{_TEMPORARY}{os.urandom(12).hex()}"
        try:
            self._write(temporary, data)
            placed = self.give_name(temporary, self.path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        # Also if the name was taken: a task that goes on with that object must find it again after
        # a crash. If the folder was removed since, there is nothing to sync.
        if self.durable:
            with suppress(FileNotFoundError):
                _sync_folder(self.folder)
        return placed

    def _write(self, temporary: str, data: Buffers) -> None:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.modes.file)
        try:
            if self.modes.exact:
                _set_mode(file, self.modes.file, self.folder)
            _write(file, data)
            if self.durable:
                os.fsync(file)
        finally:
            os.close(file)


def _make_folder(folder: str, modes: _Modes, *, complete: bool) -> bool:
    """Create a folder; False if it exists.

    An existing one only gets the mode that a task may not have set before it died.
    """
    try:
        os.mkdir(folder, modes.folder)
    except FileExistsError:
        if complete and modes.exact:
            status = os.stat(folder)
            if status.st_uid == os.geteuid():
                _set_mode(folder, S_IMODE(status.st_mode) | modes.folder, folder)
        return False
    if modes.exact:
        _set_mode(folder, modes.folder, folder)
    return True


def _set_mode(target: int | str, mode: int, folder: str) -> None:
    """Set the mode of a file or folder if it differs: not every file system has modes."""
    now = S_IMODE(os.stat(target).st_mode)
    mode |= now & S_ISGID  # inherited from the parent: files get the folder's group
    if now == mode:
        return
    try:
        os.chmod(target, mode)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise ConfigError(
            f"spoolLocation: the file system of {folder!r} does not let mode {now:04o} become "
            f"{mode:04o}: {error.strerror}; give spoolPermissions=umask if its users may read all"
        ) from error


def _owned(path: str) -> str:
    """Describe the nearest visible folder or file of a path, with owner and mode."""
    while True:
        try:
            status = os.stat(path)
            return f"{path!r}, of user {status.st_uid} and mode {S_IMODE(status.st_mode):04o}"
        except OSError:
            if path == "/":
                return repr(path)
            path = os.path.dirname(path)


def _link(temporary: str, path: str) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # If the reply is lost, NFS repeats the request, which fails because of our own link.
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
        written = os.writev(file, views[:_MAX_VECTORS])
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
        # Some network file systems have no fsync of a folder: there, names are durable at once.
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


def _walk(folder: str, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files at any depth, with their relative paths."""
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # it has just been removed
        return None


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
        # Another task has created an object in it since.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
