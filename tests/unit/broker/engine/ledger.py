"""A journal in memory: what a store would have, and pages that come when they are told to."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nsqflow.broker.engine.engine import Engine, Restored
from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.journal import Journal


@dataclass
class Row:
    """One message as it is kept."""

    timestamp: int
    attempts: int
    due: int
    body: bytes


@dataclass
class Place:
    """A topic or a channel as it is kept."""

    topic: str
    channel: str | None
    paused: bool = False
    rows: dict[bytes, Row] = field(default_factory=dict)

    def page(self, after: bytes, limit: int) -> list[Entry]:
        ids = sorted(id for id, row in self.rows.items() if id > after and not row.due)
        return [self.entry(id) for id in ids[:limit]]

    def entry(self, id: bytes) -> Entry:
        row = self.rows[id]
        return Entry(id, row.timestamp, row.body, row.attempts, row.due)


class Asked(NamedTuple):
    """A page that was asked for, and what it would have been then."""

    place: int
    after: bytes
    limit: int
    page: list[Entry]
    last_id: bytes
    """The last message that was put before."""


class Ledger(Journal):
    """Does what ``Journal`` asks for, and nothing that makes no sense."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self.asked: deque[Asked] = deque()
        """The pages asked for."""
        self.refused: set[bytes] = set()
        self.last_id = b""
        self.last_place = 0

    # What the engine calls

    def create(self, place: int, topic: str, channel: str | None) -> None:
        assert place > self.last_place, "a place is never used twice"
        self.last_place = place
        assert (topic, channel) not in self.names()
        assert channel is None or (topic, None) in self.names()
        self.places[place] = Place(topic, channel)

    def drop(self, place: int) -> None:
        dropped = self.places.pop(place)
        if dropped.channel is None:
            assert not [each for each in self.places.values() if each.topic == dropped.topic]

    def pause(self, place: int, paused: bool) -> None:
        self.places[place].paused = paused

    def clear(self, place: int) -> None:
        self.places[place].rows.clear()

    def put(self, place: int, entries: Sequence[Entry]) -> None:
        rows = self.places[place].rows
        for entry in entries:
            assert entry.id not in rows
            rows[entry.id] = Row(entry.timestamp, entry.attempts, entry.due, entry.body)
            self.last_id = max(self.last_id, entry.id)

    def finish(self, place: int, ids: Sequence[bytes]) -> None:
        assert ids, "nothing to finish"
        for id in ids:
            del self.places[place].rows[id]

    def requeue(self, place: int, id: bytes, attempts: int, due: int) -> None:
        row = self.places[place].rows[id]
        assert due > 0
        row.attempts, row.due = attempts, due

    def spread(self, source: int, targets: Sequence[int]) -> None:
        topic = self.places[source]
        assert topic.channel is None
        for target in targets:
            channel = self.places[target]
            assert channel.topic == topic.topic
            assert channel.channel is not None
            assert not channel.rows.keys() & topic.rows.keys()
            channel.rows |= {
                id: Row(row.timestamp, row.attempts, row.due, row.body)
                for id, row in topic.rows.items()
            }
        topic.rows.clear()

    def load(self, place: int, after: bytes, limit: int) -> None:
        assert limit > 0
        page = self.places[place].page(after, limit)
        self.asked.append(Asked(place, after, limit, page, self.last_id))

    # What a test calls

    def answer(
        self,
        engine: Engine,
        *,
        late: bool = False,
        most: int = 10**6,
        unstored: Container[bytes] = (),
    ) -> None:
        """Answer what was asked first: with what there was then, or with what is stored now.

        A page may be shorter than what was asked for, but not empty if there is something. What
        it has must be known to be stored.
        """
        asked = self.asked.popleft()
        place, page = asked.place, asked.page
        if late:
            found = (
                self.places[place].page(asked.after, asked.limit) if place in self.places else []
            )
            page = [entry for entry in found if entry.id not in unstored]
        engine.loaded(place, [entry for entry in page if entry.id not in self.refused][:most])

    def refuse(self, ids: Iterable[bytes]) -> None:
        """Have nothing of what could not be stored, wherever it is by now."""
        self.refused.update(ids)
        for place in self.places.values():
            for id in self.refused & place.rows.keys():
                del place.rows[id]

    def restore(self, engine: Engine, now: int) -> None:
        """Give an engine all that is kept, as if it began where another had ended."""
        self.asked.clear()
        places = [self._restored(place) for place in sorted(self.places)]
        engine.restore(places, self.last_id, self.last_place, now)

    def names(self) -> set[tuple[str, str | None]]:
        return {(each.topic, each.channel) for each in self.places.values()}

    def rows(self, topic: str, channel: str | None = None) -> dict[bytes, Row]:
        """Return what one topic or channel has."""
        [place] = [
            each for each in self.places.values() if (each.topic, each.channel) == (topic, channel)
        ]
        return place.rows

    def _restored(self, number: int) -> Restored:
        place = self.places[number]
        return Restored(
            number,
            place.topic,
            place.channel,
            place.paused,
            sum(not row.due for row in place.rows.values()),
            [place.entry(id) for id, row in sorted(place.rows.items()) if row.due],
        )
