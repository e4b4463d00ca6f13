"""``nsqflow topics``, ``channels`` and ``nodes``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from nsqflow.admin import NsqdNode, NsqdStats, PartitionedTopic
from nsqflow.cli.cluster import CliCluster, is_redesigned, is_redesigned_node, no_nsqd
from nsqflow.cli.completion import TopicArgument
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import FAILED, OK, error_message, one_line
from nsqflow.cli.partition_table import (
    LocatedPartition,
    PartitionTable,
    find_partitions,
    topic_stats,
)
from nsqflow.cli.terminal import (
    Cell,
    on_terminal,
    print_err,
    print_json,
    show_name,
    show_table,
)
from nsqflow.protocol.lookup import TopicMeta
from nsqflow.protocol.names import check_topic

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def topics(
    cluster: CliCluster,
    json: JsonOption = False,
) -> int:
    """List the topics, one per line.

    With --json, topics of the redesigned NSQ have their partitions, replicas and settings; on a
    terminal there is a table of these.

    Example:
      $ nsqflow topics
      $ nsqflow topics --json
    """
    names, found = run_async(_topics(cluster), f"asking {cluster.servers}")
    if json:
        for name in names:
            print_json({"topic": name} | (_settings(found[name].meta) if name in found else {}))
    elif found and on_terminal():
        show_table(list(_TOPIC_COLUMNS), [_topic_row(name, found.get(name)) for name in names])
    else:
        for name in names:
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

    Those of the redesigned NSQ also have the partitions that they lead, and those that they
    follow: of these they have a copy.

    Example:
      $ nsqflow nodes
      $ nsqflow nodes --json
    """
    found = run_async(_nodes(cluster), f"asking {cluster.servers}")
    if json:
        for node in found:
            print_json(node)
    else:
        redesigned = any(node["leads"] is not None for node in found)
        heads = [*_COLUMNS, *(_PARTITION_COLUMNS if redesigned else ())]
        show_table(heads, [[_cell(node[head]) for head in heads] for node in found])
    if not found:
        print_err(one_line(no_nsqd(cluster.servers)))
    return report_errors(cluster)


def report_errors(cluster: CliCluster, *, all_failed: bool = False) -> int:
    """Print the errors of servers, with hints if ``all_failed``; return the exit code."""
    show = one_line if all_failed else error_message
    for text in dict.fromkeys(map(show, cluster.errors)):  # several requests may fail alike
        print_err(text)
    return FAILED if cluster.errors else OK


_TOPIC_COLUMNS = ("topic", "partitions", "replicas", "ordered", "extended")
_COLUMNS = ("nsqd", "http", "host", "version", "topics", "depth", "health")
_PARTITION_COLUMNS = ("leads", "follows")


async def _topics(cluster: CliCluster) -> tuple[list[str], dict[str, PartitionedTopic]]:
    names = await cluster.topics()
    return names, await cluster.partitioned_topics(names)


def _settings(meta: TopicMeta) -> dict[str, Any]:
    return {
        "partitions": meta.partition_num,
        "replicas": meta.replica,
        "ordered": meta.ordered,
        "extended": meta.extend_support,
        "multi_part": meta.multi_part,
        "registered_channels": meta.disable_channel_auto_create,
    }


def _topic_row(name: str, topic: PartitionedTopic | None) -> list[Cell]:
    if topic is None:
        return [show_name(name), None, None, "-", "-"]
    meta = topic.meta
    flags = ("yes" if flag else "no" for flag in (meta.ordered, meta.extend_support))
    return [name, meta.partition_num, meta.replica, *flags]


async def _nodes(cluster: CliCluster) -> list[dict[str, Any]]:
    async def ask(node: NsqdNode) -> tuple[str, NsqdStats]:
        host = str((await node.http.info()).get("hostname", ""))
        return host, await node.http.stats(include_clients=False)

    nodes = await cluster.nodes()
    answers = dict(await cluster.for_each(nodes, ask))
    if nodes and not answers and not cluster.lookupds:
        raise cluster.no_answer()
    table = await find_partitions(cluster, nodes)
    return [_node(node, table, *answers.get(node, ("", None))) for node in nodes]


def _node(
    node: NsqdNode, table: PartitionTable, host: str, stats: NsqdStats | None
) -> dict[str, Any]:
    known = node.registration
    values: list[Any] = [known.hostname, known.version] if known else ["", ""]
    values += [None, None, "unreachable"]
    redesigned = is_redesigned(stats.version) if stats else is_redesigned_node(node)
    led = [each for each in table.partitions if each.leader == node.address]
    if stats is not None:
        topics = {topic.name for topic in stats.topics}  # a redesigned nsqd lists each partition
        counted = stats.topics
        if redesigned:  # its own counts are bytes, and those of copies say nothing
            counted = tuple(topic_stats(each.stats) for each in led if each.stats is not None)
        depth = sum(topic.depth + sum(c.depth for c in topic.channels) for topic in counted)
        # Without nsqlookupd it is not known what it leads.
        waiting = depth if known or not redesigned else None
        values = [host, stats.version, len(topics), waiting, stats.health]
    parts: list[Any] = [None, None]
    if redesigned and known:
        copies = (each for each in table.partitions if node.address in each.copies)
        parts = [_numbers(led), _numbers(each for each in copies if each.leader != node.address)]
    columns = (*_COLUMNS, *_PARTITION_COLUMNS)
    return dict(zip(columns, (node.address, node.http.address, *values, *parts), strict=True))


def _numbers(partitions: Iterable[LocatedPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic."""
    found: dict[str, list[int]] = {}
    for each in partitions:
        found.setdefault(each.topic.name, []).append(each.number)
    return found


def _cell(value: Any) -> Cell:
    """Return a value as a cell; partitions as ``orders:0,2 returns:1``."""
    if not isinstance(value, dict):
        cell: Cell = value
        return cell
    return " ".join(f"{topic}:{','.join(map(str, some))}" for topic, some in value.items()) or "-"
