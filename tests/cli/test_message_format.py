"""How a message is shown."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from nsqflow.admin import BrowsedMessage
from nsqflow.cli.browse import UnconsumedMessage
from nsqflow.cli.message_format import describe_origin, describe_partitioned


def message(
    at: datetime, trace_id: int = 0, headers: dict[str, object] | None = None
) -> UnconsumedMessage:
    """A message that was published at a time."""
    browsed = BrowsedMessage(
        partition=3,
        internal_id=(3 << 50) + 2,
        trace_id=trace_id,
        timestamp=round(at.timestamp() * 1e6) * 1000,
        offset=99,
        number=4,
        body="{}",
        headers=headers,
    )
    return UnconsumedMessage.of("orders", browsed)


def test_a_message_of_today_has_the_time_alone() -> None:
    now = datetime.now()
    assert describe_origin(message(now)).startswith(f"{now:%H:%M:%S}.")
    before = now - timedelta(days=2)
    assert describe_origin(message(before)).startswith(f"{before:%Y-%m-%d %H:%M:%S}.")


def test_only_what_is_set_is_in_the_line() -> None:
    line = describe_origin(message(datetime.now()))
    assert line.partition(" ")[2] == "orders partition 3 offset 99"
    headers: dict[str, object] = {"##client_dispatch_tag": "blue", "##trace_id": "7"}
    line = describe_origin(message(datetime.now(), 7, headers | {"region": "eu\n"}))
    assert line.partition(" ")[2] == (
        'orders partition 3 offset 99 tag blue trace 7 {"region": "eu\\n"}'
    )


@pytest.mark.parametrize("tag", [None, 5, ["blue"]])
def test_a_tag_that_is_no_text_is_none(tag: object) -> None:
    headers = {"##client_dispatch_tag": tag}
    described = describe_partitioned(message(datetime.now(), headers=headers))
    assert (described["tag"], described["headers"]) == (None, headers)


def test_ids_are_text() -> None:
    described = describe_partitioned(message(datetime.now(), 2**64 - 1))
    assert described["internal_id"] == str((3 << 50) + 2)
    assert described["trace_id"] == "18446744073709551615"
    assert described["id"] == "000c000000000002ffffffffffffffff"
    assert describe_partitioned(message(datetime.now()))["trace_id"] is None
