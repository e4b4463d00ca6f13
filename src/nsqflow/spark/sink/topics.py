"""What nsqlookupd knows of the topics that are written to, and of the nsqd.

The driver asks before the first task, and tasks ask for topics that only the rows name.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from nsqflow.config.options import did_you_mean
from nsqflow.errors import ConfigError, DiscoveryError, NsqError
from nsqflow.protocol import Dialect, TopicMeta
from nsqflow.protocol.dialect import dialect_of_version
from nsqflow.spark.options import SinkOptions
from nsqflow.spark.server_options import Access, ServerOptions

if TYPE_CHECKING:
    from nsqflow.admin import Cluster

logger = logging.getLogger(__name__)

_MAX_AGE = 60.0  # seconds for which the driver uses what it has found out about a topic


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic that is written to."""

    name: str
    meta: TopicMeta | None = None
    """How it is set up; None: it is one of the classic NSQ, and may have to be created."""


_found: dict[tuple[Sequence[str], str], tuple[float, TargetTopic | None]] = {}


def find_target(options: SinkOptions) -> TargetTopic | None:
    """Return the topic of the option; None if there is none, or no nsqlookupd answers.

    It raises ``ConfigError`` for a topic that can't be published to. Spark calls this before and
    after each batch of a stream: what is found is used for a minute.
    """
    topic, lookupd = options.topic, options.servers.lookupd
    if topic is None:
        return None
    asked_at, found = _found.get((lookupd, topic), (float("-inf"), None))
    if monotonic() - asked_at > _MAX_AGE:
        try:
            found = TopicDirectory(options.servers, options.access).find(topic)
        except DiscoveryError as error:  # each task that has rows asks again
            logger.warning("topic %r could not be looked up: %s", topic, error)
            found = None
        _found[lookupd, topic] = monotonic(), found
    return found


class TopicDirectory:
    """Finds out of which NSQ topics are, each looked up once."""

    def __init__(
        self, servers: ServerOptions, access: Access, known: TargetTopic | None = None
    ) -> None:
        self._lookupd = servers.lookupd
        self._access = access
        self._known = {} if known is None else {known.name: known}
        self.may_be_redesigned = bool(servers.lookupd)
        """Whether any topic may have partitions; an nsqd that is named directly is classic."""

    def find(self, name: str) -> TargetTopic:
        """Return a topic; raise ``ConfigError`` if it can't be published to.

        Where all nsqlookupd are classic, only the first is looked up: any topic is created by
        publishing to it.
        """
        if name not in self._known:
            # Imported here: where nsqd are named directly, nothing else needs asyncio.
            import asyncio

            looked_up = asyncio.run(self._look_up(name)) if self.may_be_redesigned else None
            self._known[name] = looked_up or TargetTopic(name)
        return self._known[name]

    async def _look_up(self, name: str) -> TargetTopic | None:
        """Return a topic of the redesigned NSQ; None if it is a classic one."""
        cluster = _cluster(self._lookupd, self._access)
        answer = (await cluster.lookup([name]))[name]
        errors = _take_errors(cluster)
        if answer.meta is None:  # the redesigned NSQ describes also a topic that does not exist
            self.may_be_redesigned = bool(errors)
            return None
        if not answer.meta.partition_num and answer.producers:
            return None
        known = TargetTopic(name, answer.meta)
        if not answer.meta.partition_num:
            raise await _missing(cluster, name, errors)
        if not answer.channels:
            await _check_writable(cluster, name)
        return known


async def _missing(cluster: Cluster, name: str, errors: Sequence[NsqError]) -> NsqError:
    what = f"topic {name!r} does not exist at {_lookupds(cluster)}"
    if errors:  # one that does not answer may know it
        return DiscoveryError(f"{what}; no answer from {'; '.join(map(str, errors))}")
    hint = did_you_mean(name, await cluster.topics())
    return ConfigError(f"{what}: on the redesigned NSQ, create it first; {hint}".rstrip("; "))


async def _check_writable(cluster: Cluster, name: str) -> None:
    """Raise for a topic without channels, if its nsqlookupd does not let it be published to."""
    answers = await cluster.ask(cluster.lookupds, lambda lookupd: lookupd.lookup(name, "w"))
    if any(answer.lacks_channel for _, answer in answers):
        raise ConfigError(
            f"topic {name!r} has no channel at {_lookupds(cluster)}: create one in every partition "
            "before the first publish"
        )


def find_nodes(lookupd: Sequence[str], access: Access) -> list[str]:
    """Return the TCP addresses of all classic nsqd that these nsqlookupd know; at least one."""
    import asyncio

    cluster = _cluster(lookupd, access)
    nodes = asyncio.run(cluster.registered_nodes())
    _take_errors(cluster)
    classic = [n for n in nodes if dialect_of_version(n.version) is Dialect.CLASSIC]
    if not classic:
        only = "only nsqd of the redesigned NSQ are" if nodes else "no nsqd is"
        raise DiscoveryError(f"{_lookupds(cluster)}: {only} known there")
    return [node.address for node in classic]


def _cluster(lookupd: Sequence[str], access: Access) -> Cluster:
    from nsqflow.admin import Cluster

    secure = any(address.lower().startswith("https:") for address in lookupd)
    return Cluster(lookupd=lookupd, tls=access.http_context() if secure else None)


def _lookupds(cluster: Cluster) -> str:
    return f"nsqlookupd at {', '.join(server.address for server in cluster.lookupds)}"


def _take_errors(cluster: Cluster) -> list[NsqError]:
    errors = [*cluster.errors]
    cluster.errors.clear()
    for error in errors:
        logger.warning("nsqlookupd does not answer: %s", error)
    return errors
