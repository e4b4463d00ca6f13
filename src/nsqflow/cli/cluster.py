"""The cluster that a command line names, and errors about it with hints."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from nsqflow.admin import AdminError, Cluster, NsqdNode, NsqdStats
from nsqflow.cli.errors import CommandError, error_message
from nsqflow.cli.servers import SERVER_OPTIONS, CliServers
from nsqflow.config.options import did_you_mean
from nsqflow.errors import NsqError
from nsqflow.protocol.dialect import Dialect, dialect_of_version
from nsqflow.protocol.names import is_valid_name

R = TypeVar("R")

CLASSIC_ONLY = (
    "of the redesigned NSQ, this version of nsqflow lists topics, channels and nodes (--lookupd); "
    "everything else needs a classic NSQ"
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
        self, topic: str | None = None, *, include_clients: bool = False
    ) -> list[tuple[NsqdNode, NsqdStats]]:
        """Return the statistics of each nsqd; raise ``CommandError`` for the redesigned NSQ."""
        answers = await super().stats(topic, include_clients=include_clients)
        for node, stats in answers:
            if is_redesigned(stats.version):
                raise redesigned(node.address, stats.version)
        return answers

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


def redesigned(where: str, version: str) -> CommandError:
    """Return the error for a server of the redesigned NSQ."""
    return CommandError(f"{where} is of the redesigned NSQ (version {version})", CLASSIC_ONLY)


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
