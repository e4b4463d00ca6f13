"""The connections of a consumer: nsqd given directly, or found through nsqlookupd.

On the classic NSQ there is one for each nsqd of the topic, on the redesigned NSQ one for each
partition, to the nsqd that leads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqflow.client.allowed_addresses import AddressFilter
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.events import EventEmitter
from nsqflow.client.reconnect import Reconnector, endpoint_name
from nsqflow.errors import ConfigError, NsqError, ServerError
from nsqflow.protocol import Dialect, LookupAnswer, Node, TopicMeta
from nsqflow.trace import warn_of_classic
from nsqflow.transport.connection import Connection
from nsqflow.transport.dial import DialQueue
from nsqflow.transport.handshake import is_final

if TYPE_CHECKING:  # the HTTP client is loaded only if nsqlookupd is used
    from nsqflow.client.lookup_poller import LookupPoller
    from nsqflow.http.client import HttpClient

# A subscription to a partition that is refused with one of these is refused again.
_FINAL_CODES = ("E_BAD_PARTITION", "E_INVALID", "E_SUB_CHANNEL_NOT_REGISTERED")
# The topic is not as nsqlookupd has described it: it may have been created again.
_META_CODES = ("E_SUB_ORDER_IS_MUST", "E_SUB_EXTEND_NEED", "E_SUB_EXTEND_FORBIDDON")


class Endpoint(NamedTuple):
    """What to subscribe to: an nsqd, and on the redesigned NSQ a partition that it leads."""

    nsqd: str
    partition: int | None = None
    http: str = ""
    """The HTTP address of the leader."""

    @property
    def name(self) -> str:
        """What the connection is called."""
        return endpoint_name(self.nsqd, self.partition)


Subscribe = Callable[[Endpoint], Awaitable[Connection]]


class NsqdConnections:
    """Keeps a connection to each nsqd, or partition, that the user or nsqlookupd named."""

    def __init__(
        self,
        config: ConsumerConfig,
        topic: str,
        subscribe: Subscribe,
        events: EventEmitter,
        fatal: Callable[[BaseException], None],
    ) -> None:
        # By name; including those that have ended, until they are named again or no more.
        self.reconnectors: dict[str, Reconnector] = {}
        self.poller: LookupPoller | None = None
        self.refused: tuple[str, ...] = ()  # named by nsqlookupd, and outside allowed_addresses
        self.answered = False  # whether nsqlookupd has answered, even with no nsqd
        self.meta = TopicMeta()
        """How a topic of the redesigned NSQ is set up."""
        self.leaders: dict[int, str] = {}
        """The nsqd that lead its partitions, or did when they were last named."""
        self.unled: tuple[int, ...] = ()
        """Its partitions that nsqlookupd names no leader of."""
        self.http: HttpClient | None = None
        self._config = config
        self._topic = topic
        self._subscribe = subscribe
        self._events = events
        self._fatal = fatal
        self._random = Random()
        self._filter = AddressFilter(config.allowed_addresses)
        self._queue = DialQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs: dict[str, asyncio.Task[None]] = {}  # the last task of each name
        self._answers = 0  # of nsqlookupd
        self._refuted = 0  # the answer whose description of the topic nsqd has refuted
        self._refuted_again = False  # nsqlookupd was asked again, and nsqd refutes that too

    def start(self) -> None:
        """Connect to the nsqd given directly, or begin to poll nsqlookupd."""
        for address in self._config.nsqd:
            self._add(Endpoint(address), retry_forever=True)
        if self._config.lookupd:
            from nsqflow.client.lookup_poller import LookupPoller, lookup_topic, make_http_client

            self.http = make_http_client(self._config)
            self.poller = LookupPoller(
                self._config,
                partial(lookup_topic, topic=self._topic),
                self.http,
                on_answer=self.on_lookup,
                on_failure=partial(self._events.emit, "lookup_failed", None),
                allow=self._filter.allow,
            )
            self._create_task(self.poller.run(), "nsqflow lookup")

    async def close(self) -> None:
        """Stop connecting and polling; open connections stay open."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.http is not None:
            self.http.close()

    @property
    def is_redesigned(self) -> bool:
        """Whether the topic is one of the redesigned NSQ."""
        return self.poller is not None and self.poller.dialect is Dialect.REDESIGNED

    def on_lookup(self, answer: LookupAnswer) -> None:
        """Connect to what is new, or was lost and is named again."""
        assert self.poller is not None
        self.answered = True
        self._answers += 1
        if (error := self._config.dialect_error(self._topic, self.poller.dialect)) is not None:
            self._fatal(error)
            return
        named = self._partitions(answer) if self.is_redesigned else self._nsqds(answer)
        self._forget_others({endpoint.name for endpoint in named})
        for endpoint in named:
            before = self.reconnectors.get(endpoint.name)
            if before is None or before.ended:
                self._add(endpoint, retry_forever=False, before=before)

    # Private methods

    def _nsqds(self, answer: LookupAnswer) -> list[Endpoint]:
        named, self.refused = self._filter.split(node.address for node in answer.producers)
        return [Endpoint(address) for address in named]

    def _partitions(self, answer: LookupAnswer) -> list[Endpoint]:
        self.meta = answer.meta or self.meta
        numbers: Collection[int] = range(self.meta.partition_num)
        leaders = answer.partitions
        wanted = self._config.partitions
        if wanted is not None:
            if numbers and not {*wanted} <= {*numbers}:
                self._fatal(self._no_partition(wanted))
                return []
            numbers, leaders = wanted, {n: leaders[n] for n in wanted if n in leaders}
        allowed, self.refused = self._filter.split(node.address for node in leaders.values())
        named = {n: node for n, node in leaders.items() if node.address in allowed}
        for number, node in named.items():
            before = self.leaders.get(number)
            if before not in (None, node.address):
                text = f"partition {number} of {self._topic!r} was led by {before}"
                self._events.emit("leader_changed", node.address, text)
        self.leaders |= {number: node.address for number, node in named.items()}
        self.unled = tuple(n for n in numbers if n not in leaders)
        return [_partition_endpoint(number, node) for number, node in sorted(named.items())]

    def _no_partition(self, wanted: Collection[int]) -> ConfigError:
        last = self.meta.partition_num - 1
        return ConfigError(
            f"partitions={wanted!r} is invalid: {self._topic!r} has partitions 0 to {last}"
        )

    def _forget_others(self, named: set[str]) -> None:
        """Forget what is no longer named, unless connected or being dialled."""
        for name, reconnector in list(self.reconnectors.items()):
            if name not in named and (reconnector.ended or reconnector.queued):
                self._runs.pop(name).cancel()
                del self.reconnectors[name]

    def _add(
        self, endpoint: Endpoint, *, retry_forever: bool, before: Reconnector | None = None
    ) -> None:
        named_by = () if self.poller is None else self.poller.named_by.get(endpoint.nsqd, ())
        reconnector = self.reconnectors[endpoint.name] = Reconnector(
            endpoint.nsqd,
            lambda _: self._connect(endpoint),
            self._config,
            self._events,
            retry_forever=retry_forever,
            partition=endpoint.partition,
            queue=self._queue,
            named_by=named_by,
            final=is_final if endpoint.partition is None else self._is_final,
            before=before,
            random=self._random,
        )
        work = self._run(reconnector, _key(endpoint))
        self._runs[endpoint.name] = self._create_task(work, f"nsqflow {endpoint.name}")

    async def _connect(self, endpoint: Endpoint) -> Connection:
        answer = self._answers
        try:
            connection = await self._subscribe(endpoint)
        except ServerError as error:
            if error.code in _META_CODES:
                self._refuted = self._refuted or answer
                self._refuted_again = answer > self._refuted
            raise
        self._refuted = 0
        if endpoint.partition is None:
            warn_of_classic(self._topic)
        if self.poller is not None:
            self.poller.connected(_key(endpoint))
        return connection

    def _is_final(self, error: NsqError) -> bool:
        """Return whether another dial of a partition can't help."""
        if not isinstance(error, ServerError):
            return is_final(error)
        if error.code in _META_CODES:
            return self._refuted_again
        return error.code in _FINAL_CODES or is_final(error)

    async def _run(self, reconnector: Reconnector, key: str) -> None:
        try:
            await reconnector.run()
        finally:
            # An nsqd that was never reached can wait for the next regular poll; a partition can't:
            # another nsqd may lead it by now. If that one is connected, nothing is missing.
            if self.poller is not None and not self._is_led(reconnector.partition):
                if reconnector.was_connected:
                    self.poller.lost(key, worked=not reconnector.failures)
                elif reconnector.partition is not None:
                    self.poller.lost(key, worked=False)

    def _is_led(self, partition: int | None) -> bool:
        """Return whether the nsqd that leads a partition is connected."""
        if partition is None or partition not in self.leaders:
            return False
        leader = self.reconnectors.get(endpoint_name(self.leaders[partition], partition))
        return leader is not None and leader.connection is not None

    def _create_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)


def _partition_endpoint(number: int, node: Node) -> Endpoint:
    return Endpoint(node.address, number, node.http_address)


def _key(endpoint: Endpoint) -> str:
    """Return what the poller waits for: another nsqd may lead the partition."""
    return endpoint.nsqd if endpoint.partition is None else f"partition {endpoint.partition}"
