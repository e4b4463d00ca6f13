"""Finds the nsqd of a query's topics by asking all nsqlookupd, once a second."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from functools import cache, partial
from time import monotonic
from typing import TypeVar

from nsqflow.address import parse_http_address
from nsqflow.admin import Lookupd
from nsqflow.client.discovery import merge
from nsqflow.client.lookup_poller import list_lookupds, lookup_topic
from nsqflow.config.options import did_you_mean
from nsqflow.errors import ConfigError, DiscoveryError, NetworkError, NsqError, RequestTimeout
from nsqflow.http.client import HttpClient
from nsqflow.protocol.lookup import LookupAnswer
from nsqflow.protocol.names import is_valid_name
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import RetryBackoff

logger = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL = 1.0
"""Seconds between two polls."""

MAX_WAIT = 10.0
"""The maximum number of seconds until a server that did not respond is asked again."""
SHORT_TIMEOUT = 1.0
"""Seconds for a server that did not respond before: the others wait no longer for it."""

_TIMEOUT = 5.0
_MAX_LOOKUPS = 20  # known topics looked up in each poll, beside new ones
_MAX_LISTED = 10  # names in an error if none is similar


class TopicLookup:
    """Asks all nsqlookupd which nsqd have the topics of a query."""

    def __init__(self, options: SourceOptions, tls: Callable[[], ssl.SSLContext]) -> None:
        self.answers: dict[str, LookupAnswer] = {}
        """What the last lookup said of each topic; first the topic looked up longest ago."""
        self.urgent: Set[str] = frozenset()
        """Topics that are looked up in each poll, however many others there are."""
        self._topics = options.topics
        self._pattern = re.compile(options.topic_pattern or "")
        self._tls = tls
        self._http = HttpClient(tls=tls, timeout=None, keep_alive=True)
        self._lookupd = {str(parse_http_address(text)): text for text in options.servers.lookupd}
        self._servers = ServerGroup("nsqlookupd")
        self._next_poll_at = 0.0

    def check_reachable(self) -> None:
        """Raise ``DiscoveryError`` if no nsqlookupd responds."""
        if self._all_unreachable:
            reasons = "; ".join(self._servers.unreachable.values())
            raise DiscoveryError(f"no nsqlookupd is reachable: {reasons}")

    async def refresh(self, timeout: float) -> bool:
        """Update ``answers``; False if the last update is less than ``INTERVAL`` ago."""
        if monotonic() < self._next_poll_at:
            return False
        topics = self._topics or await self._matching(timeout)
        if topics is not None:
            await self._locate(topics, timeout)
        self._next_poll_at = monotonic() + INTERVAL
        return True

    async def create_channel(self, topic: str, channel: str, timeout: float) -> None:
        """Create topic and channel on nsqlookupd, for a topic that no nsqd has.

        The nsqd that gets its first message asks for the channels, and creates them before it
        passes the message on.
        """
        requests = {
            name: partial(self._create_channel, address, topic, channel)
            for name, address in self._lookupd.items()
        }
        await self._servers.ask(requests, timeout)
        self.check_reachable()

    async def is_redesigned(self, timeout: float) -> bool:
        """Return whether these are nsqlookupd of the redesigned NSQ."""
        requests = {
            name: partial(list_lookupds, self._http, parse_http_address(address))
            for name, address in self._lookupd.items()
        }
        answers = await self._servers.ask(requests, timeout)
        self.check_reachable()
        return any(members is not None for members in answers.values())

    @property
    def responding(self) -> list[str]:
        """The addresses of the nsqlookupd that answered the last request."""
        return [name for name in self._lookupd if name not in self._servers.unreachable]

    async def topic_names(self, timeout: float) -> list[str]:
        """Return the names of all topics that any nsqlookupd knows."""
        requests = {
            name: partial(self._list_topics, name, address)
            for name, address in self._lookupd.items()
        }
        answers = await self._servers.ask(requests, timeout)
        return sorted({name for names in answers.values() for name in names})

    def close(self) -> None:
        """Close the connections."""
        self._http.close_idle()

    @property
    def _all_unreachable(self) -> bool:
        return len(self._servers.unreachable) == len(self._lookupd)

    async def _matching(self, timeout: float) -> list[str] | None:
        """Return the topics that match the pattern; None if no nsqlookupd responds."""
        names = await self.topic_names(timeout)
        if self._all_unreachable:
            return None
        return [name for name in names if self._pattern.fullmatch(name)]

    async def _locate(self, topics: Collection[str], timeout: float) -> None:
        new = [topic for topic in topics if topic not in self.answers or topic in self.urgent]
        known = [topic for topic in self.answers if topic in topics and topic not in self.urgent]
        chosen = [*new, *known[:_MAX_LOOKUPS]]
        if not chosen:
            self.answers = {}
            return
        requests = {
            name: partial(self._look_up, name, address, chosen)
            for name, address in self._lookupd.items()
        }
        if answers := await self._servers.ask(requests, timeout):
            rest = {topic: self.answers[topic] for topic in known[_MAX_LOOKUPS:]}
            self.answers = rest | {
                topic: merge(answer[topic] for answer in answers.values()) for topic in chosen
            }

    async def _create_channel(self, address: str, topic: str, channel: str) -> None:
        secure = parse_http_address(address).scheme == "https"
        async with Lookupd(address, tls=self._tls() if secure else None) as lookupd:
            await lookupd.create_channel(topic, channel)

    async def _look_up(
        self, name: str, address: str, topics: Iterable[str]
    ) -> dict[str, LookupAnswer]:
        answers = {}
        for topic in topics:
            try:
                answers[topic] = await lookup_topic(self._http, address, topic)
            except DiscoveryError as error:
                raise DiscoveryError(f"{name}: {error}") from None
        return answers

    async def _list_topics(self, name: str, address: str) -> list[str]:
        response = await self._http.get(address, "/topics")
        try:
            topics = json.loads(response.body)["topics"]
        except (ValueError, RecursionError, TypeError, KeyError):
            topics = None
        if response.status != 200 or not isinstance(topics, list):
            raise DiscoveryError(
                f"{name}: status {response.status}, no list of topics: {response.body[:100]!r}"
            )
        return [topic for topic in topics if isinstance(topic, str)]


def has_partitions(options: SourceOptions) -> bool:
    """Return whether the rows have positions, as those of the redesigned NSQ; ask nsqlookupd.

    Spark needs the columns when ``load()`` is called, before anything is read. An nsqd that is
    named directly is a classic one. Raises ``DiscoveryError`` if no nsqlookupd answers.
    """
    if options.mode == "range":
        return True
    return bool(options.servers.lookupd) and asyncio.run(_has_partitions(options))


async def _has_partitions(options: SourceOptions) -> bool:
    lookup = TopicLookup(options, cache(options.access.http_context))
    try:
        return await lookup.is_redesigned(_TIMEOUT)
    finally:
        lookup.close()


class ServerGroup:
    """Asks several servers at once, and backs off from those that do not respond.

    It logs when a server stops responding and when it responds again, not in between.
    """

    def __init__(self, kind: str, is_passing: Callable[[NsqError], bool] = lambda _: True) -> None:
        """``ask`` raises what ``is_passing`` is false for, as it raises every ``ConfigError``."""
        self.unreachable: dict[str, str] = {}
        """The servers that did not answer the last request, and why."""
        self._kind = kind
        self._is_passing = is_passing
        self._backoff = RetryBackoff(max_wait=MAX_WAIT)

    async def ask(
        self, requests: Mapping[str, Callable[[], Awaitable[T]]], timeout: float
    ) -> dict[str, T]:
        """Send each server its request; return the answers that arrived in time.

        A server that failed before is left out for a while, unless there is no other.
        """
        now = monotonic()
        allowed = [name for name in requests if self._backoff.allowed(name, now)]
        asked = allowed or list(requests)
        outcomes = await asyncio.gather(
            *(self._send(name, requests[name], timeout) for name in asked),
            return_exceptions=True,  # so that no request outlives this call
        )
        answers = {}
        for name, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, NsqError) and self._may_pass(outcome):
                self._failed(name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self._answered(name)
                answers[name] = outcome
        return answers

    def keep(self, names: Iterable[str]) -> None:
        """Forget all other servers."""
        kept = set(names)
        self._backoff.keep(kept)
        self.unreachable = {name: why for name, why in self.unreachable.items() if name in kept}

    async def _send(self, name: str, request: Callable[[], Awaitable[T]], timeout: float) -> T:
        if name in self.unreachable:
            timeout = min(timeout, SHORT_TIMEOUT)
        try:
            async with asyncio.timeout(timeout):
                return await request()
        except RequestTimeout:  # the request's own error, which says more
            raise
        except TimeoutError:
            raise NetworkError(f"{name}: no answer within {timeout:g} s") from None

    def _may_pass(self, error: NsqError) -> bool:
        return not isinstance(error, ConfigError) and self._is_passing(error)

    def _failed(self, name: str, error: NsqError) -> None:
        self._backoff.failed(name, monotonic())
        if name not in self.unreachable:
            logger.warning("%s %s does not answer: %s", self._kind, name, error)
        self.unreachable[name] = str(error)

    def _answered(self, name: str) -> None:
        if name in self.unreachable:
            del self.unreachable[name]
            self._backoff.succeeded(name)
            logger.info("%s %s answers again", self._kind, name)


def unknown_name(
    topic: str,
    pattern: str,
    channel: str,
    known: Mapping[str, Collection[str]],
    asked: Iterable[str],
    unreachable: Mapping[str, str],
    mode: str = "peek",
) -> ConfigError:
    """Return the error for a topic or channel that does not exist and must not be created.

    ``known`` has the channels of all topics of the servers ``asked``. Without ``topic``, a
    ``pattern`` was given; without ``channel``, none is read in this ``mode``.
    """
    servers = ", ".join(asked) or "any server"
    if topic and (topic not in known or not channel):
        what = f"topic {topic!r} is unknown to {servers}; {_similar(topic, known, 'topics')}"
    elif topic:
        similar = _similar(channel, known[topic], "channels")
        what = f"channel {channel!r} of topic {topic!r} is unknown to {servers}; {similar}"
    elif not channel:
        what = (
            f"topicPattern {pattern!r} matches no topic on {servers}; "
            f"{_similar(pattern, known, 'topics')}"
        )
    else:
        channels = {name for names in known.values() for name in names}
        what = (
            f"topicPattern {pattern!r} matches no topic with a channel {channel!r} on {servers}; "
            f"{_similar(channel, channels, 'channels')}"
        )
    silent = "".join(f"; no answer from {nsqd}: {why}" for nsqd, why in unreachable.items())
    return ConfigError(f"{what} mode={mode} creates nothing{silent}")


def _similar(name: str, known: Iterable[str], kind: str) -> str:
    """Suggest similar names; names come from servers, so invalid ones are left out."""
    names = sorted(filter(is_valid_name, known))
    if hint := did_you_mean(name, names, count=3):
        return hint
    if not names:
        return f"there are no {kind};"
    more = ", ..." if len(names) > _MAX_LISTED else ""
    return f"there are the {kind} {', '.join(map(repr, names[:_MAX_LISTED]))}{more};"
