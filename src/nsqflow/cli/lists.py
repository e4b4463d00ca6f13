"""``nsqflow topics``, ``channels`` and ``nodes``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nsqflow.admin import NsqdNode, NsqdStats
from nsqflow.cli.cluster import CliCluster, is_redesigned, no_nsqd
from nsqflow.cli.completion import TopicArgument
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import FAILED, OK, error_message, one_line
from nsqflow.cli.terminal import print_err, print_json, show_name, show_table
from nsqflow.protocol.names import check_topic

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def topics(
    cluster: CliCluster,
    json: JsonOption = False,
) -> int:
    """List the topics, one per line.

    Example:
      $ nsqflow topics
      $ nsqflow topics --json
    """
    for name in run_async(cluster.topics(), f"asking {cluster.servers}"):
        if json:
            print_json({"topic": name})
        else:
            print(show_name(name))
    return report_errors(cluster)


def channels(
    cluster: CliCluster,
    topic: TopicArgument,
    json: JsonOption = False,
) -> int:
    """List the channels of a topic, one per line.

    Example:
      $ nsqflow channels orders
    """
    check_topic(topic)
    for name in run_async(cluster.channels(topic), f"asking {cluster.servers}"):
        if json:
            print_json({"topic": topic, "channel": name})
        else:
            print(show_name(name))
    return report_errors(cluster)


def nodes(
    cluster: CliCluster,
    json: JsonOption = False,
) -> int:
    """List the nsqd: their addresses and versions, and the messages that wait on each.

    Example:
      $ nsqflow nodes
    """
    found = run_async(_nodes(cluster), f"asking {cluster.servers}")
    if json:
        for node in found:
            print_json(node)
    else:
        show_table(list(_COLUMNS), [list(node.values()) for node in found])
    if not found:
        print_err(one_line(no_nsqd(cluster.servers)))
    return report_errors(cluster)


def report_errors(cluster: CliCluster, *, all_failed: bool = False) -> int:
    """Print the errors of servers, with hints if ``all_failed``; return the exit code."""
    for error in cluster.errors:
        print_err(one_line(error) if all_failed else error_message(error))
    return FAILED if cluster.errors else OK


_COLUMNS = ("nsqd", "http", "host", "version", "topics", "depth", "health")


async def _nodes(cluster: CliCluster) -> list[dict[str, Any]]:
    async def ask(node: NsqdNode) -> tuple[str, NsqdStats]:
        host = str((await node.http.info()).get("hostname", ""))
        return host, await node.http.stats(include_clients=False)

    nodes = await cluster.nodes()
    answers = dict(await cluster.for_each(nodes, ask))
    if nodes and not answers and not cluster.lookupds:
        raise cluster.no_answer()
    return [_node(node, *answers.get(node, ("", None))) for node in nodes]


def _node(node: NsqdNode, host: str, stats: NsqdStats | None) -> dict[str, Any]:
    known = node.registration
    values: list[Any] = [known.hostname, known.version] if known else ["", ""]
    values += [None, None, "unreachable"]
    if stats is not None:
        topics = {topic.name for topic in stats.topics}  # a redesigned nsqd lists each partition
        depth = sum(topic.depth + sum(c.depth for c in topic.channels) for topic in stats.topics)
        waiting = None if is_redesigned(stats.version) else depth  # would be bytes
        values = [host, stats.version, len(topics), waiting, stats.health]
    return dict(zip(_COLUMNS, (node.address, node.http.address, *values), strict=True))
