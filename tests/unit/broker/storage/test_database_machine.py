"""The database compared with dictionaries, for random operations in random order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from nsqflow.broker.engine.journal import (
    Clear,
    Create,
    Drop,
    FanOut,
    Finish,
    Load,
    Operation,
    Pause,
    Put,
    Requeue,
    Row,
)
from nsqflow.broker.storage.database import Database
from tests.unit.broker.storage.rows import id_of, row_of, stored

QUEUE_IDS = st.integers(1, 5)
DUES = st.sampled_from([0, 0, 7, 2**62])


class Storage(RuleBasedStateMachine):
    """Operations are collected and written together, as a store does."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.folder.name))
        self.operations: list[Operation] = []
        self.names: dict[int, tuple[str, str | None, bool]] = {}
        self.messages: dict[int, dict[bytes, Row]] = {}
        self.pages: list[tuple[int, list[Row]]] = []
        self.last = 0
        self.last_queue_id = 0

    def teardown(self) -> None:
        self.database.close()
        self.folder.cleanup()

    @rule(queue_id=QUEUE_IDS, channel=st.none() | st.just("billing"))
    def create(self, queue_id: int, channel: str | None) -> None:
        if queue_id not in self.names:
            self.operations.append(Create(queue_id, f"topic{queue_id}", channel))
            self.names[queue_id] = (f"topic{queue_id}", channel, False)
            self.messages[queue_id] = {}
            self.last_queue_id = max(self.last_queue_id, queue_id)

    @rule(queue_id=QUEUE_IDS)
    def drop(self, queue_id: int) -> None:
        self.operations.append(Drop(queue_id))
        self.names.pop(queue_id, None)
        self.messages.pop(queue_id, None)

    @rule(queue_id=QUEUE_IDS, paused=st.booleans())
    def pause(self, queue_id: int, paused: bool) -> None:
        self.operations.append(Pause(queue_id, paused))
        if queue_id in self.names:
            self.names[queue_id] = (*self.names[queue_id][:2], paused)

    @rule(queue_id=QUEUE_IDS)
    def clear(self, queue_id: int) -> None:
        self.operations.append(Clear(queue_id))
        if queue_id in self.messages:
            self.messages[queue_id].clear()

    @precondition(lambda self: self.names)
    @rule(data=st.data(), bodies=st.lists(st.binary(min_size=1), min_size=1), due=DUES)
    def put(self, data: st.DataObject, bodies: list[bytes], due: int) -> None:
        queue_id = data.draw(st.sampled_from(sorted(self.names)))
        new: list[Row] = [
            (queue_id, id_of(number), number, 0, due, body)
            for number, body in enumerate(bodies, self.last + 1)
        ]
        self.last += len(bodies)
        self.operations.append(Put(queue_id, new))
        self.messages[queue_id].update({row[1]: row for row in new})

    @rule(data=st.data(), queue_id=QUEUE_IDS)
    def finish(self, data: st.DataObject, queue_id: int) -> None:
        ids = data.draw(st.lists(self._ids(queue_id), min_size=1))
        self.operations.append(Finish(queue_id, ids))
        for id in ids:
            self.messages.get(queue_id, {}).pop(id, None)

    @rule(
        data=st.data(), queue_id=QUEUE_IDS, attempts=st.integers(0, 65_535), due=st.integers(1, 99)
    )
    def requeue(self, data: st.DataObject, queue_id: int, attempts: int, due: int) -> None:
        id = data.draw(self._ids(queue_id))
        self.operations.append(Requeue(queue_id, id, attempts, due))
        messages = self.messages.get(queue_id, {})
        if id in messages:
            messages[id] = (*messages[id][:3], attempts, due, messages[id][5])

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def fan_out(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.names)))
        others = sorted(set(self.names) - {source})
        targets = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
        # A channel never gets the same message twice.
        targets = [n for n in targets if not self.messages[n].keys() & self.messages[source].keys()]
        self.operations.append(FanOut(source, tuple(targets)))
        for target in targets:
            self.messages[target].update(
                {id: (target, *row[1:]) for id, row in self.messages[source].items()}
            )
        self.messages[source].clear()

    @rule(data=st.data(), queue_id=QUEUE_IDS, limit=st.integers(1, 5))
    def load(self, data: st.DataObject, queue_id: int, limit: int) -> None:
        after = data.draw(st.just(b"") | self._ids(queue_id))
        self.operations.append(Load(queue_id, after, limit))
        messages = self.messages.get(queue_id, {})
        waiting = sorted(row for id, row in messages.items() if id > after and not row[4])
        self.pages.append((queue_id, waiting[:limit]))

    @rule()
    def write(self) -> None:
        pages = self.database.write(self.operations)
        assert [
            (page.queue_id, [row_of(page.queue_id, message) for message in page.messages])
            for page in pages
        ] == self.pages
        self.operations, self.pages = [], []
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
            each.queue_id: (each.topic, each.channel, each.paused) for each in contents.queues
        } == self.names
        assert {each.queue_id: each.spilled for each in contents.queues} == {
            queue_id: sum(not row[4] for row in rows.values())
            for queue_id, rows in self.messages.items()
        }
        assert contents.last_id == (id_of(self.last) if self.last else b"")
        assert contents.last_queue_id == self.last_queue_id
        assert stored(self.database) == {
            queue_id: sorted(rows.values()) for queue_id, rows in self.messages.items()
        }

    def _ids(self, queue_id: int) -> st.SearchStrategy[bytes]:
        """Return ids that mostly exist."""
        known = sorted(self.messages.get(queue_id, {}))
        unknown = st.integers(0, self.last).map(id_of)
        return st.sampled_from(known) | unknown if known else unknown


TestStorage = Storage.TestCase
TestStorage.settings = settings(max_examples=40, stateful_step_count=30)
