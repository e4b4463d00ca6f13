"""nsqd: its listeners, clients, engine and store."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nsqflow.broker.engine.channel import Channel, Subscriber
from nsqflow.broker.engine.engine import Engine, EngineObserver
from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.nsqd.command_handler import CommandHandler
from nsqflow.broker.nsqd.connection import ClientConnection
from nsqflow.broker.nsqd.http import NsqdApi
from nsqflow.broker.nsqd.lookup_peer import LookupPeers
from nsqflow.broker.nsqd.message_pump import Clock, MessagePump, StoredCallback
from nsqflow.broker.nsqd.publishing import NsqdCommandHandler
from nsqflow.broker.nsqd.server import NsqdServer
from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.storage.store import Store
from nsqflow.broker.version import describe

_log = logging.getLogger("nsqflow.broker.nsqd")


class NsqdDaemon(NsqdServer, EngineObserver):
    """An nsqd. With ``engine``, it continues with the messages of another one."""

    def __init__(self, options: NsqdOptions, engine: Engine | None = None) -> None:
        super().__init__(options, Clock())
        self._store = self._make_store()
        self.engine = engine or Engine(
            node_id=options.node_id,
            mem_queue_size=options.mem_queue_size,
            max_memory=options.max_memory,
            max_msg_timeout=round(options.max_msg_timeout * 10**9),
            max_channel_consumers=options.max_channel_consumers,
            journal=self._store,
            random_percent=lambda: random.randrange(100),
        )
        self.engine.observer = self
        self.lookup_peers = LookupPeers(self)
        self._pump = MessagePump(self.engine, self.clock, self._store, self._recover)
        self._tasks: set[asyncio.Task[None]] = set()

    # Public methods

    @property
    def durable(self) -> bool:
        """Whether publishes are stored before they are acknowledged."""
        return self._store is not None

    def command_handler(self, client: ClientConnection) -> CommandHandler:
        """Return what executes the commands of a client."""
        return NsqdCommandHandler(client, self)

    def pump(self) -> None:
        """Schedule a run of the message pump, because the engine has changed."""
        self._pump.start()

    def flush(self, channel: Channel) -> None:
        """Write the buffered messages of a channel's subscribers."""
        for subscriber in channel.subscribers:
            client: ClientConnection = subscriber.owner
            client.output.flush()

    def when_stored(self, stored: StoredCallback) -> None:
        """Call back when everything that has happened so far is stored, or has failed."""
        self._pump.when_stored(stored)

    async def stored(self) -> None:
        """Wait until everything that has happened so far is stored; raise if that failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def stored(error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(None)

        self.when_stored(stored)
        await done

    async def start(self) -> None:
        """Restore stored messages and start listening."""
        _log.info("%s", describe("nsqd"))
        _log.info("ID: %d", self.options.node_id)
        try:
            if self._store is not None:
                await self._restore(self._store)
            await self._open_listeners(lambda: ClientConnection(self), lambda: NsqdApi(self))
        except BaseException:
            await self.stop()
            raise
        self.lookup_peers.start()
        self.pump()

    async def stop(self) -> None:
        """Close listeners and connections; messages in memory stay in the engine."""
        self._close_listeners()
        await self._close_clients(ClientConnection.close)
        # An ephemeral channel ends with its last client: nsqlookupd must learn that before we stop.
        await self.lookup_peers.flush()
        await self.lookup_peers.close()
        self.engine.requeue_in_flight(self.now())
        self._pump.stop()
        if self._store is not None:
            await self._store.close()
        _log.info("NSQ: bye")

    async def kill(self) -> None:
        """End as ``kill -9`` does, without saving or sending anything."""
        self._close_listeners()
        if self._store is not None:
            self._store.abandon()
        self._pump.stop()
        await self.lookup_peers.close()
        await self._close_clients(ClientConnection.abort)

    def set_lookupd_addresses(self, addresses: Sequence[str]) -> None:
        """Register with these nsqlookupd only."""
        self.options = replace(self.options, lookupd_tcp_address=tuple(addresses))
        self.lookup_peers.set(self.options.lookupd_tcp_address)

    def set_log_level(self, level: str) -> None:
        """Set the log level."""
        self.options = replace(self.options, log_level=level)
        _log.setLevel({"warn": "WARNING", "fatal": "CRITICAL"}.get(level, level.upper()))

    # Notifications of the engine

    def created(self, topic: str, channel: str | None) -> None:
        """Register with nsqlookupd, and look up the channels of a new topic."""
        name = topic if channel is None else f"{topic}:{channel}"
        _log.info("%s(%s): created", "TOPIC" if channel is None else "CHANNEL", name)
        self.lookup_peers.created(topic, channel)
        if channel is None and self.lookup_peers.http_addresses:
            self.engine.topics[topic].waiting = True
            task = asyncio.get_running_loop().create_task(self._start_topic(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def deleted(self, topic: str, channel: str | None) -> None:
        """Unregister from nsqlookupd."""
        name = topic if channel is None else f"{topic}:{channel}"
        _log.info("%s(%s): deleted", "TOPIC" if channel is None else "CHANNEL", name)
        self.lookup_peers.deleted(topic, channel)

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        """Close the connections of subscribers whose channel is deleted."""
        for subscriber in subscribers:
            client: ClientConnection = subscriber.owner
            client.close()

    # Private methods

    def _make_store(self) -> Store | None:
        if self.options.data_path is None:
            return None

        def failed(error: Exception) -> None:
            self.health = f"NOK - {error}"
            _log.error("failed to store: %s", error)

        def page(queue_id: int, messages: Sequence[QueuedMessage]) -> None:
            self.engine.page_loaded(queue_id, messages)
            self.pump()

        return Store(Path(self.options.data_path), on_page=page, on_failure=failed)

    def _recover(self) -> None:
        self.health = "OK"

    async def _restore(self, store: Store) -> None:
        kept = await asyncio.get_running_loop().run_in_executor(None, store.open)
        self.engine.restore(kept.queues, kept.last_id, kept.last_queue_id, self.now())

    async def _close_clients(self, end: Callable[[ClientConnection], None]) -> None:
        """Close all connections and cancel tasks; wait until they have ended."""
        await super()._close_clients(end)
        for task in [*self._tasks]:
            task.cancel()
            await asyncio.wait([task])

    async def _start_topic(self, topic: str) -> None:
        names = await self.lookup_peers.channels_of(topic)
        if topic in self.engine.topics:
            self.engine.topics[topic].start(names, self.now())
            self.pump()
