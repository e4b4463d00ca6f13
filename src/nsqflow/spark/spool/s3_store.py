"""A spool on S3; credentials, region and endpoint come from the environment, as for AWS tools."""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from operator import itemgetter
from typing import Any

from nsqflow.errors import ConfigError
from nsqflow.extras import install_hint
from nsqflow.spark.spool.store import Buffers, ObjectStore

_MIN_VERSIONS = {"s3fs": (2025, 2), "botocore": (1, 35, 20)}
"""Earlier ones silently dropped If-None-Match, and with it the exclusive create."""

_PART = 16 << 20  # an object of twice this size, or more, is uploaded in parts
_MAX_KEYS = 1000  # of one DeleteObjects
_EXISTS = ("PreconditionFailed", "412")
_BUSY = ("ConditionalRequestConflict", "OperationAborted", "409")
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # seconds between attempts while S3 is busy with a key


class S3Store(ObjectStore):
    """Objects of a bucket, created by conditional writes."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._bucket, _, self._prefix = location.removeprefix("s3://").partition("/")

    def create(self, name: str, data: Buffers, *, durable: bool = True) -> bool:
        """Put an object with If-None-Match, also where it is uploaded in parts."""
        body = b"".join(data)
        for pause in _PAUSES:
            try:
                return self._create(name, body)
            except OSError as error:
                if _code(error) not in _BUSY:
                    raise
            time.sleep(pause)
        return self._create(name, body)

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Put an object, replacing an existing one."""
        self._put(name, data, mode="overwrite")

    def read(self, name: str) -> bytes:
        """Return the whole object, in one request: several could see two versions."""
        content: bytes = self._files.cat_file(self._path(name), max_concurrency=1)
        return content

    def read_tail(self, name: str, size: int) -> bytes:
        """Return the end of the object, in one request."""
        if size < 1:
            return b""
        try:
            content: bytes = self._files.cat_file(self._path(name), start=-size)
        except OSError as error:
            if _code(error) in ("InvalidRange", "416"):  # the object is empty
                return b""
            raise
        return content

    def names(self, folder: str) -> list[str]:
        """Return keys up to the next slash."""
        prefix = f"{self._key(folder)}/"
        found: set[str] = set()
        for page in self._pages(prefix, Delimiter="/"):
            found.update(entry["Key"] for entry in page.get("Contents", ()))
            found.update(entry["Prefix"].rstrip("/") for entry in page.get("CommonPrefixes", ()))
        # The folder itself may be among them, as an empty object that some tools create.
        return sorted(key.removeprefix(prefix) for key in found - {prefix})

    def tree(self, folder: str) -> list[str]:
        """Return keys at any depth."""
        return list(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return keys at any depth with their sizes, from the list alone."""
        prefix = f"{self._key(folder)}/"
        entries = [entry for page in self._pages(prefix) for entry in page.get("Contents", ())]
        return {
            key.removeprefix(prefix): entry["Size"]
            for entry in sorted(entries, key=itemgetter("Key"))
            if not (key := entry["Key"]).endswith("/")
        }

    def remove(self, name: str) -> None:
        """Delete the key, and all keys below it."""
        key = self._key(name)
        keys = [key]
        for page in self._pages(f"{key}/"):
            keys += [entry["Key"] for entry in page.get("Contents", ())]
        for start in range(0, len(keys), _MAX_KEYS):
            objects = [{"Key": key} for key in keys[start : start + _MAX_KEYS]]
            answer = self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
            for error in answer.get("Errors", ()):
                raise OSError(errno.EIO, f"{error.get('Code')}: {error.get('Message')}")

    def age(self, name: str) -> float | None:
        """Return the seconds by the clock of S3, which every response has."""
        try:
            answer = self._call("head_object", Key=self._key(name))
        except FileNotFoundError:
            return None
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        written: datetime = answer["LastModified"]
        return max(0.0, (now - written).total_seconds())

    @property
    def _files(self) -> Any:
        return _filesystem(os.getpid())

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if name else self._prefix

    def _path(self, name: str) -> str:
        return f"{self._bucket}/{self._key(name)}"

    def _create(self, name: str, body: bytes) -> bool:
        try:
            self._put(name, body, mode="create")
        except OSError as error:
            code = _code(error)
            if code in _EXISTS:
                return self._holds(name, body)
            if code == "NoSuchUpload" and self._holds(name, body):
                return True
            raise
        return True

    def _put(self, name: str, body: bytes, mode: str) -> None:
        self._files.pipe_file(self._path(name), body, mode=mode, chunksize=_PART)

    def _holds(self, name: str, body: bytes) -> bool:
        # A PUT whose response was lost is repeated, and then rejected because of itself. Objects
        # contain random bytes of their writer, so an equal object is ours.
        try:
            return self.read(name) == body
        except FileNotFoundError:
            return False

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        more: str | None = ""
        while more is not None:
            token = {"ContinuationToken": more} if more else {}
            page = self._call("list_objects_v2", Prefix=prefix, **options, **token)
            yield page
            more = page.get("NextContinuationToken")

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._files.call_s3(operation, Bucket=self._bucket, **arguments)
        return answer


@functools.cache
def _filesystem(process: int) -> Any:
    """Return the connections to S3, which all stores of a process share.

    Opening them takes longer than a request, and they must not be used on both sides of a fork.
    """
    try:
        import botocore
        import s3fs
    except ImportError as error:
        raise ConfigError(f"a spool on S3 needs {error.name}: {install_hint('s3')}") from error
    for module in (s3fs, botocore):
        needed = _MIN_VERSIONS[module.__name__]
        if _version(module.__version__) < needed:
            raise ConfigError(
                f"a spool on S3 needs {module.__name__} {'.'.join(map(str, needed))} or later, "
                f"and {module.__version__} is installed here"
            )
    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def _code(error: OSError) -> str | None:
    """Return the S3 code of an error that s3fs has converted."""
    answer = getattr(error.__cause__, "response", None) or {}
    code: str | None = answer.get("Error", {}).get("Code")
    return code
