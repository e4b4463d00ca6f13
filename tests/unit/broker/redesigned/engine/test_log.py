"""The log: ids, offsets and sizes as nsqd gives them, frames as consumers get them, searching."""

from __future__ import annotations

import pytest

from nsqflow.broker.redesigned.engine.log import PartitionLog
from nsqflow.protocol import Layout, Receipt
from tests.unit.broker.redesigned.engine.parts import NOW, SECOND, decode


def log_of(count: int, *, partition: int = 0) -> PartitionLog:
    """A log of messages of 33 bytes each."""
    log = PartitionLog(partition)
    for number in range(count):
        log.append([b"s%02d" % number], NOW + number * SECOND)
    return log


def test_a_receipt_has_id_trace_offset_and_size() -> None:
    log = PartitionLog(0)
    assert log.append([b"first"], NOW, [5]) == Receipt(2, 5, 0, 35)
    assert log.append([b"x"], NOW) == Receipt(3, 0, 35, 31)


def test_the_receipt_of_a_batch_is_that_of_its_first_message_and_has_the_size_of_all() -> None:
    log = PartitionLog(1)
    log.append([b"first"], NOW)
    assert log.append([b"a", b"bb"], NOW, [7, 8]) == Receipt((1 << 50) + 3, 7, 35, 63)
    assert log.append([b"x"], NOW).offset == 98
    assert (log.end, log.end_offset) == (4, 129)


def test_a_plain_message_has_time_attempts_and_both_ids() -> None:
    log = PartitionLog(0)
    log.append([b"a", b"bb"], NOW, [7, 8])
    first, second = decode(log.encode(range(2), positioned=False), Layout())
    assert (first.body, first.timestamp, first.attempts) == (b"a", NOW, 1)
    assert (second.internal_id, second.trace_id) == (3, 8)


def test_a_positioned_message_has_its_offset_and_size() -> None:
    log = log_of(3)
    data = log.encode(range(1, 3), positioned=True)
    assert [(m.body, m.offset, m.size) for m in decode(data, Layout(positioned=True))] == [
        (b"s01", 33, 33),
        (b"s02", 66, 33),
    ]


def test_a_later_delivery_differs_in_its_attempts_alone() -> None:
    log = log_of(1)
    [message] = decode(log.encode_one(0, 300, positioned=True), Layout(positioned=True))
    assert (message.attempts, message.body, message.offset) == (300, b"s00", 0)
    assert log.encode_one(0, 1, positioned=False) == log.encode(range(1), positioned=False)


def test_an_extended_log_counts_headers_in_the_size() -> None:
    log = PartitionLog(0, extended=True)
    assert log.append([b"abc"], NOW).size == 34
    assert log.append([b"abc"], NOW, headers=[b'{"##trace_id":"9","k":"v"}']).size == 62


def test_an_extended_message_has_its_headers_or_a_version_of_zero() -> None:
    log = PartitionLog(0, extended=True)
    log.append([b"none", b"some"], NOW, headers=[b"", b'{"k":"v"}'])
    for positioned in (False, True):
        layout = Layout(extended=True, positioned=positioned)
        first, second = decode(log.encode(range(2), positioned=positioned), layout)
        assert (first.ext_version, first.ext, first.body) == (0, None, b"none")
        assert (second.ext_version, second.ext, second.body) == (4, b'{"k":"v"}', b"some")
    assert (log.ext_of(0), log.ext_of(1)) == (b"", b'{"k":"v"}')


def test_a_message_can_be_read_back() -> None:
    log = PartitionLog(2, extended=True)
    log.append([b"none", b"some"], NOW, [5, 6], [b"", b'{"k":"v"}'])
    assert log.read(0)[1:] == ((2 << 50) + 2, 5, NOW, b"", b"none", 0)
    assert log.read(1)[1:] == ((2 << 50) + 3, 6, NOW, b'{"k":"v"}', b"some", 35)
    assert log_of(2).read(1).body == b"s01"


def test_the_time_of_a_message_that_is_not_there_is_zero() -> None:
    log = log_of(2)
    assert [log.timestamp_of(index) for index in (-1, 1, 2)] == [0, NOW + SECOND, 0]


@pytest.mark.parametrize(
    ("offset", "index"), [(-1, 0), (0, 0), (330, 10), (335, 11), (627, 19), (628, 20), (9999, 20)]
)
def test_an_offset_is_that_of_the_first_message_that_begins_there_or_later(
    offset: int, index: int
) -> None:
    assert log_of(20).at_offset(offset) == index


@pytest.mark.parametrize(("count", "index"), [(-1, 0), (0, 0), (1, 0), (5, 4), (20, 19), (99, 20)])
def test_messages_are_counted_from_one(count: int, index: int) -> None:
    assert log_of(20).at_count(count) == index


@pytest.mark.parametrize(
    ("time", "index"),
    [(-5, 0), (0, 0), (NOW, 0), (NOW + 1, 1), (NOW + 19 * SECOND, 19), (NOW * 1000, 20)],
)
def test_a_time_is_that_of_the_first_message_then_or_later(time: int, index: int) -> None:
    assert log_of(20).at_time(time) == index


def test_an_id_finds_the_first_message_of_its_publish() -> None:
    log = PartitionLog(0)
    log.append([b"a"], NOW)
    log.append([b"b", b"c", b"d"], NOW)
    log.append([b"e"], NOW)
    assert [log.batch_of(id) for id in (0, 2, 3, 4, 5, 6, 99)] == [0, 0, 1, 1, 1, 4, 4]


def test_a_stretch_ends_with_the_message_that_fills_it_up() -> None:
    log = log_of(5)
    assert [log.bytes_end(1, size) for size in (1, 33, 34, 66, 9999)] == [2, 2, 3, 3, 5]


def test_what_is_dropped_leaves_ids_offsets_and_counts_as_they_are() -> None:
    log = log_of(10)
    full = log.memory
    log.drop_before(4)
    assert (log.first, log.start_offset, log.end, log.end_offset) == (4, 132, 10, 330)
    assert log.memory < full
    assert log.read(4).body == b"s04"
    assert (log.at_offset(0), log.at_count(1), log.at_time(0), log.batch_of(2)) == (4, 4, 4, 4)
    assert log.at_offset(133) == 5
    log.drop_before(2)  # nothing more
    assert log.first == 4
    log.drop_before(10)
    assert (log.memory, log.start_offset, log.end_offset) == (0, 330, 330)
    assert log.append([b"new"], NOW) == Receipt(12, 0, 330, 33)
    assert log.read(10).body == b"new"


def test_dropping_within_a_batch_keeps_what_is_left_of_it_findable() -> None:
    log = PartitionLog(0)
    log.append([b"a", b"b", b"c"], NOW)
    log.drop_before(2)
    assert log.batch_of(4) == 2
