"""The cluster that a command line names, and errors about it with hints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from nsqflow.admin import (
    AdminError,
    Cluster,
    Lookupd,
    NsqdNode,
    NsqdStats,
    PartitionedTopic,
    RedesignedCluster,
)
from nsqflow.admin.partition import PartitionApi
from nsqflow.cli.errors import USAGE_ERROR, CommandError, error_message
from nsqflow.cli.servers import SERVER_OPTIONS, CliServers
from nsqflow.config.options import did_you_mean
from nsqflow.errors import NsqError
from nsqflow.protocol.dialect import Dialect, dialect_of_version
from nsqflow.protocol.lookup import Node
from nsqflow.protocol.names import is_valid_name

R = TypeVar("R")

NEEDS_LOOKUPD = (
    "name its nsqlookupd with --lookupd: only they know which nsqd leads a partition now"
)

_SHOWN = 5  # names in a hint
_PORT_ABOVE = (
    "is it running? its HTTP API is taken to be at the port above --nsqd, unless --nsqd-http says "
    "where; 'nsqflow broker' starts one"
)


class CliCluster(Cluster):
    """The cluster of ``servers``; errors say which option or setting may be wrong."""

    def __init__(self, servers: CliServers) -> None:
        super().__init__(
            lookupd=servers.lookupd,
            nsqd=servers.nsqd,
            nsqd_http=servers.nsqd_http,
            tls=servers.https,
            address_map=servers.address_map,
            timeout=servers.timeout,
        )
        self.servers = servers

    async def channels(self, topic: str) -> list[str]:
        """Return the names of a topic's channels; raise ``CommandError`` if it does not exist."""
        if topic not in (topics := await self.topics()):
            raise unknown_topic(topic, topics)
        return await super().channels(topic)

    async def stats(
        self,
        topic: str | None = None,
        *,
        include_clients: bool = False,
        nodes: Iterable[NsqdNode] | None = None,
    ) -> list[tuple[NsqdNode, NsqdStats]]:
        """Return the statistics of each classic nsqd, of all or of some.

        Raises ``CommandError`` if one that was named directly is of the redesigned NSQ.
        """

        async def ask(node: NsqdNode) -> NsqdStats:
            return await node.http.stats(topic, include_clients=include_clients)

        nodes = [*(await self.nodes() if nodes is None else nodes)]
        asked = [node for node in nodes if not is_redesigned_node(node)]
        answers = await self.for_each(asked, ask)
        if asked and not answers and len(asked) == len(nodes):
            raise self.no_answer()
        for node, stats in answers:
            if is_redesigned(stats.version) and not self.lookupds:
                raise redesigned(node.address, stats.version)
        return [(node, stats) for node, stats in answers if not is_redesigned(stats.version)]

    async def partitioned_topics(self, names: Iterable[str]) -> dict[str, PartitionedTopic]:
        """Return those of the topics that are of the redesigned NSQ, as nsqlookupd describes them.

        Errors of servers are left to the next request, which has them too.
        """
        valid = [name for name in dict.fromkeys(names) if is_valid_name(name)]
        if not self.lookupds or not valid:
            return {}
        count = len(self.errors)
        try:
            answers = await self.lookup(valid)
        except NsqError:
            answers = {}
        del self.errors[count:]
        return {
            name: PartitionedTopic(name, answer.meta, dict(answer.partitions), answer.channels)
            for name, answer in answers.items()
            if answer.meta is not None and answer.meta.partition_num
        }

    async def partitioned_topic(self, name: str) -> PartitionedTopic | None:
        """Return a topic of the redesigned NSQ; None if it is a classic one, or missing."""
        return (await self.partitioned_topics([name])).get(name)

    async def lookupds_of(self, dialect: Dialect) -> list[Lookupd]:
        """Return the nsqlookupd of a dialect, of those that answer."""
        answers = await self.ask(self.lookupds, Lookupd.members)
        classic = dialect is Dialect.CLASSIC  # only the others have a cluster
        return [lookupd for lookupd, members in answers if (members is None) == classic]

    async def lacks_channel(self, topic: str) -> bool:
        """Return whether a topic takes no publishes until it has a channel."""
        answers = await self.for_each(self.lookupds, lambda lookupd: lookupd.lookup(topic, "w"))
        return any(answer.lacks_channel for _, answer in answers)

    def redesigned(self) -> RedesignedCluster:
        """Return the same nsqlookupd as a cluster of the redesigned NSQ."""
        servers = self.servers
        return RedesignedCluster(
            lookupd=[*servers.lookupd],
            tls=servers.https,
            address_map=servers.address_map,
            timeout=servers.timeout,
        )

    def partition_api(self, node: Node) -> PartitionApi:
        """Return the HTTP API of an nsqd of the redesigned NSQ."""
        address = self.map_address(node.http_address)
        return PartitionApi(address, tls=self.servers.https, timeout=self.servers.timeout)

    def no_answer(self) -> NsqError:
        """Return the last error, with a hint if the HTTP address was only assumed."""
        error = self.errors.pop()
        explained = isinstance(error, CommandError)
        if self.lookupds or self.servers.nsqd_http or explained or is_answer(error):
            return error
        failure = CommandError(error_message(error), _PORT_ABOVE)
        failure.__cause__ = error
        return failure

    def explain(self, error: NsqError) -> NsqError:
        """Return the error, with a hint if it may come from a secret that was not sent."""
        return self.servers.explain(error)


def with_server_options(verb: Callable[..., R]) -> Callable[..., R]:
    """Return a verb whose argument ``servers`` or ``cluster`` comes from options."""
    signature = inspect.signature(verb, eval_str=True)
    own = dict(signature.parameters)
    name = next((name for name in ("servers", "cluster") if own.pop(name, None)), None)
    if name is None:
        return verb

    @wraps(verb)
    def run(**given: Any) -> R:
        servers = CliServers.of(**{option: given.pop(option) for option in SERVER_OPTIONS})
        return verb(**given, **{name: servers if name == "servers" else CliCluster(servers)})

    added = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for option, kind in SERVER_OPTIONS.items()
    ]
    parameters = [*own.values(), *added]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def is_answer(error: NsqError) -> bool:
    """Return whether the error is a proper answer of nsqd or nsqlookupd."""
    return isinstance(error, AdminError) and error.status not in (200, 404)


def is_redesigned(version: str) -> bool:
    """Return whether a version is one of the redesigned NSQ."""
    return dialect_of_version(version) is Dialect.REDESIGNED


def is_redesigned_node(node: NsqdNode) -> bool:
    """Return whether nsqlookupd says that an nsqd is of the redesigned NSQ."""
    return node.registration is not None and is_redesigned(node.registration.version)


def redesigned(where: str, version: str) -> CommandError:
    """Return the error for an nsqd of the redesigned NSQ that was named directly."""
    return CommandError(f"{where} is of the redesigned NSQ (version {version})", NEEDS_LOOKUPD)


def needs_lookupd(servers: CliServers, what: str) -> CommandError:
    """Return the error for what the redesigned NSQ alone has, without nsqlookupd."""
    text = (
        f"{what} is for the redesigned NSQ, and {servers} ({servers.origin}) is not an nsqlookupd"
    )
    return CommandError(text, NEEDS_LOOKUPD, USAGE_ERROR)


def no_nsqd(servers: CliServers) -> CommandError:
    """Return the error for nsqlookupd without any nsqd."""
    return CommandError(f"{servers} knows no nsqd", "nsqd's -lookupd-tcp-address names it")


def unknown_topic(topic: str, topics: list[str]) -> CommandError:
    """Return the error for a topic that does not exist, with a suggestion."""
    return CommandError(f"there is no topic {topic!r}", _meant(topic, topics, "topic"))


def unknown_channel(topic: str, channel: str, channels: list[str]) -> CommandError:
    """Return the error for a channel that does not exist, with a suggestion."""
    hint = _meant(channel, channels, "channel")
    return CommandError(f"topic {topic!r} has no channel {channel!r}", hint)


def _meant(name: str, names: list[str], thing: str) -> str:
    listed, names = names, [*filter(is_valid_name, names)]  # servers may send anything
    if hint := did_you_mean(name, names):
        return hint
    if not names:
        return f"there is no {thing} with a valid name" if listed else f"there is no {thing} yet"
    more = ", ..." if len(names) > _SHOWN else ""
    return f"there are {', '.join(names[:_SHOWN])}{more}"
