"""The database against a plain dictionary, whatever comes in whatever order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nsqflow.broker.storage.changes import (
    Change,
    Clear,
    Create,
    Drop,
    Finish,
    Load,
    Pause,
    Put,
    Requeue,
    Row,
    Spread,
)
from nsqflow.broker.storage.database import Database
from tests.unit.broker.storage.rows import id_of, row_of, stored

PLACES = st.integers(1, 5)
DUES = st.sampled_from([0, 0, 7, 2**62])


class Storage(RuleBasedStateMachine):
    """Changes are gathered, then written in one go, as they come from the units of a store."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.folder.name))
        self.changes: list[Change] = []
        self.names: dict[int, tuple[str, str | None, bool]] = {}
        self.messages: dict[int, dict[bytes, Row]] = {}
        self.pages: list[tuple[int, list[Row]]] = []
        self.last = 0
        self.last_place = 0

    def teardown(self) -> None:
        self.database.close()
        self.folder.cleanup()

    @rule(place=PLACES, channel=st.none() | st.just("mail"))
    def create(self, place: int, channel: str | None) -> None:
        if place not in self.names:
            self.changes.append(Create(place, f"topic{place}", channel))
            self.names[place] = (f"topic{place}", channel, False)
            self.messages[place] = {}
            self.last_place = max(self.last_place, place)

    @rule(place=PLACES)
    def drop(self, place: int) -> None:
        self.changes.append(Drop(place))
        self.names.pop(place, None)
        self.messages.pop(place, None)

    @rule(place=PLACES, paused=st.booleans())
    def pause(self, place: int, paused: bool) -> None:
        self.changes.append(Pause(place, paused))
        if place in self.names:
            self.names[place] = (*self.names[place][:2], paused)

    @rule(place=PLACES)
    def clear(self, place: int) -> None:
        self.changes.append(Clear(place))
        if place in self.messages:
            self.messages[place].clear()

    @precondition(lambda self: self.names)
    @rule(data=st.data(), bodies=st.lists(st.binary(min_size=1), min_size=1), due=DUES)
    def put(self, data: st.DataObject, bodies: list[bytes], due: int) -> None:
        place = data.draw(st.sampled_from(sorted(self.names)))
        new: list[Row] = [
            (place, id_of(number), number, 0, due, body)
            for number, body in enumerate(bodies, self.last + 1)
        ]
        self.last += len(bodies)
        self.changes.append(Put(place, new))
        self.messages[place].update({row[1]: row for row in new})

    @rule(data=st.data(), place=PLACES)
    def finish(self, data: st.DataObject, place: int) -> None:
        ids = data.draw(st.lists(self._ids(place), min_size=1))
        self.changes.append(Finish(place, ids))
        for id in ids:
            self.messages.get(place, {}).pop(id, None)

    @rule(data=st.data(), place=PLACES, attempts=st.integers(0, 65_535), due=st.integers(1, 99))
    def requeue(self, data: st.DataObject, place: int, attempts: int, due: int) -> None:
        id = data.draw(self._ids(place))
        self.changes.append(Requeue(place, id, attempts, due))
        messages = self.messages.get(place, {})
        if id in messages:
            messages[id] = (*messages[id][:3], attempts, due, messages[id][5])

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def spread(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.names)))
        others = sorted(set(self.names) - {source})
        targets = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
        # What was spread before and is still there can't be spread there again.
        targets = [n for n in targets if not self.messages[n].keys() & self.messages[source].keys()]
        self.changes.append(Spread(source, tuple(targets)))
        for target in targets:
            self.messages[target].update(
                {id: (target, *row[1:]) for id, row in self.messages[source].items()}
            )
        self.messages[source].clear()

    @rule(data=st.data(), place=PLACES, limit=st.integers(1, 5))
    def load(self, data: st.DataObject, place: int, limit: int) -> None:
        after = data.draw(st.just(b"") | self._ids(place))
        self.changes.append(Load(place, after, limit))
        messages = self.messages.get(place, {})
        there = sorted(row for id, row in messages.items() if id > after and not row[4])
        self.pages.append((place, there[:limit]))

    @rule()
    def write(self) -> None:
        pages = self.database.write(self.changes)
        assert [
            (page.place, [row_of(page.place, entry) for entry in page.entries]) for page in pages
        ] == self.pages
        self.changes, self.pages = [], []
        self.compare()

    @rule()
    def reopen(self) -> None:
        self.write()
        self.database.close()
        self.database = Database(Path(self.folder.name))
        self.compare()

    def compare(self) -> None:
        contents = self.database.contents()
        assert {
            each.place: (each.topic, each.channel, each.paused) for each in contents.places
        } == self.names
        assert {each.place: each.spilled for each in contents.places} == {
            place: sum(not row[4] for row in rows.values()) for place, rows in self.messages.items()
        }
        assert contents.last_id == (id_of(self.last) if self.last else b"")
        assert contents.last_place == self.last_place
        assert stored(self.database) == {
            place: sorted(rows.values()) for place, rows in self.messages.items()
        }

    def _ids(self, place: int) -> st.SearchStrategy[bytes]:
        """Mostly such as are there."""
        known = sorted(self.messages.get(place, {}))
        unknown = st.integers(0, self.last).map(id_of)
        return st.sampled_from(known) | unknown if known else unknown


TestStorage = Storage.TestCase
TestStorage.settings = settings(max_examples=40, stateful_step_count=30)
