"""``nsqflow delete``, ``pause``, ``unpause``, ``empty``: on every nsqd with the topic.

nsqlookupd is updated too: it keeps the names of topics and channels.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Literal

import typer

from nsqflow.admin.registrations import Registrations, ReportedLookupd, find_registrations
from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.completion import ChannelArgument, TopicArgument
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import FAILED, USAGE_ERROR, CommandError, error_message
from nsqflow.cli.lists import JsonOption, report_errors
from nsqflow.cli.partition_changes import PartitionedTarget, find_partitioned_target
from nsqflow.cli.partition_table import LocatedPartition, show_numbers
from nsqflow.cli.terminal import count, escape, print_err, print_json
from nsqflow.cli.topic_or_channel import FoundOn, TopicOrChannel
from nsqflow.errors import NsqError
from nsqflow.protocol.names import is_ephemeral

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_MAX_NAMED = 3  # servers; more are only counted


def delete(
    cluster: CliCluster,
    topic: TopicArgument,
    channel: ChannelArgument = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Delete a topic with its channels, or one channel, and all messages in it.

    Its consumers are disconnected. With --nsqd, a topic is also deleted from the nsqlookupd
    that these nsqd report to. Of the redesigned NSQ, it is deleted in every partition.

    Example:
      $ nsqflow delete orders billing --yes
      $ nsqflow delete orders --yes
    """
    target = TopicOrChannel.of(topic, channel)
    partitioned, found, registrations = run_async(
        _plan(target, cluster), f"asking {cluster.servers}"
    )
    if partitioned is not None:
        lost = count(partitioned.messages, "message")
        where = f", in {_numbers(partitioned.partitions)}" if partitioned.partitions else ""
        if not confirm(f"Delete {target} with {lost}{where}?", yes=yes):
            return _declined("deleted")
        gone = run_async(partitioned.delete(cluster))
        return _report_partitions("deleted", target, gone, cluster, as_json=json)
    lost = count(target.messages(found), "message")
    addresses = [lookupd.tcp_address for lookupd in registrations.lookupds]
    listed = f", and its name on nsqlookupd {show_servers(addresses)}" * bool(addresses)
    if not confirm(f"Delete {target} with {lost}, on {_nsqds(found)}{listed}?", yes=yes):
        return _declined("deleted")
    done, notes = run_async(_delete(target, cluster, found, registrations))
    code = _report("deleted", target, done, cluster, as_json=json)
    for note in notes:
        print_err(note)
    return code


def empty(
    cluster: CliCluster,
    topic: TopicArgument,
    channel: ChannelArgument = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Drop the messages of a channel, or those of a topic that no channel has yet.

    Prints their number; "about" if messages may have arrived or left at the same time. Topics of
    the redesigned NSQ have none that no channel has.

    Example:
      $ nsqflow empty orders billing --yes
    """
    target = TopicOrChannel.of(topic, channel)
    partitioned, found = run_async(_find(target, cluster, "empty"), f"asking {cluster.servers}")
    if partitioned is not None:
        return _empty_partitions(partitioned, cluster, yes=yes, as_json=json)
    lost = count(sum(map(target.droppable, found.values())), "message")
    if not confirm(f"Drop {lost} of {target}, on {_nsqds(found)}?", yes=yes):
        return _declined("dropped")
    done = run_async(target.empty(cluster, found))
    if json:
        for one in done:
            print_result(one.server, target, "emptied", dropped=one.dropped, exact=one.is_exact)
    elif done:
        about = "" if all(one.is_exact for one in done) else "about "
        dropped = count(sum(one.dropped for one in done), "message")
        servers = show_servers([one.server for one in done])
        print(f"emptied {target} on {servers}: {about}{dropped} dropped")
        if target.channel is None and (held := target.messages(found) - target.depth(found)):
            print_err(f"its channels hold {count(held, 'message')}: nsqflow empty {topic} CHANNEL")
    return report_errors(cluster, all_failed=not done)


def pause(
    cluster: CliCluster,
    topic: TopicArgument,
    channel: ChannelArgument = None,
    json: JsonOption = False,
) -> int:
    """Stop delivery: from a topic to its channels, or from a channel to its consumers.

    Example:
      $ nsqflow pause orders billing
    """
    return _change("pause", TopicOrChannel.of(topic, channel), cluster, as_json=json)


def unpause(
    cluster: CliCluster,
    topic: TopicArgument,
    channel: ChannelArgument = None,
    json: JsonOption = False,
) -> int:
    """Resume delivery from a topic or a channel.

    Example:
      $ nsqflow unpause orders billing
    """
    return _change("unpause", TopicOrChannel.of(topic, channel), cluster, as_json=json)


def _empty_partitions(
    partitioned: PartitionedTarget, cluster: CliCluster, *, yes: bool, as_json: bool
) -> int:
    target = partitioned.target
    lost, numbers = count(partitioned.messages, "message"), _numbers(partitioned.partitions)
    if not confirm(f"Drop {lost} of {target}, in {numbers}?", yes=yes):
        return _declined("dropped")
    done = run_async(partitioned.empty(cluster))
    if as_json:
        for one in done:
            more = {"dropped": one.dropped, "exact": one.is_exact}
            each = one.partition
            print_result(each.leader, target, "emptied", partition=each.number, **more)
    elif done:
        about = "" if all(one.is_exact for one in done) else "about "
        dropped = count(sum(one.dropped for one in done), "message")
        numbers = _numbers([one.partition for one in done])
        print(f"emptied {target} in {numbers}: {about}{dropped} dropped")
    return report_errors(cluster, all_failed=not done)


async def _plan(
    target: TopicOrChannel, cluster: CliCluster
) -> tuple[PartitionedTarget | None, FoundOn, Registrations]:
    """Return the nsqd that have the target, and the nsqlookupd that they report to."""
    if partitioned := await find_partitioned_target(cluster, target, "delete"):
        return partitioned, {}, Registrations()
    found = await target.find(cluster)
    # nsqlookupd drops an ephemeral name itself, with its last nsqd.
    if cluster.lookupds or is_ephemeral(target.channel or target.topic):
        return None, found, Registrations()
    return None, found, await find_registrations(cluster, found)


async def _delete(
    target: TopicOrChannel, cluster: CliCluster, found: FoundOn, registrations: Registrations
) -> tuple[list[str], list[str]]:
    """Return the servers that had the target, and notes on where it is still listed."""
    done = await target.delete(cluster, found)
    if not done:
        return [], []
    deleted, notes = await _unregister(cluster, target, registrations)
    return done + deleted, notes


async def _unregister(
    cluster: CliCluster, target: TopicOrChannel, registrations: Registrations
) -> tuple[list[str], list[str]]:
    """Delete a name from each nsqlookupd; return those, and notes on where it is still listed."""
    deleted, notes = list[str](), list[str]()

    async def delete(reported: ReportedLookupd) -> None:
        try:
            lookupd = cluster.lookupd_at(reported.http_address)
            if target.topic not in await lookupd.topics():
                return
            # Deleting the name would also delete the registrations of nsqd that still have the
            # topic.
            producers = (await lookupd.lookup(target.topic)).producers
            others = sorted({node.address for node in producers} - registrations.nsqds)
            if others:
                notes.append(
                    f"nsqlookupd {lookupd.address} still lists {target}: "
                    f"nsqd {', '.join(others)} has topic {target.topic}"
                )
                return
            await target.delete_on_lookupd(lookupd)
            deleted.append(lookupd.address)
        except NsqError as error:
            notes.append(
                f"nsqlookupd {reported.tcp_address} may still list {target}; its HTTP API is not "
                f"at the port above ({error_message(error)}): delete it with --lookupd"
            )

    await cluster.for_each(registrations.lookupds, delete)
    return sorted(deleted), sorted(notes)


def _change(
    change: Literal["pause", "unpause"],
    target: TopicOrChannel,
    cluster: CliCluster,
    *,
    as_json: bool,
) -> int:
    async def apply() -> tuple[list[LocatedPartition] | None, list[str]]:
        partitioned, found = await _find(target, cluster, change)
        if partitioned is not None:
            return await partitioned.change(cluster, change), []
        return None, await target.change(cluster, found, change)

    partitions, done = run_async(apply(), f"asking {cluster.servers}")
    if partitions is not None:
        return _report_partitions(f"{change}d", target, partitions, cluster, as_json=as_json)
    return _report(f"{change}d", target, done, cluster, as_json=as_json)


async def _find(
    target: TopicOrChannel, cluster: CliCluster, verb: str
) -> tuple[PartitionedTarget | None, FoundOn]:
    if partitioned := await find_partitioned_target(cluster, target, verb):
        return partitioned, {}
    found = await target.find(cluster)
    if not found:
        raise CommandError(f"no nsqd has {target} yet", "it is only registered with nsqlookupd")
    return None, found


def _numbers(partitions: Iterable[LocatedPartition]) -> str:
    return show_numbers(each.number for each in partitions)


def _nsqds(found: FoundOn) -> str:
    return show_servers([node.address for node in found]) or "nsqlookupd only"


def show_servers(servers: Collection[str]) -> str:
    """Return the servers as text: their addresses, or only how many there are."""
    return (
        escape(", ".join(servers)) if len(servers) <= _MAX_NAMED else count(len(servers), "server")
    )


def confirm(question: str, *, yes: bool) -> bool:
    """Ask before something is deleted; without a terminal, require ``yes``."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{question} stdin is not a terminal", "pass --yes", USAGE_ERROR)
    answer = ""
    try:
        print(f"{escape(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    finally:
        if not answer.endswith("\n"):  # Ctrl-C, Ctrl-D
            print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def _declined(what: str) -> int:
    print_err(f"nothing was {what}")
    return FAILED


def _report(
    result: str, target: TopicOrChannel, done: list[str], cluster: CliCluster, *, as_json: bool
) -> int:
    if as_json:
        for server in done:
            print_result(server, target, result)
    elif done:
        print(f"{result} {target} on {show_servers(done)}")
    return report_errors(cluster, all_failed=not done)


def _report_partitions(
    result: str,
    target: TopicOrChannel,
    done: Sequence[LocatedPartition],
    cluster: CliCluster,
    *,
    as_json: bool,
) -> int:
    if as_json:
        for each in done:
            print_result(each.leader, target, result, partition=each.number)
    elif done:
        print(f"{result} {target} in {_numbers(done)}")
    return report_errors(cluster, all_failed=not done)


def print_result(server: str | None, target: TopicOrChannel, result: str, **more: Any) -> None:
    """Print the result on one server as JSON."""
    about = {"server": server, "topic": target.topic, "channel": target.channel}
    print_json(about | {"result": result} | more)
