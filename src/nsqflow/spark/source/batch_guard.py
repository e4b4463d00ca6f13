"""Keeps batch reads and queries from taking messages of one channel from each other.

A batch read has no lease and no connection of its own: its tasks are connected while they read. So
each task connects and then looks at the channel's clients, as a query does. A read that is refused
stays refused: the task is tried again, when the other reader may have ended.
"""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqflow.errors import DiscoveryError, NetworkError, SourceInUseError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.server_options import ServerOptions
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.ownership import check_exclusive
from nsqflow.spark.spool.generation import GenerationKind, GenerationMarker
from nsqflow.spark.spool.layout import (
    batches_folder,
    generation_marker,
    parse_partition,
    refused_marker,
)
from nsqflow.spark.spool.lease import ADVICE, ReadGuard
from nsqflow.spark.spool.store import ObjectStore

if TYPE_CHECKING:
    from nsqflow.spark.source.reader import NsqInputPartition

_RECENT = 60.0  # seconds for which a read that was planned may still begin


class BatchGuard(ReadGuard):
    """Checks in a task of a batch read that it is the only reader of the channel."""

    def __init__(
        self, store: ObjectStore, partition: NsqInputPartition, options: SourceOptions
    ) -> None:
        self._store = store
        self._partition = partition
        self._options = options

    def connected(self) -> None:
        """Raise ``SourceInUseError`` if another query or read was there before; else do nothing."""
        partition, options = self._partition, self._options
        if options.allow_shared_channel:
            return
        name = refused_marker(partition.id.generation)
        if (reason := _read_reason(self._store, name)) is not None:
            raise SourceInUseError(reason)
        here = replace(options, topics=(partition.topic,), topic_pattern=None)
        if partition.coverage is None:
            servers = ServerOptions(nsqd=(partition.nsqd,), nsqd_http=(partition.http,))
            here = replace(here, servers=servers)
        key, generation = partition.id.key, partition.id.generation
        try:
            with closing(BacklogMonitor(here)) as monitor:
                if partition.coverage is not None:
                    with suppress(NetworkError, DiscoveryError):  # then nothing is checked
                        monitor.find()  # its leader
                check_exclusive(monitor, [key], options, generation, warn=False)
        except SourceInUseError as error:
            self._store.write(name, json.dumps({"reason": str(error)}).encode(), durable=False)
            raise

    def check(self) -> None:
        """Do nothing: a batch read has no lease."""


def check_planned_reads(store: ObjectStore, generation: str, options: SourceOptions) -> None:
    """Raise ``SourceInUseError`` if another read of the channel was just planned in this spool.

    Two ``load()`` in one query are both planned before one of them reads.
    """
    if options.allow_shared_channel:
        return
    for name in store.names(""):
        kind = GenerationKind.of(name)
        if kind in (None, GenerationKind.STREAM) or name == generation:
            continue
        age = store.age(generation_marker(name))
        if age is None or age > _RECENT or not _reads(store, name, options):
            continue
        raise SourceInUseError(
            f"channel {options.channel!r} is read by another batch read, which was planned "
            f"{age:.0f} s ago and has not begun ({name}), and each would get a part of the "
            f"messages: use one DataFrame; or {ADVICE}"
        )


def _reads(store: ObjectStore, generation: str, options: SourceOptions) -> bool:
    """Return whether a read is one of the same channel, and none of its tasks has begun."""
    try:
        content = store.read(generation_marker(generation))
        marker = GenerationMarker.decode(content)
    except (FileNotFoundError, ValueError):
        return False
    if _has_no_tasks(content):
        return False
    folder = batches_folder(generation)
    begun = any(
        parse_partition(name) is not None
        for batch in store.names(folder)
        for name in store.names(f"{folder}/{batch}")
    )
    if begun or marker.channel != options.channel:
        return False
    same = {*marker.topics} & {*options.topics}
    return bool(same or marker.pattern or options.topic_pattern)


def _has_no_tasks(marker: bytes) -> bool:
    """Return whether it is a named read that was planned when there was nothing to read."""
    plan = json.loads(marker).get("plan")
    return plan is not None and not plan["end"]["plan"]


def _read_reason(store: ObjectStore, name: str) -> str | None:
    try:
        return str(json.loads(store.read(name))["reason"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):  # damaged
        return "another query was reading the channel"
