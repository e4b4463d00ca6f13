"""Finds and opens the leader of a partition, for a task.

A leader may move at any time: it is looked up for each connection. Before a task subscribes, it
checks where the channel is. After a change of leaders the channel's cursor may be beyond messages
that were never read, and after a failure beyond messages that were finished and not stored: then
it is moved back to where the task goes on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from contextlib import closing
from time import monotonic

from nsqflow.admin.cluster import Cluster
from nsqflow.admin.partition import PartitionApi
from nsqflow.client.position import Position
from nsqflow.errors import AdminError, DiscoveryError, NetworkError, NsqError, ServerError
from nsqflow.protocol.commands import SubscribeMode
from nsqflow.spark.connection import LeaderEndpoint, connect
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.nsqd_connector import Connector
from nsqflow.spark.source.offsets import split_key
from nsqflow.transport.sync_connection import SyncConnection

logger = logging.getLogger(__name__)

LEADER_TIMEOUT = 10.0
"""Seconds for a partition to have a leader that can be read; later batches try again."""

_TIMEOUT = 5.0  # seconds for each request
_RETRY_INTERVAL = 0.2
_OUTPUT_BUFFER_TIMEOUT = 0.05  # seconds after which nsqd sends what does not fill its buffer


class LeaderConnector(Connector):
    """Opens connections to the leader of one partition."""

    leader = ""

    def __init__(
        self, key: str, channel: str, options: SourceOptions, stopping: threading.Event
    ) -> None:
        self.topic, number = split_key(key)
        self.number = int(number)
        self._key = key
        self._channel = channel
        self._options = options
        self._stopping = stopping

    def open(
        self, client_id: str, left: int, resume: int | None, *, must_seek: bool = False
    ) -> SyncConnection | None:
        """Connect and subscribe; None while the partition has no leader: a later batch reads it.

        Raises what another attempt can't help with.
        """
        self.leader = ""  # until this connects
        deadline = monotonic() + LEADER_TIMEOUT
        while True:
            try:
                return self._open(client_id, resume, must_seek)
            except NsqError as error:
                if not is_passing(error):
                    raise
                if monotonic() >= deadline:
                    logger.warning("%s: %s; a later batch reads it", self._key, error)
                    return None
            if self._stopping.wait(_RETRY_INTERVAL):
                return None

    def _open(self, client_id: str, resume: int | None, must_seek: bool) -> SyncConnection:
        endpoint = asyncio.run(locate_leader(self._key, self._options))
        if resume is not None:
            asyncio.run(self._move_back(endpoint.http, resume, must_seek))
        link = connect_leader(
            self._key,
            endpoint,
            self._options,
            channel=self._channel,
            client_id=client_id,
            msg_timeout=self._options.msg_timeout,
        )
        self.leader = endpoint.nsqd
        return link

    async def _move_back(self, http: str, resume: int, must_seek: bool) -> None:
        async with partition_api(http, self._options) as api:
            position = await api.position(self.topic, self.number, self._channel)
            if position is None or (position.cursor <= resume and not must_seek):
                return
            logger.info("%s: moving from %d to %d", self._key, position.cursor, resume)
            target = Position("virtual_queue", resume)
            await api.set_offset(self.topic, self.number, self._channel, target)


async def locate_leader(key: str, options: SourceOptions) -> LeaderEndpoint:
    """Return where and how a partition is read now; raise ``NetworkError`` if nowhere."""
    topic, number = split_key(key)
    cluster = Cluster(lookupd=options.servers.lookupd, tls=_https(options), timeout=_TIMEOUT)
    answer = (await cluster.lookup([topic]))[topic]
    leader = answer.partitions.get(int(number))
    if leader is None or answer.meta is None:
        raise NetworkError(f"partition {number} of {topic!r} has no leader now")
    ordered = options.ordered or answer.meta.ordered
    mode = SubscribeMode.ORDERED if ordered else SubscribeMode.ADVANCED
    return LeaderEndpoint(leader.address, leader.http_address, mode, answer.meta.extend_support)


def partition_api(http: str, options: SourceOptions) -> PartitionApi:
    """Return the HTTP API of a leader."""
    return PartitionApi(http, tls=_https(options), timeout=_TIMEOUT)


def connect_leader(
    key: str,
    endpoint: LeaderEndpoint,
    options: SourceOptions,
    *,
    channel: str,
    client_id: str | None = None,
    msg_timeout: float | None = None,
    heartbeat_interval: float | None = None,
    tag: str = "",
    timeout: float = 10.0,
) -> SyncConnection:
    """Connect to the leader of a partition, and subscribe."""
    topic, number = split_key(key)
    return connect(
        endpoint.nsqd,
        options.access,
        topic=topic,
        channel=channel,
        partition=int(number),
        mode=endpoint.mode,
        extended=endpoint.extended,
        msg_timeout=msg_timeout,
        output_buffer_timeout=_OUTPUT_BUFFER_TIMEOUT,
        client_id=client_id,
        heartbeat_interval=heartbeat_interval,
        tag=tag,
        timeout=timeout,
    )


def subscribe_once(key: str, endpoint: LeaderEndpoint, options: SourceOptions) -> None:
    """Create the channel of a partition by subscribing to it."""
    with closing(connect_leader(key, endpoint, options, channel=options.channel, timeout=_TIMEOUT)):
        return


def is_passing(error: NsqError) -> bool:
    """Return whether another attempt, maybe at another leader, can help."""
    if isinstance(error, ServerError):
        return error.retriable
    return isinstance(error, NetworkError | DiscoveryError | AdminError)


def _https(options: SourceOptions) -> ssl.SSLContext | None:
    return options.access.http_context() if options.servers.use_https else None
