"""Makes sure that a query is the only one that uses its spool and reads its channel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from nsqflow.errors import SourceInUseError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.presence import (
    HEARTBEAT,
    ChannelPresence,
    ConnectedClient,
    client_id,
    find_rivals,
    in_use,
    parse_clients,
    task_id,
)
from nsqflow.spark.spool.application import check_application, remember_refusal
from nsqflow.spark.spool.lease import LeaseRecord, SpoolLease, take_lease
from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 2 * HEARTBEAT + 0.5  # seconds for nsqd to drop a query that has just ended
_POLL_INTERVAL = 0.1


class SourceOwnership:
    """The lease of a streaming query, and its presence on the channel."""

    def __init__(
        self,
        store: ObjectStore,
        monitor: BacklogMonitor,
        options: SourceOptions,
        wait: Callable[[float], object] = sleep,
    ) -> None:
        self._store = store
        self._monitor = monitor
        self._options = options
        self._wait = wait
        self._lease: SpoolLease | None = None
        self._presence: ChannelPresence | None = None
        self._generation = ""
        self._is_new = False

    @property
    def number(self) -> int:
        """The number of the lease; 0 before it is taken."""
        return self._lease.record.number if self._lease else 0

    def claim(self, generation: str, *, new: bool = False) -> None:
        """Take the lease, or check that it is still held; raise ``SourceInUseError``.

        ``new`` says that there is no checkpoint of the generation yet.
        """
        if self._lease is not None:
            self._lease.check()
            return
        options = self._options
        record = LeaseRecord.of_this_process(
            generation, options.channel, options.topics, options.lease_timeout
        )
        self._is_new = new and not self._shares
        if self._is_new:
            check_application(self._store, record)
        with self._remembering(record):
            self._lease = take_lease(self._store, record, self._wait)
        self._generation = generation

    def check_channel(self, keys: Collection[str]) -> None:
        """Show the query on these channels; raise ``SourceInUseError`` if another reads them."""
        if self._presence is None:
            assert self._lease is not None
            with self._remembering(self._lease.record):
                self._presence = self._enter(keys)
            return
        self._presence.update(keys)
        if (connected := self._presence.take_connected()) and not self._shares:
            clients = parse_clients(self._monitor.clients(connected))
            older, tied = find_rivals(clients, self._generation)
            if older or tied:
                raise in_use((older + tied)[0], self._options.channel)

    def close(self) -> None:
        """Release the spool and leave the channel."""
        if self._presence is not None:
            self._presence.close()
        if self._lease is not None:
            self._lease.release()

    @contextmanager
    def _remembering(self, record: LeaseRecord) -> Iterator[None]:
        """Have a new query that is refused be refused again in this application."""
        try:
            yield
        except SourceInUseError as error:
            if self._is_new:
                remember_refusal(self._store, record, error)
            raise

    def _enter(self, keys: Collection[str]) -> ChannelPresence:
        presence = ChannelPresence(self._options, self._generation)
        try:
            presence.update(keys)
            presence.take_connected()
            check_exclusive(self._monitor, keys, self._options, self._generation, self._wait)
        except BaseException:
            presence.close()
            raise
        return presence

    @property
    def _shares(self) -> bool:
        return self._options.allow_shared_channel


def check_exclusive(
    monitor: BacklogMonitor,
    keys: Collection[str],
    options: SourceOptions,
    generation: str,
    wait: Callable[[float], object] = sleep,
) -> None:
    """Raise ``SourceInUseError`` if another query reads the channel; warn of other consumers.

    A query of a machine that has just failed stays among nsqd's clients for a while.
    """
    deadline = monotonic() + _CLOSE_TIMEOUT
    while True:
        clients = parse_clients(monitor.clients(keys))
        rivals = find_rivals(clients, generation)
        others = rivals.older + rivals.tied
        if not others or options.allow_shared_channel:
            break
        if monotonic() > deadline or rivals.yields(generation):
            raise in_use(others[0], options.channel)
        wait(_POLL_INTERVAL)
    known = (client_id(generation), task_id(generation))
    consumers = [client for client in clients if not client.is_query and client.id not in known]
    if consumers:
        _warn(consumers, options.channel)


def _warn(consumers: list[ConnectedClient], channel: str) -> None:
    named = ", ".join(sorted({f"{client.id} from {client.address}" for client in consumers})[:3])
    logger.warning(
        "channel %r has %d other clients, which take a part of the messages: %s",
        channel,
        len(consumers),
        named,
    )
