"""Where the spool keeps its objects: named, written whole, and decided by exclusive create.

Two tasks may pull the same slot at once, and one of them may be a zombie of a driver that died.
``create`` is what decides between them, so a store must do it exclusively, all or nothing, and
durably. Only stores that were proven to are taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from nsqflow.errors import ConfigError

Buffers = Sequence[bytes | memoryview]
"""The pieces of an object; a ``pyarrow.Buffer`` is as good as a memoryview."""

_ALLOWED = "an absolute path, file:///path, s3://bucket/prefix or s3a://bucket/prefix"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/|$)")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Store(Protocol):
    """Objects under one location; any number of processes and hosts may use it at once.

    Names are relative, separated by ``/``, and safe already; none is both an object and a folder.
    A folder is there as long as it holds something; an empty one may be there or not.
    """

    location: str

    def create(self, name: str, data: Buffers) -> bool:
        """Create an object that is not there yet; False if it is.

        Nobody ever sees a part of it, and of all who create the same name at most one is told
        True. When that is returned, the object survives a crash of the machine. After an error it
        may be there or not, or come later.

        The data must hold something that no other writer has: where an answer was lost, an object
        with the very same content is taken for ours.
        """

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object, as durably as ``create``; readers see the old or the new."""

    def read(self, name: str) -> bytes:
        """The whole object; FileNotFoundError if there is none."""

    def read_tail(self, name: str, size: int) -> bytes:
        """The last bytes of an object, all of them if it is shorter; FileNotFoundError if none."""

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, objects and folders alike, sorted; [] if it is absent."""

    def tree(self, folder: str) -> list[str]:
        """All objects below a folder, as sorted paths relative to it; [] if it is absent."""

    def remove(self, name: str) -> None:
        """Remove an object or a whole folder, for good; fine if it is absent.

        A folder goes piece by piece, and what others create in it meanwhile may stay.
        """

    def age(self, name: str) -> float | None:
        """Seconds since an object was written, by the store's clock if it has one; None if none."""

    def probe(self) -> None:
        """Raise ConfigError unless all of this works here, exclusive create above all."""
        folder = f"_probe-{os.urandom(8).hex()}"
        try:
            _examine(self, folder)
        except ConfigError:
            with suppress(Exception):
                self.remove(folder)
            raise


def check_location(location: str) -> str:
    """The location in its one canonical form, ``/path`` or ``s3://bucket/prefix``; no I/O."""
    match = _SCHEME.match(location)
    if match is None:
        return _local(location, location)
    scheme, rest = match[1].lower(), location[match.end() :]
    if scheme == "file":
        # file:/path is how Hadoop writes it. A host, as in file://host/path, is not ours to mount.
        return _local(location, rest[2:] if rest.startswith("//") else rest)
    if scheme in ("s3", "s3a"):
        return _s3(location, rest)
    raise _refused(location, f"{scheme} is not among the stores proven to create exclusively")


def open_store(location: str) -> Store:
    """The store at a location, which is checked first; nothing is read or written yet."""
    location = check_location(location)
    if location.startswith("s3://"):
        from nsqflow.spark.s3_store import S3Store

        return S3Store(location)
    from nsqflow.spark.local_store import LocalStore

    return LocalStore(location)


def _examine(store: Store, folder: str) -> None:
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
def _trying(store: Store, what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        # Each library below has errors of its own; all mean that the spool can't be here.
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
        raise _refused(location, "no bucket of a valid name")
    if "?" in prefix:
        raise _refused(location, "'?' is not taken")
    return f"s3://{bucket}/" + "/".join(_parts(location, prefix))


def _parts(location: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts:
        raise _refused(location, "no folder is named, and the spool wants one of its own")
    if ".." in parts:
        raise _refused(location, "'..' is not taken")
    if any(not part.isprintable() for part in parts):
        raise _refused(location, "a character that can't be printed")
    return parts


def _refused(location: str, why: str) -> ConfigError:
    # Some put their keys into the address, as in s3://key:secret@bucket.
    shown = re.sub(r"//.*@", "//...@", location)
    return ConfigError(f"spoolLocation {shown!r}: {why}; allowed: {_ALLOWED}")
