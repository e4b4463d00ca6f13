"""The values of options: what is read, and what is refused in which words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import ConfigError
from nsqflow.spark.values import (
    CHANNEL,
    HTTP,
    NSQD,
    PATTERN,
    TARGET,
    TOPIC,
    TOPICS,
    Choice,
    Flag,
    Kind,
    Location,
    Size,
    Time,
    Whole,
)


def refused(kind: Kind, text: str) -> str:
    """The error's words."""
    with pytest.raises(ConfigError) as caught:
        kind.read("someOption", text)
    return str(caught.value)


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
def test_a_time_is_seconds_unless_it_has_a_unit(text: str, seconds: float) -> None:
    assert Time("10ms", "24h").read("idleTimeout", text) == seconds


@given(st.integers(1, 86_400_000))
def test_every_time_in_milliseconds_is_read_as_it_was_written(milliseconds: int) -> None:
    time = Time("1ms", "24h").read("idleTimeout", f"{milliseconds}ms")
    assert round(time * 1000) == milliseconds


@pytest.mark.parametrize(
    "text", ["-1", "+1", "1 h", "h", "1d", ".5", "1e3", "1m30s", "inf", "nan", "1_000", "٣", "5s\n"]
)
def test_what_is_no_time_is_refused_with_the_range_and_the_units(text: str) -> None:
    assert refused(Time("1s", "24h"), text) == (
        f"someOption {text!r}; allowed is a time of 1s to 24h "
        "(units: ms, s, m, h; a bare number is seconds)"
    )


@pytest.mark.parametrize("text", ["999ms", "0.9", "24.01h", "1441m", "9" * 15, "9" * 400])
def test_a_time_out_of_its_range_is_refused(text: str) -> None:
    assert "allowed is a time of 1s to 24h" in refused(Time("1s", "24h"), text)


def test_a_time_at_the_ends_of_its_range_is_taken() -> None:
    assert Time("1s", "24h").read("msgTimeout", "1000ms") == 1.0
    assert Time("1s", "24h").read("msgTimeout", "1440m") == 86400.0


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 65536), ("16M", 16 * 2**20), ("1g", 2**30)]
)
def test_units_of_a_size_are_powers_of_1024(text: str, size: int) -> None:
    assert Size("1", "1024g").read("maxBytesPerTrigger", text) == size


@pytest.mark.parametrize("text", ["0", "-1", "1.5k", "1kb", "1t", "1025g", "k", "", "9" * 400])
def test_what_is_no_size_or_out_of_its_range_is_refused(text: str) -> None:
    assert refused(Size("1", "1024g"), text) == (
        f"someOption {text!r}; allowed is a size of 1 to 1024g bytes (k, m, g: 1024, 1024**2, "
        "1024**3)"
    )


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.0", "ten", "1k", "٣", "9" * 5000])
def test_what_is_no_whole_number_or_out_of_its_range_is_refused(text: str) -> None:
    expected = f"someOption {text!r}; allowed is a whole number of 1 to 100"
    assert refused(Whole(1, 100), text) == expected


def test_a_whole_number_at_the_ends_of_its_range_is_taken() -> None:
    assert [Whole(1, 100).read("partitionsPerNsqd", text) for text in ("1", "100")] == [1, 100]


def test_words_are_taken_in_any_case_and_others_are_refused_with_the_choice() -> None:
    choice = Choice("redelivered", "always", "off")
    assert choice.read("dedupe", "Always") == "always"
    assert refused(choice, "on") == "someOption 'on'; allowed is redelivered, always or off"


def test_flags_are_true_or_false_and_nothing_else() -> None:
    assert [Flag().read("tls", text) for text in ("true", "FALSE")] == [True, False]
    assert refused(Flag(), "yes") == "someOption 'yes'; allowed is true or false"


def test_topics_may_be_several_and_have_blanks_around_the_commas() -> None:
    assert TOPICS.read("topic", "orders , users,a.b#ephemeral") == (
        "orders",
        "users",
        "a.b#ephemeral",
    )


@pytest.mark.parametrize("text", ["orders,", ",", "orders,,users"])
def test_an_empty_place_in_a_list_is_refused(text: str) -> None:
    assert "topic name '' is empty" in refused(TOPICS, text)


def test_a_topic_that_is_there_twice_is_refused_by_its_place() -> None:
    assert refused(TOPICS, "orders,users,orders") == (
        "someOption: entry 3 is there already; once is enough"
    )


@pytest.mark.parametrize("kind", [TOPIC, TOPICS, TARGET])
def test_a_topic_that_no_server_takes_is_refused_with_the_rule(kind: Kind) -> None:
    assert "someOption: topic name 'a b' has ' ' at position 1" in refused(kind, "a b")


def test_a_sink_takes_one_topic_and_says_what_to_do_with_several() -> None:
    assert TARGET.read("topic", "orders") == "orders"
    assert "'a,b' names several; allowed is one, or a column topic" in refused(TARGET, "a,b")


def test_a_channel_that_does_not_last_is_refused_with_the_reason() -> None:
    assert CHANNEL.read("channel", "spark") == "spark"
    assert "'spark#ephemeral' would lose messages" in refused(CHANNEL, "spark#ephemeral")
    assert "channel name 'a/b' has '/'" in refused(CHANNEL, "a/b")


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    assert PATTERN.read("topicPattern", r"orders\..+") == r"orders\..+"
    assert "someOption: '(' is no regular expression: missing )" in refused(PATTERN, "(")
    assert "is no regular expression: " in refused(PATTERN, "a{99999999999}")
    assert "is no regular expression: " in refused(PATTERN, "(" * 5000 + ")" * 5000)


def test_addresses_of_nsqd_are_written_in_one_way() -> None:
    assert NSQD.read("nsqd", "host-1:04150, [::1]:4150") == ("host-1:4150", "[::1]:4150")


@pytest.mark.parametrize(
    "text", ["host", "host:0", "host:65536", "/run/nsqd.sock", "http://host:4151", "a|b:4150", ""]
)
def test_what_is_no_host_and_port_is_refused_as_an_nsqd(text: str) -> None:
    assert refused(NSQD, text) == (
        f"someOption: {text!r}; allowed is host:port, [IPv6]:port, with a port of 1 to 65535"
    )


def test_http_addresses_may_be_urls() -> None:
    text = "host:4161,https://user:word@host/lookup"
    assert HTTP.read("lookupd", text) == ("host:4161", "https://user:word@host/lookup")


@pytest.mark.parametrize(
    "text",
    ["http://user:hunter2@host:0", "http://user:hunter2@", "http://u:hunter2@h,http://u:hunter2@h"],
)
def test_a_password_in_an_address_is_not_shown(text: str) -> None:
    assert "hunter2" not in refused(HTTP, text)


def test_a_spool_is_taken_where_the_store_takes_it() -> None:
    assert Location().read("spoolLocation", "file:///data//spool/") == "/data/spool"
    assert Location().read("spoolLocation", "s3a://bucket/spool") == "s3://bucket/spool"


def test_a_spool_elsewhere_is_refused_with_the_list_of_what_is_proven() -> None:
    words = refused(Location(), "hdfs://host/spool")
    assert re.match("spoolLocation 'hdfs://host/spool'.*s3://bucket/prefix", words)
