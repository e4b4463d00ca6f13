"""The interface to the spool's storage: named objects with an exclusive, atomic create.

Two tasks may write the same slot at once, and one of them may belong to a driver that died.
``create`` decides between them, so a store must do it exclusively, atomically and durably. Only
stores that are proven to are supported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import ClassVar, Protocol

from nsqflow.errors import ConfigError

Buffers = Sequence[bytes | memoryview]
"""The pieces of an object; a ``pyarrow.Buffer`` works like a memoryview."""

PROBE_PREFIX = "_probe-"
"""Of the folders that ``probe`` creates and removes."""

_ALLOWED = "an absolute path, file:///path, s3://bucket/prefix or s3a://bucket/prefix"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/|$)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class ObjectStore(Protocol):
    """Objects under one location; any number of processes and hosts may use it at once.

    Names are relative, separated by ``/``, and already escaped; none is both an object and a
    folder. A folder exists as long as it contains something; an empty one may exist or not.
    """

    location: str
    unreadable: ClassVar[frozenset[int]] = frozenset()
    """Error numbers of a read that mean that the object exists and its content is lost.

    Empty where such an error may also come from the network."""

    def create(self, name: str, data: Buffers, *, durable: bool = True) -> bool:
        """Create an object that does not exist yet; False if it does.

        No reader ever sees a part of it, and of all calls for the same name at most one returns
        True. Then the object survives a crash of the machine. After an error it may exist or not,
        or appear later.

        The data must contain something that no other writer has: where a response was lost, an
        object with exactly the same content is considered to be ours.

        One that is not ``durable`` may be empty or absent after a crash of the machine.
        """

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace an object, as durably as ``create``; readers see the old or the new."""

    def read(self, name: str) -> bytes:
        """Return the whole object; raise FileNotFoundError."""

    def read_tail(self, name: str, size: int) -> bytes:
        """Return the last bytes of an object, all if it is shorter; raise FileNotFoundError."""

    def names(self, folder: str) -> list[str]:
        """Return the objects and folders directly in a folder, sorted; [] if it does not exist."""

    def tree(self, folder: str) -> list[str]:
        """Return all objects below a folder, as sorted relative paths; [] if it does not exist."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all objects below a folder, by their sorted relative paths."""

    def unfinished(self, folder: str, min_age: float) -> list[str]:
        """Return what crashed writers left below a folder ``min_age`` seconds ago or earlier.

        These are names for ``remove``; no other call sees these objects.
        """
        return []  # most stores show an object only when it is complete

    def remove(self, name: str) -> None:
        """Remove an object or a whole folder durably; do nothing if it does not exist.

        A folder is removed piece by piece, and what others create in it meanwhile may stay.
        """

    def age(self, name: str) -> float | None:
        """Return the seconds since an object was written, by the store's clock; None if missing."""

    def refresh(self, folder: str) -> None:
        """Have later reads see what other machines created in a folder, despite caches."""
        return  # most stores do not cache

    def probe(self) -> None:
        """Raise ConfigError unless all of this works here, above all the exclusive create."""
        folder = f"{PROBE_PREFIX}{os.urandom(8).hex()}"
        try:
            _examine(self, folder)
        except ConfigError:
            with suppress(Exception):
                self.remove(folder)
            raise


def check_location(location: str) -> str:
    """Return a location in canonical form, ``/path`` or ``s3://bucket/prefix``; no I/O."""
    match = _SCHEME.match(location)
    if match is None:
        return _local(location, location)
    scheme, rest = match[1].lower(), location[match.end() :]
    if scheme == "file":
        # Hadoop writes file:/path. A host, as in file://host/path, is not supported.
        return _local(location, rest[2:] if rest.startswith("//") else rest)
    if scheme in ("s3", "s3a"):
        return _s3(location, rest)
    raise _refused(location, f"{scheme} is not among the stores proven to create exclusively")


def open_store(location: str, permissions: str = "owner") -> ObjectStore:
    """Return the store at a location, after checking it; nothing is read or written yet.

    ``permissions`` says which users may use folders and files on a path: ``owner``, ``group``, or
    ``umask``.
    """
    location = check_location(location)
    if location.startswith("s3://"):
        from nsqflow.spark.spool.s3_store import S3Store

        return S3Store(location)
    from nsqflow.spark.spool.local_store import LocalStore

    return LocalStore(location, permissions)


def _examine(store: ObjectStore, folder: str) -> None:
    name = f"{folder}/object"
    with _trying(store, "create an object"):
        created = store.create(name, [b"first"])
    with _trying(store, "create an object that exists"):
        again = store.create(name, [b"second"])
    with _trying(store, "read an object"):
        content = store.read(name)
    if again or not created or content != b"first":
        raise ConfigError(f"spoolLocation {store.location!r}: create is not exclusive there")
    with _trying(store, "replace an object"):
        store.write(name, b"third")
    with _trying(store, "list a folder"):
        listed = store.names(folder)
    with _trying(store, "remove a folder"):
        store.remove(folder)
    with _trying(store, "list a folder that is absent"):
        left = store.names(folder)
    if listed != ["object"] or left:
        raise ConfigError(f"spoolLocation {store.location!r}: lists don't keep up with changes")


@contextmanager
def _trying(store: ObjectStore, what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        # Each library has its own errors; all mean that the spool can't be here.
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConfigError(
            f"spoolLocation {store.location!r}: can't {what}: {' '.join(reason.split())}"
        ) from error


def _local(location: str, path: str) -> str:
    if not path.startswith("/"):
        raise _refused(location, "not an absolute path")
    return "/" + "/".join(_parts(location, path))


def _s3(location: str, rest: str) -> str:
    bucket, _, prefix = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not _BUCKET.fullmatch(bucket):
        raise _refused(location, "it has no valid bucket name")
    if "?" in prefix:
        raise _refused(location, "'?' is not allowed")
    return f"s3://{bucket}/" + "/".join(_parts(location, prefix))


def _parts(location: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise _refused(location, "it names no folder, and the spool needs one of its own")
    if ".." in parts:
        raise _refused(location, "'..' is not allowed")
    if any(not part.isprintable() for part in parts):
        raise _refused(location, "it has a character that can't be printed")
    return parts


def _refused(location: str, why: str) -> ConfigError:
    # Some put their keys into the address, as in s3://key:secret@bucket.
    shown = re.sub(r"//.*@", "//...@", location)
    return ConfigError(f"spoolLocation={shown!r} is invalid: {why}; must be {_ALLOWED}")
