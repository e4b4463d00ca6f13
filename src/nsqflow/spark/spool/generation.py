"""The marker of a generation: what it reads, and how.

A generation is the life of one checkpoint, or a batch read. The name says which: streams have the
digits of a UUID, and batch reads a prefix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from nsqflow.spark.spool.layout import batches_folder, planned_marker
from nsqflow.spark.spool.store import ObjectStore

BATCH_PREFIX = "batch-"
"""Of the generations of batch reads without a name."""
NAMED_PREFIX = "read-"
"""Of those with a ``readId``, which follows."""
MAX_READ_AGE = 24 * 3600.0
"""Seconds for which the spool keeps the rows of a read without a name."""


class GenerationKind(Enum):
    """What has written a generation."""

    STREAM = "stream"
    BATCH_READ = "batch read"
    NAMED_READ = "named read"

    @staticmethod
    def of(name: str) -> GenerationKind | None:
        """Return the kind of a generation with this name; None if it is not one."""
        return next((kind for kind, form in _FORMS.items() if form.fullmatch(name)), None)


_FORMS = {
    GenerationKind.STREAM: re.compile(r"[0-9a-f]{32}"),
    GenerationKind.BATCH_READ: re.compile(rf"{BATCH_PREFIX}[0-9a-f]{{32}}"),
    GenerationKind.NAMED_READ: re.compile(rf"{NAMED_PREFIX}[A-Za-z0-9._-]{{1,64}}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMarker:
    """What a generation reads."""

    channel: str
    topics: tuple[str, ...] = ()
    """Empty if they are found by a pattern."""
    pattern: str = ""
    former_topics: tuple[str, ...] = ()
    """Topics that were read before: their channels keep filling until they are deleted."""

    def encode(self, plan: Mapping[str, Any] | None = None) -> bytes:
        """Return the content of the object; that of a named read has its ``plan``."""
        values = {
            "channel": self.channel,
            "topics": list(self.topics),
            "pattern": self.pattern,
            "former_topics": list(self.former_topics),
        }
        return json.dumps(values if plan is None else {**values, "plan": plan}).encode()

    @staticmethod
    def decode(data: bytes) -> GenerationMarker:
        """Read a marker; raise ``ValueError`` if it is damaged."""
        try:
            values: Mapping[str, Any] = json.loads(data)
            return GenerationMarker(
                channel=str(values["channel"]),
                topics=tuple(values.get("topics", ())),
                pattern=str(values.get("pattern", "")),
                former_topics=tuple(values.get("former_topics", ())),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is not a marker: {error!r}") from None

    def restarted(
        self, topics: tuple[str, ...], pattern: str, planned: Iterable[str]
    ) -> GenerationMarker:
        """Return the marker after a restart with these topics; ``planned`` were read before."""
        matches = re.compile(pattern).fullmatch if pattern else lambda topic: None
        former = {*self.topics, *self.former_topics, *planned}.difference(topics)
        former = {topic for topic in former if not matches(topic)}
        return replace(self, topics=topics, pattern=pattern, former_topics=tuple(sorted(former)))


def remove_generation(store: ObjectStore, generation: str) -> None:
    """Remove a generation; late tasks notice it by the markers of its batches."""
    for name in store.names(batches_folder(generation)):
        if name.isdecimal():
            store.remove(planned_marker(generation, int(name)))
    store.remove(generation)
