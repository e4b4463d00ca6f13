"""Where keys stand: every key that tomllib finds has the line on which it is written."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.pipelines.toml_lines import find_lines

TEXT = '''\
name = "views"   # a comment with = and [brackets]

[source]
topic = "a [b] = c"
"quoted key" = 'x'
options.limit = 5
lists = [
    "one",   # [[sink]]
    "two",
]
sql = """
key = 1
[table]
""\\"" and so on""""
literal = \'\'\'
[[sink]]
\'\'\'

[ source . more ]
deep.er = { inline = 1, table = [1, 2] }

[[sink]]
name = "first"

[[sink]]
name = "second"
[sink.options]
x = true
[[sink.inner]]
y = 1
[[sink.inner]]
y = 2
'''

LINES = {
    ("name",): 1,
    ("source",): 3,
    ("source", "topic"): 4,
    ("source", "quoted key"): 5,
    ("source", "options"): 6,
    ("source", "options", "limit"): 6,
    ("source", "lists"): 7,
    ("source", "sql"): 11,
    ("source", "literal"): 15,
    ("source", "more"): 19,
    ("source", "more", "deep"): 20,
    ("source", "more", "deep", "er"): 20,
    ("sink", 0): 22,
    ("sink", 0, "name"): 23,
    ("sink", 1): 25,
    ("sink", 1, "name"): 26,
    ("sink", 1, "options"): 27,
    ("sink", 1, "options", "x"): 28,
    ("sink", 1, "inner", 0): 29,
    ("sink", 1, "inner", 0, "y"): 30,
    ("sink", 1, "inner", 1): 31,
    ("sink", 1, "inner", 1, "y"): 32,
}


def test_every_key_and_header_has_its_line() -> None:
    tomllib.loads(TEXT)
    assert find_lines(TEXT) == LINES


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "a = 1", "\r\na = 1\r\n"])
def test_short_texts_are_no_trouble(text: str) -> None:
    expected = {("a",): 1 + text.startswith("\r\n")} if "a" in tomllib.loads(text) else {}
    assert find_lines(text) == expected


NAMES = st.text("abc-_", min_size=1, max_size=3)
TEXTS = st.text("ab[]{}=#.\"'\n\\", max_size=12)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[tuple[str, ...], int]]:
    """A document and the lines of its keys, with values that look like anything but values."""
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for table in draw(st.lists(NAMES, unique=True, max_size=3)):
        lines += ["#" * draw(st.integers(0, 1))] * draw(st.integers(0, 2))
        lines.append(f"[{table}]")
        expected[(table,)] = len(lines)
        for name in draw(st.lists(NAMES, unique=True, max_size=3)):
            expected[(table, name)] = len(lines) + 1
            lines += f"{name} = {draw(values())}".split("\n")
    return "\n".join(lines), expected


@st.composite
def values(draw: st.DrawFn) -> str:
    text = draw(TEXTS)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    plain = text.replace("'", "").replace("\n", "")
    return draw(
        st.sampled_from(
            [
                f'"""{escaped}"""',
                f"'''{text.replace(chr(39), '')}'''",
                '"' + escaped.replace("\n", "\\n") + '"',
                f"'{plain}'",
                f"[\n '{plain}', # {plain}\n]",
                f"{{ a = '{plain}', b = [1] }}",
                "1979-05-27T07:32:00Z",
                "-1.5e3",
            ]
        )
    )


@given(documents())
def test_lines_are_right_whatever_the_values_look_like(
    document: tuple[str, dict[tuple[str, ...], int]],
) -> None:
    text, expected = document
    data: dict[str, Any] = tomllib.loads(text)
    assert {(table, key) for table, keys in data.items() for key in keys} <= expected.keys()
    assert find_lines(text) == expected
