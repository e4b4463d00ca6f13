"""Leases: one owner at a time, taken over when it is dead, and noticed by the one that lost it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import SourceInUseError
from nsqflow.spark.spool import lease
from nsqflow.spark.spool.layout import LEASES, heartbeat_name, lease_name
from nsqflow.spark.spool.lease import (
    RELEASED,
    LeaseGuard,
    LeaseRecord,
    LeaseState,
    LeaseWatch,
    SpoolLease,
    lease_state,
    newest_lease,
    take_lease,
)
from nsqflow.spark.spool.local_store import LocalStore
from tests.fixtures.servers import PATIENCE

NO_SUCH_PROCESS = 2**22 + 1
TIMEOUT = 30.0


def record(**change: Any) -> LeaseRecord:
    return replace(LeaseRecord.of_this_process("gen", "spark", ("orders",), TIMEOUT), **change)


def elsewhere(**change: Any) -> LeaseRecord:
    return record(machine="another", host="far", **change)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "spool"))


@pytest.fixture
def take(store: LocalStore) -> Iterator[Callable[..., SpoolLease]]:
    """Takes a lease; ``wait`` is called in place of sleeping."""
    taken: list[SpoolLease] = []

    def take(
        mine: LeaseRecord | None = None, wait: Callable[[float], object] | None = None
    ) -> SpoolLease:
        taken.append(take_lease(store, mine or record(), wait or fail))
        return taken[-1]

    yield take
    for each in taken:
        each.release()


def fail(_: float) -> None:
    raise AssertionError("it waits")


def await_heartbeat(store: LocalStore, number: int) -> None:
    from tests.fixtures.crashing import until

    until(lambda: store.age(heartbeat_name(number)) is not None, PATIENCE)


# --- records ------------------------------------------------------------------------------------


def test_a_lease_names_its_owner(store: LocalStore, take: Callable[..., SpoolLease]) -> None:
    mine = take().record
    assert (mine.number, mine.generation, mine.channel, mine.topics) == (
        1,
        "gen",
        "spark",
        ("orders",),
    )
    assert (mine.pid, mine.jvm_pid) == (os.getpid(), os.getppid())
    assert mine.started
    assert mine.jvm_started
    assert newest_lease(store) == mine
    assert f"pid {os.getpid()} on {mine.host}, since " in str(mine)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"topics": 1}', b"\xff", record().encode().replace(b": 30.0", b": {}")],
)
def test_a_damaged_lease_belongs_to_an_owner_elsewhere(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    found = LeaseRecord.decode(7, content)
    assert (found.number, found.host) == (7, "an unknown host")
    assert not found.is_dead()
    assert "_leases/00000007 is damaged" in caplog.text


def test_a_record_of_a_later_release_can_be_read() -> None:
    mine = record(number=3)
    values = json.loads(mine.encode()) | {"colour": "blue"}
    assert LeaseRecord.decode(3, json.dumps(values).encode()) == mine


def test_an_owner_is_dead_only_if_a_process_of_this_machine_has_ended() -> None:
    assert not record().is_dead()
    assert record(pid=NO_SUCH_PROCESS).is_dead()
    assert record(jvm_pid=NO_SUCH_PROCESS).is_dead()
    assert record(started="0").is_dead()  # the number was used again
    assert not elsewhere(pid=NO_SUCH_PROCESS, jvm_pid=NO_SUCH_PROCESS).is_dead()


# --- taking over --------------------------------------------------------------------------------


def test_each_owner_gets_the_next_number(
    store: LocalStore, take: Callable[..., SpoolLease]
) -> None:
    first = take()
    first.release()
    second = take()
    assert (first.record.number, second.record.number) == (1, 2)
    assert newest_lease(store) == second.record


@pytest.mark.parametrize("change", [{"pid": NO_SUCH_PROCESS}, {"jvm_pid": NO_SUCH_PROCESS}])
def test_an_owner_that_is_dead_on_this_machine_is_replaced_at_once(
    store: LocalStore, take: Callable[..., SpoolLease], change: dict[str, int]
) -> None:
    store.create(lease_name(1), [record(number=1, **change).encode()])
    store.write(heartbeat_name(1), b"1")
    assert take().record.number == 2


@pytest.mark.parametrize("owner", [record(number=1), elsewhere(number=1)])
def test_an_owner_whose_heart_beats_is_not_replaced(
    store: LocalStore, take: Callable[..., SpoolLease], owner: LeaseRecord
) -> None:
    store.create(lease_name(1), [owner.encode()])
    beats = iter((b"1", b"1", b"2"))

    def beat(_: float) -> None:
        store.write(heartbeat_name(1), next(beats))

    said = (
        f"spoolLocation '{store.location}' belongs to a running query on channel 'spark' "
        rf"\(pid {owner.pid} on {owner.host}, since .*\): give each query a channel and a "
        "spoolLocation of its own; or .* foreachBatch"
    )
    with pytest.raises(SourceInUseError, match=said):
        take(wait=beat)
    assert newest_lease(store) == owner


def test_an_owner_elsewhere_is_replaced_when_its_heartbeat_stood_still(
    store: LocalStore,
    take: Callable[..., SpoolLease],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.create(lease_name(1), [elsewhere(number=1, timeout=60.0).encode()])
    store.write(heartbeat_name(1), b"1")
    clock = [100.0]
    monkeypatch.setattr(lease, "monotonic", lambda: clock[0])

    def wait(seconds: float) -> None:
        clock[0] += seconds

    assert take(wait=wait).record.number == 2
    assert 160.0 <= clock[0] < 161.0  # by the timeout of the owner, not by the new one's
    assert caplog.text.count("waiting up to 60 s for a sign of life") == 1


def test_an_owner_elsewhere_that_has_released_the_spool_is_replaced_at_once(
    store: LocalStore, take: Callable[..., SpoolLease]
) -> None:
    store.create(lease_name(1), [elsewhere(number=1).encode()])
    store.write(heartbeat_name(1), RELEASED)
    assert take().record.number == 2


def test_of_two_that_take_it_at_once_one_wins(
    store: LocalStore, take: Callable[..., SpoolLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = store.create

    def lose(name: str, data: Any, *, durable: bool = True) -> bool:
        monkeypatch.undo()
        create(name, [elsewhere(number=1).encode()])
        store.write(heartbeat_name(1), RELEASED)  # so that it can be taken over
        return create(name, data, durable=durable)

    monkeypatch.setattr(store, "create", lose)
    assert take().record.number == 2


def test_old_leases_are_removed_and_late_tasks_still_notice(
    store: LocalStore, take: Callable[..., SpoolLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_KEPT", 3)
    for _ in range(6):
        take().release()
    numbers = [name for name in store.names(LEASES) if name.isdecimal()]
    assert numbers == ["00000004", "00000005", "00000006"]
    assert len(store.names(LEASES)) == 6  # with their heartbeats
    with pytest.raises(SourceInUseError):
        LeaseGuard(store, 3).check()


# --- losing it ----------------------------------------------------------------------------------


def test_the_owner_and_its_tasks_notice_that_another_took_over(
    store: LocalStore, take: Callable[..., SpoolLease]
) -> None:
    mine = take()
    guard = LeaseGuard(store, mine.record.number)
    mine.check()
    guard.check()
    store.create(lease_name(2), [elsewhere(number=2).encode()])
    said = r"does not belong to this query any more: .* another query took over \(pid \d+ on far"
    for check in (mine.check, guard.check, mine.check):
        with pytest.raises(SourceInUseError, match=said):
            check()


def test_a_heart_stops_when_another_has_the_lease(
    store: LocalStore, take: Callable[..., SpoolLease]
) -> None:
    mine = take(record(timeout=0.1))
    await_heartbeat(store, 1)
    store.create(lease_name(2), [elsewhere(number=2).encode()])
    mine.join(PATIENCE)
    assert not mine.is_alive()
    with pytest.raises(SourceInUseError):
        mine.check()


def test_a_heart_stops_when_the_jvm_is_gone(
    store: LocalStore,
    take: Callable[..., SpoolLease],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = take(record(timeout=0.1))
    await_heartbeat(store, 1)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    mine.join(PATIENCE)
    assert not mine.is_alive()
    assert "the JVM is gone" in caplog.text


def test_a_heart_goes_on_after_an_error_of_the_store(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = store.write

    def fail_once(name: str, data: bytes, *, durable: bool = True) -> None:
        monkeypatch.undo()
        raise OSError("disk full")

    monkeypatch.setattr(store, "write", fail_once)
    with caplog.at_level(logging.WARNING):
        mine = take_lease(store, record(timeout=0.1), fail)
        await_heartbeat(store, 1)
    mine.release()
    assert "heartbeat not written: disk full" in caplog.text
    assert store.write == write
    assert store.read(heartbeat_name(1)) == RELEASED


def test_the_state_of_an_owner_is_known_as_far_as_it_can_be(store: LocalStore) -> None:
    assert lease_state(store, record(number=1)) == "running"
    assert lease_state(store, record(number=1, pid=NO_SUCH_PROCESS)) == "stopped"
    assert lease_state(store, elsewhere(number=1)) == "unknown"
    store.write(heartbeat_name(1), b"1")
    assert lease_state(store, elsewhere(number=1)) == "running"
    two_hours_ago = os.stat(f"{store.location}/{heartbeat_name(1)}").st_mtime - 7200
    os.utime(f"{store.location}/{heartbeat_name(1)}", (two_hours_ago, two_hours_ago))
    assert lease_state(store, elsewhere(number=1)) == "unknown"
    store.write(heartbeat_name(1), RELEASED)
    assert lease_state(store, elsewhere(number=1)) == "stopped"


# --- the watch ----------------------------------------------------------------------------------


@given(
    timeout=st.floats(1, 100),
    looks=st.lists(
        st.tuples(st.floats(0, 50), st.sampled_from([b"", b"a", b"b", RELEASED]), st.booleans())
    ),
)
def test_a_watch_frees_only_what_is_dead_released_or_has_stood_still(
    timeout: float, looks: list[tuple[float, bytes, bool]]
) -> None:
    watch, now = LeaseWatch(timeout, b"a", 0.0), 0.0
    for seconds, heartbeat, dead in looks:
        now += seconds
        state = watch.observe(heartbeat, now, dead=dead)
        if dead or heartbeat == RELEASED:
            assert state is LeaseState.FREE
        elif heartbeat != b"a":
            assert state is LeaseState.HELD
        else:
            assert (state is LeaseState.FREE) == (now >= timeout)


def test_a_record_that_vanishes_while_it_is_read_is_skipped(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create(lease_name(1), [record(number=1).encode()])
    store.create(lease_name(2), [record(number=2).encode()])
    read = store.read

    def vanish(name: str) -> bytes:
        if name == lease_name(2):
            with suppress(FileNotFoundError):
                os.unlink(f"{store.location}/{name}")
        return read(name)

    monkeypatch.setattr(store, "read", vanish)
    found = newest_lease(store)
    assert found is not None
    assert found.number == 1
