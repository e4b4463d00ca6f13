from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.journal import Journal
from nsqflow.broker.storage import StorageError, Store
from nsqflow.broker.storage.database import FILE_NAME
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.storage.rows import entries, id_of, rows, stored_in

Page = tuple[int, list[bytes]]


class Desk:
    """A store, and all that it tells."""

    def __init__(self, path: Path) -> None:
        self.pages: list[Page] = []
        self.failures: list[Exception] = []
        self.loop_thread = threading.get_ident()
        self.store = Store(path, on_page=self.take_page, on_failure=self.failures.append)

    def take_page(self, place: int, found: list[Entry]) -> None:
        assert threading.get_ident() == self.loop_thread
        self.pages.append((place, [entry.id for entry in found]))

    async def commit(self) -> Exception | None:
        """Wait for the outcome of what was taken down."""
        outcome: asyncio.Future[Exception | None] = asyncio.Future()
        self.store.commit(outcome.set_result, 1)
        return await outcome


def open_desk(path: Path) -> Desk:
    desk = Desk(path)
    desk.store.open()
    return desk


def restrict(store: Store, pages: int) -> None:
    """Let the disk be full soon. Only before the first commit: then the thread has it."""
    assert store._files is not None
    store._files[1]._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_store_is_a_journal(tmp_path: Path) -> None:
    journal: Journal = Desk(tmp_path).store
    journal.create(1, "t", None)


@asynchronous
async def test_everything_an_engine_does_is_there_again(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    store = desk.store
    for place, topic, channel in [(1, "a", None), (2, "a", "x"), (3, "a", "y"), (4, "b", None)]:
        store.create(place, topic, channel)
    store.put(1, entries([1, 2, 3]))
    store.spread(1, [2, 3])
    store.put(4, entries([4, 5]))
    store.clear(4)
    store.put(4, entries([6]))
    store.pause(4, True)
    assert await desk.commit() is None
    store.finish(2, [id_of(1), id_of(3)])
    store.requeue(3, id_of(2), 7, 70)
    store.drop(4)
    await store.close()

    again = Desk(tmp_path)
    contents = again.store.open()
    await again.store.close()
    assert [(each.place, each.spilled, len(each.entries)) for each in contents.places] == [
        (1, 0, 0),
        (2, 1, 0),
        (3, 2, 1),
    ]
    (late,) = contents.places[2].entries
    assert (late.id, late.attempts, late.due) == (id_of(2), 7, 70)
    assert (contents.last_id, contents.last_place) == (id_of(6), 4)


@asynchronous
async def test_outcomes_and_pages_come_in_the_order_of_the_calls(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    outcomes: list[int] = []

    def note(number: int) -> Callable[[Exception | None], None]:
        return lambda error: outcomes.append(number)

    desk.store.create(1, "t", None)
    for number in range(300):
        desk.store.put(1, entries([number]))
        desk.store.load(1, id_of(number - 1) if number else b"", 10)
        desk.store.commit(note(number), 1)
        if number % 100 == 0:
            await asyncio.sleep(0)
    await desk.store.close()
    assert outcomes == [*range(300)]
    assert desk.pages == [(1, [id_of(number)]) for number in range(300)]


@asynchronous
async def test_thousands_of_small_units_share_few_transactions(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    store = desk.store
    assert store._files is not None
    begun: list[str] = []
    store._files[1]._connection.set_trace_callback(
        lambda statement: begun.append(statement) if statement.startswith("BEGIN") else None
    )
    store.create(1, "t", None)
    left = 3_000
    for number in range(3_000):
        store.put(1, entries([number]))

        def done(error: Exception | None) -> None:
            nonlocal left
            left -= error is None

        store.commit(done, 1)
    await store.close()
    assert left == 0
    assert 1 <= len(begun) < 300
    assert stored_in(tmp_path) == {1: rows(1, range(3_000))}


@asynchronous
async def test_what_is_put_is_stored_as_it_was_then(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    (entry,) = entries([1])
    ids = [id_of(1)]
    desk.store.create(1, "t", None)
    desk.store.put(1, [entry])
    desk.store.finish(1, [])
    entry.attempts, entry.due = 9, 99
    desk.store.put(1, entries([2]))
    desk.store.finish(1, ids)
    ids.append(id_of(2))
    assert await desk.commit() is None
    desk.store.put(1, [entry])
    await desk.store.close()
    assert stored_in(tmp_path) == {1: [(1, id_of(1), 1_001, 9, 99, b"body 1"), *rows(1, [2])]}


@asynchronous
async def test_a_commit_of_nothing_answers_after_those_before_it(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    desk.store.create(1, "t", None)
    order: list[str] = []
    desk.store.commit(lambda _: order.append("first"), 1)
    desk.store.commit(None, 0)
    desk.store.commit(lambda _: order.append("second"), 1)
    await desk.store.close()
    assert order == ["first", "second"]


@asynchronous
async def test_what_is_finished_goes_along_with_the_next_publish(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    store = desk.store
    store.create(1, "t", None)
    store.put(1, entries(range(50)))
    assert await desk.commit() is None
    assert store._files is not None
    begun: list[str] = []
    store._files[1]._connection.set_trace_callback(
        lambda statement: begun.append(statement) if statement.startswith("BEGIN") else None
    )
    for number in range(50):
        store.finish(1, [id_of(number)])
        store.commit(None, 0)
    store.put(1, entries([99]))
    assert await desk.commit() is None
    assert len(begun) == 1
    await store.close()
    assert stored_in(tmp_path) == {1: rows(1, [99])}


@asynchronous
async def test_what_is_finished_is_stored_soon_though_nothing_else_comes(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    store = desk.store
    store.create(1, "t", None)
    store.put(1, entries([1, 2, 3]))
    assert await desk.commit() is None
    deleted = threading.Event()
    assert store._files is not None
    store._files[1]._connection.set_trace_callback(
        lambda statement: deleted.set() if statement.startswith("DELETE") else None
    )
    store.finish(1, [id_of(1)])
    store.commit(None, 0)
    await asyncio.to_thread(deleted.wait, PATIENCE)
    assert deleted.is_set()
    store.requeue(1, id_of(2), 1, 1)
    store.finish(1, [id_of(3)])
    store.commit(None, 0)
    await store.close()
    assert stored_in(tmp_path) == {1: [(1, id_of(2), 1_002, 1, 1, b"body 2")]}


@asynchronous
async def test_many_finished_messages_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqflow.broker.storage.store._LINGER", 10 * PATIENCE)
    monkeypatch.setattr("nsqflow.broker.storage.store._MAX_LINGERING", 1)
    desk = open_desk(tmp_path)
    store = desk.store
    store.create(1, "t", None)
    store.put(1, entries([1, 2]))
    assert await desk.commit() is None
    store.finish(1, [id_of(1)])
    store.commit(None, 0)
    assert store._linger is not None
    store.finish(1, [id_of(2)])
    store.commit(None, 0)
    assert store._linger is None
    await store.close()
    assert stored_in(tmp_path) == {1: []}


@asynchronous
async def test_an_abandoned_store_drops_what_lingers(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    store = desk.store
    store.create(1, "t", None)
    store.put(1, entries([1]))
    assert await desk.commit() is None
    store.finish(1, [id_of(1)])
    store.commit(None, 0)
    store.abandon()
    assert store._linger is None
    assert stored_in(tmp_path) == {1: rows(1, [1])}


# Failures


@asynchronous
async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    restrict(desk.store, 30)
    desk.store.create(1, "t", None)
    outcomes: list[Exception | None] = []
    for number in range(100):
        large = number in (40, 60)
        desk.store.put(1, entries([number], body=b"x" * 500_000 if large else b"small"))
        desk.store.commit(outcomes.append, 1)
    assert await desk.commit() is None
    assert [number for number, error in enumerate(outcomes) if error] == [40, 60]
    assert {type(error) for error in desk.failures} == {StorageError}
    await desk.store.close()
    small = [number for number in range(100) if number not in (40, 60)]
    assert stored_in(tmp_path) == {1: rows(1, small, body=b"small")}


@asynchronous
async def test_what_is_owed_is_tried_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqflow.broker.storage.store._RETRY", 0.01)
    desk = open_desk(tmp_path)
    assert desk.store._files is not None
    connection = desk.store._files[1]._connection
    connection.execute("PRAGMA query_only = ON")
    desk.store.create(1, "t", None)
    desk.store.put(1, entries([1]))
    desk.store.load(1, b"", 10)
    error = await desk.commit()
    assert isinstance(error, StorageError)
    assert "readonly" in str(error)
    assert (desk.failures, desk.pages) == ([error], [])
    connection.execute("PRAGMA query_only = OFF")
    await eventually(lambda: desk.pages == [(1, [])])
    await desk.store.close()
    assert stored_in(tmp_path) == {1: []}


@asynchronous
async def test_a_unit_of_which_one_message_cannot_be_stored_fails_alone_and_as_a_whole(
    tmp_path: Path,
) -> None:
    desk = open_desk(tmp_path)
    outcomes: list[type] = []
    desk.store.create(1, "t", None)
    desk.store.create(2, "t", "c")
    desk.store.put(1, entries([1, 2]))
    desk.store.put(2, entries([1, 2]))
    desk.store.finish(2, [id_of(0)])
    desk.store.put(2, [Entry(id_of(3), 0, b"", due=2**64)])
    desk.store.commit(lambda error: outcomes.append(type(error)), 1)
    desk.store.put(2, entries([4]))
    desk.store.commit(lambda error: outcomes.append(type(error)), 1)
    await desk.store.close()
    assert outcomes == [StorageError, type(None)]
    assert stored_in(tmp_path) == {1: [], 2: rows(2, [4])}


@asynchronous
async def test_a_page_comes_after_the_outcome_of_all_that_it_may_have(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    order: list[object] = []
    desk.pages = order  # type: ignore[assignment]
    desk.store.create(1, "t", None)
    desk.store.put(1, entries([1]))
    desk.store.commit(lambda error: order.append(error), 1)
    desk.store.put(1, entries([2]))
    desk.store.load(1, b"", 10)
    desk.store.commit(lambda error: order.append(error), 1)
    await desk.store.close()
    assert order == [None, None, (1, [id_of(1), id_of(2)])]


@asynchronous
async def test_a_listener_that_raises_does_not_silence_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = open_desk(tmp_path)

    def fail(error: Exception | None) -> None:
        raise RuntimeError("not in the mood")

    desk.store.commit(fail, 1)
    assert await desk.commit() is None
    await desk.store.close()
    assert "not in the mood" in caplog.text


def test_a_path_in_use_can_be_opened_once_it_is_free(tmp_path: Path) -> None:
    first, second = Desk(tmp_path).store, Desk(tmp_path).store
    first.open()
    with pytest.raises(ConfigError, match="in use"):
        second.open()
    first.abandon()
    second.open()
    second.abandon()


def test_a_store_that_cannot_be_opened_keeps_no_lock(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"nonsense" * 1_000)
    for _ in range(2):
        with pytest.raises(StorageError, match="not a database"):
            Desk(tmp_path).store.open()
    (tmp_path / FILE_NAME).unlink()
    store = Desk(tmp_path).store
    store.open()
    store.abandon()


# The end


@asynchronous
async def test_a_closed_store_takes_nothing_more(tmp_path: Path) -> None:
    store = Desk(tmp_path).store
    with pytest.raises(StorageError, match="is not open"):
        store.commit(None, 0)
    store.open()
    await store.close()
    await store.close()
    store.abandon()

    desk = open_desk(tmp_path)
    await desk.commit()
    await desk.store.close()
    with pytest.raises(StorageError, match="is not open"):
        desk.store.commit(None, 0)


@asynchronous
async def test_a_store_that_is_closed_while_a_thread_opens_it_keeps_no_lock(tmp_path: Path) -> None:
    closed, abandoned = Desk(tmp_path).store, Desk(tmp_path).store
    await closed.close()
    abandoned.abandon()
    for store in (closed, abandoned):
        with pytest.raises(StorageError, match="was closed while it was opened"):
            store.open()
    await open_desk(tmp_path).store.close()


@asynchronous
async def test_closing_can_be_cancelled_and_still_stores_everything(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    desk.store.create(1, "t", None)
    desk.store.put(1, entries(range(5_000)))
    closing = asyncio.create_task(desk.store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await desk.store.close()
    assert len(stored_in(tmp_path)[1]) == 5_000


@asynchronous
async def test_an_abandoned_store_keeps_what_was_committed_and_is_silent(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    store = desk.store
    store.create(1, "t", None)
    store.put(1, entries([1]))
    assert await desk.commit() is None
    told: list[object] = []
    for number in range(2, 500):
        store.put(1, entries([number]))
        store.load(1, b"", 5)
        store.commit(told.append, 1)
    store.put(1, entries([9_999]))
    store.abandon()
    store.abandon()
    store.put(1, entries([10_000]))
    store.commit(told.append, 1)
    await store.close()
    # Each turn of the loop could bring what the thread has left there.
    for _ in range(3):
        await asyncio.sleep(0)
    assert (told, desk.pages, desk.failures) == ([], [], [])
    kept = stored_in(tmp_path)[1]
    assert kept == rows(1, range(1, len(kept) + 1))
    assert 1 <= len(kept) < 500


@asynchronous
async def test_abandoning_does_not_wait_for_what_takes_long(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    store = desk.store
    store.create(1, "t", None)
    store.put(1, entries(range(20_000)))
    assert await desk.commit() is None
    begun = threading.Event()
    assert store._files is not None
    store._files[1]._connection.set_trace_callback(
        lambda statement: begun.set() if "INSERT OR IGNORE" in statement else None
    )
    store.spread(1, range(2, 500))
    store.commit(None, 0)
    await asyncio.to_thread(begun.wait)
    store.abandon()
    assert len(stored_in(tmp_path)[1]) == 20_000


@asynchronous
async def test_a_done_may_abandon_the_store(tmp_path: Path) -> None:
    desk = open_desk(tmp_path)
    told: list[object] = []
    abandoned = asyncio.Event()

    def abandon(error: Exception | None) -> None:
        desk.store.abandon()
        abandoned.set()

    desk.store.commit(abandon, 1)
    desk.store.commit(told.append, 1)
    await abandoned.wait()
    await asyncio.sleep(0)
    assert told == []


def test_a_loop_that_is_closed_meanwhile_is_no_crash(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.store.open()

    async def use() -> None:
        desk.store.create(1, "t", None)
        desk.store.put(1, entries(range(20_000)))
        desk.store.commit(lambda _: None, 1)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    loop.close()
    thread = next(each for each in threading.enumerate() if each.name == "nsqflow-store")
    desk.store.abandon()
    assert not thread.is_alive()
