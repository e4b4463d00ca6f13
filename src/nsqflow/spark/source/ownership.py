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
    MAX_CONNECTIONS,
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

_CLOSE_TIMEOUT = 2 * HEARTBEAT + 0.5  # seconds for nsqd to drop a query whose machine is gone
_CHECK_INTERVAL = 30.0  # seconds between two checks of all channels
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
        self._is_new = False  # there is no checkpoint yet
        self._unchecked: set[str] = set()  # keys that were connected to since they were checked
        self._check_at = 0.0

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
        self._generation = generation
        self._is_new = new and not options.allow_shared_channel
        if self._is_new:
            check_application(self._store, record)
        with self._remembering(record):
            self._lease = self._take(record)

    def check_channel(self, keys: Collection[str]) -> None:
        """Show the query on these channels; raise ``SourceInUseError`` if another reads them."""
        if self._presence is None:
            assert self._lease is not None
            with self._remembering(self._lease.record):
                self._presence = self._enter(keys)
            return
        self._presence.update(self._monitor.places(keys))
        self._unchecked |= self._presence.take_connected()
        if monotonic() >= self._check_at:
            self._unchecked.update(sorted(keys)[:MAX_CONNECTIONS])
        if self._unchecked and not self._options.allow_shared_channel:
            self._check(self._unchecked)

    def close(self) -> None:
        """Release the spool and leave the channel."""
        if self._presence is not None:
            self._presence.close()
        if self._lease is not None:
            self._lease.release()

    # Private methods

    def _take(self, record: LeaseRecord) -> SpoolLease:
        lease = take_lease(self._store, record, self._wait)
        if self._is_new:
            try:
                # Another query may have read, and ended, while this one waited for its heartbeat.
                check_application(self._store, record)
            except SourceInUseError:
                lease.release()
                raise
        return lease

    def _enter(self, keys: Collection[str]) -> ChannelPresence:
        presence = ChannelPresence(self._options, self._generation)
        try:
            presence.update(self._monitor.places(keys))
            self._unchecked = presence.take_connected()
            self._check(keys, warn=True)
        except BaseException:
            presence.close()
            raise
        return presence

    def _check(self, keys: Collection[str], *, warn: bool = False) -> None:
        options, generation = self._options, self._generation
        checked = check_exclusive(
            self._monitor,
            keys,
            options,
            generation,
            self._wait,
            new=self._is_new,
            before=self._lease.before if self._lease else "",
            warn=warn,
        )
        self._is_new = False
        self._unchecked -= checked
        self._check_at = monotonic() + _CHECK_INTERVAL

    @contextmanager
    def _remembering(self, record: LeaseRecord) -> Iterator[None]:
        """Have a new query that is refused be refused again in this application."""
        is_new = self._is_new
        try:
            yield
        except SourceInUseError as error:
            if is_new:
                remember_refusal(self._store, record, error)
            raise


def check_exclusive(
    monitor: BacklogMonitor,
    keys: Collection[str],
    options: SourceOptions,
    generation: str,
    wait: Callable[[float], object] = sleep,
    *,
    new: bool = True,
    before: str = "",
    warn: bool = True,
) -> set[str]:
    """Raise ``SourceInUseError`` if another query reads the channel; return what was checked.

    A query that is ``new`` is refused at once. One with a checkpoint may be the restart of a query
    whose machine has failed, and which stays among nsqd's clients for a while; so does the
    generation ``before``, from which the spool was taken.
    """
    deadline = monotonic() + _CLOSE_TIMEOUT
    while True:
        listed = monitor.clients(keys)
        clients = parse_clients(listed)
        rivals = find_rivals(clients, generation)
        others = rivals.older + rivals.tied
        if not others or options.allow_shared_channel:
            break
        at_once = new and any(other.generation != before for other in others)
        if at_once or monotonic() > deadline or rivals.yields(generation):
            raise in_use(others[0], options.channel)
        wait(_POLL_INTERVAL)
    if warn:
        _warn_of_consumers(clients, generation, options.channel)
    return set(listed)


def _warn_of_consumers(clients: list[ConnectedClient], generation: str, channel: str) -> None:
    known = (client_id(generation), task_id(generation))
    consumers = [client for client in clients if not client.is_query and client.id not in known]
    if consumers:
        named = sorted({f"{client.id} from {client.address}" for client in consumers})
        logger.warning(
            "channel %r has %d other clients, which take a part of the messages: %s",
            channel,
            len(consumers),
            ", ".join(named[:3]),
        )
