"""``ext_filter`` of IDENTIFY: which messages a client gets; all others are finished."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.redesigned.wire import OK, Connect, batch, extended, pub, read_message

MESSAGES = {
    b"eu": b'{"region":"eu","kind":"a"}',
    b"us": b'{"region":"us","kind":"b"}',
    b"eu-west": b'{"region":"eu-west","kind":"a"}',
    b"number": b'{"region":1}',
    b"other": b'{"kind":"b"}',
    b"empty": b"{}",
}
EVERYTHING = [*MESSAGES]


def rule(type: int, data: str = "", key: str = "region", **more: object) -> dict[str, Any]:
    return {"type": type, "filter_ext_key": key, "filter_data": data, **more}


def equals(**values: str) -> list[dict[str, Any]]:
    return [{"filter_ext_key": key, "filter_data": data} for key, data in values.items()]


FILTERS: dict[str, tuple[dict[str, Any], list[bytes]]] = {
    "equal": (rule(1, "eu"), [b"eu"]),
    "equal to what is no string": (rule(1, "1"), []),
    "not equal": (rule(1, "eu", inverse=True), [each for each in EVERYTHING if each != b"eu"]),
    "regexp": (rule(2, "^eu"), [b"eu", b"eu-west"]),
    "regexp in the middle": (rule(2, "west"), [b"eu-west"]),
    "glob": (rule(3, "eu*"), [b"eu", b"eu-west"]),
    "glob of one letter": (rule(3, "?u"), [b"eu"]),
    "any": (
        rule(4, key="any", filter_data_list=equals(region="us", kind="a")),
        [b"eu", b"us", b"eu-west"],
    ),
    "all": (rule(4, key="all", filter_data_list=equals(region="eu", kind="a")), [b"eu"]),
    # These are ignored.
    "a bad regexp": (rule(2, "(eu"), EVERYTHING),
    "an unknown type": (rule(9, "eu"), EVERYTHING),
    "no type": ({"filter_ext_key": "region", "filter_data": "eu"}, EVERYTHING),
    "no key": (rule(1, "eu", key=""), EVERYTHING),
}


@pytest.mark.parametrize(("ext_filter", "expected"), FILTERS.values(), ids=FILTERS)
def test_a_filter_has_the_rest_finished_for_the_whole_channel(
    connect: Connect, ext_filter: dict[str, Any], expected: list[bytes]
) -> None:
    consumer, other, producer = connect(), connect(), connect()
    consumer.identify(extend_support=True, ext_filter=ext_filter)
    other.identify(extend_support=True)
    consumer.subscribe("SUB t_ext ch 0", rdy=100)
    items = [extended(headers, body) for body, headers in MESSAGES.items()]
    assert producer.ask(batch("MPUB_EXT t_ext 0", *items)) == OK
    found = [read_message(frame, extended=True).body for frame in consumer.arrived()]
    assert found == expected
    # What the client leaves in flight is all that another one gets.
    consumer.leave()
    other.subscribe("SUB t_ext ch 0", rdy=100)
    left = [read_message(frame, extended=True).body for frame in other.arrived()]
    assert sorted(left) == sorted(expected)


def test_a_filter_is_ignored_where_messages_have_no_headers(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.identify(ext_filter=rule(1, "eu"))
    consumer.subscribe("SUB t_part ch 0")
    assert producer.ask(pub("t_part", b"x")) == OK
    assert consumer.bodies(1) == [b"x"]


def test_a_tag_is_ignored_where_messages_have_no_headers(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    assert consumer.identify(desired_tag="tagA")["desired_tag"] == "tagA"
    consumer.subscribe("SUB t_part ch 0")
    assert producer.ask(pub("t_part", b"x")) == OK
    assert consumer.bodies(1) == [b"x"]
