"""nsqd: its doors, its clients, its engine and its store."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from nsqflow.broker.authorization import Authorizer
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine, Listener
from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.listening import Listening, listen
from nsqflow.broker.nsqd.client import Client
from nsqflow.broker.nsqd.clock import Clock
from nsqflow.broker.nsqd.faults import Faults
from nsqflow.broker.nsqd.lookup_peer import LookupPeers
from nsqflow.broker.nsqd.pump import Pump, Stored
from nsqflow.broker.nsqd.routes import http_server
from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.storage.store import Store
from nsqflow.broker.tls import client_context, server_context
from nsqflow.broker.version import describe
from nsqflow.http.server import HttpServer
from nsqflow.protocol import Limits

_log = logging.getLogger("nsqflow.broker.nsqd")

_FILES = 600  # that the process needs for other things than its clients: HTTP, above all


class Nsqd(Listener):
    """An nsqd. With ``engine``, it goes on with what another one had in memory."""

    def __init__(self, options: NsqdOptions, engine: Engine | None = None) -> None:
        self.options = options
        self.clock = Clock()
        self.started = self.now() // 10**9
        self.health = "OK"
        self.clients: set[Client] = set()
        self.faults = Faults()
        self.stopping = False
        """Nobody is let in any more."""
        self.tls = server_context(options)
        self.limits = Limits(
            max_msg_size=options.max_msg_size,
            max_body_size=options.max_body_size,
            max_rdy_count=options.max_rdy_count,
            max_req_timeout_ms=round(options.max_req_timeout * 1000),
        )
        self.authorizer = self._authorizer()
        self._store = self._make_store()
        self.engine = engine or Engine(
            node_id=options.node_id,
            mem_queue_size=options.mem_queue_size,
            max_memory=options.max_memory,
            max_msg_timeout=round(options.max_msg_timeout * 10**9),
            max_channel_consumers=options.max_channel_consumers,
            journal=self._store,
            chance=lambda: random.randrange(100),
        )
        self.engine.listener = self
        self.lookup_peers = LookupPeers(self)
        self._pump = Pump(self.engine, self.clock, self._store, self._recover)
        self._doors: dict[str, Listening] = {}
        self._http_servers: list[HttpServer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # Public methods

    @property
    def durable(self) -> bool:
        """What is published is stored before that is answered."""
        return self._store is not None

    @property
    def tcp_address(self) -> str:
        """Where clients connect to."""
        return self._doors["TCP"].address

    @property
    def http_address(self) -> str:
        """Where its HTTP API is; empty if it has none."""
        return self._doors["HTTP"].address if "HTTP" in self._doors else ""

    @property
    def tcp_port(self) -> int:
        """-1 for a unix socket."""
        return self._port("TCP")

    @property
    def http_port(self) -> int:
        """-1 for a unix socket, or none."""
        return self._port("HTTP")

    @property
    def https_port(self) -> int:
        """-1 if there is none."""
        return self._port("HTTPS")

    def now(self) -> int:
        """What time it is, in nanoseconds since 1970."""
        return self.clock.now()

    def pump(self) -> None:
        """Look at the engine soon: something has changed in it."""
        self._pump.start()

    def flush(self, channel: Channel) -> None:
        """Send the subscribers of a channel what has been gathered for them."""
        for subscriber in channel.subscribers:
            client: Client = subscriber.owner
            client.output.flush()

    def when_stored(self, stored: Stored) -> None:
        """Call back when all that has happened by now is stored, or has failed to be."""
        self._pump.when_stored(stored)

    async def stored(self) -> None:
        """Wait until all that has happened by now is stored; raise what prevented it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def stored(error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error else done.set_result(None)

        self.when_stored(stored)
        await done

    async def start(self) -> None:
        """Have again what was stored, and open the doors."""
        _log.info("%s", describe("nsqd"))
        _log.info("ID: %d", self.options.node_id)
        try:
            if self._store is not None:
                await self._restore(self._store)
            await self._open_doors()
        except BaseException:
            await self.stop()
            raise
        self.lookup_peers.start()
        self.pump()

    async def stop(self) -> None:
        """Close all doors and connections; what is in memory stays in the engine."""
        self._close_doors()
        await self._see_off(Client.close)
        # With its last client an ephemeral channel is gone: nsqlookupd must know before we are.
        await self.lookup_peers.flush()
        await self.lookup_peers.close()
        self.engine.recall(self.now())
        self._pump.stop()
        if self._store is not None:
            await self._store.close()
        _log.info("NSQ: bye")

    async def kill(self) -> None:
        """End as ``kill -9`` does: nothing is said and nothing is saved."""
        self._close_doors()
        if self._store is not None:
            self._store.abandon()
        self._pump.stop()
        await self.lookup_peers.close()
        await self._see_off(Client.abort)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def set_lookupd_addresses(self, addresses: Sequence[str]) -> None:
        """Register with these nsqlookupd from now on."""
        self.options = replace(self.options, lookupd_tcp_address=tuple(addresses))
        self.lookup_peers.set(self.options.lookupd_tcp_address)

    def set_log_level(self, level: str) -> None:
        """Log from this level on."""
        self.options = replace(self.options, log_level=level)
        _log.setLevel({"warn": "WARNING", "fatal": "CRITICAL"}.get(level, level.upper()))

    # What the engine tells.

    def created(self, topic: str, channel: str | None) -> None:
        """Tell nsqlookupd, and ask it which channels a new topic is to have."""
        name = topic if channel is None else f"{topic}:{channel}"
        _log.info("%s(%s): created", "TOPIC" if channel is None else "CHANNEL", name)
        self.lookup_peers.created(topic, channel)
        if channel is None and self.lookup_peers.http_addresses:
            self.engine.topics[topic].waiting = True
            task = asyncio.get_running_loop().create_task(self._begin(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def deleted(self, topic: str, channel: str | None) -> None:
        """Tell nsqlookupd."""
        name = topic if channel is None else f"{topic}:{channel}"
        _log.info("%s(%s): deleted", "TOPIC" if channel is None else "CHANNEL", name)
        self.lookup_peers.deleted(topic, channel)

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        """Close the connections of those whose channel is gone."""
        for subscriber in subscribers:
            client: Client = subscriber.owner
            client.close()

    # Private methods

    def _port(self, door: str) -> int:
        return self._doors[door].port if door in self._doors else -1

    def _authorizer(self) -> Authorizer | None:
        options = self.options
        if not options.auth_http_address:
            return None
        return Authorizer(
            options.auth_http_address,
            options.http_client_connect_timeout,
            options.http_client_request_timeout,
            client_context(options),
        )

    def _make_store(self) -> Store | None:
        if self.options.data_path is None:
            return None

        def failed(error: Exception) -> None:
            self.health = f"NOK - {error}"
            _log.error("failed to store: %s", error)

        def page(place: int, entries: Sequence[Entry]) -> None:
            self.engine.loaded(place, entries)
            self.pump()

        return Store(Path(self.options.data_path), on_page=page, on_failure=failed)

    def _recover(self) -> None:
        self.health = "OK"

    async def _restore(self, store: Store) -> None:
        kept = await asyncio.get_running_loop().run_in_executor(None, store.open)
        self.engine.restore(kept.places, kept.last_id, kept.last_place, self.now())

    async def _open_doors(self) -> None:
        options = self.options
        await self._open("TCP", options.tcp_address, self._connected)
        if options.http_address:
            await self._open_http("HTTP", options.http_address, tls=False)
        if options.https_address and self.tls is not None:
            await self._open_http("HTTPS", options.https_address, tls=True)

    async def _open_http(self, name: str, address: str, *, tls: bool) -> None:
        server = http_server(self, tls=tls)
        self._http_servers.append(server)
        await self._open(name, address, server, tls=tls)

    async def _open(
        self, name: str, address: str, factory: Callable[[], asyncio.Protocol], *, tls: bool = False
    ) -> None:
        option = f"{name.lower()}_address"
        door = await listen(option, address, factory, self.tls if tls else None)
        self._doors[name] = door
        _log.info("%s: listening on %s", name, door.address)

    def _close_doors(self) -> None:
        self.stopping = True
        for name, door in self._doors.items():
            _log.info("%s: closing %s", name, door.address)
            door.close()

    async def _see_off(self, end: Callable[[Client], None]) -> None:
        """End all connections and tasks; return when they have ended."""
        clients = [*self.clients]
        for client in clients:
            end(client)
        for server in self._http_servers:
            await server.close()
        for task in [*self._tasks]:
            task.cancel()
            await asyncio.wait([task])
        for client in clients:
            await client.gone()

    def _connected(self) -> asyncio.Protocol:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = max(files - _FILES, files // 2) if files != resource.RLIM_INFINITY else sys.maxsize
        if len(self.clients) < most:
            return Client(self)
        _log.error("TCP: there are %d clients, as many as there may be", len(self.clients))
        return _Refused()

    async def _begin(self, topic: str) -> None:
        names = await self.lookup_peers.channels_of(topic)
        if topic in self.engine.topics:
            self.engine.topics[topic].begin(names, self.now())
            self.pump()


class _Refused(asyncio.Protocol):
    """A connection that there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
