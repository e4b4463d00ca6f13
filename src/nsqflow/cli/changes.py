"""The verbs create, delete, pause, unpause and empty: on every nsqd that has the topic.

nsqlookupd is told of what it keeps itself: which topics and channels there are.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Annotated

import typer

from nsqflow.admin import Nsqd
from nsqflow.cli.cluster import Cluster
from nsqflow.cli.completion import ChannelArgument, TopicArgument
from nsqflow.cli.errors import FAILED, MISUSED, Failure
from nsqflow.cli.lists import complete
from nsqflow.cli.screen import count, note
from nsqflow.cli.servers import ConfigOption, LookupdOption, NsqdHttpOption, NsqdOption, Servers
from nsqflow.cli.signals import run
from nsqflow.cli.target import Found, OnChannel, OnTopic, Target

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]

_FEW = 3  # servers that are named, not counted


def create(
    topic: TopicArgument,
    channel: ChannelArgument = None,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Create a topic or a channel; what is there already stays as it is.

    With nsqlookupd it is made known there, and an nsqd has it with its first message of that
    topic; a channel is created on the nsqd that have the topic already, too. With --nsqd it is
    created on these.

    Example:
      $ nsqflow create orders
      $ nsqflow create orders billing
    """
    target = Target.of(topic, channel)
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    done = run(target.create(cluster), f"asking {cluster.servers}")
    return _told("created", target, done, cluster)


def delete(
    topic: TopicArgument,
    channel: ChannelArgument = None,
    yes: YesOption = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Delete a topic with its channels, or one channel, and all messages in it.

    Who consumes it is disconnected.

    Example:
      $ nsqflow delete orders billing --yes
      $ nsqflow delete orders --yes
    """
    target = Target.of(topic, channel)
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    found = run(target.find(cluster), f"asking {cluster.servers}")
    lost = count(target.messages(found), "message")
    if not _confirm(f"Delete {target} with {lost}, on {_nsqds(found)}?", yes=yes):
        return _declined("deleted")
    return _told("deleted", target, run(target.delete(cluster, found)), cluster)


def empty(
    topic: TopicArgument,
    channel: ChannelArgument = None,
    yes: YesOption = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Throw away the messages of a channel, or those of a topic that no channel has yet.

    Example:
      $ nsqflow empty orders billing --yes
    """
    target = Target.of(topic, channel)
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    found = run(_find(target, cluster), f"asking {cluster.servers}")
    waiting = target.messages(found) if channel else sum(t.depth for t in found.values())
    lost = count(waiting, "message")
    if not _confirm(f"Throw away {lost} of {target}, on {_nsqds(found)}?", yes=yes):
        return _declined("thrown away")
    done = run(target.change(cluster, found, Nsqd.empty_topic, Nsqd.empty_channel))
    return _told("emptied", target, done, cluster)


def pause(
    topic: TopicArgument,
    channel: ChannelArgument = None,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Hold messages back: those of a topic from its channels, those of a channel from consumers.

    Example:
      $ nsqflow pause orders billing
    """
    target = Target.of(topic, channel)
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    done = _switch(target, cluster, Nsqd.pause_topic, Nsqd.pause_channel)
    return _told("paused", target, done, cluster)


def unpause(
    topic: TopicArgument,
    channel: ChannelArgument = None,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Let the messages of a topic or a channel flow again.

    Example:
      $ nsqflow unpause orders billing
    """
    target = Target.of(topic, channel)
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    done = _switch(target, cluster, Nsqd.unpause_topic, Nsqd.unpause_channel)
    return _told("unpaused", target, done, cluster)


def _switch(
    target: Target, cluster: Cluster, on_topic: OnTopic, on_channel: OnChannel
) -> list[str]:
    async def switch() -> list[str]:
        found = await _find(target, cluster)
        return await target.change(cluster, found, on_topic, on_channel)

    return run(switch(), f"asking {cluster.servers}")


async def _find(target: Target, cluster: Cluster) -> Found:
    found = await target.find(cluster)
    if not found:
        raise Failure(f"no nsqd has {target} yet", "nsqlookupd alone knows of it")
    return found


def _nsqds(found: Found) -> str:
    return _where([place.address for place in found]) or "nsqlookupd alone"


def _where(servers: Collection[str]) -> str:
    return ", ".join(servers) if len(servers) <= _FEW else count(len(servers), "server")


def _confirm(question: str, *, yes: bool) -> bool:
    """Ask before something is destroyed; only ``yes`` will do where nobody can be asked."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(f"{question} Nobody can be asked here", "say --yes", MISUSED)
    answer = ""
    try:
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    finally:
        if not answer.endswith("\n"):  # Ctrl-C, Ctrl-D
            print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def _declined(what: str) -> int:
    note(f"nothing was {what}")
    return FAILED


def _told(deed: str, target: Target, done: list[str], cluster: Cluster) -> int:
    if done:
        print(f"{deed} {target} on {_where(done)}")
    return complete(cluster, in_vain=not done)
