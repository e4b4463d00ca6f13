"""Sources: the nsqd that a consumer is, or is to be, connected to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from nsqflow.client.allowed_addresses import AddressFilter
from nsqflow.client.config import ConsumerConfig
from nsqflow.client.connection import Connection
from nsqflow.client.dialling import DialQueue
from nsqflow.client.endpoint import Dial, Endpoint
from nsqflow.client.news import Newsroom
from nsqflow.errors import NsqError
from nsqflow.protocol import LookupAnswer

if TYPE_CHECKING:  # loads the HTTP client, which direct connections do without
    from nsqflow.client.poller import LookupPoller
    from nsqflow.http.client import HttpClient


class Sources:
    """Keeps a connection to each nsqd that was named, by the user or by nsqlookupd."""

    def __init__(
        self,
        config: ConsumerConfig,
        topic: str,
        dial: Dial,
        news: Newsroom,
        fatal: Callable[[BaseException], None],
    ) -> None:
        # Also those that have ended, until nsqlookupd names them again or no longer.
        self.endpoints: dict[str, Endpoint] = {}
        self.poller: LookupPoller | None = None
        self.refused: tuple[str, ...] = ()  # named, and outside allowed_addresses
        self.answered = False  # nsqlookupd has told where the topic is, or that it is nowhere
        self._config = config
        self._topic = topic
        self._dial = dial
        self._news = news
        self._fatal = fatal
        self._random = Random()
        self._http: HttpClient | None = None
        self._filter = AddressFilter(config.allowed_addresses)
        self._queue = DialQueue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs: dict[str, asyncio.Task[None]] = {}  # of each endpoint, the last one

    def start(self) -> None:
        """Dial those named by the user, or begin to ask nsqlookupd."""
        for address in self._config.nsqd:
            self._add(address, lasting=True)
        if self._config.lookupd:
            self._http, self.poller = self._make_poller()
            self._keep(self.poller.run(), "nsqflow lookup")

    async def close(self) -> None:
        """Stop dialling and asking; connections that are open are their owner's."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._http is not None:
            await self._http.aclose()

    def heard(self, answer: LookupAnswer) -> None:
        """Dial the nsqd that are new, or were lost and are named again."""
        self.answered = True
        named, self.refused = self._filter.split(node.address for node in answer.producers)
        self._forget_all_but(set(named))
        for address in named:
            before = self.endpoints.get(address)
            if before is None or before.ended:
                self._add(address, lasting=False, before=before)

    # Private methods

    def _forget_all_but(self, named: set[str]) -> None:
        """Forget nsqd that are no longer named, unless they are connected or being dialled."""
        for address, endpoint in list(self.endpoints.items()):
            if address not in named and (endpoint.ended or endpoint.queued):
                self._runs.pop(address).cancel()
                del self.endpoints[address]

    def _add(self, address: str, *, lasting: bool, before: Endpoint | None = None) -> None:
        endpoint = self.endpoints[address] = Endpoint(
            address,
            self._connect,
            self._config,
            self._news,
            lasting=lasting,
            queue=self._queue,
            named_by=() if self.poller is None else self.poller.named_by.get(address, ()),
            before=before,
            random=self._random,
        )
        self._runs[address] = self._keep(self._run(endpoint), f"nsqflow {address}")

    async def _connect(self, address: str) -> Connection:
        connection = await self._dial(address)
        if self.poller is not None:
            self.poller.connected(address)
        return connection

    async def _run(self, endpoint: Endpoint) -> None:
        try:
            await endpoint.run()
        finally:
            # One that could not even be reached may wait for the next ordinary round.
            if self.poller is not None and endpoint.was_connected:
                self.poller.lost(endpoint.address, worked=not endpoint.failures)

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error)

    def _make_poller(self) -> tuple[HttpClient, LookupPoller]:
        from nsqflow.client.poller import LookupPoller, lookup_topic
        from nsqflow.http.client import HttpClient

        config = self._config
        http = HttpClient(
            tls=config.lookupd_tls,
            headers=config.lookupd_headers,
            timeout=config.lookupd_poll_timeout,
        )
        poller = LookupPoller(
            config.lookupd,
            partial(lookup_topic, topic=self._topic),
            interval=config.lookupd_poll_interval,
            jitter=config.lookupd_poll_jitter,
            timeout=config.lookupd_poll_timeout,
            http=http,
            on_answer=self.heard,
            on_failure=self._lookup_failed,
        )
        return http, poller

    def _lookup_failed(self, address: str, error: NsqError) -> None:
        self._news.tell("lookup_failed", None, address, error)
