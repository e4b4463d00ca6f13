"""Partitioners: golden vectors shared with clients in other languages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.producer.partitioner import (
    PARTITIONERS,
    java_partition,
    make_partitioner,
    murmur3_partition,
)
from nsqflow.errors import ConfigError

# Reference values of murmur3_x86_32 with seed 0, published with the algorithm's test suites.
MURMUR3 = [
    (b"test", 0xBA6BD213),
    (b"Hello, world!", 0xC0363E43),
    (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
]

# What Java's String.hashCode() returns.
JAVA = [
    ("a", 97),
    ("hello", 99162322),
    ("hello world", 1794106052),
    ("polygenelubricants", -2147483648),  # the one whose absolute value does not fit into an int
    ("Aa", 2112),
    ("BB", 2112),
    ("é", 233),
    ("日本", 835047),
    ("😀", 1772899),  # two code units, D83D and DE00
]


@pytest.mark.proves(rows=[73])
@pytest.mark.parametrize(("key", "value"), MURMUR3)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 255])
def test_murmur3_is_the_unsigned_hash_modulo_the_partitions(
    key: bytes, value: int, count: int
) -> None:
    assert murmur3_partition(key, count) == value % count


@pytest.mark.proves(rows=[73])
@pytest.mark.parametrize(("key", "value"), JAVA)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 255])
def test_java_is_the_absolute_value_of_javas_remainder(key: str, value: int, count: int) -> None:
    remainder = abs(value) % count * (-1 if value < 0 else 1)  # its sign is that of the hash
    assert java_partition(key.encode(), count) == abs(remainder)


def test_java_refuses_a_key_that_is_not_utf8() -> None:
    with pytest.raises(ConfigError, match=r"key=b'\\xff' is invalid"):
        java_partition(b"\xff", 4)


@given(st.text(min_size=1), st.integers(1, 255), st.sampled_from(PARTITIONERS))
def test_every_key_has_one_partition_in_range(key: str, count: int, name: str) -> None:
    partitioner = make_partitioner(name)
    partition = partitioner(key.encode(errors="replace"), count)
    assert 0 <= partition < count
    assert partitioner(key.encode(errors="replace"), count) == partition


def test_a_callable_is_used_and_its_result_checked() -> None:
    assert make_partitioner(lambda key, count: len(key) % count)(b"abcde", 3) == 2
    for wrong in (3, -1, "1", None, True):
        with pytest.raises(ConfigError, match="integer from 0 to 2"):
            make_partitioner(lambda key, count, wrong=wrong: wrong)(b"k", 3)  # type: ignore[misc]


def test_a_callable_that_fails_is_an_error_about_the_key() -> None:
    with pytest.raises(ConfigError, match=r"failed for key=b'k': ZeroDivisionError"):
        make_partitioner(lambda key, count: count // 0)(b"k", 3)
