"""Leases: a spool belongs to one query at a time.

A query takes the next number by an exclusive create, and then replaces a heartbeat beside it. The
owner of the highest number has the spool. Another query takes over if that owner is known to be
dead, because its process or its JVM no longer runs on this machine, or if its heartbeat has stood
still for ``timeout`` seconds. It never compares clocks: it watches the heartbeat itself.

An owner that was stalled and wakes up finds a higher number. Its tasks check that before each slot
and before the FINs.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from time import monotonic
from typing import Any, Protocol
from uuid import uuid4

from nsqflow.errors import SourceInUseError
from nsqflow.spark.process import ProcessId, this_machine
from nsqflow.spark.spool.layout import LEASES, heartbeat_name, lease_name, lease_numbers
from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)

_BEATS = 6  # heartbeats in the time after which a lease ends without one
_REFRESH_INTERVAL = 3.0  # seconds after which a guard asks a network file system again
_POLL_INTERVAL = 0.1  # seconds between two checks of another owner
_STOP_TIMEOUT = 5.0  # seconds for the last heartbeat to be written
_KEPT = 100  # leases that stay in the spool: a task knows by the next one that its own is over

ADVICE = (
    "give each query a channel and a spoolLocation of its own; or write to several sinks in one "
    "query, with foreachBatch and persist()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The content of a lease: its owner, a reader process of a query."""

    number: int
    generation: str
    channel: str
    topics: tuple[str, ...] = ()
    reader: str
    """Unique for each reader."""
    host: str
    machine: str
    """What identifies the machine or container."""
    pid: int
    started: str
    """When the process started, in the words of the system."""
    jvm_pid: int
    jvm_started: str
    taken_at: str
    """When the lease was taken, by the owner's clock."""
    timeout: float = 30.0

    @staticmethod
    def of_this_process(
        generation: str, channel: str, topics: tuple[str, ...], timeout: float
    ) -> LeaseRecord:
        """Return the record of this process, whose parent is the JVM; its number is 0."""
        reader, jvm = ProcessId.of(os.getpid()), ProcessId.of(os.getppid())
        return LeaseRecord(
            number=0,
            generation=generation,
            channel=channel,
            topics=topics,
            reader=uuid4().hex,
            host=socket.gethostname(),
            machine=this_machine(),
            pid=reader.pid,
            started=reader.started,
            jvm_pid=jvm.pid,
            jvm_started=jvm.started,
            taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
            timeout=timeout,
        )

    def encode(self) -> bytes:
        """Return the content of the object."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(number: int, data: bytes) -> LeaseRecord:
        """Read a lease; one that is damaged belongs to an unknown owner elsewhere."""
        try:
            values: dict[str, Any] = json.loads(data)
            texts = ("generation", "channel", "reader", "host", "machine", "started")
            return LeaseRecord(
                number=number,
                topics=tuple(map(str, values["topics"])),
                pid=int(values["pid"]),
                jvm_pid=int(values["jvm_pid"]),
                jvm_started=str(values["jvm_started"]),
                taken_at=str(values["taken_at"]),
                timeout=float(values["timeout"]),
                **{name: str(values[name]) for name in texts},
            )
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("%s is damaged: %s", lease_name(number), error)
            return LeaseRecord(
                number=number,
                generation="",
                channel="",
                reader="",
                host="an unknown host",
                machine="",
                pid=0,
                started="",
                jvm_pid=0,
                jvm_started="",
                taken_at="an unknown time",
            )

    def is_dead(self) -> bool:
        """Return whether the owner is known not to run any more; False if it is elsewhere."""
        if self.machine != this_machine():
            return False
        processes = (ProcessId(self.pid, self.started), ProcessId(self.jvm_pid, self.jvm_started))
        return any(process.is_running() is False for process in processes)

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}, since {self.taken_at}"


class LeaseState(Enum):
    """What is known of another owner."""

    FREE = "free"
    HELD = "held"
    UNKNOWN = "unknown"


class LeaseWatch:
    """Decides whether another owner still lives, by its heartbeats; pure."""

    def __init__(self, timeout: float, heartbeat: bytes, now: float) -> None:
        self._timeout = timeout
        self._first = heartbeat
        self._since = now

    def observe(self, heartbeat: bytes, now: float, *, dead: bool) -> LeaseState:
        """Return what a look at the owner shows."""
        if dead or heartbeat == RELEASED:
            return LeaseState.FREE
        if heartbeat != self._first:
            return LeaseState.HELD
        return LeaseState.FREE if now - self._since >= self._timeout else LeaseState.UNKNOWN


RELEASED = b"released"


class SpoolLease(threading.Thread):
    """A lease of this process; sends heartbeats until the JVM is gone or another owner has it."""

    def __init__(self, store: ObjectStore, record: LeaseRecord, before: str = "") -> None:
        super().__init__(name="nsqflow-spark-lease", daemon=True)
        self.record = record
        self.before = before
        """The generation of the owner before, which has ended or is stalled; empty if none."""
        self._store = store
        self._jvm = os.getppid()
        self._stopping = threading.Event()
        self._lost = False
        self._guard = LeaseGuard(store, record.number)

    def check(self) -> None:
        """Raise ``SourceInUseError`` if another query has taken the spool."""
        if self._lost:
            raise self._guard.error()
        self._guard.check()

    def release(self) -> None:
        """End the lease, so that the next query need not wait."""
        self._stopping.set()
        if self.ident is not None:
            self.join(_STOP_TIMEOUT)
        self._store.write(heartbeat_name(self.record.number), RELEASED, durable=False)

    def run(self) -> None:
        """Send heartbeats; runs on the thread."""
        count = 0
        while not self._stopping.wait(self.record.timeout / _BEATS if count else 0.0):
            if os.getppid() != self._jvm:
                logger.warning("the JVM is gone: no more heartbeats")
                return
            count += 1
            try:
                self._guard.check()
                beat = f"{self.record.reader} {count}".encode()
                self._store.write(heartbeat_name(self.record.number), beat, durable=False)
            except SourceInUseError:
                self._lost = True
                return
            except Exception as error:
                # The next one may succeed; tasks that can't write fail by themselves.
                logger.warning("heartbeat not written: %s", error)


class ReadGuard(Protocol):
    """Checks in a task that no other reader uses its spool or channel."""

    def connected(self) -> None:
        """Check the channel, after the first connection."""

    def check(self) -> None:
        """Check the spool, before a slot and before FINs."""


class LeaseGuard(ReadGuard):
    """Checks in a task that its query still owns the spool."""

    def __init__(self, store: ObjectStore, number: int) -> None:
        self._store = store
        self._number = number
        self._refreshed_at = 0.0

    def connected(self) -> None:
        """Do nothing: the query's driver watches the channel."""

    def check(self) -> None:
        """Raise ``SourceInUseError`` if another query has taken the spool."""
        if monotonic() - self._refreshed_at > _REFRESH_INTERVAL:
            self._store.refresh(LEASES)  # after a stall: it may cache that a name is free
            self._refreshed_at = monotonic()
        if self._store.age(lease_name(self._number + 1)) is not None:
            raise self.error()

    def error(self) -> SourceInUseError:
        """Return the error that names the new owner."""
        return SourceInUseError(
            f"spoolLocation {self._store.location!r} does not belong to this query any more: it "
            f"was stalled, and another query took over ({newest_lease(self._store)}). If that one "
            "has the same checkpoint, nothing is lost"
        )


def newest_lease(store: ObjectStore) -> LeaseRecord | None:
    """Return the lease with the highest number; None if the spool never had an owner."""
    numbers = lease_numbers(store.names(LEASES))
    while numbers:
        number = numbers.pop()
        try:
            return LeaseRecord.decode(number, bytes(store.read(lease_name(number))))
        except FileNotFoundError:  # it has just been removed
            continue
    return None


def lease_state(store: ObjectStore, record: LeaseRecord) -> str:
    """Return whether the owner is ``running``; ``stopped``, or ``unknown`` without waiting."""
    if record.is_dead() or _heartbeat(store, record.number) == RELEASED:
        return "stopped"
    if record.machine == this_machine():
        return "running"
    age = store.age(heartbeat_name(record.number))
    return "unknown" if age is None or age > record.timeout else "running"


def take_lease(
    store: ObjectStore, record: LeaseRecord, wait: Callable[[float], object]
) -> SpoolLease:
    """Become the owner of a spool; ``wait`` sleeps.

    Raises ``SourceInUseError`` if another query owns it and lives, which takes one heartbeat to
    find out. Waits for the end of the lease of an owner that may be dead.
    """
    while True:
        owner = newest_lease(store)
        if owner is not None:
            _await_free(store, owner, wait)
        number = owner.number + 1 if owner else 1
        mine = replace(record, number=number)
        if store.create(lease_name(number), [mine.encode()]):
            _remove_old(store, number - _KEPT)
            lease = SpoolLease(store, mine, owner.generation if owner else "")
            lease.start()
            return lease


def _await_free(store: ObjectStore, owner: LeaseRecord, wait: Callable[[float], object]) -> None:
    watch = LeaseWatch(owner.timeout, _heartbeat(store, owner.number), monotonic())
    waiting = False
    while True:
        state = watch.observe(_heartbeat(store, owner.number), monotonic(), dead=owner.is_dead())
        if state is LeaseState.FREE:
            return
        if state is LeaseState.HELD:
            raise SourceInUseError(
                f"spoolLocation {store.location!r} belongs to a running query on channel "
                f"{owner.channel!r} ({owner}): {ADVICE}"
            )
        if not waiting and owner.machine != this_machine():
            logger.warning(
                "spoolLocation %r was last used by %s: waiting up to %g s for a sign of life",
                store.location,
                owner,
                owner.timeout,
            )
            waiting = True
        wait(_POLL_INTERVAL)


def _heartbeat(store: ObjectStore, number: int) -> bytes:
    try:
        return bytes(store.read(heartbeat_name(number)))
    except FileNotFoundError:
        return b""


def _remove_old(store: ObjectStore, last: int) -> None:
    for number in lease_numbers(store.names(LEASES)):
        if number <= last:
            store.remove(lease_name(number))
            store.remove(heartbeat_name(number))
