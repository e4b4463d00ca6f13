"""What a key takes: each kind reads what TOML may give, and says what is allowed."""

from datetime import date

import pytest

from nsqflow.config.kinds import Boolean, Choice, Kind, Text
from nsqflow.config.numbers import Integer
from nsqflow.errors import ConfigError
from nsqflow.pipelines.document import Interpolated
from nsqflow.pipelines.keys import Arguments, Interval, StringList, StringTable, load_value

INTERVAL = "a duration such as 500 milliseconds, 10 seconds, 5 minutes"


@pytest.mark.parametrize(
    ("kind", "given", "taken"),
    [
        (Text("a text"), "x", "x"),
        (Text("a text"), 5, "5"),
        (Boolean(), True, True),
        (Boolean(), "false", False),
        (Integer(1, 9), 7, 7),
        (Integer(1, 9), "7", 7),
        (Choice("json", "csv"), "JSON", "json"),
        (StringList(Text("a name")), "a, b ,c", ("a", "b", "c")),
        (StringList(Text("a name")), ["a", 5], ("a", "5")),
        (StringTable(), {"a": True, "b": 0.5, "c": "", "d": date(2026, 1, 31)}, {
            "a": "true", "b": "0.5", "c": "", "d": "2026-01-31"}),
        (Arguments(), {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        (Interval(), "10 seconds", "10 seconds"),
        (Interval(), "1 minute", "1 minute"),
        (Interval("now"), "now", "now"),
    ],
)  # fmt: skip
def test_a_value_is_taken(kind: Kind, given: object, taken: object) -> None:
    assert load_value(kind, "key", given) == taken


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        (Text("a text"), "  ", "key is empty: must be a text"),
        (Text("a text"), ["x"], "key is a list: must be a text"),
        (Text("a text"), {}, "key is a table: must be a text"),
        (Boolean(), 1, "key='1' is invalid: must be true or false"),
        (Integer(1, 9), 10, "key='10' is invalid: must be an integer from 1 to 9"),
        (Integer(1, 9), 0.5, "key='0.5' is invalid: must be an integer from 1 to 9"),
        (StringList(Text("a name")), [], "key is empty: must be a name; several as a list or "
         "separated by commas"),
        (StringList(Text("a name")), "a,,b", "key is empty: must be a name; several as a list or "
         "separated by commas"),
        (StringList(Text("a name")), 5, "key is a single value: must be a name; several as a list "
         "or separated by commas"),
        (StringTable(), {"a": {"b": 1}}, "key.a is a table: must be a single value"),
        (StringTable(), [1], "key is a list: must be a table of names and single values"),
        (Arguments(), "x", "key is a single value: must be a table of names and values"),
        (Interval(), "10", f"key='10' is invalid: must be {INTERVAL}"),
        (Interval("now"), "-5 seconds", f"key='-5 seconds' is invalid: must be now or {INTERVAL}"),
        (Interval(), "10seconds", f"key='10seconds' is invalid: must be {INTERVAL}"),
        (Interval(), "10 months", f"key='10 months' is invalid: must be {INTERVAL}"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_with_what_is(
    kind: Kind, given: object, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_value(kind, "key", given)
    assert str(caught.value) == problem


@pytest.mark.parametrize("kind", [Text("a text"), StringList(Text("a name")), StringTable()])
def test_what_came_from_the_environment_stays_hidden(kind: Kind) -> None:
    secret = Interpolated("hunter2")
    secret.written = "${PASSWORD}"
    taken = load_value(kind, "key", {"a": secret} if isinstance(kind, StringTable) else secret)
    assert "hunter2" not in repr(taken)
    assert "${PASSWORD}" in repr(taken)
