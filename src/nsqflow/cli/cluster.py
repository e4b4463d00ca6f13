"""All the daemons that a command line means: what they know, and what is done on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn, TypeVar

from nsqflow.admin import AdminError, Lookupd, Nsqd, NsqdStats
from nsqflow.cli.errors import Failure, words
from nsqflow.cli.servers import Servers
from nsqflow.errors import NsqError
from nsqflow.protocol.dialect import Dialect, dialect_of_version
from nsqflow.protocol.lookup import Node, join_address

D = TypeVar("D")
T = TypeVar("T")

CLASSIC_ALONE = (
    "this version of nsqflow lists its topics, channels and nodes by --lookupd; "
    "all else it does with the classic NSQ alone"
)

_AT_ONCE = 32  # requests; a cluster may have hundreds of nsqd
_SHOWN = 5  # names in a hint
_PORT_ABOVE = (
    "is it running? its HTTP API is taken to be at the port above --nsqd, unless --nsqd-http says "
    "where; 'nsqflow broker' starts one"
)


@dataclass(frozen=True, slots=True)
class Place:
    """One nsqd of the cluster."""

    address: str
    """Of TCP, as clients are told it."""
    http: Nsqd
    node: Node | None = None
    """What nsqlookupd says of it."""


class Cluster:
    """What is asked of, and done on, all daemons at once.

    Who does not answer is passed over, and told of in ``troubles``; only if nobody answers, that
    is raised.
    """

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.troubles: list[NsqError] = []
        """Why this may not be all there is, or not all that was to be done."""
        self.lookupds = [
            Lookupd(address, tls=servers.https, timeout=servers.timeout)
            for address in servers.lookupd
        ]

    async def places(self) -> list[Place]:
        """All nsqd."""
        if not self.lookupds:
            return [self._place(*named) for named in self.servers.http_addresses()]
        answers = await self._ask(self.lookupds, Lookupd.nodes)
        nodes = {node.address: node for _, known in answers for node in known}
        for node in [node for node in nodes.values() if not node.http_port]:
            self.troubles.append(Failure(f"nsqd {node.address} has no HTTP API"))
            del nodes[node.address]
        return [self._known_place(node) for _, node in sorted(nodes.items())]

    async def topics(self) -> list[str]:
        """The names of all topics."""
        if self.lookupds:
            answers = await self._ask(self.lookupds, Lookupd.topics)
            return sorted({name for _, names in answers for name in names})
        return sorted({topic.name for _, stats in await self.stats() for topic in stats.topics})

    async def channels(self, topic: str) -> list[str]:
        """The names of a topic's channels; ``Failure`` if there is no such topic."""
        if topic not in (topics := await self.topics()):
            raise unknown_topic(topic, topics)
        if self.lookupds:
            answers = await self._ask(self.lookupds, lambda lookupd: lookupd.channels(topic))
            return sorted({name for _, names in answers for name in names})
        found = await self.stats(topic)
        return sorted({c.name for _, stats in found for t in stats.topics for c in t.channels})

    async def stats(self, topic: str | None = None) -> list[tuple[Place, NsqdStats]]:
        """What each nsqd counts, of one topic or of all."""

        async def ask(place: Place) -> NsqdStats:
            return await place.http.stats(topic, include_clients=False)

        answers = await self._ask(await self.places(), ask)
        for place, stats in answers:
            # It counts bytes where we count messages, and each copy of a topic.
            if is_redesigned(stats.version):
                raise redesigned(place.address, stats.version)
        return answers

    async def each(
        self, daemons: Iterable[D], act: Callable[[D], Awaitable[T]]
    ) -> list[tuple[D, T]]:
        """Do something with each of some daemons, at the same time; gives who did it."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(daemon: D) -> tuple[D, T] | NsqError:
            async with turns:
                try:
                    return daemon, await act(daemon)
                except NsqError as error:
                    return error

        answers = await asyncio.gather(*map(one, daemons))
        self.troubles += [answer for answer in answers if isinstance(answer, NsqError)]
        return [answer for answer in answers if not isinstance(answer, NsqError)]

    def give_up(self) -> NoReturn:
        """Raise the last of the troubles, where nobody has answered."""
        error = self.troubles.pop()
        if self.lookupds or self.servers.nsqd_http or is_answer(error):
            raise error
        raise Failure(words(error), _PORT_ABOVE) from error

    async def _ask(self, daemons: list[D], act: Callable[[D], Awaitable[T]]) -> list[tuple[D, T]]:
        answers = await self.each(daemons, act)
        if daemons and not answers:
            self.give_up()
        return answers

    def _known_place(self, node: Node) -> Place:
        http = self.servers.mapped(join_address(node.broadcast_address, node.http_port))
        return self._place(node.address, http, node)

    def _place(self, address: str, http: str, node: Node | None = None) -> Place:
        nsqd = Nsqd(http, tls=self.servers.https, timeout=self.servers.timeout)
        return Place(address, nsqd, node)


def is_answer(error: NsqError) -> bool:
    """Tell whether a daemon of the right kind has answered, and would not do what was asked."""
    return isinstance(error, AdminError) and error.status not in (200, 404)


def is_redesigned(version: str) -> bool:
    """Tell whether a daemon is of the redesigned NSQ, by its version."""
    return dialect_of_version(version) is Dialect.REDESIGNED


def redesigned(where: str, version: str) -> Failure:
    """Say that this is a server of the redesigned NSQ, and what can be done with it."""
    return Failure(f"{where} is of the redesigned NSQ (version {version})", CLASSIC_ALONE)


def no_nsqd(servers: Servers) -> Failure:
    """Say that nsqlookupd knows no nsqd."""
    return Failure(f"{servers} knows no nsqd", "nsqd's -lookupd-tcp-address names it")


def unknown_topic(topic: str, topics: list[str]) -> Failure:
    """Say that there is no such topic, and which one may be meant."""
    return Failure(f"there is no topic {topic!r}", _meant(topic, topics, "topic"))


def unknown_channel(topic: str, channel: str, channels: list[str]) -> Failure:
    """Say that there is no such channel, and which one may be meant."""
    hint = _meant(channel, channels, "channel")
    return Failure(f"topic {topic!r} has no channel {channel!r}", hint)


def _meant(name: str, names: list[str], thing: str) -> str:
    if near := get_close_matches(name, names, 1):
        return f"did you mean {near[0]!r}?"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"there are {', '.join(names[:_SHOWN])}{more}" if names else f"there is no {thing} yet"
