"""Where the topics are: what all nsqlookupd say together, asked anew once a second."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Collection, Iterable
from functools import partial
from time import monotonic
from urllib.parse import urlencode

from nsqflow.admin import Lookupd
from nsqflow.client.discovery import merge
from nsqflow.errors import ConfigError, DiscoveryError
from nsqflow.http.client import parse_http_address
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.lookup import LookupAnswer, Node, parse_lookup
from nsqflow.spark.http_link import HttpLink
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.roll import Roll

INTERVAL = 1.0

_QUESTIONS = 20  # in each round, beside those about topics that are new


class Directory:
    """Asks all nsqlookupd which nsqd have the topics of a query."""

    def __init__(self, options: SourceOptions, tls: Callable[[], ssl.SSLContext]) -> None:
        self.places: dict[str, tuple[Node, ...]] = {}
        """The nsqd of each topic, as was said last; first the topic asked for longest ago."""
        self._topics = options.topics
        self._pattern = re.compile(options.topic_pattern or "")
        self._tls = tls
        links = [HttpLink(address, tls) for address in options.servers.lookupd]
        self._links = {str(link): link for link in links}
        self._roll = Roll("nsqlookupd")
        self._due = 0.0

    def check(self) -> None:
        """Raise ``DiscoveryError`` if none of them can be asked."""
        if len(self._roll.missing) == len(self._links):
            raise DiscoveryError(
                "no nsqlookupd can be asked: " + "; ".join(self._roll.missing.values())
            )

    async def refresh(self, timeout: float) -> bool:
        """Bring ``places`` up to date; False: that was done within the last second."""
        if monotonic() < self._due:
            return False
        topics = self._topics or await self._matching(timeout)
        if topics is not None:
            await self._locate(topics, timeout)
        self._due = monotonic() + INTERVAL
        return True

    async def register(self, topic: str, channel: str, timeout: float) -> None:
        """Announce a topic that no nsqd has, with the channel.

        The nsqd that gets its first message asks for the channels, and creates them before the
        message goes anywhere.
        """
        asking = {
            name: partial(self._register, link, topic, channel)
            for name, link in self._links.items()
        }
        await self._roll.ask(asking, timeout)
        self.check()

    def close(self) -> None:
        """Drop the connections."""
        for link in self._links.values():
            link.close()

    async def _matching(self, timeout: float) -> list[str] | None:
        """The topics that fit the pattern; None: nobody can say."""
        asking = {name: partial(_list_topics, link) for name, link in self._links.items()}
        answers = await self._roll.ask(asking, timeout)
        if not answers:
            return None
        names = sorted({name for names in answers.values() for name in names})
        return [name for name in names if self._pattern.fullmatch(name)]

    async def _locate(self, topics: Collection[str], timeout: float) -> None:
        new = [topic for topic in topics if topic not in self.places]
        known = [topic for topic in self.places if topic in topics]
        questions = [*new, *known[:_QUESTIONS]]
        if not questions:
            self.places = {}
            return
        asking = {name: partial(_look_up, link, questions) for name, link in self._links.items()}
        if answers := await self._roll.ask(asking, timeout):
            unasked = {topic: self.places[topic] for topic in known[_QUESTIONS:]}
            self.places = unasked | {
                topic: _nodes(topic, [answer[topic] for answer in answers.values()])
                for topic in questions
            }

    async def _register(self, link: HttpLink, topic: str, channel: str) -> None:
        secure = parse_http_address(link.given).scheme == "https"
        async with Lookupd(link.given, tls=self._tls() if secure else None) as lookupd:
            await lookupd.create_channel(topic, channel)


async def _look_up(link: HttpLink, topics: Iterable[str]) -> dict[str, LookupAnswer]:
    answers = {}
    for topic in topics:
        status, body = await link.get("/lookup?" + urlencode({"topic": topic}))
        try:
            answers[topic] = parse_lookup(status, body)
        except DiscoveryError as error:
            raise DiscoveryError(f"{link}: {error}") from None
    return answers


async def _list_topics(link: HttpLink) -> list[str]:
    status, body = await link.get("/topics")
    try:
        topics = json.loads(body)["topics"]
    except (ValueError, RecursionError, TypeError, KeyError):
        topics = None
    if status != 200 or not isinstance(topics, list):
        raise DiscoveryError(f"{link}: status {status}, no list of topics: {body[:100]!r}")
    return [topic for topic in topics if isinstance(topic, str)]


def _nodes(topic: str, answers: Iterable[LookupAnswer]) -> tuple[Node, ...]:
    answer = merge(answers)
    if answer.dialect is Dialect.REDESIGNED:
        raise ConfigError(
            f"topic {topic!r} is one of the redesigned NSQ; this source reads classic ones"
        )
    return answer.producers
