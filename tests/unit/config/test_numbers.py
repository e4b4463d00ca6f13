"""Numbers, durations and sizes: what is valid, and the exact wording of every refusal."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.config.kinds import Kind
from nsqflow.config.numbers import Duration, Integer, Number, Size, format_duration, in_digits
from nsqflow.errors import ConfigError

DAY = 86_400


def refused(kind: Kind, text: str) -> str:
    """The error's words."""
    with pytest.raises(ConfigError) as caught:
        kind.parse("someOption", text)
    return str(caught.value)


def refused_value(kind: Kind, value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        kind.check("some_option", value)
    return str(caught.value)


# Numbers.


@given(st.floats(-1e9, 1e9), st.floats(allow_nan=False), st.booleans())
def test_a_range_contains_what_lies_between_its_ends(low: float, value: float, above: bool) -> None:
    number = Number(low, above=above)
    if value < inf and (value > low if above else value >= low):
        assert number.check("x", value) == value
    else:
        with pytest.raises(ConfigError):
            number.check("x", value)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (Number(0, above=True), "a number > 0"),
        (Number(0, 3600, above=True), "a number > 0 and <= 3600"),
        (Number(0.25), "a number >= 0.25"),
        (Number(0, 1), "a number from 0 to 1"),
        (
            Number(0.001, disabled=True, optional=True),
            "a number >= 0.001, or -1 (disabled), or None (the server's default)",
        ),
        (Integer(1), "an integer >= 1"),
        (Integer(1, 2**63 - 1), "an integer >= 1"),
        (Integer(1, 2**31 - 9), "an integer from 1 to 2147483639"),
    ],
)
def test_a_range_is_described(number: Number, words: str) -> None:
    assert str(number) == words


@pytest.mark.parametrize(("value", "text"), [(8.0, "8"), (0.3, "0.3"), (2**31, "2147483648")])
def test_numbers_are_written_without_an_exponent(value: float, text: str) -> None:
    assert in_digits(value) == text


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True, None, nan, inf])
def test_a_value_that_is_not_an_integer_in_the_range_is_refused(value: object) -> None:
    expected = f"some_option={value!r} is invalid: must be an integer >= 1"
    assert refused_value(Integer(1), value) == expected


def test_an_integer_may_be_too_large_for_a_float() -> None:
    assert Integer(1).check("x", 10**400) == 10**400


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.0", "ten", "1k", "٣", "9" * 5000])
def test_text_that_is_not_an_integer_in_the_range_is_refused(text: str) -> None:
    expected = f"someOption={text!r} is invalid: must be an integer from 1 to 100"
    assert refused(Integer(1, 100), text) == expected


def test_an_integer_at_the_ends_of_its_range_is_valid() -> None:
    assert [Integer(1, 100).parse("partitionsPerNsqd", text) for text in ("1", "100")] == [1, 100]


@pytest.mark.parametrize("text", ["0", "3601", "nan", "inf", "-1", "x", ""])
def test_text_that_is_not_a_number_in_the_range_is_refused(text: str) -> None:
    expected = f"someOption={text!r} is invalid: must be a number > 0 and <= 3600"
    assert refused(Number(0, 3600, above=True), text) == expected


def test_go_may_write_an_integer_with_a_prefix() -> None:
    assert [Integer().from_go("x", value) for value in (5, "5", "0x10", "1_000")] == [
        5,
        5,
        16,
        1000,
    ]


# Durations.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5.0),
        ("0.25", 0.25),
        ("500ms", 0.5),
        ("0.5s", 0.5),
        ("5s", 5.0),
        ("15m", 900.0),
        ("2h", 7200.0),
        ("1.5H", 5400.0),
        ("20MS", 0.02),
    ],
)
def test_a_duration_is_seconds_unless_it_has_a_unit(text: str, seconds: float) -> None:
    assert Duration(0.01, DAY).parse("idleTimeout", text) == seconds


@given(st.integers(1, 86_400_000))
def test_every_duration_in_milliseconds_is_read_as_it_was_written(milliseconds: int) -> None:
    time = Duration(0.001, DAY).parse("idleTimeout", f"{milliseconds}ms")
    assert round(time * 1000) == milliseconds


@pytest.mark.parametrize(
    "text", ["-1", "+1", "1 h", "h", "1d", ".5", "1e3", "1m30s", "inf", "nan", "1_000", "٣", "5s\n"]
)
def test_text_that_is_not_a_duration_is_refused_with_the_range_and_the_units(text: str) -> None:
    assert refused(Duration(1, DAY), text) == (
        f"someOption={text!r} is invalid: must be a duration from 1s to 24h "
        "(units: ms, s, m, h; a number without a unit is seconds)"
    )


@pytest.mark.parametrize("text", ["999ms", "0.9", "24.01h", "1441m", "9" * 15, "9" * 400])
def test_a_duration_out_of_its_range_is_refused(text: str) -> None:
    assert "must be a duration from 1s to 24h" in refused(Duration(1, DAY), text)


def test_a_duration_at_the_ends_of_its_range_is_valid() -> None:
    assert Duration(1, DAY).parse("msgTimeout", "1000ms") == 1.0
    assert Duration(1, DAY).parse("msgTimeout", "1440m") == 86400.0


@pytest.mark.parametrize("value", [0, -1.0, nan, inf, "60s", True, None, 9_223_372_037])
def test_a_value_that_is_not_a_number_of_seconds_is_refused(value: object) -> None:
    assert refused_value(Duration(above=True), value) == (
        f"some_option={value!r} is invalid: must be a number of seconds > 0 and <= 9223372036"
    )


def test_zero_seconds_are_valid_where_the_range_says_so() -> None:
    assert Duration().check("max_req_timeout", 0) == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h2m3s4ms", 3723.004),
        ("1500us", 0.0015),
        ("1µs", 1e-6),
        ("-5s", -5.0),
        (".5s", 0.5),
        ("0", 0),
    ],
)
def test_go_writes_a_duration_with_several_units(text: str, seconds: float) -> None:
    assert Duration().from_go("x", text) == seconds


def test_go_has_milliseconds_in_config_files_and_nanoseconds_in_json() -> None:
    assert Duration().from_go("x", 1500) == 1.5
    assert Duration().to_go(1.5) == 1_500_000_000


def test_text_that_go_does_not_take_for_a_duration_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Duration().from_go("-msg-timeout", "5")
    assert str(caught.value) == (
        "-msg-timeout='5' is invalid: must be a number with a unit (ns, us, ms, s, m, h), such as "
        "1m30s"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "1m30s"), (0.025, "25ms"), (604_800, "168h"), (0, ""), (1e-9, "1ns")]
)
def test_a_duration_is_written_in_its_largest_whole_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


# Sizes.


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 65536), ("16M", 16 * 2**20), ("1g", 2**30)]
)
def test_units_of_a_size_are_powers_of_1024(text: str, size: int) -> None:
    assert Size("1", "1024g").parse("maxBytesPerTrigger", text) == size


@pytest.mark.parametrize("text", ["0", "-1", "1.5k", "1kb", "1t", "1025g", "k", "", "9" * 400])
def test_text_that_is_not_a_size_in_the_range_is_refused(text: str) -> None:
    assert refused(Size("1", "1024g"), text) == (
        f"someOption={text!r} is invalid: must be a number of bytes from 1 to 1024g (units: k, m, "
        "g for 1024, 1024**2, 1024**3)"
    )
