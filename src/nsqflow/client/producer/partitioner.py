"""Partitioners: which partition of a topic of the redesigned NSQ a key belongs to.

Producers in other languages must choose the same partition for the same key, or the order of that
key's messages is lost. ``murmur3`` is what Go's client recommends, ``java`` what the Java SDK
computes; they differ, so all producers of a topic must use the same one.
"""

from __future__ import annotations

from collections.abc import Callable

import mmh3

from nsqflow.errors import ConfigError

Partitioner = Callable[[bytes, int], int]
"""Returns the partition, 0 to count - 1, of a key in a topic with ``count`` partitions."""


def murmur3_partition(key: bytes, count: int) -> int:
    """Return the partition by murmur3 (x86, 32 bits, seed 0), read as unsigned."""
    return mmh3.hash(key, 0, signed=False) % count


def java_partition(key: bytes, count: int) -> int:
    """Return the partition by Java's ``Math.abs(key.hashCode() % count)``; the key is UTF-8 text.

    Java hashes UTF-16 code units into a signed 32-bit integer, and its remainder has the sign
    of the hash.
    """
    try:
        units = key.decode().encode("utf-16-be")
    except UnicodeDecodeError:
        raise ConfigError(
            f"key={key!r} is invalid: must be UTF-8 text for partitioner='java'"
        ) from None
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return abs(signed) % count


_BY_NAME: dict[str, Partitioner] = {"murmur3": murmur3_partition, "java": java_partition}
PARTITIONERS = tuple(_BY_NAME)


def make_partitioner(option: str | Partitioner) -> Partitioner:
    """Return the partitioner of that name, or the caller's own with checks of its result."""
    if isinstance(option, str):
        return _BY_NAME[option]
    own = option

    def checked(key: bytes, count: int) -> int:
        try:
            partition = own(key, count)
        except Exception as error:  # user code; it must not keep other batches from being sent
            raise ConfigError(f"partitioner failed for key={key!r}: {error!r}") from error
        if type(partition) is not int or not 0 <= partition < count:
            raise ConfigError(
                f"partitioner returned {partition!r} for key={key!r}: must return an integer "
                f"from 0 to {count - 1}"
            )
        return partition

    return checked
