"""Routes: which nsqd a topic may be published to.

Given directly, it is each of them. Through nsqlookupd it is those that have the topic
already, or, while it is known nowhere, all nsqd there are: the first publish creates it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsqflow.client.allowed_addresses import AddressFilter, first_few
from nsqflow.client.config import ClientConfig
from nsqflow.client.news import Newsroom
from nsqflow.errors import DiscoveryError, NsqError
from nsqflow.protocol import LookupAnswer

if TYPE_CHECKING:  # loads the HTTP client, which direct connections do without
    from nsqflow.client.poller import LookupPoller

_FORGET_AFTER = 10  # rounds in which nobody published to the topic


class Routes(Protocol):
    """Where topics can be published to."""

    lasting: bool
    """An nsqd that is lost is dialled until it is connected; otherwise once for each time that
    nsqlookupd names it, and while a publish waits for it."""

    def addresses(self, topic: str) -> tuple[str, ...]:
        """The nsqd for a topic, as far as they are known now."""

    def named(self) -> set[str]:
        """All nsqd that are known now, for any topic that is published to."""

    def named_by(self, address: str) -> tuple[str, ...]:
        """The nsqlookupd that name an nsqd; empty if the user named it."""

    def trouble(self) -> NsqError | None:
        """Why none is known."""

    def lost(self, address: str, *, worked: bool) -> None:
        """A connection was lost: look it up early; at once if it had ``worked``."""

    def connected(self, address: str) -> None:
        """It is connected (again)."""

    async def close(self) -> None:
        """Leave nothing behind."""


class DirectRoutes:
    """The nsqd that the user named."""

    lasting = True

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    def addresses(self, topic: str) -> tuple[str, ...]:
        """All of them."""
        return self._addresses

    def named(self) -> set[str]:
        """All of them."""
        return set(self._addresses)

    def named_by(self, address: str) -> tuple[str, ...]:
        """No nsqlookupd."""
        return ()

    def trouble(self) -> NsqError | None:
        """None: they are always known."""
        return None

    def lost(self, address: str, *, worked: bool) -> None:
        """Nothing to ask."""

    def connected(self, address: str) -> None:
        """Nothing was asked."""

    async def close(self) -> None:
        """Nothing to leave behind."""


class LookupRoutes:
    """What nsqlookupd says, asked for each topic that is published to."""

    lasting = False

    def __init__(self, config: ClientConfig, news: Newsroom, changed: Callable[[], None]) -> None:
        from nsqflow.http.client import HttpClient

        self._config = config
        self._news = news
        self._changed = changed
        self._error: NsqError | None = None  # since the last answer
        self._heard_any = False
        self._http = HttpClient(
            tls=config.lookupd_tls,
            headers=config.lookupd_headers,
            timeout=config.lookupd_poll_timeout,
        )
        self._filter = AddressFilter(config.allowed_addresses)
        self._topics: dict[str, _TopicRoute] = {}
        self._nodes: tuple[str, ...] = ()
        self._refused: dict[str | None, tuple[str, ...]] = {}  # by topic; None: of all nodes
        self._nodes_poll: _Poll | None = None
        self._forgotten: set[_Poll] = set()

    def addresses(self, topic: str) -> tuple[str, ...]:
        """The nsqd that have the topic, or all if none has."""
        route = self._topics.get(topic)
        if route is None:
            route = self._topics[topic] = _TopicRoute()
            route.poll = self._poll(topic, partial(self._heard, topic, route))
        route.unused = 0
        if route.nsqds or not route.answered:
            return route.nsqds
        if self._nodes_poll is None:
            self._nodes_poll = self._poll(None, self._heard_nodes)
        return self._nodes

    def named(self) -> set[str]:
        """Those of all topics in use, and all there are if one of these is known nowhere."""
        named = {nsqd for route in self._topics.values() for nsqd in route.nsqds}
        homeless = any(route.answered and not route.nsqds for route in self._topics.values())
        return named.union(self._nodes) if homeless else named

    def named_by(self, address: str) -> tuple[str, ...]:
        """Those of all topics."""
        named = [poller.named_by.get(address, ()) for poller in self._pollers()]
        return tuple(dict.fromkeys(lookupd for lookupds in named for lookupd in lookupds))

    def trouble(self) -> NsqError:
        """What the nsqlookupd that failed had to say; or that they know of none."""
        if self._error is not None:
            return self._error
        refused = {address for addresses in self._refused.values() for address in addresses}
        if refused:
            few = first_few(refused)
            return DiscoveryError(f"nsqlookupd names only nsqd outside allowed_addresses: {few}")
        if self._heard_any:
            return DiscoveryError("nsqlookupd names no nsqd")
        return DiscoveryError("nsqlookupd has not answered yet")

    def lost(self, address: str, *, worked: bool) -> None:
        """Ask early for the topics that this nsqd has."""
        for route in self._topics.values():
            if route.poll is not None and address in route.nsqds:
                route.poll.poller.lost(address, worked=worked)
        if self._nodes_poll is not None and address in self._nodes:
            self._nodes_poll.poller.lost(address, worked=worked)

    def connected(self, address: str) -> None:
        """Ask no longer early for this nsqd."""
        for poller in self._pollers():
            poller.connected(address)

    async def close(self) -> None:
        """Stop asking."""
        polls = [route.poll for route in self._topics.values()]
        tasks = [poll.task for poll in (*polls, self._nodes_poll, *self._forgotten) if poll]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._http.aclose()

    def _poll(self, topic: str | None, on_answer: Callable[[LookupAnswer], None]) -> _Poll:
        from nsqflow.client.poller import LookupPoller, list_nodes, lookup_topic

        config = self._config
        poller = LookupPoller(
            config.lookupd,
            list_nodes if topic is None else partial(lookup_topic, topic=topic),
            interval=config.lookupd_poll_interval,
            jitter=config.lookupd_poll_jitter,
            timeout=config.lookupd_poll_timeout,
            http=self._http,
            on_answer=on_answer,
            on_failure=self._failed,
        )
        return _Poll(poller)

    def _heard(self, topic: str, route: _TopicRoute, answer: LookupAnswer) -> None:
        route.answered = True
        route.nsqds = self._select(topic, answer)
        route.unused += 1
        if route.unused > _FORGET_AFTER:
            self._forget(topic, route)
        self._answered()

    def _heard_nodes(self, answer: LookupAnswer) -> None:
        self._nodes = self._select(None, answer)
        self._answered()

    def _select(self, topic: str | None, answer: LookupAnswer) -> tuple[str, ...]:
        """Return the nsqd that may be dialled."""
        named = (node.address for node in answer.producers)
        allowed, self._refused[topic] = self._filter.split(named)
        return allowed

    def _answered(self) -> None:
        self._error = None
        self._heard_any = True
        self._changed()

    def _forget(self, topic: str, route: _TopicRoute) -> None:
        if self._topics.get(topic) is route and route.poll is not None:
            del self._topics[topic]
            del self._refused[topic]
            self._forgotten.add(route.poll)
            route.poll.task.add_done_callback(lambda _: self._forgotten.discard(route.poll))
            route.poll.task.cancel()

    def _failed(self, address: str, error: NsqError) -> None:
        self._error = error
        self._news.tell("lookup_failed", None, address, error)
        if not self.named():  # a publish waits for one
            for poller in self._pollers():
                poller.retry()

    def _pollers(self) -> Iterator[LookupPoller]:
        for poll in (*(route.poll for route in self._topics.values()), self._nodes_poll):
            if poll is not None:
                yield poll.poller


class _TopicRoute:
    """What is known of one topic."""

    def __init__(self) -> None:
        self.nsqds: tuple[str, ...] = ()
        self.answered = False
        self.unused = 0
        self.poll: _Poll | None = None


class _Poll:
    """A poller and its task."""

    def __init__(self, poller: LookupPoller) -> None:
        self.poller = poller
        self.task = asyncio.create_task(poller.run(), name="nsqflow lookup")
