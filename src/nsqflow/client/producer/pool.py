"""The producer's connection pool: dials every nsqd and picks a connection for each batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from random import Random

from nsqflow.client.events import EventEmitter
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.partition_sender import PartitionSender, trace_publish
from nsqflow.client.producer.publish_batch import Destination, PublishBatch, SendStatus, topic_of
from nsqflow.client.producer.routing import LookupRouter, TopicRoute
from nsqflow.client.reconnect import Reconnector
from nsqflow.client.reconnect_schedule import TriggerLimit
from nsqflow.errors import NsqError
from nsqflow.protocol import CommandFailed, Dialect, Receipt
from nsqflow.transport.connection import Connection
from nsqflow.transport.dial import DialQueue
from nsqflow.transport.dial_order import MAX_DIALS
from nsqflow.transport.handler import ConnectionHandler
from nsqflow.transport.handshake import ConnectionSettings, is_final

_MAX_REASONS = 5  # nsqd named in an error
_MAX_ROUTES = 1000  # topics whose senders are remembered
_CLOSE_TIMEOUT = 2.0  # seconds for nsqd to close its side
# Bytes after which ``send`` writes: only then the transport can report a full write buffer.
_WRITE_SIZE = 256 * 1024

OnDone = Callable[[Sequence[PublishBatch], SendStatus, str, NsqError | None], None]
"""Called with batches (oldest first), their status, nsqd's address and its error."""


class Sender(ConnectionHandler):
    """Sends batches over one connection, without waiting for an answer between them."""

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        on_done: OnDone,
        on_ready: Callable[[], None],
    ) -> None:
        self.address = address
        self.connection = Connection(address, settings, self)
        self.unanswered: deque[PublishBatch] = deque()
        self._on_done = on_done
        self._on_ready = on_ready
        self._unwritten = 0  # bytes sent since the last flush

    @property
    def ready(self) -> bool:
        """Whether it can take a batch now."""
        return self.connection.can_write and not self.connection.closed

    @property
    def stalled(self) -> bool:
        """Whether its nsqd does not answer: the oldest batch has timed out."""
        return bool(self.unanswered) and self.unanswered[0].expired

    def send(self, batch: PublishBatch) -> bool:
        """Queue a batch, which ``flush`` writes; return False if all of it was cancelled."""
        command = batch.command()
        if command is None:
            return False
        self.connection.session.send(command)
        self.unanswered.append(batch)
        self._unwritten += batch.size
        if self._unwritten >= _WRITE_SIZE:
            self.flush()
        return True

    def flush(self) -> None:
        """Write what was queued."""
        self._unwritten = 0
        self.connection.flush()

    # Called by the connection

    def published(self, receipt: Receipt | None) -> None:
        """Resolve the oldest batch: nsqd has stored it."""
        batch = self.unanswered.popleft()
        if not batch.expired:
            batch.set_result(receipt)
            self._on_done((batch,), SendStatus.STORED, self.address, None)

    def command_failed(self, event: CommandFailed) -> None:
        """Report the oldest batch as refused; if nsqd closes, it has read no later one."""
        if not self.unanswered:
            return
        batch = self.unanswered.popleft()
        if event.closes:
            self._on_done(self._take_unanswered(), SendStatus.NOT_READ, self.address, None)
        if not batch.expired:
            self._on_done((batch,), SendStatus.REFUSED, self.address, event.error)

    def writable(self) -> None:
        """Take more batches: the write buffer has drained."""
        self._on_ready()

    def connection_lost(self, error: NsqError) -> None:
        """Report all unanswered batches as lost."""
        self._on_done(self._take_unanswered(), SendStatus.LOST, self.address, error)

    def _take_unanswered(self) -> list[PublishBatch]:
        batches = [batch for batch in self.unanswered if not batch.expired]
        self.unanswered.clear()
        return batches


class LeaderSender(Sender):
    """Sends batches to a redesigned nsqd, which answers traced messages with a receipt."""

    def published(self, receipt: Receipt | None) -> None:
        """Resolve the oldest batch; write a trace line if it was traced."""
        batch = self.unanswered[0]
        super().published(receipt)
        if receipt is not None and batch.trace is not None and not batch.expired:
            trace_publish(batch, "stored", receipt)


class ConnectionPool:
    """The connections to all nsqd that are published to."""

    _on_done: OnDone
    _on_ready: Callable[[], None]

    def __init__(self, config: ProducerConfig, events: EventEmitter) -> None:
        self._config = config
        self._events = events
        self._settings = {each: config.connection_settings(each) for each in Dialect}
        self._random = Random()
        self._loop = asyncio.get_running_loop()
        self._reconnectors: dict[str, list[Reconnector]] = {}
        self._dial_errors: dict[str, NsqError] = {}  # of nsqd whose last dial failed
        self._queue = DialQueue()
        self._tasks: dict[asyncio.Task[None], Reconnector] = {}
        self._senders: dict[str, list[Sender]] = {}
        # Until a route or a sender changes:
        self._routes: dict[Destination, Sequence[Sender | PartitionSender]] = {}
        self._triggers = TriggerLimit()
        self._turns: dict[Destination, int] = {}  # how often one of several was picked
        self._ready_scheduled = False
        # None: the user names the nsqd, for every topic.
        self._router = None if config.nsqd else LookupRouter(config, events, self.update_addresses)

    def start(self, *, on_done: OnDone, on_ready: Callable[[], None]) -> None:
        """Dial the known nsqd.

        ``on_done`` gets the result of each batch; ``on_ready`` is called when a connection may
        take batches again.
        """
        self._on_done = on_done
        self._on_ready = on_ready
        self.update_addresses()

    async def close(self) -> None:
        """Close all connections."""
        connections = [sender.connection for sender in self.senders()]
        for task in self._tasks:
            task.cancel()
        try:
            if self._router is not None:
                await self._router.close()
            await asyncio.gather(*(connection.finish(_CLOSE_TIMEOUT) for connection in connections))
        finally:
            for connection in connections:
                connection.abort()
                await connection.wait_ended()
            for task in self._tasks:
                if not task.cancelling():  # started since, by a late answer of nsqlookupd
                    task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # For the accumulator

    def pick(self, batch: PublishBatch) -> Sender | PartitionSender | None:
        """Return the next ready sender, in turn; None if no connection can take the batch.

        A sender whose nsqd does not answer or has refused the batch is the last choice.
        """
        route = self._routes.get(batch.destination)
        ready = [s for s in (self._route(batch.destination) if route is None else route) if s.ready]
        if len(ready) < 2:
            return ready[0] if ready else None
        ready = [sender for sender in ready if not sender.stalled] or ready
        ready = [s for s in ready if s.address not in batch.refused_by] or ready
        # Topics have turns of their own: two that are published to alternately would each get
        # every second sender only. The first is random: producers that publish once and end must
        # not all use the same nsqd or partition.
        turn = self._turns.get(batch.destination)
        turn = self._random.randrange(len(ready)) if turn is None else turn + 1
        self._turns[batch.destination] = turn
        return ready[turn % len(ready)]

    def senders(self) -> list[Sender]:
        """Return the senders of all connections, and those with unanswered batches."""
        return [sender for senders in self._senders.values() for sender in senders]

    def route(self, topic: str) -> TopicRoute | None:
        """Return what nsqlookupd says about a topic; None if the user names the nsqd."""
        return None if self._router is None else self._router.route(topic)

    def refresh(self, topic: str, partition: int, *, after: float = 0.0) -> None:
        """Have a partition looked up again, now or later; until then nothing is sent to it."""
        if self._router is not None:
            if after:
                self._router.hold(topic, partition, after)
            else:
                self._router.refresh(topic, partition)
            self._routes.clear()

    def connect(self, destination: Destination) -> None:
        """Dial the unconnected nsqd of a destination now, each at most once a second."""
        now = self._loop.time()
        idle = (a for a in self._addresses(destination) if not self._is_dialled(a))
        granted = (address for address in idle if self._triggers.grant(address, now))
        for address in islice(granted, MAX_DIALS):  # more are not dialled at the same time
            waiting = (r for r in self._reconnectors.get(address, ()) if r.retry_at is not None)
            if (reconnector := next(waiting, None)) is not None:
                reconnector.dial_now()
            else:
                self._add(address)

    def unreachable_error(self, destination: Destination) -> NsqError | None:
        """Return an error if every nsqd of a destination refuses what each dial asks for."""
        first: NsqError | None = None
        route = self.route(topic_of(destination))
        named = () if route is None else route.last_leaders(destination)
        for address in self._addresses(destination) or named:
            error = self._final_error(address)
            if error is None:
                return None
            first = first or error
        return first

    def describe(self, destination: Destination) -> str:
        """Describe why no connection takes batches for a destination."""
        addresses = self._addresses(destination)
        reasons = [self._describe_nsqd(address) for address in addresses[:_MAX_REASONS]]
        if len(addresses) > _MAX_REASONS:
            reasons.append(f"and {len(addresses) - _MAX_REASONS} other nsqd")
        if not addresses and self._router is not None:
            return str(self._router.error(topic_of(destination)))
        return "; ".join(reasons)

    def nsqd_count(self, topic: str) -> int:
        """Return the number of nsqd that the topic can be published to."""
        return len(self._addresses(topic))

    # For the router

    def update_addresses(self) -> None:
        """Connect to every known nsqd; called after each answer of nsqlookupd."""
        router = self._router
        known = set(self._config.nsqd) if router is None else router.all_addresses()
        self._routes.clear()
        self._dial_errors = {a: e for a, e in self._dial_errors.items() if a in known}
        self._triggers.keep(known)
        for task, reconnector in self._tasks.items():
            if reconnector.queued and reconnector.address not in known:
                task.cancel()
                self._forget(reconnector)  # the task ends later; until then it must not count
        for address in known:
            missing = self._config.connections_per_nsqd - len(self._reconnectors.get(address, ()))
            for _ in range(missing):
                self._add(address)
        self._schedule_ready()

    # Private methods

    def _addresses(self, destination: Destination) -> tuple[str, ...]:
        if self._router is None:
            return self._config.nsqd
        if isinstance(destination, str):
            return self._router.addresses(destination)
        leaders = self._router.route(destination.topic).leaders
        leader = None if destination.partition is None else leaders.get(destination.partition)
        return () if leader is None else (leader,)

    def _route(self, destination: Destination) -> Sequence[Sender | PartitionSender]:
        """Return the senders that a destination may use, and remember them."""
        if not self._senders:  # there may be thousands of addresses
            return ()
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        if len(self._turns) >= _MAX_ROUTES:
            self._turns.clear()
        route = self._routes[destination] = self._find_senders(destination)
        return route

    def _find_senders(self, destination: Destination) -> Sequence[Sender | PartitionSender]:
        route = self.route(topic_of(destination))
        if route is None or route.dialect is not Dialect.REDESIGNED:
            addresses = self._addresses(destination)
            return [s for address in addresses for s in self._senders.get(address, ())]
        return [
            PartitionSender(sender, number, self._loop.time)
            for number, address in route.leaders.items()
            if isinstance(destination, str) or destination.partition == number
            for sender in self._senders.get(address, ())
        ]

    def _final_error(self, address: str) -> NsqError | None:
        error = self._dial_errors.get(address)
        final = error is not None and is_final(error) and not self._is_dialled(address)
        return error if final else None

    def _is_dialled(self, address: str) -> bool:
        """Return whether it is connected, or being dialled."""
        reconnectors = self._reconnectors.get(address, ())
        return any(r.retry_at is None and not r.ended for r in reconnectors)

    def _describe_nsqd(self, address: str) -> str:
        reconnectors = self._reconnectors.get(address, ())
        if any(reconnector.connection is not None for reconnector in reconnectors):
            return f"{address} does not read what it is sent"
        errors = (r.error for r in reconnectors if r.error is not None)
        error = self._dial_errors.get(address) or next(errors, None)
        text = "not connected yet" if error is None else str(error)
        return text if text.startswith(address) else f"{address}: {text}"

    def _add(self, address: str) -> None:
        reconnector = Reconnector(
            address,
            self._dial,
            self._config,
            self._events,
            retry_forever=self._router is None,
            queue=self._queue,
            named_by=() if self._router is None else self._router.named_by(address),
            final=lambda _: False,  # publishes fail with it; a later dial may succeed
            changed=self._schedule_ready,
            random=self._random,
        )
        self._reconnectors.setdefault(address, []).append(reconnector)
        task = asyncio.create_task(self._run(reconnector), name=f"nsqflow {address}")
        self._tasks[task] = reconnector
        task.add_done_callback(self._tasks.pop)

    async def _run(self, reconnector: Reconnector) -> None:
        try:
            await reconnector.run()
        finally:
            self._forget(reconnector)
            if self._router is not None and reconnector.was_connected:
                self._router.on_lost(reconnector.address, worked=not reconnector.failures)
            elif self._router is not None:
                self._router.on_unreachable(reconnector.address)

    def _forget(self, reconnector: Reconnector) -> None:
        reconnectors = self._reconnectors.get(reconnector.address, [])
        if reconnector not in reconnectors:
            return
        reconnectors.remove(reconnector)
        if not reconnectors:
            del self._reconnectors[reconnector.address]
            self._senders.pop(reconnector.address, None)
            self._routes.clear()

    async def _dial(self, address: str) -> Connection:
        dialect = Dialect.CLASSIC if self._router is None else self._router.dialect_of(address)
        kind = LeaderSender if dialect is Dialect.REDESIGNED else Sender
        sender = kind(address, self._settings[dialect], self._on_done, self._on_ready)
        try:
            await sender.connection.open()
        except NsqError as error:
            self._dial_errors[address] = error
            raise
        self._dial_errors.pop(address, None)
        if self._router is not None:
            self._router.on_connected(address)
        others = self._senders.get(address, ())
        used = [other for other in others if other.unanswered or not other.connection.closed]
        self._senders[address] = [*used, sender]
        self._routes.clear()
        for reconnector in self._reconnectors[address]:  # nsqd is back: dial its other connections
            reconnector.dial_now()
        return sender.connection

    def _schedule_ready(self) -> None:
        """Call ``on_ready`` once in this turn of the loop, however many dials end in it."""
        if not self._ready_scheduled:
            self._ready_scheduled = True
            self._loop.call_soon(self._report_ready)

    def _report_ready(self) -> None:
        self._ready_scheduled = False
        self._on_ready()
