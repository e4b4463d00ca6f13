"""What the queries of one Spark application did with a spool before.

A query that is refused may be started again by the application, as declarative pipelines do, when
the other query has ended: it would find an empty channel and succeed with a part of the messages.
So a new checkpoint is refused in an application whose other checkpoint has read messages into the
spool, and where a query was refused before. A checkpoint that exists is never refused here.
"""

from __future__ import annotations

import json

from nsqflow.errors import SourceInUseError
from nsqflow.spark.spool.layout import (
    LEASES,
    REFUSED,
    batches_folder,
    lease_name,
    lease_numbers,
    parse_partition,
    refusal_name,
)
from nsqflow.spark.spool.lease import ADVICE, LeaseRecord
from nsqflow.spark.spool.store import ObjectStore


def check_application(store: ObjectStore, record: LeaseRecord) -> None:
    """Raise ``SourceInUseError`` if a new query must not use the spool in this application."""
    if (reason := _refused_before(store, record)) is not None:
        raise SourceInUseError(
            f"spoolLocation {store.location!r}: a query of this Spark application was refused "
            "there before, and is not started later with what is left; if the other one has ended "
            f"for good, use another spoolLocation or restart Spark. It was refused as {reason}"
        )
    for number in lease_numbers(store.names(LEASES)):
        other = _read(store, number)
        if other is not None and _is_rival(other, record) and _has_slots(store, other.generation):
            raise SourceInUseError(
                f"spoolLocation {store.location!r} has the messages of another query of this Spark "
                f"application, with another checkpoint (generation {other.generation}): {ADVICE}; "
                "or, to start again without that checkpoint, use another spoolLocation or restart "
                "Spark"
            )


def remember_refusal(store: ObjectStore, record: LeaseRecord, error: SourceInUseError) -> None:
    """Record that a new query was refused, for as long as the application runs."""
    content = json.dumps({"reason": str(error)}).encode()
    store.write(_refusal(record), content, durable=False)


def refusal_names(store: ObjectStore) -> list[str]:
    """Return the objects that record refusals."""
    return [f"{LEASES}/{name}" for name in store.names(LEASES) if name.startswith(REFUSED)]


def _refusal(record: LeaseRecord) -> str:
    return refusal_name(record.machine, record.jvm_pid, record.jvm_started)


def _refused_before(store: ObjectStore, record: LeaseRecord) -> str | None:
    try:
        return str(json.loads(store.read(_refusal(record)))["reason"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):  # damaged
        return "another query was reading"


def _read(store: ObjectStore, number: int) -> LeaseRecord | None:
    try:
        return LeaseRecord.decode(number, bytes(store.read(lease_name(number))))
    except FileNotFoundError:  # it has just been removed
        return None


def _is_rival(other: LeaseRecord, record: LeaseRecord) -> bool:
    application = (record.machine, record.jvm_pid, record.jvm_started)
    same = (other.machine, other.jvm_pid, other.jvm_started) == application
    return same and other.generation != record.generation


def _has_slots(store: ObjectStore, generation: str) -> bool:
    """Return whether a query has read messages: one that failed at its start has not."""
    folder = batches_folder(generation)
    return any(
        parse_partition(name) is not None
        for batch in store.names(folder)
        for name in store.names(f"{folder}/{batch}")
    )
