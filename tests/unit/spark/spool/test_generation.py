"""The marker of a generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqflow.spark.spool.generation import GenerationMarker, remove_generation
from nsqflow.spark.spool.layout import generation_marker, planned_marker
from nsqflow.spark.spool.local_store import LocalStore

MARKER = GenerationMarker(channel="spark", topics=("a", "b"), former_topics=("old",))


def test_a_marker_is_read_as_it_was_written() -> None:
    assert GenerationMarker.decode(MARKER.encode()) == MARKER


def test_a_marker_of_an_earlier_release_has_no_former_topics() -> None:
    marker = GenerationMarker.decode(b'{"channel": "spark", "topics": ["a"]}')
    assert marker == GenerationMarker(channel="spark", topics=("a",))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"7", b'{"channel": "c", "topics": 7}'])
def test_a_damaged_marker_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        GenerationMarker.decode(content)


@pytest.mark.parametrize(
    ("topics", "pattern", "planned", "former"),
    [
        (("a", "b"), "", [], ("old",)),
        (("a",), "", [], ("b", "old")),
        (("a", "b", "old"), "", [], ()),
        ((), "a|o.*", [], ("b",)),
        (("a", "b"), "", ["found", "a"], ("found", "old")),
    ],
)
def test_topics_that_are_read_no_more_are_remembered(
    topics: tuple[str, ...], pattern: str, planned: list[str], former: tuple[str, ...]
) -> None:
    restarted = MARKER.restarted(topics, pattern, planned)
    assert (restarted.topics, restarted.pattern) == (topics, pattern)
    assert restarted.former_topics == former
    assert restarted.channel == "spark"


def test_the_markers_of_batches_are_removed_first(tmp_path: Path) -> None:
    class Recording(LocalStore):
        removed: list[str] = []  # noqa: RUF012  (of one instance)

        def remove(self, name: str) -> None:
            self.removed.append(name)
            super().remove(name)

    store = Recording(str(tmp_path))
    for seq in (1, 2):
        store.write(planned_marker("gen", seq), b"{}")
    store.write(generation_marker("gen"), b"{}")
    store.write(generation_marker("other"), b"{}")
    remove_generation(store, "gen")
    assert store.removed == [planned_marker("gen", 1), planned_marker("gen", 2), "gen"]
    assert store.tree("") == [generation_marker("other")]
