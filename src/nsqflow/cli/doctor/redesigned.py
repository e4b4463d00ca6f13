"""Checks of a cluster of the redesigned NSQ: its nsqlookupd, leaders, replicas and channels."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nsqflow.address import parse_http_address
from nsqflow.admin import Lookupd
from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.doctor.finding import Finding, note, ok, problem
from nsqflow.cli.errors import error_message, hint_for
from nsqflow.cli.partition_table import LocatedPartition, find_partitions, show_numbers
from nsqflow.cli.servers import CliServers
from nsqflow.cli.terminal import count
from nsqflow.errors import NsqError
from nsqflow.protocol.lookup import LookupdNode
from nsqflow.protocol.names import is_ephemeral, is_valid_name

Members = dict[str, tuple[LookupdNode, ...]]
"""What each nsqlookupd says of all of its cluster."""

_SHOWN = 5  # names in a finding
_MAX_MEMBERS = 16  # a hostile nsqlookupd must not make us scan other hosts
_ONE_CLUSTER = (
    "wait 20 s if one has just been started or stopped; otherwise see their logs, and name those "
    "of one cluster by --lookupd"
)
_NOT_LISTED = (
    "name the nsqlookupd themselves by --lookupd; where they have other addresses here, "
    "address_map in the config file says which"
)
_SILENT_MEMBER = "start it; if it runs at another address here, set address_map in the config file"
_NO_LEADER = (
    "start those that are listed; no topic or channel can be created, deleted or moved without "
    "a leading nsqlookupd"
)
_UNSTABLE = (
    "start the nsqd that are missing; a cluster is stable again 90 s after the last one came back, "
    "and until then no leader is moved"
)
_NO_PARTITION_LEADER = (
    "start the nsqd that have a copy; after a crash another one leads within 35 s, or some minutes"
)
_NOT_WRITABLE = "start the nsqd with its other copies: a majority of them must run"
_MORE_REPLICAS = "where publishing must go on, use topics with three: nsqflow create --replicas 3"


async def check_redesigned(servers: CliServers) -> list[Finding]:
    """Check what belongs to a cluster of the redesigned NSQ; no finding without one."""
    cluster = CliCluster(servers)
    answers = await cluster.for_each(cluster.lookupds, Lookupd.members)
    members = {lookupd.address: some for lookupd, some in answers if some is not None}
    if not members:
        return []
    findings = await _check_members(servers, members)
    try:
        nodes = await cluster.nodes()
        partitions = (await find_partitions(cluster, nodes)).partitions
        stable = await cluster.redesigned().is_stable()
    except NsqError as error:
        remedy = hint_for(servers.explain(error)) or "see the log of the leading nsqlookupd"
        return [*findings, problem("cluster", error_message(error), remedy)]
    topics = {each.topic.name for each in partitions}
    text = f"{count(len(topics), 'topic')} with {count(len(partitions), 'partition')}"
    if stable:
        findings.append(ok("cluster", f"stable, {text}"))
    else:
        why = "not stable: an nsqd is missing, or a partition is changing"
        findings.append(problem("cluster", f"{why}; {text}", _UNSTABLE))
    findings += await _check_answers(servers, members, sorted(topics))
    findings += _check_leaders(partitions)
    findings += check_channels(partitions)
    findings += await _check_publishing(cluster, partitions)
    findings += _check_replicas(partitions)
    return findings


# nsqlookupd


async def _check_members(servers: CliServers, members: Members) -> list[Finding]:
    """Check that the nsqlookupd name each other, the same one leading, and all answer."""
    findings = []
    views = {tuple(sorted(_describe(each) for each in some)) for some in members.values()}
    if len(views) > 1:
        text = "; ".join(f"{name} lists {_list_members(some)}" for name, some in members.items())
        findings.append(problem("nsqlookupd", f"they disagree: {text}", _ONE_CLUSTER))
    listed = {each.address: each for some in members.values() for each in some}
    if listed and not any(each.leader for some in members.values() for each in some):
        findings.append(problem("nsqlookupd", "none of them leads", _NO_LEADER))
    cluster = CliCluster(servers)
    places = {name: await _resolve(cluster.map_address(name)) for name in [*listed][:_MAX_MEMBERS]}
    known = {place for some in places.values() for place in some}
    own = {name: await _resolve(name) for name in members}
    for name, place in own.items():
        if listed and not place & known:
            text = f"is none of those that it lists: {', '.join(sorted(listed))}"
            findings.append(note(f"nsqlookupd {name}", text, _NOT_LISTED))
    named = {place for some in own.values() for place in some}
    for name, place in places.items():
        if not place & named and not await _answers(servers, cluster.map_address(name)):
            text = "is listed by the others, and does not answer"
            findings.append(problem(f"nsqlookupd {name}", text, _SILENT_MEMBER))
    return findings


async def _check_answers(
    servers: CliServers, members: Members, topics: Sequence[str]
) -> list[Finding]:
    """Check that all nsqlookupd name the same leaders."""
    leaders: dict[str, dict[tuple[str, int], str]] = {}
    for address in servers.lookupd:  # as given: it may have credentials
        name = str(parse_http_address(address))
        if name not in members:
            continue
        try:
            answers = await CliCluster(replace(servers, lookupd=(address,))).lookup(topics)
        except NsqError:  # reported for it already
            continue
        leaders[name] = {
            (topic, number): node.address
            for topic, answer in answers.items()
            for number, node in answer.partitions.items()
        }
    for topic, number in sorted({key for some in leaders.values() for key in some}):
        named = {name: some.get((topic, number), "none") for name, some in leaders.items()}
        if len({*named.values()}) > 1:
            text = ", ".join(f"{leader} by {name}" for name, leader in named.items())
            what = f"they disagree on the leader of partition {number} of {topic}: {text}"
            return [problem("nsqlookupd", what, _ONE_CLUSTER)]
    return []


async def _resolve(address: str) -> set[tuple[str, int]]:
    """Return the addresses behind a name, and the port."""
    parsed = parse_http_address(address)
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM)
    except OSError:
        return {(parsed.host, parsed.port)}
    return {(str(place[0]), parsed.port) for *_, place in found}


async def _answers(servers: CliServers, address: str) -> bool:
    try:
        await Lookupd(address, tls=servers.https, timeout=servers.timeout).ping()
    except NsqError:
        return False
    return True


def _describe(member: LookupdNode) -> str:
    return f"{member.address} (leading)" if member.leader else member.address


def _list_members(members: Iterable[LookupdNode]) -> str:
    return ", ".join(sorted(map(_describe, members))) or "none"


# Partitions


def _check_leaders(partitions: Sequence[LocatedPartition]) -> Iterator[Finding]:
    for topic, some in _by_topic(partitions).items():
        lone = show_numbers(each.number for each in some if each.leader is None)
        if lone:
            yield problem(f"topic {topic}", f"{lone}: no leader", _NO_PARTITION_LEADER)
        closed = show_numbers(
            each.number for each in some if each.stats and not each.stats.writable
        )
        if closed:
            text = f"{closed}: the leader takes no publishes"
            yield problem(f"topic {topic}", text, _NOT_WRITABLE)


def check_channels(partitions: Sequence[LocatedPartition]) -> Iterator[Finding]:
    """Find channels that some partitions lack: what is published there passes them by.

    The remedy is a command, so that names which no server takes are left out.
    """
    for topic, some in _by_topic(partitions).items():
        answering = [each for each in some if each.stats is not None]
        names = {c.name for each in answering if each.stats for c in each.stats.channels}
        for name in sorted(names):
            lacking = [each.number for each in answering if not each.has_channel(name)]
            if lacking and is_valid_name(name) and not is_ephemeral(name):
                where = show_numbers(lacking)
                text = f"missing in {where}: it gets nothing that is published there"
                remedy = f"nsqflow create {topic} {name}"
                yield problem(f"channel {name} of {topic}", text, remedy)


async def _check_publishing(
    cluster: CliCluster, partitions: Sequence[LocatedPartition]
) -> list[Finding]:
    """Find topics that can't be published to, as they have no channel."""
    lone = {each.topic.name for each in partitions if not each.topic.channels}
    return [
        problem(
            f"topic {name}",
            "it has no channel, and takes no publishes until it has one",
            f"nsqflow create {name} CHANNEL",
        )
        for name in sorted(lone)
        if await cluster.lacks_channel(name)
    ]


def _check_replicas(partitions: Sequence[LocatedPartition]) -> Iterator[Finding]:
    loss = {
        1: "one replica: without its nsqd, a partition is neither written nor read",
        2: "two replicas: without either nsqd, a partition is not written",
    }
    for replicas, text in loss.items():
        found = [each.topic for each in partitions if each.topic.meta.replica == replicas]
        names = [*dict.fromkeys(topic.name for topic in found)]
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            subject = f"topic{'s' * (len(names) > 1)} {', '.join(names[:_SHOWN])}{more}"
            yield note(subject, text, _MORE_REPLICAS)


def _by_topic(partitions: Iterable[LocatedPartition]) -> Mapping[str, list[LocatedPartition]]:
    found: dict[str, list[LocatedPartition]] = {}
    for each in partitions:
        found.setdefault(each.topic.name, []).append(each)
    return found
