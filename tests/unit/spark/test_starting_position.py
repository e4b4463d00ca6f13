"""The options ``startingPosition`` and ``endingTimestamp``: every form, and what is refused."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nsqflow.client.position import EARLIEST, LATEST, Position
from nsqflow.errors import ConfigError
from nsqflow.spark.options import SourceOptions, parse_batch, parse_stream
from nsqflow.spark.starting_position import (
    ENDING_TIMESTAMP,
    EXISTING,
    STARTING_POSITION,
    check_named,
    is_time,
    position_of,
    time_of,
)

NOON = "2025-11-18T12:00:00+00:00"
SECONDS = 1763467200
OFFSETS = json.dumps({"orders": {"0": 330, "1": "latest", "2": "earliest"}, "fares": {}})

STREAM = {"topic": "orders", "channel": "spark", "lookupd": "a:4161", "spoolLocation": "/spool"}
RANGE = {"topic": "orders", "lookupd": "a:4161", "mode": "range"}


def parsed(text: str) -> str:
    value: str = STARTING_POSITION.parse("startingPosition", text)
    return value


def refused(text: str, kind: Any = STARTING_POSITION) -> str:
    with pytest.raises(ConfigError) as caught:
        kind.parse("startingPosition", text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("existing", None),
        ("Existing", None),
        ("latest", LATEST),
        ("LATEST", LATEST),
        ("Earliest", EARLIEST),
        (f"timestamp:{SECONDS}", Position("timestamp", SECONDS)),
        ("timestamp:0", Position("timestamp", 0)),
        (NOON, Position("timestamp", SECONDS)),
        ("2025-11-18T12:00:00Z", Position("timestamp", SECONDS)),
        ("2025-11-18T13:00:00+01:00", Position("timestamp", SECONDS)),
    ],
)
def test_each_form_is_a_position_of_every_partition(text: str, position: Position | None) -> None:
    assert position_of(parsed(text), "orders", 0) == position
    assert position_of(parsed(text), "fares", 3) == position


def test_offsets_are_positions_of_the_partitions_that_they_name() -> None:
    text = parsed(f"  {OFFSETS}")
    assert position_of(text, "orders", 0) == Position("virtual_queue", 330)
    assert position_of(text, "orders", 1) == LATEST
    assert position_of(text, "orders", 2) == EARLIEST
    assert position_of(text, "orders", 3) is None
    assert position_of(text, "fares", 0) is None
    assert position_of(text, "others", 0) is None


@pytest.mark.parametrize("partitions", [{"orders": 3, "fares": 1}, {"orders": 0, "fares": 0}])
def test_offsets_of_partitions_that_are_read_may_be_named(partitions: dict[str, int]) -> None:
    check_named(OFFSETS, partitions)


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        ({"orders": 3}, "startingPosition names topic 'fares', which is not read"),
        ({"orders": 2, "fares": 1}, "partition 2 of 'orders', which is invalid: must be from 0 to"),
    ],
)
def test_offsets_of_others_are_refused(partitions: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_named(OFFSETS, partitions)


@pytest.mark.parametrize("text", ["existing", "latest", f"timestamp:{SECONDS}", NOON])
def test_other_forms_name_no_partition(text: str) -> None:
    check_named(text, {})


def test_a_time_is_none_of_the_other_forms() -> None:
    assert [is_time(text) for text in ("existing", "latest", "earliest", OFFSETS)] == [False] * 4
    assert is_time(NOON)
    assert is_time("timestamp:0")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        (f"timestamp:{SECONDS}", SECONDS * 10**9),
        (NOON, SECONDS * 10**9),
        ("2025-11-18T12:00:00.123457+00:00", SECONDS * 10**9 + 123_457_000),
        ("2025-11-18T12:00:00.9Z", SECONDS * 10**9 + 900_000_000),
    ],
)
def test_a_time_is_exact_to_the_microsecond(text: str, nanoseconds: int) -> None:
    assert time_of(parsed(text)) == nanoseconds


INVALID = (
    "must be existing, latest, earliest, timestamp:SECONDS, an ISO time with its zone, or "
    '{"topic": {"partition": offset}}'
)


@pytest.mark.parametrize(
    "text",
    ["newest", "timestamp:", "timestamp:-1", "timestamp:1.5", "timestamp:x", "count:5", "offset:3"],
)
def test_what_has_none_of_the_forms_is_refused_with_all_of_them(text: str) -> None:
    assert refused(text) == f"startingPosition={text!r} is invalid: {INVALID}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2025-11-18T12:00:00", "must have a time zone, such as +00:00"),
        ("2025-11-18", "must have a time zone, such as +00:00"),
        ("1969-12-31T23:59:59Z", "must be between 1970 and now"),
        (f"timestamp:{SECONDS * 1000}", "must be in seconds, not milliseconds"),
        ("{", "not JSON: "),
        ('{"orders": 330}', 'must be like {"topic": {"0": 330, "1": "earliest"}}'),
        ('{"orders": {"x": 1}}', "partition 'x' is invalid: must be an integer from 0 to 999"),
        ('{"orders": {"-1": 1}}', "partition '-1' is invalid: must be an integer from 0 to 999"),
        ('{"orders": {"1000": 1}}', "partition '1000' is invalid: must be an integer from 0 to "),
        ('{"orders": {"0": -1}}', "offset -1 is invalid: must be an integer >= 0, earliest or lat"),
        ('{"orders": {"0": true}}', "offset True is invalid: must be an integer >= 0, earliest or"),
        ('{"orders": {"0": 1.5}}', "offset 1.5 is invalid: must be an integer >= 0, earliest or l"),
        ('{"orders": {"0": "end"}}', "offset 'end' is invalid: must be an integer >= 0, earliest"),
        ('{"orders": {"0": null}}', "offset None is invalid: must be an integer >= 0, earliest or"),
        ('{"a b": {"0": 1}}', "topic name 'a b' has ' ' at position 1"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    found = refused(text)
    assert found.startswith("startingPosition")
    assert words in found


def test_a_time_in_the_future_is_refused() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for text in (later.isoformat(), f"timestamp:{int(time.time()) + 3600}"):
        assert "must be between 1970 and now" in refused(text)
        assert "must be between 1970 and now" in refused(text, ENDING_TIMESTAMP)


def test_an_end_is_a_time() -> None:
    for text in (NOON, f"timestamp:{SECONDS}"):
        assert ENDING_TIMESTAMP.parse("endingTimestamp", text) == text
    for text in ("latest", "earliest", OFFSETS, "x"):
        assert refused(text, ENDING_TIMESTAMP).endswith(
            "is invalid: must be timestamp:SECONDS or an ISO time with its zone"
        )


# The options that go with them


def options(**given: str) -> SourceOptions:
    return parse_batch(RANGE | given)


def refused_options(**given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_batch(given)
    return str(caught.value)


def test_a_stream_begins_with_what_waits_unless_it_is_said_otherwise() -> None:
    assert parse_stream(STREAM).starting_position == EXISTING
    for text in ("earliest", "latest", f"timestamp:{SECONDS}", NOON, OFFSETS):
        assert parse_stream(STREAM | {"startingPosition": text}).starting_position == text


def test_a_range_needs_neither_channel_nor_spool() -> None:
    found = options(startingPosition=NOON, endingTimestamp=f"timestamp:{SECONDS}", maxMessages="5")
    assert (found.channel, found.spool, found.max_messages) == ("", None, 5)
    assert (found.starting_position, found.ending_timestamp) == (NOON, f"timestamp:{SECONDS}")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"channel": "spark"}, "channel='spark' is invalid with mode=range, which leaves all chan"),
        ({"startingPosition": "existing"}, "startingPosition='existing' is invalid with mode=rang"),
        ({"readId": "a"}, "readId='a' is invalid with mode=range: nothing is finished"),
        (
            {"startingPosition": NOON, "endingTimestamp": f"timestamp:{SECONDS - 1}"},
            f"endingTimestamp='timestamp:{SECONDS - 1}' is invalid: must not be before "
            f"startingPosition ({NOON})",
        ),
    ],
)
def test_a_range_refuses_what_contradicts_it(given: dict[str, str], words: str) -> None:
    assert refused_options(**(RANGE | given)).startswith(words)


def test_a_range_needs_nsqlookupd() -> None:
    given = {"topic": "orders", "nsqd": "a:4150", "mode": "range"}
    assert refused_options(**given) == (
        "lookupd is missing: mode=range is for topics of the redesigned NSQ"
    )


@pytest.mark.parametrize("mode", ["consume", "peek"])
def test_other_batch_reads_have_no_positions(mode: str) -> None:
    for name, text in {"startingPosition": "earliest", "endingTimestamp": NOON}.items():
        words = refused_options(**(STREAM | {"mode": mode, name: text}))
        assert words.startswith(f"{name}={text!r} is invalid with mode={mode}: must be given with ")
