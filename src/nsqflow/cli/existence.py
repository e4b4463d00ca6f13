"""Checks that topics and channels exist: subscribing would create them, but reading must not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nsqflow.admin import NsqdNode, NsqdStats, PartitionedTopic
from nsqflow.cli.cluster import (
    CliCluster,
    is_redesigned_node,
    unknown_channel,
    unknown_topic,
)
from nsqflow.cli.errors import CommandError, error_message
from nsqflow.cli.partitions import find_channel, name_partitions
from nsqflow.cli.servers import CliServers
from nsqflow.cli.terminal import count, print_err
from nsqflow.errors import ConfigError

Holders = dict[str, tuple[str, ...]]
"""For each topic the nsqd to subscribe to; empty for those that nsqlookupd lists."""

_MAY_CREATE = "a topic or channel that is missing there is created"
_CREATE = "use --create to subscribe anyway"


async def find_holders(servers: CliServers, topics: Sequence[str], channel: str | None) -> Holders:
    """Return the nsqd that have the topics, and the channel if given; raise if one does not exist.

    An nsqd that was named and whose HTTP API does not answer is assumed to have them. It is
    reported on stderr, and so is each nsqd without the channel.
    """
    cluster = CliCluster(servers)
    if servers.lookupd:
        try:
            await _check_known(cluster, topics, channel)
        except CommandError:
            for error in cluster.errors:  # another nsqlookupd may know it
                print_err(error_message(error))
            raise
        if channel is not None:
            return await _find_channel(cluster, topics, channel)
        nodes = [node for node in await cluster.nodes() if not is_redesigned_node(node)]
        _check_claimed(topics, dict(await cluster.for_each(nodes, _stats)))
        return dict.fromkeys(topics, ())
    try:
        nodes = await cluster.nodes()
    except ConfigError as unknown:  # the address of the HTTP API is not known
        print_err(f"{error_message(unknown)}; {_MAY_CREATE}")
        return dict.fromkeys(topics, servers.nsqd)
    answers = dict(await cluster.for_each(nodes, _stats))
    for error in cluster.errors:
        print_err(f"{error_message(error)}; {_MAY_CREATE}")
    holders = {topic: _holders(topic, channel, nodes, answers) for topic in topics}
    if channel is None:
        _check_claimed(topics, answers)
    return holders


async def find_partitions(
    cluster: CliCluster,
    topic: PartitionedTopic,
    wanted: list[int],
    channel: str | None,
    *,
    is_own: bool,
) -> list[int]:
    """Return the partitions that have the channel; raise if none does.

    Those without it are reported on stderr: subscribing would create it there. A temporary channel
    (None) is created, unless ``is_own`` and the topic takes none.
    """
    if channel is None:
        if is_own and topic.meta.disable_channel_auto_create:
            raise CommandError(
                f"topic {topic.name!r} takes no temporary channel: nsqlookupd creates its channels",
                f"use --channel, or 'nsqflow browse {topic.name}'",
            )
        return wanted
    try:
        states = await find_channel(cluster, topic, channel)
    except CommandError as error:
        raise _refusal(error) from None
    # Of a partition without a leader it is not known, and the consumer waits for one.
    without = {*topic.leaders} - states.keys()
    found = [number for number in wanted if number not in without]
    if not found:
        text = f"topic {topic.name!r} has no channel {channel!r} in {name_partitions(wanted)}"
        raise _refusal(CommandError(text, f"it is in {name_partitions(sorted(states))}"))
    if skipped := sorted(without & {*wanted}):
        print_err(
            f"topic {topic.name!r} has no channel {channel!r} in {name_partitions(skipped)}, which "
            "is not read; --create creates it there"
        )
    return found


async def _check_known(cluster: CliCluster, topics: Sequence[str], channel: str | None) -> None:
    known = await cluster.topics()
    for topic in topics:
        if topic not in known:
            raise _refusal(unknown_topic(topic, known))
        if channel is None:
            continue
        channels = await cluster.channels(topic)
        if channel not in channels:
            raise _refusal(unknown_channel(topic, channel, channels))


async def _find_channel(cluster: CliCluster, topics: Sequence[str], channel: str) -> Holders:
    """Return the nsqd that have the channel: nsqlookupd does not know which do.

    One that does not answer is left out: a channel created there by mistake would fill up.
    """
    nodes = [node for node in await cluster.nodes() if not is_redesigned_node(node)]
    answers = dict(await cluster.for_each(nodes, _stats))
    if not answers and cluster.errors:
        raise cluster.no_answer()
    for text in dict.fromkeys(map(error_message, cluster.errors)):
        print_err(f"{text}; skipping it")
    holders = {topic: _holders(topic, channel, [*answers], answers) for topic in topics}
    for topic, found in holders.items():
        without = [
            node.address
            for node, answer in answers.items()
            if node.address not in found and any(stats.name == topic for stats in answer.topics)
        ]
        if without:
            print_err(
                f"topic {topic!r} has no channel {channel!r} on nsqd {', '.join(without)}, which "
                "is not read; --create creates it there"
            )
    return holders


def _check_claimed(topics: Sequence[str], answers: Mapping[NsqdNode, NsqdStats]) -> None:
    """Raise if messages wait for a topic's first channel: a temporary channel would take them."""
    for topic in topics:
        found = [stats for answer in answers.values() for stats in answer.topics]
        depth = sum(stats.depth for stats in found if stats.name == topic and not stats.channels)
        if depth:
            raise CommandError(
                f"topic {topic!r} has no channel, so its first reader would take the "
                f"{count(depth, 'message')} in it",
                f"'nsqflow create {topic} CHANNEL' keeps them for a channel; --create shows and "
                "consumes them",
            )


async def _stats(node: NsqdNode) -> NsqdStats:
    return await node.http.stats(include_clients=False)


def _holders(
    topic: str, channel: str | None, nodes: list[NsqdNode], answers: dict[NsqdNode, NsqdStats]
) -> tuple[str, ...]:
    """Return the nsqd that have it, and those that do not answer."""
    found = {
        node: [channel.name for channel in stats.channels]
        for node, answer in answers.items()
        for stats in answer.topics
        if stats.name == topic
    }
    holders = tuple(
        node.address
        for node in nodes
        if node not in answers or (node in found and channel in (None, *found[node]))
    )
    if holders:
        return holders
    if not found:
        known = sorted({stats.name for answer in answers.values() for stats in answer.topics})
        raise _refusal(unknown_topic(topic, known))
    assert channel is not None
    channels = sorted({name for names in found.values() for name in names})
    raise _refusal(unknown_channel(topic, channel, channels))


def _refusal(failure: CommandError) -> CommandError:
    joint = " " if failure.hint.endswith("?") else "; "
    return CommandError(failure.text, f"{failure.hint}{joint}{_CREATE}", failure.code)
