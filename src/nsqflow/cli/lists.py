"""The verbs topics, channels and nodes: what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nsqflow.admin import NsqdStats
from nsqflow.cli.cluster import Cluster, Place, is_redesigned, no_nsqd
from nsqflow.cli.completion import TopicArgument
from nsqflow.cli.errors import FAILED, OK, line, words
from nsqflow.cli.screen import emit, note, show_table
from nsqflow.cli.servers import ConfigOption, LookupdOption, NsqdHttpOption, NsqdOption, Servers
from nsqflow.cli.signals import run
from nsqflow.protocol.names import check_topic

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def topics(
    json: JsonOption = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """List the topics, one per line.

    Example:
      $ nsqflow topics
      $ nsqflow topics --json
    """
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    for name in run(cluster.topics(), f"asking {cluster.servers}"):
        if json:
            emit({"topic": name})
        else:
            print(name)
    return complete(cluster)


def channels(
    topic: TopicArgument,
    json: JsonOption = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """List the channels of a topic, one per line.

    Example:
      $ nsqflow channels orders
    """
    check_topic(topic)
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    for name in run(cluster.channels(topic), f"asking {cluster.servers}"):
        if json:
            emit({"topic": topic, "channel": name})
        else:
            print(name)
    return complete(cluster)


def nodes(
    json: JsonOption = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """List the nsqd: where they are, their versions, and what waits on each.

    Example:
      $ nsqflow nodes
    """
    cluster = Cluster(Servers.of(lookupd, nsqd, nsqd_http, config))
    found = run(_nodes(cluster), f"asking {cluster.servers}")
    if json:
        for node in found:
            emit(node)
    else:
        show_table(list(_COLUMNS), [list(node.values()) for node in found])
    if not found:
        note(line(no_nsqd(cluster.servers)))
    return complete(cluster)


def complete(cluster: Cluster, *, in_vain: bool = False) -> int:
    """Tell which daemons gave no answer, with hints if none did; gives the exit code."""
    for trouble in cluster.troubles:
        note(line(trouble) if in_vain else words(trouble))
    return FAILED if cluster.troubles else OK


_COLUMNS = ("nsqd", "http", "host", "version", "topics", "depth", "health")


async def _nodes(cluster: Cluster) -> list[dict[str, Any]]:
    async def ask(place: Place) -> tuple[str, NsqdStats]:
        host = str((await place.http.info()).get("hostname", ""))
        return host, await place.http.stats(include_clients=False)

    places = await cluster.places()
    answers = dict(await cluster.each(places, ask))
    if places and not answers and not cluster.lookupds:
        cluster.give_up()
    return [
        _reached(place, *answers[place]) if place in answers else _unreached(place)
        for place in places
    ]


def _reached(place: Place, host: str, stats: NsqdStats) -> dict[str, Any]:
    topics = {topic.name for topic in stats.topics}  # a redesigned nsqd has a row per partition
    depth = sum(topic.depth + sum(c.depth for c in topic.channels) for topic in stats.topics)
    waiting = None if is_redesigned(stats.version) else depth  # which would be in bytes
    return _node(place, host, stats.version, len(topics), waiting, stats.health)


def _unreached(place: Place) -> dict[str, Any]:
    host, version = (place.node.hostname, place.node.version) if place.node else ("", "")
    return _node(place, host, version, None, None, "unreachable")


def _node(place: Place, *values: Any) -> dict[str, Any]:
    return dict(zip(_COLUMNS, (place.address, place.http.address, *values), strict=True))
