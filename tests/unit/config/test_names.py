"""Names and addresses: what is valid, and the wording of refusals."""

from __future__ import annotations

import pytest

from nsqflow.address import parse_address
from nsqflow.config.addresses import HOST, HTTP, NSQD, Addresses, ListenAddress, PeerAddress
from nsqflow.config.kinds import Kind, List
from nsqflow.config.names import CHANNEL, PATTERN, TARGET, TOPIC, TOPICS
from nsqflow.errors import ConfigError


def refused(kind: Kind, text: str) -> str:
    """The error's words."""
    with pytest.raises(ConfigError) as caught:
        kind.parse("someOption", text)
    return str(caught.value)


def test_topics_may_be_several_and_have_blanks_around_the_commas() -> None:
    assert TOPICS.parse("topic", "orders , users,a.b#ephemeral") == (
        "orders",
        "users",
        "a.b#ephemeral",
    )


@pytest.mark.parametrize("text", ["orders,", ",", "orders,,users"])
def test_an_empty_entry_in_a_list_is_refused(text: str) -> None:
    assert "topic name '' is empty" in refused(TOPICS, text)


def test_a_duplicate_topic_is_refused_by_its_position() -> None:
    assert refused(TOPICS, "orders,users,orders") == ("someOption: entry 3 is a duplicate")


@pytest.mark.parametrize("kind", [TOPIC, TOPICS, TARGET])
def test_a_topic_that_no_server_takes_is_refused_with_the_rule(kind: Kind) -> None:
    assert "someOption: topic name 'a b' has ' ' at position 1" in refused(kind, "a b")


def test_a_sink_takes_one_topic_and_says_what_to_do_with_several() -> None:
    assert TARGET.parse("topic", "orders") == "orders"
    assert "'a,b' names several topics: must be one; for more" in refused(TARGET, "a,b")


def test_a_channel_that_does_not_last_is_refused_with_the_reason() -> None:
    assert CHANNEL.parse("channel", "spark") == "spark"
    assert "'spark#ephemeral' would lose messages" in refused(CHANNEL, "spark#ephemeral")
    assert "channel name 'a/b' has '/'" in refused(CHANNEL, "a/b")


def test_a_pattern_that_is_not_a_regular_expression_is_refused() -> None:
    assert PATTERN.parse("topicPattern", r"orders\..+") == r"orders\..+"
    assert "someOption: '(' is not a regular expression: missing )" in refused(PATTERN, "(")
    assert "is not a regular expression: " in refused(PATTERN, "a{99999999999}")
    assert "is not a regular expression: " in refused(PATTERN, "(" * 5000 + ")" * 5000)


def test_addresses_of_nsqd_are_written_in_one_way() -> None:
    assert List(NSQD).parse("nsqd", "host-1:04150, [::1]:4150") == ("host-1:4150", "[::1]:4150")


@pytest.mark.parametrize(
    "text", ["host", "host:0", "host:65536", "/run/nsqd.sock", "http://host:4151", "a|b:4150", ""]
)
def test_what_is_not_a_host_and_port_is_refused_as_an_nsqd(text: str) -> None:
    assert refused(List(NSQD), text) == (
        f"someOption={text!r} is invalid: must be host:port or [IPv6]:port with a port from 1 to "
        "65535"
    )


def test_http_addresses_may_be_urls() -> None:
    text = "host:4161,https://user:word@host/lookup"
    assert List(HTTP).parse("lookupd", text) == ("host:4161", "https://user:word@host/lookup")


@pytest.mark.parametrize(
    "text",
    ["http://user:hunter2@host:0", "http://user:hunter2@", "http://u:hunter2@h,http://u:hunter2@h"],
)
def test_a_password_in_an_address_is_not_shown(text: str) -> None:
    assert "hunter2" not in refused(List(HTTP), text)


def test_several_addresses_of_nsqd_are_kept_once() -> None:
    addresses = Addresses("one address or several", parse_address)
    assert addresses.check("nsqd", ["a:1", "b:2 ", "a:1"]) == ("a:1", "b:2")
    assert addresses.check("nsqd", "a:1") == ("a:1",)
    with pytest.raises(ConfigError, match="'nonsense' is invalid"):
        addresses.check("nsqd", "nonsense")


def test_addresses_of_a_daemon_are_checked() -> None:
    assert ListenAddress(optional=True).check("http_address", "") == ""
    for kind, value in ((ListenAddress(), ""), (PeerAddress("host:port"), ":1"), (HOST, "a:1")):
        with pytest.raises(ConfigError, match=f"some_option='{value}' is invalid: must be "):
            kind.check("some_option", value)
