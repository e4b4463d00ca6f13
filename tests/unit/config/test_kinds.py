"""Choices, booleans, texts, paths and lists: what is valid, and the exact wording of refusals."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest

from nsqflow.config.kinds import (
    CALLBACK,
    Boolean,
    Choice,
    Instance,
    Kind,
    List,
    Path,
    Text,
    matching,
)
from nsqflow.errors import ConfigError


def refused(kind: Kind, text: str) -> str:
    """The error's words."""
    with pytest.raises(ConfigError) as caught:
        kind.parse("someOption", text)
    return str(caught.value)


def refused_value(kind: Kind, value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        kind.check("some_option", value)
    return str(caught.value)


def refused_setting(kind: Kind, value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        kind.load("file.toml: key", value)
    return str(caught.value)


def test_words_are_valid_in_any_case_and_others_are_refused_with_the_choice() -> None:
    choice = Choice("redelivered", "always", "off")
    assert choice.parse("dedupe", "Always") == "always"
    expected = "someOption='on' is invalid: must be redelivered, always or off"
    assert refused(choice, "on") == expected
    assert refused_value(choice, "Always") == (
        "some_option='Always' is invalid: must be redelivered, always or off"
    )


def test_a_choice_may_have_an_empty_word_or_none() -> None:
    assert str(Choice("", "require")) == "'' or require"
    assert str(Choice("classic", optional=True)) == "classic or None"
    assert Choice("classic", optional=True).check("dialect", None) is None


def test_go_has_its_own_values_for_words() -> None:
    level = Choice("debug", "info", go=(1, 2))
    assert (level.from_go("log_level", "INFO"), level.to_go("info")) == ("info", 2)
    assert Choice("", "require").to_go("require") == "require"


def test_booleans_are_true_or_false_and_nothing_else() -> None:
    assert [Boolean().parse("tls", text) for text in ("true", "FALSE")] == [True, False]
    assert refused(Boolean(), "yes") == "someOption='yes' is invalid: must be true or false"
    assert refused(Boolean(), "1") == "someOption='1' is invalid: must be true or false"
    assert refused_value(Boolean(), 1) == "some_option=1 is invalid: must be True or False"


def test_booleans_of_variables_and_files_may_be_digits_in_text() -> None:
    assert [Boolean().load("x", value) for value in (True, "1", "0", "True")] == [
        *(True, True, False, True)
    ]
    assert refused_setting(Boolean(), 1) == "file.toml: key=1 is invalid: must be true or false"


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_go_has_more_ways_to_write_true(text: str) -> None:
    assert Boolean().from_go("snappy", text) is True


def test_text_is_validated_by_a_function() -> None:
    word = Text("one or more letters", matching("[a-z]+"))
    assert word.parse("x", "abc") == "abc"
    assert refused(word, "a1") == "someOption='a1' is invalid: must be one or more letters"
    assert refused_value(word, 5) == "some_option=5 is invalid: must be one or more letters"
    assert refused_setting(word, "") == "file.toml: key='' is invalid: must be one or more letters"


def test_a_function_may_have_a_message_of_its_own() -> None:
    def never(text: str) -> str:
        raise ConfigError(f"{text!r} is reserved")

    assert refused(Text("text", never), "a") == "someOption: 'a' is reserved"


def test_text_may_be_optional() -> None:
    assert Text(optional=True).check("client_id", None) is None
    assert refused_value(Text(optional=True), b"a") == (
        "some_option=b'a' is invalid: must be text, or None"
    )


def test_a_path_is_text_without_null_characters() -> None:
    path = Path("the path of a file")
    assert path.check("data_path", FilePath("/a/b")) == "/a/b"
    assert refused(path, "/a\0") == "someOption='/a\\x00' is invalid: must be the path of a file"
    assert Path("a folder", optional=True).from_go("-data-path", "") is None


def test_a_list_is_separated_by_commas_with_blanks_around_them() -> None:
    assert List(Text()).parse("topic", "a , b,c") == ("a", "b", "c")
    assert str(List(Text("a name"))) == "a name, or several separated by commas"


def test_a_duplicate_in_a_list_is_refused_by_its_position() -> None:
    assert refused(List(Text()), "a,b,a") == "someOption: entry 3 is a duplicate"


def test_a_list_may_be_a_tuple_a_list_or_one_text() -> None:
    for value in (("a",), ["a"], "a"):
        assert List(Text()).check("x", value) == ("a",)
    assert refused_value(List(Text("a name")), 5) == (
        "some_option=5 is invalid: must be a name, or several separated by commas"
    )


@pytest.mark.parametrize("value", ["a, b,", ["a ", "b"]])
def test_a_list_of_a_file_or_a_variable_leaves_out_what_is_empty(value: object) -> None:
    assert List(Text()).load("x", value) == ("a", "b")


@pytest.mark.parametrize("value", [5, [], ["http://me:word@a", 5], ","])
def test_a_list_that_may_have_a_password_is_not_shown(value: object) -> None:
    assert refused_setting(List(Text("an address"), secret=True), value) == (
        "file.toml: key is invalid: must be an address, or several separated by commas"
    )


def test_an_object_is_checked_by_a_function() -> None:
    number = Instance("an int", lambda value: isinstance(value, int))
    assert refused_value(number, "x") == "some_option='x' is invalid: must be an int"
    secret = Instance("bytes", lambda value: isinstance(value, bytes), secret=True)
    assert refused_value(secret, "x") == "some_option is invalid: must be bytes"


def test_a_callback_is_a_function_or_none() -> None:
    assert CALLBACK.check("on_event", print) is print
    assert CALLBACK.check("on_event", None) is None
    assert refused_value(CALLBACK, 5) == "some_option=5 is invalid: must be a function, or None"
