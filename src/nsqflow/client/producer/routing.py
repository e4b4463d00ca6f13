"""Routing: which of the nsqd that nsqlookupd names a topic may be published to.

A classic topic: those that have it already, or, while none has it, all nsqd: the first publish
creates the topic. A topic of the redesigned NSQ: the leaders of its partitions; a leader that
refused a publish is not used again before nsqlookupd has answered once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nsqflow.client.allowed_addresses import AddressFilter, first_few
from nsqflow.client.config import ClientConfig
from nsqflow.client.events import EventEmitter
from nsqflow.client.producer.publish_batch import Destination, PublishBatch, TopicPartition
from nsqflow.errors import ConfigError, DiscoveryError, NsqError
from nsqflow.protocol import Dialect, LookupAnswer, TopicMeta
from nsqflow.protocol.dialect import dialect_of_version

if TYPE_CHECKING:  # loads the HTTP client, which direct connections do not need
    from nsqflow.client.lookup_poller import LookupPoller

_NEED_HEADERS = "headers, tag and body_compression"
_MAX_UNUSED_POLLS = 10  # answers without a publish after which a topic is polled no longer


class TopicRoute:
    """Where one topic can be published to, by the last answer of nsqlookupd."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.dialect: Dialect | None = None  # None: not known yet
        self.nsqds: tuple[str, ...] = ()
        self.leaders: dict[int, str] = {}  # redesigned: by partition, without those that refused
        self._named: dict[int, str] = {}  # the same, with those that refused
        self.held: set[int] = set()  # partitions that nothing is sent to for a while
        self.meta = TopicMeta()
        self.answered = False
        self.lacks_channel = False
        self.error: ConfigError | None = None  # the option ``dialect`` excludes the topic
        self.unused_polls = 0  # since the last publish
        self.poll: _Poll | None = None

    def update(self, answer: LookupAnswer, dialect: Dialect | None, allowed: set[str]) -> None:
        """Use an answer of nsqlookupd."""
        self.answered = True
        self.dialect = dialect
        self.lacks_channel = answer.lacks_channel
        self.meta = answer.meta or self.meta
        named = sorted((number, node.address) for number, node in answer.partitions.items())
        leaders = {number: nsqd for number, nsqd in named if nsqd in allowed}
        self._named = leaders
        self.leaders = {n: nsqd for n, nsqd in leaders.items() if n not in self.held}
        producers = (node.address for node in answer.producers if node.address in allowed)
        self.nsqds = tuple(dict.fromkeys((*producers, *leaders.values())))

    @property
    def known(self) -> bool:
        """Whether it is known what the topic can take; that it lacks a channel does not say it."""
        if self.error is not None or self.dialect is Dialect.CLASSIC:
            return True
        return self.dialect is Dialect.REDESIGNED and self.meta.partition_num > 0

    def last_leaders(self, destination: Destination) -> list[str]:
        """Return the leaders by the last answer, even if they are being looked up again."""
        wanted = None if isinstance(destination, str) else destination.partition
        return [nsqd for number, nsqd in self._named.items() if wanted in (None, number)]

    def check(self, batch: PublishBatch) -> ConfigError | None:
        """Return why this topic can't take a batch, if that is known."""
        if self.error is not None or not self.known:
            return self.error
        if self.dialect is Dialect.CLASSIC:
            return refuse_redesigned(batch, f"{self.topic!r} is a topic of the classic NSQ")
        number = _wanted_partition(batch)
        if batch.delay_ms is not None:
            reason = (
                f"delay={batch.delay_ms / 1000:g} is invalid: the redesigned NSQ defers nothing; "
                "requeue the message with a delay in the consumer"
            )
        elif number is not None and self.meta.partition_num <= number:
            last = self.meta.partition_num - 1
            reason = f"partition={number} is invalid: must be 0 to {last}"
        elif batch.headers is not None and not self.meta.extend_support:
            reason = f"{_NEED_HEADERS} are invalid: the topic was created without extend=true"
        else:
            return None
        return ConfigError(f"topic {self.topic!r}: {reason}")

    def describe(self) -> str:
        """Return why no nsqd is known for the topic, or for some of its partitions."""
        if self.lacks_channel:
            return (
                f"topic {self.topic!r} has no channel: create one on every partition before the "
                "first publish"
            )
        if self.held and not self.leaders:
            held = _first(sorted(self.held))
            return f"too many publishes wait in {self.topic!r} for partition {held}"
        missing = [n for n in range(self.meta.partition_num) if n not in self.leaders]
        if self.dialect is Dialect.REDESIGNED and missing:
            return f"nsqlookupd names no leader of {self.topic!r} for partition {_first(missing)}"
        return f"topic {self.topic!r} does not exist; on the redesigned NSQ, create it first"


def refuse_redesigned(batch: PublishBatch, reason: str) -> ConfigError | None:
    """Return the error for a batch that needs the redesigned NSQ; None if it does not."""
    number = _wanted_partition(batch)
    if batch.key is not None:
        return ConfigError(f"key={batch.key!r} is invalid: {reason}")
    if number is not None:
        return ConfigError(f"partition={number} is invalid: {reason}")
    if batch.headers is not None:
        return ConfigError(f"{_NEED_HEADERS} are invalid: {reason}")
    if batch.trace is not None and not batch.trace_optional:
        return ConfigError(f"trace={batch.trace} is invalid: {reason}")
    return None


def _wanted_partition(batch: PublishBatch) -> int | None:
    destination = batch.destination
    return destination.partition if isinstance(destination, TopicPartition) else None


def _first(numbers: list[int], count: int = 5) -> str:
    text = ", ".join(map(str, numbers[:count]))
    return text if len(numbers) <= count else f"{text} and {len(numbers) - count} more"


class LookupRouter:
    """The nsqd that nsqlookupd names, polled for each topic that is published to."""

    def __init__(
        self, config: ClientConfig, events: EventEmitter, on_change: Callable[[], None]
    ) -> None:
        from nsqflow.client.lookup_poller import make_http_client

        self._config = config
        self._events = events
        self._on_change = on_change
        self._error: NsqError | None = None  # since the last answer
        self._answered = False
        self._http = make_http_client(config)
        self._filter = AddressFilter(config.allowed_addresses)
        self._topics: dict[str, TopicRoute] = {}
        self._nodes: tuple[str, ...] = ()
        self._dialects: dict[str, Dialect] = {}  # of nsqd, by the last topic they were named for
        self._refused: dict[str | None, tuple[str, ...]] = {}  # by topic; None: of all nodes
        self._nodes_poll: _Poll | None = None
        self._timers: dict[tuple[str, int], asyncio.TimerHandle] = {}  # of held partitions
        self._cancelled_polls: set[_Poll] = set()

    def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, which is polled from now on."""
        route = self._topics.get(topic)
        if route is None:
            route = self._topics[topic] = TopicRoute(topic)
            route.poll = self._poll(topic, partial(self._on_topic_answer, route))
        route.unused_polls = 0
        return route

    def addresses(self, topic: str) -> tuple[str, ...]:
        """Return the nsqd that have the topic, or all if it can be created on any."""
        route = self.route(topic)
        if route.error is not None:
            return ()
        if route.dialect is Dialect.REDESIGNED:
            return tuple(dict.fromkeys(route.leaders.values()))
        if route.nsqds or not route.answered or _has_leaders(route):
            return route.nsqds
        if self._nodes_poll is None:
            self._nodes_poll = self._poll(None, self._on_nodes_answer)
        return self._nodes

    def refresh(self, topic: str, partition: int, *, worked: bool = True) -> None:
        """Look up a partition again, at once if its leader ``worked``; until then it has none."""
        route = self.route(topic)
        if route.poll is not None:
            route.leaders.pop(partition, None)
            route.poll.poller.lost(_partition_name(topic, partition), worked=worked)

    def hold(self, topic: str, partition: int, seconds: float) -> None:
        """Send nothing to a partition for a while, then look it up again."""
        route = self.route(topic)
        route.leaders.pop(partition, None)
        if partition not in route.held:
            route.held.add(partition)
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._release, route, partition)
            self._timers[topic, partition] = timer

    def all_addresses(self) -> set[str]:
        """Return the nsqd of all topics in use, and all nodes if one topic has no nsqd yet."""
        known = {nsqd for route in self._topics.values() for nsqd in route.nsqds}
        unplaced = any(
            route.answered and not route.nsqds and not _has_leaders(route)
            for route in self._topics.values()
        )
        return known.union(self._nodes) if unplaced else known

    def dialect_of(self, address: str) -> Dialect:
        """Return the dialect that an nsqd speaks, by the last topic that it was named for.

        It may be dialled when it is named no longer: the leaders have changed meanwhile.
        """
        return self._dialects.get(address, Dialect.CLASSIC)

    def named_by(self, address: str) -> tuple[str, ...]:
        """Return the nsqlookupd that name an nsqd for any topic."""
        named = [poller.named_by.get(address, ()) for poller in self._pollers()]
        return tuple(dict.fromkeys(lookupd for lookupds in named for lookupd in lookupds))

    def error(self, topic: str) -> NsqError:
        """Return the last error of nsqlookupd, or that it names no nsqd for the topic."""
        if self._error is not None:
            return self._error
        route = self._topics.get(topic)
        if route is not None and route.answered and _has_leaders(route):
            return DiscoveryError(route.describe())
        refused = {address for addresses in self._refused.values() for address in addresses}
        if refused:
            few = first_few(refused)
            return DiscoveryError(f"nsqlookupd names only nsqd outside allowed_addresses: {few}")
        if self._answered:
            return DiscoveryError("nsqlookupd names no nsqd")
        return DiscoveryError("nsqlookupd has not answered yet")

    def on_lost(self, address: str, *, worked: bool) -> None:
        """Poll early for the topics of this nsqd."""
        self.on_unreachable(address, worked=worked)
        for route in self._topics.values():
            classic = route.dialect is not Dialect.REDESIGNED
            if classic and route.poll is not None and address in route.nsqds:
                route.poll.poller.lost(address, worked=worked)
        if self._nodes_poll is not None and address in self._nodes:
            self._nodes_poll.poller.lost(address, worked=worked)

    def on_unreachable(self, address: str, *, worked: bool = False) -> None:
        """Look up again the partitions that an nsqd leads: another one may lead them now."""
        for route in self._topics.values():
            for number in [n for n, nsqd in route.leaders.items() if nsqd == address]:
                self.refresh(route.topic, number, worked=worked)

    def on_connected(self, address: str) -> None:
        """Stop polling early for this nsqd."""
        for poller in self._pollers():
            poller.connected(address)

    async def close(self) -> None:
        """Stop polling."""
        polls = [route.poll for route in self._topics.values()]
        tasks = [poll.task for poll in (*polls, self._nodes_poll, *self._cancelled_polls) if poll]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for timer in self._timers.values():
            timer.cancel()
        self._http.close()

    def _release(self, route: TopicRoute, partition: int) -> None:
        self._timers.pop((route.topic, partition), None)
        route.held.discard(partition)
        if self._topics.get(route.topic) is route:
            self.refresh(route.topic, partition)

    def _poll(self, topic: str | None, on_answer: Callable[[LookupAnswer], None]) -> _Poll:
        from nsqflow.client.lookup_poller import LookupPoller, list_nodes, lookup_topic

        query = list_nodes if topic is None else partial(lookup_topic, topic=topic, access="w")
        return _Poll(
            LookupPoller(
                self._config,
                query,
                self._http,
                on_answer=on_answer,
                on_failure=partial(self._on_failure, topic),
                allow=self._filter.allow,
            )
        )

    def _on_topic_answer(self, route: TopicRoute, answer: LookupAnswer) -> None:
        assert route.poll is not None
        poller = route.poll.poller
        before = route.leaders
        allowed = self._allowed(route.topic, answer)
        route.update(answer, poller.dialect, set(allowed))
        if poller.dialect is not None:
            self._dialects |= dict.fromkeys(allowed, poller.dialect)
        route.error = self._config.dialect_error(route.topic, poller.dialect)
        for number, nsqd in route.leaders.items():
            poller.connected(_partition_name(route.topic, number))
            if before.get(number, nsqd) != nsqd:
                text = f"partition {number} of {route.topic!r} was led by {before[number]}"
                self._events.emit("leader_changed", nsqd, text)
        route.unused_polls += 1
        if route.unused_polls > _MAX_UNUSED_POLLS:
            self._remove(route.topic, route)
        self._on_answer()

    def _on_nodes_answer(self, answer: LookupAnswer) -> None:
        # Redesigned ones create no topic by its first publish.
        classic = [n for n in answer.producers if dialect_of_version(n.version) is Dialect.CLASSIC]
        self._nodes = self._allowed(None, replace(answer, producers=tuple(classic)))
        self._on_answer()

    def _allowed(self, topic: str | None, answer: LookupAnswer) -> tuple[str, ...]:
        """Return the nsqd of an answer that may be dialled."""
        leaders = (node.address for node in answer.partitions.values())
        named = (*(node.address for node in answer.producers), *leaders)
        allowed, self._refused[topic] = self._filter.split(named)
        return allowed

    def _on_answer(self) -> None:
        self._error = None
        self._answered = True
        self._on_change()

    def _remove(self, topic: str, route: TopicRoute) -> None:
        if self._topics.get(topic) is route and route.poll is not None:
            del self._topics[topic]
            del self._refused[topic]
            self._cancelled_polls.add(route.poll)
            route.poll.task.add_done_callback(lambda _: self._cancelled_polls.discard(route.poll))
            route.poll.task.cancel()

    def _on_failure(self, topic: str | None, address: str, error: NsqError) -> None:
        self._error = error
        self._events.emit("lookup_failed", None, address, error)
        route = None if topic is None else self._topics.get(topic)
        poll = self._nodes_poll if topic is None else route and route.poll
        if poll and not (self._nodes or (route and route.nsqds)):  # a publish waits for one
            poll.poller.retry()

    def _pollers(self) -> Iterator[LookupPoller]:
        for poll in (*(route.poll for route in self._topics.values()), self._nodes_poll):
            if poll is not None:
                yield poll.poller


def _has_leaders(route: TopicRoute) -> bool:
    return route.poll is not None and route.poll.poller.has_leaders


def _partition_name(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"


class _Poll:
    """A poller and its task."""

    def __init__(self, poller: LookupPoller) -> None:
        self.poller = poller
        self.task = asyncio.create_task(poller.run(), name="nsqflow lookup")
