from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqflow.broker.engine.journal import (
    Clear,
    Create,
    Drop,
    FanOut,
    Finish,
    Journal,
    Load,
    Pause,
    Put,
    Requeue,
)
from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.storage import StorageError, Store
from nsqflow.broker.storage.database import FILE_NAME
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.storage.rows import id_of, messages, rows, stored_in

Page = tuple[int, list[bytes]]


class RecordedStore:
    """A store that records its pages and failures."""

    def __init__(self, path: Path) -> None:
        self.pages: list[Page] = []
        self.failures: list[Exception] = []
        self.loop_thread = threading.get_ident()
        self.store = Store(path, on_page=self.add_page, on_failure=self.failures.append)

    def add_page(self, queue_id: int, found: list[QueuedMessage]) -> None:
        assert threading.get_ident() == self.loop_thread
        self.pages.append((queue_id, [message.id for message in found]))

    async def commit(self) -> Exception | None:
        """Commit and return the result."""
        result: asyncio.Future[Exception | None] = asyncio.Future()
        self.store.commit(result.set_result, 1)
        return await result


def open_store(path: Path) -> RecordedStore:
    recorded = RecordedStore(path)
    recorded.store.open()
    return recorded


def restrict(store: Store, pages: int) -> None:
    """Limit the size of the file; only before the first commit, as the thread then uses it."""
    assert store.database is not None
    store.database.connection.execute(f"PRAGMA max_page_count = {pages}")


def trace(store: Store, beginning: str) -> list[str]:
    """Collect the statements that begin so."""
    assert store.database is not None
    found: list[str] = []
    store.database.connection.set_trace_callback(
        lambda statement: found.append(statement) if statement.startswith(beginning) else None
    )
    return found


def on_statement(store: Store, part: str) -> threading.Event:
    """Return an event that is set by the first statement that contains ``part``."""
    assert store.database is not None
    executed = threading.Event()
    store.database.connection.set_trace_callback(
        lambda statement: executed.set() if part in statement else None
    )
    return executed


def test_a_store_is_a_journal(tmp_path: Path) -> None:
    journal: Journal = RecordedStore(tmp_path).store
    journal.record(Create(1, "t", None))


@asynchronous
async def test_all_operations_are_there_after_reopening(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    store = recorded.store
    for queue_id, topic, channel in [(1, "a", None), (2, "a", "x"), (3, "a", "y"), (4, "b", None)]:
        store.record(Create(queue_id, topic, channel))
    store.record(Put.of(1, messages([1, 2, 3])))
    store.record(FanOut(1, [2, 3]))
    store.record(Put.of(4, messages([4, 5])))
    store.record(Clear(4))
    store.record(Put.of(4, messages([6])))
    store.record(Pause(4, True))
    assert await recorded.commit() is None
    store.record(Finish(2, [id_of(1), id_of(3)]))
    store.record(Requeue(3, id_of(2), 7, 70))
    store.record(Drop(4))
    await store.close()

    again = RecordedStore(tmp_path)
    contents = again.store.open()
    await again.store.close()
    assert [(each.queue_id, each.spilled, len(each.messages)) for each in contents.queues] == [
        (1, 0, 0),
        (2, 1, 0),
        (3, 2, 1),
    ]
    (late,) = contents.queues[2].messages
    assert (late.id, late.attempts, late.due) == (id_of(2), 7, 70)
    assert (contents.last_id, contents.last_queue_id) == (id_of(6), 4)


@asynchronous
async def test_results_and_pages_come_in_the_order_of_the_calls(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    results: list[int] = []

    def record_result(number: int) -> Callable[[Exception | None], None]:
        return lambda error: results.append(number)

    recorded.store.record(Create(1, "t", None))
    for number in range(300):
        recorded.store.record(Put.of(1, messages([number])))
        recorded.store.record(Load(1, id_of(number - 1) if number else b"", 10))
        recorded.store.commit(record_result(number), 1)
        if number % 100 == 0:
            await asyncio.sleep(0)
    await recorded.store.close()
    assert results == [*range(300)]
    assert recorded.pages == [(1, [id_of(number)]) for number in range(300)]


@asynchronous
async def test_thousands_of_small_commits_share_few_transactions(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    store = recorded.store
    transactions = trace(store, "BEGIN")
    store.record(Create(1, "t", None))
    left = 3_000
    for number in range(3_000):
        store.record(Put.of(1, messages([number])))

        def done(error: Exception | None) -> None:
            nonlocal left
            left -= error is None

        store.commit(done, 1)
    await store.close()
    assert left == 0
    assert 1 <= len(transactions) < 300
    assert stored_in(tmp_path) == {1: rows(1, range(3_000))}


@asynchronous
async def test_a_message_is_stored_in_its_state_at_the_put(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    (message,) = messages([1])
    recorded.store.record(Create(1, "t", None))
    recorded.store.record(Put.of(1, [message]))
    message.attempts, message.due = 9, 99
    recorded.store.record(Put.of(1, messages([2])))
    recorded.store.record(Finish(1, [id_of(1)]))
    assert await recorded.commit() is None
    recorded.store.record(Put.of(1, [message]))
    await recorded.store.close()
    assert stored_in(tmp_path) == {1: [(1, id_of(1), 1_001, 9, 99, b"body 1"), *rows(1, [2])]}


@asynchronous
async def test_an_empty_commit_is_answered_after_earlier_ones(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    recorded.store.record(Create(1, "t", None))
    order: list[str] = []
    recorded.store.commit(lambda _: order.append("first"), 1)
    recorded.store.commit(None, 0)
    recorded.store.commit(lambda _: order.append("second"), 1)
    await recorded.store.close()
    assert order == ["first", "second"]


@asynchronous
async def test_finishes_are_committed_with_the_next_publish(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    store = recorded.store
    store.record(Create(1, "t", None))
    store.record(Put.of(1, messages(range(50))))
    assert await recorded.commit() is None
    transactions = trace(store, "BEGIN")
    for number in range(50):
        store.record(Finish(1, [id_of(number)]))
        store.commit(None, 0)
    store.record(Put.of(1, messages([99])))
    assert await recorded.commit() is None
    assert len(transactions) == 1
    await store.close()
    assert stored_in(tmp_path) == {1: rows(1, [99])}


@asynchronous
async def test_a_finish_is_committed_soon_without_other_commits(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    store = recorded.store
    store.record(Create(1, "t", None))
    store.record(Put.of(1, messages([1, 2, 3])))
    assert await recorded.commit() is None
    deleted = on_statement(store, "DELETE")
    store.record(Finish(1, [id_of(1)]))
    store.commit(None, 0)
    assert await asyncio.to_thread(deleted.wait, PATIENCE)
    store.record(Requeue(1, id_of(2), 1, 1))
    store.record(Finish(1, [id_of(3)]))
    store.commit(None, 0)
    await store.close()
    assert stored_in(tmp_path) == {1: [(1, id_of(2), 1_002, 1, 1, b"body 2")]}


@asynchronous
async def test_many_finishes_are_committed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqflow.broker.storage.store._LINGER", 10 * PATIENCE)
    monkeypatch.setattr("nsqflow.broker.storage.store._MAX_LINGERING", 1)
    recorded = open_store(tmp_path)
    store = recorded.store
    store.record(Create(1, "t", None))
    store.record(Put.of(1, messages([1, 2])))
    assert await recorded.commit() is None
    deleted = on_statement(store, "DELETE")
    for number in (1, 2):
        assert not deleted.is_set(), "one finish lingers"
        store.record(Finish(1, [id_of(number)]))
        store.commit(None, 0)
    assert await asyncio.to_thread(deleted.wait, PATIENCE)
    await store.close()
    assert stored_in(tmp_path) == {1: []}


@asynchronous
async def test_an_abandoned_store_drops_lingering_finishes(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    store = recorded.store
    store.record(Create(1, "t", None))
    store.record(Put.of(1, messages([1])))
    assert await recorded.commit() is None
    store.record(Finish(1, [id_of(1)]))
    store.commit(None, 0)
    store.abandon()
    assert stored_in(tmp_path) == {1: rows(1, [1])}


# Failures


@asynchronous
async def test_a_full_disk_fails_only_the_commits_that_do_not_fit(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    restrict(recorded.store, 30)
    recorded.store.record(Create(1, "t", None))
    results: list[Exception | None] = []
    for number in range(100):
        large = number in (40, 60)
        recorded.store.record(
            Put.of(1, messages([number], body=b"x" * 500_000 if large else b"small"))
        )
        recorded.store.commit(results.append, 1)
    assert await recorded.commit() is None
    assert [number for number, error in enumerate(results) if error] == [40, 60]
    assert {type(error) for error in recorded.failures} == {StorageError}
    await recorded.store.close()
    small = [number for number in range(100) if number not in (40, 60)]
    assert stored_in(tmp_path) == {1: rows(1, small, body=b"small")}


@asynchronous
async def test_failed_operations_are_retried_without_another_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqflow.broker.storage.store._RETRY", 0.01)
    recorded = open_store(tmp_path)
    assert recorded.store.database is not None
    connection = recorded.store.database.connection
    connection.execute("PRAGMA query_only = ON")
    recorded.store.record(Create(1, "t", None))
    recorded.store.record(Put.of(1, messages([1])))
    recorded.store.record(Load(1, b"", 10))
    error = await recorded.commit()
    assert isinstance(error, StorageError)
    assert "readonly" in str(error)
    assert (recorded.failures, recorded.pages) == ([error], [])
    connection.execute("PRAGMA query_only = OFF")
    await eventually(lambda: recorded.pages == [(1, [])])
    await recorded.store.close()
    assert stored_in(tmp_path) == {1: []}


@asynchronous
async def test_a_commit_with_an_invalid_message_fails_alone_and_as_a_whole(
    tmp_path: Path,
) -> None:
    recorded = open_store(tmp_path)
    results: list[type] = []
    recorded.store.record(Create(1, "t", None))
    recorded.store.record(Create(2, "t", "c"))
    recorded.store.record(Put.of(1, messages([1, 2])))
    recorded.store.record(Put.of(2, messages([1, 2])))
    recorded.store.record(Finish(2, [id_of(0)]))
    recorded.store.record(Put.of(2, [QueuedMessage(id_of(3), 0, b"", due=2**64)]))
    recorded.store.commit(lambda error: results.append(type(error)), 1)
    recorded.store.record(Put.of(2, messages([4])))
    recorded.store.commit(lambda error: results.append(type(error)), 1)
    await recorded.store.close()
    assert results == [StorageError, type(None)]
    assert stored_in(tmp_path) == {1: [], 2: rows(2, [4])}


@asynchronous
async def test_a_page_comes_after_the_results_of_the_commits_it_contains(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    order: list[object] = []
    recorded.pages = order  # type: ignore[assignment]
    recorded.store.record(Create(1, "t", None))
    recorded.store.record(Put.of(1, messages([1])))
    recorded.store.commit(lambda error: order.append(error), 1)
    recorded.store.record(Put.of(1, messages([2])))
    recorded.store.record(Load(1, b"", 10))
    recorded.store.commit(lambda error: order.append(error), 1)
    await recorded.store.close()
    assert order == [None, None, (1, [id_of(1), id_of(2)])]


@asynchronous
async def test_a_callback_that_raises_does_not_prevent_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = open_store(tmp_path)

    def fail(error: Exception | None) -> None:
        raise RuntimeError("on purpose")

    recorded.store.commit(fail, 1)
    assert await recorded.commit() is None
    await recorded.store.close()
    assert "on purpose" in caplog.text


def test_a_data_path_in_use_can_be_opened_after_its_release(tmp_path: Path) -> None:
    first, second = RecordedStore(tmp_path).store, RecordedStore(tmp_path).store
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
            RecordedStore(tmp_path).store.open()
    (tmp_path / FILE_NAME).unlink()
    store = RecordedStore(tmp_path).store
    store.open()
    store.abandon()


# The end


@asynchronous
async def test_a_closed_store_refuses_commits(tmp_path: Path) -> None:
    store = RecordedStore(tmp_path).store
    with pytest.raises(StorageError, match="is not open"):
        store.commit(None, 0)
    store.open()
    await store.close()
    await store.close()
    store.abandon()

    recorded = open_store(tmp_path)
    await recorded.commit()
    await recorded.store.close()
    with pytest.raises(StorageError, match="is not open"):
        recorded.store.commit(None, 0)


@asynchronous
async def test_a_store_that_is_closed_while_a_thread_opens_it_keeps_no_lock(tmp_path: Path) -> None:
    closed, abandoned = RecordedStore(tmp_path).store, RecordedStore(tmp_path).store
    await closed.close()
    abandoned.abandon()
    for store in (closed, abandoned):
        with pytest.raises(StorageError, match="was closed while it was opened"):
            store.open()
    await open_store(tmp_path).store.close()


@asynchronous
async def test_closing_can_be_cancelled_and_still_stores_everything(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    recorded.store.record(Create(1, "t", None))
    recorded.store.record(Put.of(1, messages(range(5_000))))
    closing = asyncio.create_task(recorded.store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await recorded.store.close()
    assert len(stored_in(tmp_path)[1]) == 5_000


@asynchronous
async def test_an_abandoned_store_keeps_commits_and_calls_no_callbacks(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    store = recorded.store
    store.record(Create(1, "t", None))
    store.record(Put.of(1, messages([1])))
    assert await recorded.commit() is None
    called: list[object] = []
    for number in range(2, 500):
        store.record(Put.of(1, messages([number])))
        store.record(Load(1, b"", 5))
        store.commit(called.append, 1)
    store.record(Put.of(1, messages([9_999])))
    store.abandon()
    store.abandon()
    store.record(Put.of(1, messages([10_000])))
    store.commit(called.append, 1)
    await store.close()
    # Callbacks of the thread would run in one of the next turns of the loop.
    for _ in range(3):
        await asyncio.sleep(0)
    assert (called, recorded.pages, recorded.failures) == ([], [], [])
    kept = stored_in(tmp_path)[1]
    assert kept == rows(1, range(1, len(kept) + 1))
    assert 1 <= len(kept) < 500


@asynchronous
async def test_abandoning_interrupts_a_long_transaction(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    store = recorded.store
    store.record(Create(1, "t", None))
    store.record(Put.of(1, messages(range(20_000))))
    assert await recorded.commit() is None
    started = on_statement(store, "INSERT OR IGNORE")
    store.record(FanOut(1, range(2, 500)))
    store.commit(None, 0)
    assert await asyncio.to_thread(started.wait, PATIENCE)
    store.abandon()
    assert len(stored_in(tmp_path)[1]) == 20_000


@asynchronous
async def test_a_callback_may_abandon_the_store(tmp_path: Path) -> None:
    recorded = open_store(tmp_path)
    called: list[object] = []
    abandoned = asyncio.Event()

    def abandon(error: Exception | None) -> None:
        recorded.store.abandon()
        abandoned.set()

    recorded.store.commit(abandon, 1)
    recorded.store.commit(called.append, 1)
    await abandoned.wait()
    await asyncio.sleep(0)
    assert called == []


def test_a_loop_that_is_closed_during_a_commit_does_no_harm(tmp_path: Path) -> None:
    recorded = RecordedStore(tmp_path)
    recorded.store.open()

    async def use() -> None:
        recorded.store.record(Create(1, "t", None))
        recorded.store.record(Put.of(1, messages(range(20_000))))
        recorded.store.commit(lambda _: None, 1)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    loop.close()
    thread = next(each for each in threading.enumerate() if each.name == "nsqflow-store")
    recorded.store.abandon()
    assert not thread.is_alive()
