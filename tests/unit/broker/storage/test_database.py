from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqflow.broker.engine.engine import RestoredQueue
from nsqflow.broker.engine.journal import (
    Clear,
    Create,
    Drop,
    FanOut,
    Finish,
    Load,
    Pause,
    Put,
    Requeue,
)
from nsqflow.broker.storage import StorageError
from nsqflow.broker.storage.database import FILE_NAME, Database
from nsqflow.broker.storage.schema import VERSION
from tests.unit.broker.storage.rows import (
    EVERYTHING,
    id_of,
    put,
    rows,
    stored,
    stored_in,
    waiters,
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path)
    yield database
    database.close()


def restrict(database: Database, pages: int) -> None:
    """Limit the size of the file."""
    database.connection.execute(f"PRAGMA max_page_count = {pages}")


# Contents


def test_a_new_database_is_empty(database: Database) -> None:
    contents = database.contents()
    assert (contents.queues, contents.last_id, contents.last_queue_id) == ([], b"", 0)


def test_queues_are_restored_topics_first_with_their_state(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.write(
        [Create(1, "old", None), Create(2, "orders", "billing"), Create(3, "orders", None)]
    )
    database.write([put(2, 5, 6), put(2, 7, due=99), Pause(2, True), Pause(1, True)])
    database.write([Pause(1, False)])
    database.close()

    database = Database(tmp_path)
    old, topic, channel = database.contents().queues
    database.close()

    assert old == RestoredQueue(1, "old")
    assert topic == RestoredQueue(3, "orders")
    assert (channel.queue_id, channel.topic, channel.channel) == (2, "orders", "billing")
    assert channel.paused
    assert channel.spilled == 2
    (late,) = channel.messages
    assert (late.id, late.timestamp, late.body) == (id_of(7), 1_007, b"body 7")
    assert (late.attempts, late.due) == (0, 99)


def test_the_highest_ids_are_kept_after_their_rows_are_deleted(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.write([Create(1, "orders", None), Create(8, "users", None), put(8, 3, 77), put(1, 5)])
    database.write([Finish(8, [id_of(77)]), Drop(8)])
    database.write([put(1, 80), Finish(1, [id_of(80)])])
    database.close()

    database = Database(tmp_path)
    contents = database.contents()
    database.close()

    assert (contents.last_id, contents.last_queue_id) == (id_of(80), 8)
    assert [queue.queue_id for queue in contents.queues] == [1]


def test_extreme_numbers_and_all_bytes_are_stored_unchanged(database: Database) -> None:
    largest = 2**63 - 1
    message = (1, id_of(2**63), largest, 65_535, 0, bytes(range(256)))
    late = (1, id_of(1), largest, 65_535, largest, b"\0")
    database.write([Create(1, "orders", None), Put(1, [message, late])])
    assert stored(database) == {1: [late, message]}


def test_operations_may_have_more_rows_than_a_statement(database: Database) -> None:
    many = range(3_210)
    database.write([Create(1, "a", None), Create(2, "b", None), put(1, *many), put(2, *many)])
    database.write([Requeue(2, id_of(n), 3, 50 + n) for n in many])
    database.write([Finish(1, [id_of(n) for n in many if n % 3])])
    assert stored(database) == {
        1: rows(1, range(0, 3_210, 3)),
        2: [(2, id_of(n), 1_000 + n, 3, 50 + n, b"body %d" % n) for n in many],
    }


def test_operations_on_one_queue_leave_the_others_alone(database: Database) -> None:
    database.write([Create(n, f"t{n}", None) for n in (1, 2, 3)])
    database.write([put(n, 1, 2, 3) for n in (1, 2, 3)])
    database.write([Finish(1, [id_of(2)]), Clear(2)])
    assert stored(database) == {1: rows(1, [1, 3]), 2: [], 3: rows(3, [1, 2, 3])}
    database.write([Drop(3)])
    assert stored(database) == {1: rows(1, [1, 3]), 2: []}


def test_dropping_a_queue_deletes_its_messages(database: Database) -> None:
    database.write([Create(1, "orders", None), put(1, 1), Drop(1), Create(1, "users", None)])
    assert stored(database) == {1: []}


# Fan-out


def test_a_fan_out_moves_many_messages_to_every_channel(
    database: Database,
) -> None:
    many = range(2_345)
    database.write([Create(1, "t", None), *(Create(n, "t", f"c{n}") for n in (2, 3, 4))])
    database.write([put(1, *many), put(1, 9_000, due=5), put(3, 99_999), FanOut(1, (2, 3, 4))])
    numbers = [*many]
    assert stored(database) == {
        1: [],
        2: [*rows(2, numbers), *rows(2, [9_000], due=5)],
        3: [*rows(3, numbers), *rows(3, [9_000], due=5), *rows(3, [99_999])],
        4: [*rows(4, numbers), *rows(4, [9_000], due=5)],
    }


def test_a_fan_out_to_no_channel_deletes_the_messages(database: Database) -> None:
    database.write([Create(1, "t", None), put(1, 1, 2), FanOut(1, ())])
    assert stored(database) == {1: []}


# Pages


def test_a_page_has_earlier_puts_and_no_deferred_messages(
    database: Database,
) -> None:
    database.write([Create(1, "t", None), put(1, 1, 2, 3, 4, 5), put(1, 6, due=9)])
    first, second, third, other = database.write(
        [
            Load(1, b"", 2),
            put(1, 7),
            Requeue(1, id_of(4), 1, 60),
            Load(1, id_of(2), 3),
            Finish(1, [id_of(7)]),
            Load(1, id_of(5), 3),
            Load(2, b"", 3),
        ]
    )
    assert [message.id for message in first.messages] == [id_of(1), id_of(2)]
    assert [message.id for message in second.messages] == [id_of(3), id_of(5), id_of(7)]
    assert (third.queue_id, third.messages) == (1, [])
    assert (other.queue_id, other.messages) == (2, [])


def test_a_page_of_large_messages_is_short_but_never_empty(database: Database) -> None:
    large = b"\xff" * (3 * 1024 * 1024)
    database.write([Create(1, "t", None), put(1, 1, 2, body=large * 2), put(1, 3, 4, body=large)])
    seen = []
    after = b""
    for _ in range(4):
        (page,) = database.write([Load(1, after, 10)])
        (message,) = page.messages
        seen.append(message.body)
        after = message.id
    assert seen == [large * 2, large * 2, large, large]


def test_a_long_queue_is_read_page_by_page_in_order(database: Database) -> None:
    many = range(6_000)
    database.write([Create(1, "t", None), put(1, *reversed(many))])
    (page,) = database.write([Load(1, b"", EVERYTHING)])
    assert 1_000 < len(page.messages) < 6_000
    assert waiters(database, 1) == rows(1, many)


# Failures


def test_failed_operations_leave_no_trace(database: Database) -> None:
    database.write([Create(1, "t", None), put(1, 1)])
    with pytest.raises(StorageError, match="UNIQUE"):
        database.write([Clear(1), Create(2, "u", None), put(2, 9), Pause(1, True), put(2, 9)])
    with pytest.raises(StorageError, match="too large"):
        database.write([Finish(1, [id_of(1)]), Requeue(1, id_of(1), 1, 2**64)])
    assert stored(database) == {1: rows(1, [1])}
    assert database.contents().last_id == id_of(1)


def test_a_full_disk_is_reported_and_stored_messages_stay_usable(database: Database) -> None:
    database.write([Create(1, "t", None), put(1, 1, 2)])
    restrict(database, 20)
    with pytest.raises(StorageError, match=f"{FILE_NAME}.*full"):
        database.write([put(1, *range(10, 1_000), body=b"x" * 1_000)])
    assert stored(database) == {1: rows(1, [1, 2])}
    database.write([Finish(1, [id_of(1)]), put(1, 3)])
    assert stored(database) == {1: rows(1, [2, 3])}


def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, " * 1_000)
    with pytest.raises(StorageError, match=FILE_NAME):
        Database(tmp_path)
    assert path.read_bytes() == b"not a database, " * 1_000


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE places (name TEXT)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match=FILE_NAME):
        Database(tmp_path)
    assert path.read_bytes() == before


def test_a_database_of_a_later_release_is_left_alone(tmp_path: Path) -> None:
    Database(tmp_path).close()
    path = tmp_path / FILE_NAME
    later = sqlite3.connect(path)
    later.execute(f"PRAGMA user_version = {VERSION + 1}")
    later.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match=f"{VERSION + 1}"):
        Database(tmp_path)
    assert path.read_bytes() == before


def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.write([Create(1, "t", None), put(1, *range(5_000))])
    database.close()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\x55" * (len(whole) - 8192))
    with pytest.raises(StorageError, match=f"{FILE_NAME}.*malformed"):
        stored_in(tmp_path)


def test_a_folder_instead_of_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StorageError, match=f"{FILE_NAME}.*Is a directory"):
        Database(tmp_path)


def test_an_sqlite_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 32, 9))
    with pytest.raises(StorageError, match=r"SQLite 3\.33"):
        Database(tmp_path)


# Files


def test_writes_are_synced_to_disk(database: Database) -> None:
    def setting(name: str) -> object:
        return database.connection.execute(f"PRAGMA {name}").fetchone()[0]

    full = 2
    assert (setting("synchronous"), setting("journal_mode")) == (full, "wal")


def test_other_users_cannot_read_the_messages(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        database = Database(tmp_path)
        database.write([Create(1, "t", None), put(1, 1)])
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    database.close()
    assert modes == {FILE_NAME: 0o600, f"{FILE_NAME}-wal": 0o600, "nsqd.lock": 0o600}


def test_the_log_is_bounded_and_not_left_behind(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.write([Create(1, "t", None)])
    largest = 0
    for start in range(0, 40_000, 1_000):
        database.write([put(1, *range(start, start + 1_000), body=b"x" * 2_000)])
        largest = max(largest, (tmp_path / f"{FILE_NAME}-wal").stat().st_size)
    total = (tmp_path / FILE_NAME).stat().st_size
    database.close()
    assert largest < total / 2
    assert {path.name for path in tmp_path.iterdir()} == {FILE_NAME, "nsqd.lock"}


def test_a_drained_queue_leaves_a_small_file(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.write([Create(1, "t", None), put(1, *range(5_000), body=b"x" * 2_000)])
    database.write([Finish(1, [id_of(number) for number in range(4_990)])])
    database.close()
    assert (tmp_path / FILE_NAME).stat().st_size < 1_000_000
    assert stored_in(tmp_path) == {1: rows(1, range(4_990, 5_000), body=b"x" * 2_000)}
