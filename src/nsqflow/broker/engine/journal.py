"""What the engine tells whoever keeps its messages beyond the process.

A *place* is a number above 0 for a topic or a channel; it is never used twice. The calls come
in the order in which things happened, and must take effect in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsqflow.broker.engine.entry import Entry

NOWHERE = 0  # the place of what is not kept: ephemeral topics and channels


class Journal:
    """Takes down what happens; ``load`` is answered by ``Engine.loaded``.

    This one takes down nothing: all is in memory. A store does it otherwise.
    """

    def create(self, place: int, topic: str, channel: str | None) -> None:
        """Begin a topic, or a channel."""

    def drop(self, place: int) -> None:
        """Forget a place with all its messages."""

    def pause(self, place: int, paused: bool) -> None:
        """Pause a place, or let it go on."""

    def clear(self, place: int) -> None:
        """Forget the messages of a place."""

    def put(self, place: int, entries: Sequence[Entry]) -> None:
        """Keep messages; ``Engine.stored`` or ``Engine.refused`` is the answer."""

    def finish(self, place: int, ids: Sequence[bytes]) -> None:
        """Forget messages that are done with."""

    def requeue(self, place: int, id: bytes, attempts: int, due: int) -> None:
        """Note that a message comes again, and from when on."""

    def spread(self, source: int, targets: Sequence[int]) -> None:
        """Make every message of a topic one of each of these channels, and no more the topic's."""

    def load(self, place: int, after: bytes, limit: int) -> None:
        """Ask for the next messages of a place that were never put off, by id.

        What the page has of new messages must be known to be stored before it is answered.
        """
