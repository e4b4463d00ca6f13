"""Polls nsqlookupd for the nsqd of a topic, or for all nsqd."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from nsqflow.address import HttpAddress, parse_http_address
from nsqflow.client.config import ClientConfig
from nsqflow.client.discovery import FAILING_AFTER, Discovery, LookupdHealth
from nsqflow.client.lookup_schedule import LookupSchedule
from nsqflow.errors import ConfigError, DiscoveryError, NsqError
from nsqflow.http.client import EMPTY, HttpClient
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.lookup import LookupAnswer, LookupdNode, parse_listlookup, parse_lookup
from nsqflow.protocol.names import check_topic

logger = logging.getLogger(__name__)

Query: TypeAlias = Callable[[HttpClient, HttpAddress], Awaitable[LookupAnswer]]
"""A query to one nsqlookupd, such as ``partial(lookup_topic, topic="orders")``."""


async def lookup_topic(
    http: HttpClient, address: str | HttpAddress, topic: str, access: str = "r"
) -> LookupAnswer:
    """Query one nsqlookupd for the nsqd of a topic, to read from (r) or to write to (w).

    A classic nsqlookupd ignores ``access`` and ``metainfo``.
    """
    query = {"topic": check_topic(topic), "access": access, "metainfo": "true"}
    return await _look_up(http, address, "/lookup", query)


async def list_lookupds(http: HttpClient, address: HttpAddress) -> tuple[LookupdNode, ...] | None:
    """Query one nsqlookupd for all of its cluster; None: it is classic and has no cluster."""
    response = await http.get(address, "/listlookup")
    return parse_listlookup(response.status, response.body)


async def list_nodes(http: HttpClient, address: str | HttpAddress) -> LookupAnswer:
    """Query one nsqlookupd for all the nsqd it knows."""
    return await _look_up(http, address, "/nodes")


def make_http_client(config: ClientConfig) -> HttpClient:
    """Return a client for nsqlookupd, with the user's TLS and headers."""
    return HttpClient(
        tls=config.lookupd_tls, headers=config.lookupd_headers, timeout=config.lookupd_poll_timeout
    )


class LookupPoller:
    """Polls all nsqlookupd for as long as ``run()`` runs.

    Those of the redesigned NSQ list the members of their cluster, which are then polled too if
    ``allow`` accepts their ``host:port``. ``on_answer`` is called with the merged answer: once
    per round in which any of them answered, and again if a late answer changes it.
    """

    def __init__(
        self,
        config: ClientConfig,
        query: Query,
        http: HttpClient,
        *,
        on_answer: Callable[[LookupAnswer], None],
        on_failure: Callable[[str, NsqError], None],
        allow: Callable[[str], bool] = lambda address: True,
        random: Callable[[], float] = random.random,
    ) -> None:
        targets = map(parse_http_address, config.lookupd)
        # Keyed by their text without credentials: it is logged and passed to callbacks.
        self._targets = {str(target): target for target in targets}
        self._discovery = Discovery(self._targets)
        self._schedule = LookupSchedule(config.lookupd_poll_interval, config.lookupd_poll_jitter)
        self._query = query
        self._timeout = config.lookupd_poll_timeout
        self._http = http
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._allow = allow
        self._random = random
        self._rescheduled = asyncio.Event()
        self._queries: dict[str, asyncio.Task[None]] = {}
        self._listings: dict[str, asyncio.Task[None]] = {}
        self._classic: set[str] = set()  # nsqlookupd without a cluster, as long as they answer
        self._reported: LookupAnswer | None = None  # in this round
        self.named_by: dict[str, tuple[str, ...]] = {}  # the nsqlookupd that name each nsqd

    async def run(self) -> None:
        """Poll until cancelled, beginning at once; no query outlives this call."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await self._round(early=self._schedule.begin())
                self._schedule.end(clock(), self._random())
                await self._pause()
        finally:
            await self._drop_queries()

    def lost(self, nsqd: str, *, worked: bool) -> None:
        """Poll early until ``connected``; at once if the lost connection had ``worked``."""
        now = asyncio.get_running_loop().time()
        self._schedule.lost(nsqd, now, self._random(), worked=worked)
        self._rescheduled.set()

    def connected(self, nsqd: str) -> None:
        """Stop polling early for this nsqd."""
        self._schedule.connected(nsqd)

    def retry(self) -> None:
        """Poll soon after a failure: no nsqd is known, and a publish waits for one."""
        self._schedule.retry(asyncio.get_running_loop().time(), self._random())
        self._rescheduled.set()

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the topic's nsqd, once it is known."""
        return self._discovery.dialect

    @property
    def has_leaders(self) -> bool:
        """Whether the nsqlookupd are those of the redesigned NSQ, and the topic is not classic."""
        return self._discovery.has_leaders

    def health(self) -> dict[str, LookupdHealth]:
        """Return the health of each nsqlookupd."""
        return self._discovery.health()

    async def _round(self, *, early: bool) -> None:
        this = self._discovery.begin_round(early=early)
        self._reported = None
        for address in this.asked:
            self._start_query(address)
        while awaited := [self._queries[address] for address in self._discovery.awaited]:
            await asyncio.wait(awaited)

    def _start_query(self, address: str) -> None:
        _start(self._queries, address, self._run_query(address))
        if address not in self._classic and address not in self._listings:
            _start(self._listings, address, self._list_members(address))

    async def _pause(self) -> None:
        """Wait until the next round is due, which may change meanwhile."""
        clock = asyncio.get_running_loop().time
        while (at := self._schedule.round_at) > clock():
            self._rescheduled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await self._rescheduled.wait()

    async def _run_query(self, address: str) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._query(self._http, self._targets[address])
        except NsqError as error:
            self._failed(address, error)
        except TimeoutError:
            late = DiscoveryError(f"{address}: no answer within {self._timeout:g} s")
            self._failed(address, late)
        except Exception as error:  # a bug in a query must not end the polling
            logger.exception("the query to nsqlookupd %s failed", address)
            self._failed(address, DiscoveryError(f"{address}: {type(error).__name__}: {error}"))
        else:
            self._succeeded(address, answer)

    async def _list_members(self, address: str) -> None:
        """Poll the other members of a cluster too, if they can be listed."""
        target = self._targets[address]
        try:
            async with asyncio.timeout(self._timeout):
                members = await list_lookupds(self._http, target)
        except (NsqError, TimeoutError) as error:
            logger.debug("nsqlookupd %s does not list its cluster: %s", address, error)
            return
        if members is None:
            self._classic.add(address)
            return
        for name in self._discovery.listed(filter(self._is_allowed, members)):
            # Over TLS if it was listed over TLS: its answers are as sensitive.
            self._targets[name] = replace(parse_http_address(name), scheme=target.scheme)
            self._start_query(name)
        self._report()  # an empty answer that came before the list is that of a missing leader

    def _is_allowed(self, member: LookupdNode) -> bool:
        if member.address in self._targets:
            return True
        try:
            parse_http_address(member.address)
        except ConfigError:
            return False
        return self._allow(member.address)

    def _succeeded(self, address: str, answer: LookupAnswer) -> None:
        failures = self._discovery.health()[address].failures
        self._discovery.succeeded(address, answer)
        if failures:
            logger.info("nsqlookupd %s answers again after %d failures", address, failures)
        self._report()

    def _failed(self, address: str, error: NsqError) -> None:
        self._classic.discard(address)  # another nsqlookupd may run there now
        self._discovery.failed(address, error)
        failures = self._discovery.health()[address].failures
        if failures == 1:
            logger.warning("nsqlookupd failed: %s", error)
        elif failures == FAILING_AFTER:
            logger.warning(
                "nsqlookupd failed %d times and is no longer waited for: %s", failures, error
            )
        _call(self._on_failure, address, error)
        self._report()

    def _report(self) -> None:
        """Call ``on_answer`` once the round has an answer, and again if it changes."""
        if not (self._discovery.settled and self._discovery.answered):
            return
        if self._discovery.has_leaders:
            now = asyncio.get_running_loop().time()
            self._schedule.settle(self._discovery.unsettled, now, self._random())
            self._rescheduled.set()
        answer = self._discovery.answer()
        if answer != self._reported:
            self._reported = answer
            self.named_by = self._discovery.named_by()
            _call(self._on_answer, answer)

    async def _drop_queries(self) -> None:
        self._discovery.abandon()
        tasks = [*self._queries.values(), *self._listings.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _look_up(
    http: HttpClient, address: str | HttpAddress, path: str, query: Mapping[str, str] = EMPTY
) -> LookupAnswer:
    target = parse_http_address(address) if isinstance(address, str) else address
    response = await http.get(target, path, query)
    try:
        return parse_lookup(response.status, response.body)
    except DiscoveryError as error:
        raise DiscoveryError(f"{target}: {error}") from None


def _start(
    tasks: dict[str, asyncio.Task[None]], address: str, work: Coroutine[Any, Any, None]
) -> None:
    """Start a task and keep it until it ends, unless another one takes its place before."""

    def ended(task: asyncio.Task[None]) -> None:
        if tasks.get(address) is task:
            del tasks[address]

    tasks[address] = task = asyncio.create_task(work)
    task.add_done_callback(ended)


def _call(callback: Callable[..., None], *args: object) -> None:
    """Call a callback; its exceptions must not end the polling."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback of the nsqlookupd poller failed")
