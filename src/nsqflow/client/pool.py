"""The producer's connections: which nsqd are dialled, and which takes the next parcel."""

from __future__ import annotations

import asyncio
import ssl
from itertools import islice
from random import Random

from nsqflow.client.config import ProducerConfig
from nsqflow.client.connection import Connection, is_final
from nsqflow.client.dial_order import MAX_DIALS
from nsqflow.client.dialling import DialQueue
from nsqflow.client.endpoint import Endpoint
from nsqflow.client.news import Newsroom
from nsqflow.client.outbox import Outbox
from nsqflow.client.outlet import Outlet
from nsqflow.client.parcel import Parcel
from nsqflow.client.reconnect_schedule import TriggerLimit
from nsqflow.client.routes import DirectRoutes, LookupRoutes, Routes
from nsqflow.errors import NsqError

_MAX_REASONS = 5  # nsqd named in an error
_LAST_WORD = 2.0  # seconds for nsqd to close its side


class Pool:
    """Outlets to all nsqd that anything is published to."""

    def __init__(self, config: ProducerConfig, news: Newsroom) -> None:
        self.outbox = Outbox(config, self, news)
        self._config = config
        self._news = news
        self._tls: ssl.SSLContext | None = config.ssl_context()
        self._random = Random()
        self._loop = asyncio.get_running_loop()
        self._endpoints: dict[str, list[Endpoint]] = {}
        self._dial_errors: dict[str, NsqError] = {}  # of nsqd that could not be connected
        self._queue = DialQueue()
        self._tasks: dict[asyncio.Task[None], Endpoint] = {}
        self._outlets: dict[str, list[Outlet]] = {}
        self._triggers = TriggerLimit()
        self._turn = 0
        self._pump_planned = False
        self._routes: Routes
        if config.nsqd:
            self._routes = DirectRoutes(config.nsqd)
        else:
            self._routes = LookupRoutes(config, news, self._found)
        self._found()

    async def close(self) -> None:
        """Drop all connections."""
        outlets = [outlet for outlets in self._outlets.values() for outlet in outlets]
        connections = [outlet.connection for outlet in outlets if outlet.connection]
        for task in self._tasks:
            task.cancel()
        try:
            await self._routes.close()
            await asyncio.gather(*(connection.finish(_LAST_WORD) for connection in connections))
        finally:
            for connection in connections:
                connection.abort()
                await connection.wait_ended()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # For the outbox

    def pick(self, parcel: Parcel) -> Outlet | None:
        """Choose the next connection in turn.

        One that does not answer, or whose nsqd refused the parcel, only if there is no other.
        """
        if not self._outlets:  # there may be thousands of addresses
            return None
        ready = [
            outlet
            for address in self._routes.addresses(parcel.topic)
            for outlet in self._outlets.get(address, ())
            if outlet.ready
        ]
        if len(ready) > 1:
            ready = [outlet for outlet in ready if not outlet.stalled] or ready
            ready = [o for o in ready if o.address not in parcel.refused_by] or ready
        if not ready:
            return None
        self._turn += 1
        return ready[self._turn % len(ready)]

    def connect(self, topic: str) -> None:
        """Dial those nsqd now that are not connected; each at most once a second."""
        now = self._loop.time()
        idle = (a for a in self._routes.addresses(topic) if not self._is_dialled(a))
        granted = (address for address in idle if self._triggers.grant(address, now))
        for address in islice(granted, MAX_DIALS):  # more could not be dialled at a time
            waiting = (e for e in self._endpoints.get(address, ()) if e.retry_at is not None)
            if (endpoint := next(waiting, None)) is not None:
                endpoint.dial_now()
            else:
                self._add(address)

    def final_error(self, topic: str) -> NsqError | None:
        """Return the error if every nsqd refuses what another dial would ask for again."""
        first: NsqError | None = None
        for address in self._routes.addresses(topic):
            error = self._final_error_of(address)
            if error is None:
                return None
            first = first or error
        return first

    def why_waiting(self, topic: str) -> str:
        """Say in words why nothing was taken."""
        addresses = self._routes.addresses(topic)
        reasons = [self._why(address) for address in addresses[:_MAX_REASONS]]
        if len(addresses) > _MAX_REASONS:
            reasons.append(f"and {len(addresses) - _MAX_REASONS} other nsqd")
        return "; ".join(reasons) or str(self._routes.trouble())

    def nsqds(self, topic: str) -> int:
        """How many nsqd could take it."""
        return len(self._routes.addresses(topic))

    # Private methods

    def _final_error_of(self, address: str) -> NsqError | None:
        error = self._dial_errors.get(address)
        final = error is not None and is_final(error) and not self._is_dialled(address)
        return error if final else None

    def _is_dialled(self, address: str) -> bool:
        """Return whether it is connected, or being dialled."""
        endpoints = self._endpoints.get(address, ())
        return any(e.retry_at is None and not e.ended for e in endpoints)

    def _why(self, address: str) -> str:
        endpoints = self._endpoints.get(address, ())
        if any(endpoint.connection is not None for endpoint in endpoints):
            return f"{address} does not read what it is sent"
        lost = (endpoint.error for endpoint in endpoints if endpoint.error is not None)
        error = self._dial_errors.get(address) or next(lost, None)
        text = "not connected yet" if error is None else str(error)
        return text if text.startswith(address) else f"{address}: {text}"

    def _found(self) -> None:
        """Dial what is missing of the nsqd that are named; they are anew, by each answer."""
        named = self._routes.named()
        self._dial_errors = {a: e for a, e in self._dial_errors.items() if a in named}
        self._triggers.keep(named)
        for task, endpoint in self._tasks.items():
            if endpoint.queued and endpoint.address not in named:
                task.cancel()
                self._forget(endpoint)  # it ends later; if it is named again before, it is new
        for address in named:
            have = len(self._endpoints.get(address, ()))
            for _ in range(self._config.connections_per_nsqd - have):
                self._add(address)
        self._changed()

    def _add(self, address: str) -> None:
        endpoint = Endpoint(
            address,
            self._dial,
            self._config,
            self._news,
            lasting=self._routes.lasting,
            queue=self._queue,
            named_by=self._routes.named_by(address),
            final=lambda _: False,  # who publishes is told; the next one may have more luck
            changed=self._changed,
            random=self._random,
        )
        self._endpoints.setdefault(address, []).append(endpoint)
        task = asyncio.create_task(self._run(endpoint), name=f"nsqflow {address}")
        self._tasks[task] = endpoint
        task.add_done_callback(self._tasks.pop)

    async def _run(self, endpoint: Endpoint) -> None:
        try:
            await endpoint.run()
        finally:
            self._forget(endpoint)
            if endpoint.was_connected:
                self._routes.lost(endpoint.address, worked=not endpoint.failures)

    def _forget(self, endpoint: Endpoint) -> None:
        endpoints = self._endpoints.get(endpoint.address, [])
        if endpoint not in endpoints:
            return
        endpoints.remove(endpoint)
        if not endpoints:
            del self._endpoints[endpoint.address]
            self._outlets.pop(endpoint.address, None)

    async def _dial(self, address: str) -> Connection:
        outlet = Outlet(address, self.outbox)
        connection = Connection(address, self._config, outlet, self._tls)
        try:
            await connection.open()
        except NsqError as error:
            self._dial_errors[address] = error
            raise
        self._dial_errors.pop(address, None)
        self._routes.connected(address)
        outlet.connection = connection
        outlets = self._outlets.setdefault(address, [])
        outlets[:] = [
            other for other in outlets if other.connection and not other.connection.closed
        ]
        outlets.append(outlet)
        for endpoint in self._endpoints[address]:  # nsqd is back: its other connections too
            endpoint.dial_now()
        return connection

    def _changed(self) -> None:
        """Look once per turn of the loop at what waits, however many dials end in it."""
        if not self._pump_planned:
            self._pump_planned = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_planned = False
        self.outbox.pump()
