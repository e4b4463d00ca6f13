"""Names: what nsqd's own regular expression and length take (internal/protocol/names.go)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import ConfigError
from nsqflow.protocol.names import check_channel, check_topic, is_ephemeral, is_valid_name
from tests.unit.protocol.strategies import names

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"

CHECKS = [("topic", check_topic), ("channel", check_channel)]

VALID = ["a", ".", "-", "_", "0", "Orders.v2_eu-west", "a" * 64, "a#ephemeral"]
VALID += ["a" * 54 + "#ephemeral"]  # 64 with the ending

RULE = "must consist of letters, digits, '.', '_' and '-', and may end with #ephemeral"

INVALID = [
    ("", "name '' is empty: must have 1 to 64 characters"),
    ("a" * 65, "has 65 characters: must have 1 to 64 with #ephemeral"),
    ("a" * 55 + "#ephemeral", "has 65 characters: must have 1 to 64 with #ephemeral"),
    ("#ephemeral", "name '#ephemeral' has nothing before #ephemeral"),
    ("a" * 63 + "$", f"has '$' at position 63: {RULE}"),
    ("a b", f"name 'a b' has ' ' at position 1: {RULE}"),
    ("a\n", rf"name 'a\n' has '\n' at position 1: {RULE}"),
    ("a#ephemeral#ephemeral", f"has '#' at position 1: {RULE}"),
    ("a#Ephemeral", f"has '#' at position 1: {RULE}"),
    ("a#ephemeral\n", f"has '#' at position 1: {RULE}"),
    ("orders/eu", f"has '/' at position 6: {RULE}"),
    ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", f"at position 3: {RULE}"),
    ("a\N{ARABIC-INDIC DIGIT ONE}", f"at position 1: {RULE}"),
    ("\ud800", rf"has '\ud800' at position 0: {RULE}"),
]


def test_every_character_nsqd_takes_is_taken_and_no_other() -> None:
    taken = [char for char in map(chr, range(0x3000)) if is_valid_name(char)]
    assert sorted(taken) == sorted(ALPHABET)


@pytest.mark.parametrize(("what", "check"), CHECKS)
@pytest.mark.parametrize("name", VALID)
def test_a_valid_name_is_returned(what: str, check: Callable[[str], str], name: str) -> None:
    assert is_valid_name(name)
    assert check(name) is name


@pytest.mark.parametrize(("what", "check"), CHECKS)
@pytest.mark.parametrize(("name", "complaint"), INVALID)
def test_a_refused_name_is_reported_with_the_rule_it_breaks(
    what: str, check: Callable[[str], str], name: str, complaint: str
) -> None:
    assert not is_valid_name(name)
    with pytest.raises(ConfigError) as caught:
        check(name)
    assert str(caught.value).startswith(f"{what} name {name!r} ")
    assert str(caught.value).endswith(complaint)


@pytest.mark.parametrize(("what", "check"), CHECKS)
@pytest.mark.parametrize(
    ("name", "kind"), [(b"orders", "bytes: b'orders'"), (None, "NoneType: None"), (7, "int: 7")]
)
def test_a_name_must_be_text(
    what: str, check: Callable[[Any], str], name: object, kind: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check(name)
    assert str(caught.value) == f"{what} name must be a str, not {kind}"


@pytest.mark.parametrize(
    ("name", "ephemeral"), [("a#ephemeral", True), ("a", False), ("ephemeral", False)]
)
def test_an_ephemeral_name_is_known_by_its_ending(name: str, ephemeral: bool) -> None:
    assert is_ephemeral(name) is ephemeral


@given(names)
def test_names_drawn_from_the_rule_are_valid(name: str) -> None:
    assert check_topic(name) == name


@given(st.lists(st.sampled_from([*"aZ0.-_# \n", "#ephemeral"]), max_size=70).map("".join))
def test_any_other_text_is_refused_with_config_error_alone(name: str) -> None:
    body = name.removesuffix("#ephemeral")
    valid = body != "" and len(name) <= 64 and set(body) <= set(ALPHABET)
    assert is_valid_name(name) is valid
    if not valid:
        with pytest.raises(ConfigError, match=r"^channel name "):
            check_channel(name)
