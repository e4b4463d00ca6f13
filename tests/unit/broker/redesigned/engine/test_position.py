"""Positions as texts, and where they are in a log."""

from __future__ import annotations

import pytest

from nsqflow.broker.redesigned.engine.log import PartitionLog
from nsqflow.broker.redesigned.engine.position import (
    InvalidPosition,
    NoSuchPosition,
    find_message,
    find_position,
    parse_position,
)
from tests.unit.broker.redesigned.engine.parts import NOW
from tests.unit.broker.redesigned.engine.test_log import log_of


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("virtual_queue:330", 10),
        ("virtual_queue:-1", 0),
        ("msgcount:5", 4),
        ("msgcount:99", 20),
        (f"timestamp:{NOW // 10**9 + 3}", 3),
        ("timestamp:0", 0),
        (f"timestamp:{NOW // 10**6}", 20),
        ("special:-1", 20),
    ],
)
def test_a_position_is_an_index(text: str, index: int) -> None:
    assert find_position(log_of(20), *parse_position(text)) == index


@pytest.mark.parametrize("text", ["count:0", "msgcount", "msgcount:1:2", "msgcount:x", "msgcount:"])
def test_what_is_not_a_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidPosition):
        parse_position(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("special:5", "not supported offset type"), ("timestamp:-1", "Invalid timestamp -1")],
)
def test_a_position_that_no_log_has_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NoSuchPosition, match=reason):
        find_position(log_of(20), *parse_position(text))


def test_an_empty_log_has_its_end_alone() -> None:
    log = PartitionLog(0)
    assert find_position(log, "special", -1) == 0
    for kind in ("msgcount", "timestamp", "virtual_queue"):
        with pytest.raises(NoSuchPosition, match="commit log end of file"):
            find_position(log, kind, 0)
    with pytest.raises(NoSuchPosition):
        find_message(log, "id", 2)


@pytest.mark.parametrize(
    ("mode", "value", "body"),
    [
        ("id", 4, b"s02"),
        ("id", 9999, b"s19"),
        ("count", 3, b"s02"),
        ("count", 0, b"s00"),
        ("virtual_offset", 10, b"s01"),
    ],
)
def test_a_message_is_found_by_id_count_and_offset(mode: str, value: int, body: bytes) -> None:
    found = find_message(log_of(20), mode, value)
    assert found is not None
    assert found.body == body


def test_what_lies_beyond_the_end_is_not_found() -> None:
    assert find_message(log_of(20), "count", 21) is None
    assert find_message(log_of(20), "virtual_offset", 9999) is None
