"""What a key takes: each kind reads what TOML may give, and says what is allowed."""

from datetime import date

import pytest

from nsqflow.errors import ConfigError
from nsqflow.pipelines.file import Filled
from nsqflow.pipelines.keys import Arguments, Interval, One, Options, Value, Words
from nsqflow.spark.values import Choice, Flag, Text, Whole


@pytest.mark.parametrize(
    ("value", "given", "taken"),
    [
        (One(Text("a text")), "x", "x"),
        (One(Text("a text")), 5, "5"),
        (One(Flag()), True, True),
        (One(Flag()), "false", False),
        (One(Whole(1, 9)), 7, 7),
        (One(Whole(1, 9)), "7", 7),
        (One(Choice("json", "csv")), "JSON", "json"),
        (Words("a name"), "a, b ,c", ("a", "b", "c")),
        (Words("a name"), ["a", 5], ("a", "5")),
        (Options(), {"a": True, "b": 0.5, "c": "", "d": date(2026, 1, 31)}, {
            "a": "true", "b": "0.5", "c": "", "d": "2026-01-31"}),
        (Arguments(), {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        (Interval(), "10 seconds", "10 seconds"),
        (Interval(), "1 minute", "1 minute"),
        (Interval("now"), "now", "now"),
    ],
)  # fmt: skip
def test_a_value_is_taken(value: Value, given: object, taken: object) -> None:
    assert value.take("key", given) == taken


@pytest.mark.parametrize(
    ("value", "given", "problem"),
    [
        (One(Text("a text")), "  ", "key is empty; allowed is a text"),
        (One(Text("a text")), ["x"], "key is a list; allowed is a text"),
        (One(Text("a text")), {}, "key is a table; allowed is a text"),
        (One(Flag()), 1, "key '1'; allowed is true or false"),
        (One(Whole(1, 9)), 10, "key '10'; allowed is a whole number of 1 to 9"),
        (One(Whole(1, 9)), 0.5, "key '0.5'; allowed is a whole number of 1 to 9"),
        (Words("a name"), [], "key is empty; allowed is a name; several as a list, or with commas "
         "between"),
        (Words("a name"), "a,,b", "key is empty; allowed is a name; several as a list, or with "
         "commas between"),
        (Words("a name"), 5, "key is a single value; allowed is a name; several as a list, or "
         "with commas between"),
        (Options(), {"a": {"b": 1}}, "key.a is a table; allowed is a single value"),
        (Options(), [1], "key is a list; allowed is a table of names and single values"),
        (Arguments(), "x", "key is a single value; allowed is a table of names and values"),
        (Interval(), "10", "key '10'; allowed is a time such as 500 milliseconds, 10 seconds, "
         "5 minutes"),
        (Interval("now"), "-5 seconds", "key '-5 seconds'; allowed is now, a time such as 500 "
         "milliseconds, 10 seconds, 5 minutes"),
        (Interval(), "10seconds", "key '10seconds'; allowed is a time such as 500 milliseconds, "
         "10 seconds, 5 minutes"),
        (Interval(), "10 months", "key '10 months'; allowed is a time such as 500 milliseconds, "
         "10 seconds, 5 minutes"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_refused_with_what_is(
    value: Value, given: object, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        value.take("key", given)
    assert str(caught.value) == problem


@pytest.mark.parametrize("value", [One(Text("a text")), Words("a name"), Options()])
def test_what_came_from_the_environment_stays_hidden(value: Value) -> None:
    secret = Filled("hunter2")
    secret.written = "${PASSWORD}"
    taken = value.take("key", {"a": secret} if isinstance(value, Options) else secret)
    assert "hunter2" not in repr(taken)
    assert "${PASSWORD}" in repr(taken)
