"""Shows a query among the clients of its channel, and finds other queries there.

Tasks are connected only while they read. So the driver keeps a subscription with RDY 0 for each
topic and nsqd, whose client id has the query's generation. A query connects first and then reads
the list of clients: it fails if another query there connected earlier, or in the same second.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from nsqflow.errors import NsqError, SourceInUseError
from nsqflow.protocol import SubscribeMode
from nsqflow.spark.connection import LeaderEndpoint, connect
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.process import has_ended, process_tag
from nsqflow.spark.source.allocation import RetryBackoff
from nsqflow.spark.source.offsets import describe_place, split_key
from nsqflow.spark.spool.lease import ADVICE
from nsqflow.transport.sync_connection import SyncConnection

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64  # of one query: with more topics and nsqd, the first ones show it
HEARTBEAT = 2.0  # seconds: nsqd drops a client of a machine that is gone after two of them

_CONNECT_TIMEOUT = 3.0
_STOP_TIMEOUT = 5.0
_POLL_INTERVAL = 0.2  # seconds after which new keys and lost connections are noticed

_CLIENT_ID = "nsqflow-spark:"
_TASK_ID = "nsqflow-spark-task:"


def client_id(generation: str) -> str:
    """Return the client id of the connections that show a query, and of a batch read's tasks."""
    return f"{_CLIENT_ID}{generation}"


def task_id(generation: str) -> str:
    """Return the client id of a stream's tasks.

    nsqd may list a task of a stalled machine for a minute: it is no sign of a query that runs.
    """
    return f"{_TASK_ID}{generation}"


class ConnectedClient(NamedTuple):
    """A client of the channel, as nsqd lists it."""

    key: str
    id: str
    address: str
    since: int
    """When it connected, in seconds of nsqd's clock."""
    user_agent: str = ""

    @property
    def is_query(self) -> bool:
        """Whether it belongs to a query, or to a batch read."""
        return self.id.startswith(_CLIENT_ID)

    @property
    def generation(self) -> str:
        """The generation of its query."""
        return self.id.removeprefix(_CLIENT_ID)


def parse_clients(listed: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[ConnectedClient]:
    """Return the clients in nsqd's statistics for each key."""
    return [
        ConnectedClient(
            key,
            str(client.get("client_id")),
            str(client.get("remote_address")),
            int(client.get("connect_ts") or 0),
            str(client.get("user_agent")),
        )
        for key, clients in listed.items()
        for client in clients
    ]


class RivalClients(NamedTuple):
    """The clients of other queries that keep a query from reading the channel."""

    older: list[ConnectedClient]
    """Those that connected before it; to a query that is not connected, all others."""
    tied: list[ConnectedClient]
    """Those that connected in the same second."""

    def yields(self, generation: str) -> bool:
        """Return whether the query must fail at once, so that one that is tied may go on."""
        return any(client.generation < generation for client in self.tied)


def find_rivals(clients: Iterable[ConnectedClient], generation: str) -> RivalClients:
    """Return the clients of other queries that connected no later than the query.

    Those of processes of this machine that have ended are left out.
    """
    queries = [client for client in clients if client.is_query and not has_ended(client.user_agent)]
    own: dict[str, int] = {}
    for client in queries:
        if client.generation == generation:
            own[client.key] = min(own.get(client.key, client.since), client.since)
    rivals = RivalClients([], [])
    for client in queries:
        if client.generation != generation:
            if client.key not in own or client.since < own[client.key]:
                rivals.older.append(client)
            elif client.since == own[client.key]:
                rivals.tied.append(client)
    return rivals


def in_use(other: ConnectedClient, channel: str) -> SourceInUseError:
    """Return the error for a channel that another query reads."""
    topic, place = split_key(other.key)[0], describe_place(other.key)
    return SourceInUseError(
        f"channel {channel!r} of topic {topic!r} on {place} is read by another query, from "
        f"{other.address} (generation {other.generation}), and each would get a part of the "
        f"messages: {ADVICE}; or set allowSharedChannel=true to share it"
    )


class ChannelPresence(threading.Thread):
    """Keeps the connections of one query; they receive nothing."""

    def __init__(self, options: SourceOptions, generation: str) -> None:
        super().__init__(name="nsqflow-spark-presence", daemon=True)
        self._options = options
        self._client_id = client_id(generation)
        self._backoff = RetryBackoff(min_wait=1.0)
        self._wanted: dict[str, LeaderEndpoint | None] = {}
        self._links: dict[str, SyncConnection] = {}
        self._endpoints: dict[str, LeaderEndpoint | None] = {}  # what each link is connected to
        self._changed = threading.Condition()
        self._tried: set[str] = set()  # keys with an attempt to connect
        self._connected: set[str] = set()  # keys connected since take_connected()
        self._stopping = False

    def update(self, places: Mapping[str, LeaderEndpoint | None]) -> None:
        """Set the keys to be connected to, and wait until each was tried once.

        ``places`` has the leader of each partition of the redesigned NSQ; None for a key of the
        classic one. They must exist: to subscribe would create them.
        """
        wanted = {key: places[key] for key in sorted(places)[:MAX_CONNECTIONS]}
        with self._changed:
            if wanted == self._wanted:
                return
            self._wanted = wanted
            self._changed.notify_all()
            if self.ident is None:
                self.start()
            self._changed.wait_for(
                lambda: wanted.keys() <= self._tried or self._stopping, _CONNECT_TIMEOUT
            )

    def take_connected(self) -> set[str]:
        """Return the keys that were connected to since the last call."""
        with self._changed:
            connected, self._connected = self._connected, set()
        return connected

    def close(self) -> None:
        """Close the connections and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self.ident is not None:
            self.join(_STOP_TIMEOUT)

    def run(self) -> None:
        """Connect, and answer heartbeats; runs on the thread."""
        jvm = os.getppid()
        try:
            while not self._stopping and os.getppid() == jvm:
                self._connect_missing()
                self._answer_heartbeats()
        finally:
            for link in self._links.values():
                link.close()

    # Private methods

    def _connect_missing(self) -> None:
        wanted = self._wanted
        for key in [*self._links]:
            if key not in wanted:
                self._links.pop(key).close()
            elif wanted[key] != self._endpoints[key]:  # another nsqd leads the partition now
                self._links.pop(key).close()
                self._backoff.succeeded(key)
        for key in sorted(wanted.keys() - self._links.keys()):
            if self._stopping:
                return
            if self._backoff.allowed(key, monotonic()):
                self._connect(key, wanted[key])
                with self._changed:
                    self._tried.add(key)
                    self._changed.notify_all()

    def _connect(self, key: str, endpoint: LeaderEndpoint | None) -> None:
        try:
            self._links[key] = self._open(key, endpoint)
            self._endpoints[key] = endpoint
        except NsqError as error:
            # Tasks report what keeps the query from reading; here it only stays unseen.
            logger.debug("%s: not shown on the channel: %s", key, error)
            self._backoff.failed(key, monotonic())
            return
        self._backoff.succeeded(key)
        with self._changed:
            self._connected.add(key)

    def _open(self, key: str, endpoint: LeaderEndpoint | None) -> SyncConnection:
        topic, nsqd = split_key(key)
        return connect(
            nsqd if endpoint is None else endpoint.nsqd,
            self._options.access,
            topic=topic,
            channel=self._options.channel,
            partition=None if endpoint is None else int(nsqd),
            mode=SubscribeMode.PLAIN if endpoint is None else endpoint.mode,
            extended=endpoint is not None and endpoint.extended,
            client_id=self._client_id,
            heartbeat_interval=HEARTBEAT,
            tag=process_tag(),
            timeout=_CONNECT_TIMEOUT,
        )

    def _answer_heartbeats(self) -> None:
        """Wait a moment for nsqd, and answer it."""
        if not self._links:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, _POLL_INTERVAL)
            return
        poll = select.poll()
        for link in self._links.values():
            link.register(poll)
        if not poll.poll(_POLL_INTERVAL * 1000):
            return
        for key, link in [*self._links.items()]:
            try:
                link.receive(0)
            except NsqError as error:
                logger.debug("%s: %s", key, error)
                self._drop(key)

    def _drop(self, key: str) -> None:
        """Close a lost connection, which is opened again when its nsqd is back.

        An nsqd that still runs has closed it because the channel was deleted, and to subscribe
        would create it: then ``update`` says when it exists.
        """
        self._backoff.failed(key, monotonic())
        self._links.pop(key).close()
        endpoint = self._endpoints[key]
        if self._is_running(split_key(key)[1] if endpoint is None else endpoint.nsqd):
            with self._changed:
                self._wanted = {k: place for k, place in self._wanted.items() if k != key}

    def _is_running(self, nsqd: str) -> bool:
        try:
            connect(nsqd, self._options.access, timeout=_CONNECT_TIMEOUT).close()
        except NsqError:
            return False
        return True
