"""Looks up the topics of a pipeline, and checks that they can be used as the file says.

A topic of the redesigned NSQ must exist before it is read or written; a classic one is created on
first use, but can't be read in order or from the past.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from contextlib import suppress

from nsqflow.admin import Cluster, Lookupd, NsqdNode
from nsqflow.errors import ConfigError, DiscoveryError, NetworkError
from nsqflow.pipelines.model import Sink, Source
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.validation import option_error
from nsqflow.protocol import Dialect, LookupAnswer
from nsqflow.protocol.dialect import dialect_of_version
from nsqflow.spark.options import SinkOptions, SourceOptions, parse_sink, parse_stream
from nsqflow.spark.source.partition_monitor import PartitionMonitor, check_classic, missing_topic

_TIMEOUT = 5.0


class _ClassicTopicError(ConfigError):
    """``--from`` is given for a classic topic, so that the error is not one of the file."""


def topic_error(pipeline: Pipeline) -> ConfigError | None:
    """Return why topics can't be read or written; None if they can, or no server answers."""
    owner: Source | Sink = pipeline.source
    try:
        if pipeline.source.files is None:
            options = parse_stream(pipeline.source_options(pipeline.sinks[0]))
            _check_source(options, begins=pipeline.begin_at is not None)
        for sink in pipeline.sinks:
            owner = sink
            if sink.format == "nsq":
                _check_target(parse_sink(pipeline.sink_options(sink)))
    except _ClassicTopicError as error:
        return error
    except ConfigError as error:
        return option_error(owner, error)
    return None


def make_cluster(options: SourceOptions | SinkOptions) -> Cluster:
    """Return the servers that a source or a sink names."""
    servers = options.servers
    return Cluster(
        lookupd=servers.lookupd,
        nsqd=servers.nsqd,
        nsqd_http=servers.nsqd_http,
        tls=options.access.http_context() if servers.use_https else None,
        timeout=_TIMEOUT,
    )


async def look_up(
    cluster: Cluster, options: SourceOptions, *, begins: bool = False
) -> dict[str, LookupAnswer]:
    """Look up all topics of a source; ``begins`` if the command line says where it begins.

    Raises ``ConfigError`` for a topic that can't be read, and ``DiscoveryError`` if no nsqlookupd
    answers.
    """
    topics = options.topics
    if not topics:
        pattern = re.compile(options.topic_pattern or "")
        topics = tuple(name for name in await cluster.topics() if pattern.fullmatch(name))
    answers = await cluster.lookup(topics)
    redesigned = redesigned_topics(answers, options)
    classic = [each for each in answers if answers[each].producers and each not in redesigned]
    _check_classic(classic, options, begins=begins)
    await _check_exist(cluster, [each for each in answers if each not in redesigned], answers)
    return answers


def redesigned_topics(
    answers: Mapping[str, LookupAnswer], options: SourceOptions
) -> dict[str, LookupAnswer]:
    """Return the topics of the redesigned NSQ, as the source will take them."""
    monitor = PartitionMonitor(options, options.access.http_context)
    monitor.update(answers)
    return {topic: answers[topic] for topic in monitor.topics}


def _check_classic(topics: Collection[str], options: SourceOptions, *, begins: bool) -> None:
    if begins and topics:
        # With "latest" it would empty the channel, which may be one with messages to be read.
        raise _ClassicTopicError(
            f"--from is for topics of the redesigned NSQ: {min(topics)!r} is a classic topic"
        )
    check_classic(topics, options)


def _check_source(options: SourceOptions, *, begins: bool) -> None:
    cluster = make_cluster(options)
    with suppress(DiscoveryError, NetworkError):
        if cluster.lookupds:
            asyncio.run(look_up(cluster, options, begins=begins))
        else:
            _check_classic(options.topics or [options.topic_pattern or ""], options, begins=begins)
            asyncio.run(_check_nsqd(cluster))


def _check_target(options: SinkOptions) -> None:
    async def check(cluster: Cluster, topic: str) -> None:
        answers = await cluster.lookup([topic])
        meta = answers[topic].meta
        if not (answers[topic].partitions or (meta and meta.partition_num)):
            await _check_exist(cluster, [topic], answers)

    cluster = make_cluster(options)
    if cluster.lookupds and options.topic is not None:
        with suppress(DiscoveryError, NetworkError):
            asyncio.run(check(cluster, options.topic))


async def _check_exist(
    cluster: Cluster, topics: Collection[str], answers: Mapping[str, LookupAnswer]
) -> None:
    """Raise ``ConfigError`` for a topic that no server has and nothing creates."""
    missing = [topic for topic in topics if not answers[topic].producers]
    if not missing:
        return
    members = await cluster.ask(cluster.lookupds, Lookupd.members)
    if any(known is not None for _, known in members):
        raise missing_topic(missing[0])


async def _check_nsqd(cluster: Cluster) -> None:
    """Raise ``ConfigError`` for an nsqd that is to be found through nsqlookupd."""

    async def read_version(node: NsqdNode) -> str:
        return str((await node.http.info()).get("version"))

    for node, version in await cluster.ask(await cluster.nodes(), read_version):
        if dialect_of_version(version) is Dialect.REDESIGNED:
            raise ConfigError(
                f"nsqd {node.address} is one of the redesigned NSQ (version {version}): give "
                "lookupd, as leaders move"
            )
