"""What hypothesis draws from and how it cuts it, for more than one test file."""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

names = st.from_regex(r"[.a-zA-Z0-9_-]{1,54}(#ephemeral)?", fullmatch=True)

# A redesigned id is binary: most of all it may hold what separates words and lines.
ids = st.binary(min_size=16, max_size=16) | st.lists(
    st.sampled_from(b"\n\r \0\xff0"), min_size=16, max_size=16
).map(bytes)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=8,
)


@st.composite
def pieces(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """The stream as a network may cut it: anywhere, or after every byte."""
    if draw(st.booleans()):
        return [stream[i : i + 1] for i in range(len(stream))]
    cuts = sorted(draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    return [stream[i:k] for i, k in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def attempt(error: type[E], call: Callable[..., T], *args: Any) -> T | E:
    """What the call returns, or the error of this one kind that it raises."""
    try:
        return call(*args)
    except error as raised:
        return raised
