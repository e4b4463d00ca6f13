"""Asks nsqlookupd again and again where the nsqd are, and says what it heard."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from nsqflow.client.discovery import SICK_AFTER, Discovery, Health
from nsqflow.client.lookup_schedule import LookupSchedule
from nsqflow.errors import DiscoveryError, NsqError
from nsqflow.http.client import NOTHING, HttpAddress, HttpClient, parse_http_address
from nsqflow.protocol.lookup import LookupAnswer, parse_lookup
from nsqflow.protocol.names import check_topic

logger = logging.getLogger(__name__)

Query: TypeAlias = Callable[[HttpClient, HttpAddress], Awaitable[LookupAnswer]]
"""How one nsqlookupd is asked, such as ``partial(lookup_topic, topic="orders")``."""


async def lookup_topic(http: HttpClient, address: str | HttpAddress, topic: str) -> LookupAnswer:
    """Ask one nsqlookupd where a topic is."""
    return await _look_up(http, address, "/lookup", {"topic": check_topic(topic)})


async def list_nodes(http: HttpClient, address: str | HttpAddress) -> LookupAnswer:
    """Ask one nsqlookupd for all the nsqd it knows."""
    return await _look_up(http, address, "/nodes")


class LookupPoller:
    """Polls all nsqlookupd for as long as ``run()`` runs.

    ``on_answer`` gets what they say together: once per round in which any of them answered,
    and once more when one for which the round did not wait has something new to say.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        query: Query,
        *,
        interval: float,
        jitter: float,
        timeout: float,
        http: HttpClient,
        on_answer: Callable[[LookupAnswer], None],
        on_failure: Callable[[str, NsqError], None] | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        targets = map(parse_http_address, addresses)
        # By their text, which has no credentials in it: it is logged, and given to callbacks.
        self._targets = {str(target): target for target in targets}
        self._discovery = Discovery(self._targets)
        self._schedule = LookupSchedule(interval, jitter)
        self._query = query
        self._timeout = timeout
        self._http = http
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._random = random
        self._rescheduled = asyncio.Event()
        self._queries: set[asyncio.Task[None]] = set()
        self._told: LookupAnswer | None = None  # in this round
        self.named_by: dict[str, tuple[str, ...]] = {}  # each nsqd of the last answer

    async def run(self) -> None:
        """Poll until cancelled, at once to begin with; then no query is left behind."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await self._round(early=self._schedule.begin())
                self._schedule.end(clock(), self._random())
                await self._pause()
        finally:
            await self._drop_queries()

    def lost(self, nsqd: str, *, worked: bool) -> None:
        """Ask early, until ``connected``; at once if the lost connection had ``worked``."""
        now = asyncio.get_running_loop().time()
        self._schedule.lost(nsqd, now, self._random(), worked=worked)
        self._rescheduled.set()

    def connected(self, nsqd: str) -> None:
        """Ask no longer early for this nsqd."""
        self._schedule.connected(nsqd)

    def retry(self) -> None:
        """Ask again soon after a failure: no nsqd is known, and a publish waits for one."""
        self._schedule.retry(asyncio.get_running_loop().time(), self._random())
        self._rescheduled.set()

    def answer(self) -> LookupAnswer:
        """What is known now; empty before the first answer."""
        return self._discovery.answer()

    def health(self) -> dict[str, Health]:
        """How each nsqlookupd has been doing."""
        return self._discovery.health()

    async def _round(self, *, early: bool) -> None:
        this = self._discovery.begin_round(early=early)
        self._told = None
        queries = {address: asyncio.create_task(self._ask(address)) for address in this.asked}
        self._queries.update(queries.values())
        for query in queries.values():
            query.add_done_callback(self._queries.discard)
        if this.awaited:
            await asyncio.wait([queries[address] for address in this.awaited])

    async def _pause(self) -> None:
        """Wait until the next round is due, which may change meanwhile."""
        clock = asyncio.get_running_loop().time
        while (at := self._schedule.round_at) > clock():
            self._rescheduled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await self._rescheduled.wait()

    async def _ask(self, address: str) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._query(self._http, self._targets[address])
        except NsqError as error:
            self._failed(address, error)
        except TimeoutError:
            late = DiscoveryError(f"{address}: no answer within {self._timeout:g} s")
            self._failed(address, late)
        except Exception as error:  # polling must outlive a mistake in a query
            logger.exception("asking nsqlookupd %s went wrong", address)
            self._failed(address, DiscoveryError(f"{address}: {type(error).__name__}: {error}"))
        else:
            self._succeeded(address, answer)

    def _succeeded(self, address: str, answer: LookupAnswer) -> None:
        failures = self._discovery.health()[address].failures
        self._discovery.succeeded(address, answer)
        if failures:
            logger.info("nsqlookupd %s answers again, after %d failures", address, failures)
        self._tell()

    def _failed(self, address: str, error: NsqError) -> None:
        self._discovery.failed(address, error)
        failures = self._discovery.health()[address].failures
        if failures == 1:
            logger.warning("nsqlookupd failed: %s", error)
        elif failures == SICK_AFTER:
            logger.warning("nsqlookupd failed %d times, is not waited for: %s", failures, error)
        if self._on_failure:
            _call(self._on_failure, address, error)
        self._tell()

    def _tell(self) -> None:
        """Give out the answer once the round has one, and again if it has changed since."""
        if not (self._discovery.settled and self._discovery.answered):
            return
        answer = self._discovery.answer()
        if answer != self._told:
            self._told = answer
            self.named_by = self._discovery.named_by()
            _call(self._on_answer, answer)

    async def _drop_queries(self) -> None:
        self._discovery.abandon()
        queries = list(self._queries)
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)


async def _look_up(
    http: HttpClient, address: str | HttpAddress, path: str, query: Mapping[str, str] = NOTHING
) -> LookupAnswer:
    target = parse_http_address(address) if isinstance(address, str) else address
    status, body = await http.get(target, path, query)
    try:
        return parse_lookup(status, body)
    except DiscoveryError as error:
        raise DiscoveryError(f"{target}: {error}") from None


def _call(callback: Callable[..., None], *args: object) -> None:
    """Call back; polling must outlive what goes wrong there."""
    try:
        callback(*args)
    except Exception:
        logger.exception("a callback of the nsqlookupd poller failed")
