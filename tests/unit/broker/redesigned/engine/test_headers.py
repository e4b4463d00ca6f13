"""Headers: trace ids, tags, and the filters that clients ask for."""

from __future__ import annotations

from typing import Any

import pytest

from nsqflow.broker.redesigned.engine.headers import (
    InvalidHeaders,
    InvalidTraceId,
    make_filter,
    tag_of,
    trace_id_of,
)


@pytest.mark.parametrize(
    ("headers", "trace_id"),
    [
        (b"{}", None),
        (b"[]", None),
        (b'"text"', None),
        (b'{"##trace_id":"0"}', 0),
        (b'{"##trace_id":"18446744073709551615"}', 2**64 - 1),
        (b'{"##trace_id":"' + b"0" * 5000 + b'7"}', 7),
    ],
)
def test_a_trace_id_is_a_number_in_a_string(headers: bytes, trace_id: int | None) -> None:
    assert trace_id_of(headers) == trace_id


@pytest.mark.parametrize(
    "value", ["9", '"x"', '""', '"-1"', '"18446744073709551616"', '"\u0663"', f'"{"1" * 5000}"']
)
def test_anything_else_is_not_a_trace_id(value: str) -> None:
    with pytest.raises(InvalidTraceId):
        trace_id_of(f'{{"##trace_id":{value}}}'.encode())


@pytest.mark.parametrize("headers", [b"", b"{x}", b"\xff", b"[" * 100_000])
def test_headers_must_be_json(headers: bytes) -> None:
    with pytest.raises(InvalidHeaders):
        trace_id_of(headers)


def test_a_tag_is_one_of_the_headers() -> None:
    assert tag_of(b'{"##client_dispatch_tag":"tagA"}') == "tagA"
    assert tag_of(b'{"##client_dispatch_tag":1}') == ""
    assert tag_of(b"") == ""
    assert tag_of(b"[") == ""


def rule(type: int, data: str, key: str = "k", **more: Any) -> dict[str, Any]:
    return {"type": type, "filter_ext_key": key, "filter_data": data, **more}


MANY = [{"filter_ext_key": "a", "filter_data": "1"}, {"filter_ext_key": "b", "filter_data": "2"}]


@pytest.mark.parametrize(
    ("asked", "headers", "delivered"),
    [
        (rule(1, "v"), b'{"k":"v"}', True),
        (rule(1, "v"), b'{"k":"w"}', False),
        (rule(1, "1"), b'{"k":1}', False),
        (rule(1, "v"), b"", False),
        (rule(1, "v"), b"[]", False),
        (rule(1, "v", inverse=True), b'{"k":"v"}', False),
        (rule(1, "v", inverse=True), b"", True),
        (rule(1, "v", "a.b"), b'{"a":{"b":"v"}}', True),
        (rule(1, "v", "a.b"), b'{"a.b":"v"}', True),
        (rule(1, "v", "a.b"), b'{"a":"v"}', False),
        (rule(2, "^o+$"), b'{"k":"ooo"}', True),
        (rule(2, "b"), b'{"k":"abc"}', True),
        (rule(2, "^$"), b'{"k":7}', True),
        (rule(2, "^$"), b"", False),
        (rule(3, "a*c"), b'{"k":"abbc"}', True),
        (rule(3, "a*c"), b'{"k":"abbcd"}', False),
        (rule(3, "a?[bc][!d]{e,f}**\\*"), b'{"k":"axbxfyy*"}', True),
        (rule(3, "a?[bc][!d]{e,f}"), b'{"k":"axbde"}', False),
        (rule(4, "", "any", filter_data_list=MANY), b'{"a":"1"}', True),
        (rule(4, "", "any", filter_data_list=MANY), b'{"a":"2"}', False),
        (rule(4, "", "all", filter_data_list=MANY), b'{"a":"1"}', False),
        (rule(4, "", "all", filter_data_list=MANY), b'{"a":"1","b":"2"}', True),
        (rule(4, "", "most", filter_data_list=MANY), b'{"a":"1","b":"2"}', False),
    ],
)
def test_a_filter_decides_by_text_values(
    asked: dict[str, Any], headers: bytes, delivered: bool
) -> None:
    wanted = make_filter(asked)
    assert wanted is not None
    assert wanted(headers) is delivered


@pytest.mark.parametrize(
    "asked",
    [
        None,
        {},
        rule(2, "("),
        rule(2, "(" * 5000 + ")" * 5000),
        rule(2, "x{99999999999}"),
        rule(3, "[a"),
        rule(3, "{a"),
        rule(9, "v"),
        rule(1, ""),
        rule(1, "v", ""),
        rule(4, "", "any"),
        rule(4, "", "any", filter_data_list=[]),
        rule(4, "", "", filter_data_list=MANY),
        rule(4, "", "any", filter_data_list=["x"]),
        rule(4, "", "any", filter_data_list=[{"filter_ext_key": "a"}]),
    ],
)
def test_a_rule_that_nsqd_does_not_understand_filters_nothing(asked: dict[str, Any] | None) -> None:
    assert make_filter(asked) is None
