"""The options of ``format("nsq")``, checked before anything is connected.

A wrong option is a ``ConfigError`` of one line: the option, its value, and what is allowed.
Secrets are never shown, nor the value of an option nobody knows: it may be a misspelt secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsqflow.errors import ConfigError
from nsqflow.spark.access import Access
from nsqflow.spark.servers import Servers
from nsqflow.spark.table import BATCH, SINK, SOURCE, STREAM, Table, make, option
from nsqflow.spark.values import (
    CHANNEL,
    PATTERN,
    TARGET,
    TOPIC,
    TOPICS,
    Choice,
    Flag,
    Location,
    Size,
    Time,
    Whole,
)

__all__ = [
    "OPTIONS",
    "Access",
    "Servers",
    "SinkOptions",
    "SourceOptions",
    "parse_batch",
    "parse_sink",
    "parse_stream",
]

_MOST_MESSAGES = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a streaming or batch read takes."""

    topics: tuple[str, ...] = option(
        "topic",
        SOURCE,
        TOPICS,
        "the topics to read; either this or `topicPattern` is given",
        absent=(),
    )
    topic_pattern: str | None = option(
        "topicPattern",
        SOURCE,
        PATTERN,
        "read every topic whose whole name matches, those that come later too",
    )
    channel: str = option(
        "channel",
        SOURCE,
        CHANNEL,
        "the channel to read from; required, and of this query alone",
        absent="",
    )
    servers: Servers
    access: Access = field(default_factory=Access)
    spool: str | None = option(
        "spoolLocation",
        SOURCE,
        Location(),
        "where messages are kept between nsqd and Spark; required, except to peek",
    )
    spool_retention_batches: int = option(
        "spoolRetentionBatches",
        (STREAM,),
        Whole(1, 10_000),
        "how many batches the spool keeps after they are done with",
        default="2",
    )
    partitions_per_nsqd: int = option(
        "partitionsPerNsqd",
        SOURCE,
        Whole(1, 100),
        "how many tasks read from each nsqd and topic at once; above 1 a stall may duplicate",
        default="1",
    )
    max_messages_per_partition: int | None = option(
        "maxMessagesPerPartition",
        SOURCE,
        Whole(1, _MOST_MESSAGES),
        "cut a larger share of one nsqd into more partitions",
    )
    max_messages_per_trigger: int = option(
        "maxMessagesPerTrigger",
        (STREAM,),
        Whole(1, _MOST_MESSAGES),
        "the most messages in one batch",
        default="500000",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        (STREAM,),
        Size("1", "1024g"),
        "the most bytes of bodies in one batch; but each partition takes one message at least",
    )
    min_messages_per_trigger: int | None = option(
        "minMessagesPerTrigger",
        (STREAM,),
        Whole(1, _MOST_MESSAGES),
        "wait for so many before a batch is made, but not beyond `maxTriggerDelay`",
    )
    max_trigger_delay: float = option(
        "maxTriggerDelay",
        (STREAM,),
        Time("1ms", "168h"),
        "how long fewer than `minMessagesPerTrigger` may wait",
        default="15m",
    )
    idle_timeout: float = option(
        "idleTimeout",
        SOURCE,
        Time("10ms", "1h"),
        "how long a task waits for the next message of its share before it does without",
        default="500ms",
    )
    msg_timeout: float = option(
        "msgTimeout",
        SOURCE,
        Time("1s", "24h"),
        "how long nsqd waits for an answer before it gives a message to somebody else",
        default="60s",
    )
    starting_position: str = option(
        "startingPosition",
        (STREAM,),
        Choice("existing", "latest"),
        "where a new query starts; `latest` empties the channel first",
        default="existing",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        SOURCE,
        Flag(),
        "fail where messages may have been lost, instead of going on with a warning",
        default="true",
    )
    dedupe: str = option(
        "dedupe",
        SOURCE,
        Choice("redelivered", "always", "off"),
        "which messages are looked up among those that were read before",
        default="redelivered",
    )
    max_attempts: int | None = option(
        "maxAttempts",
        SOURCE,
        Whole(1, 65534),
        "a message delivered more often than this goes to `deadLetterTopic`",
    )
    dead_letter_topic: str | None = option(
        "deadLetterTopic",
        SOURCE,
        TOPIC,
        "where it goes, on the nsqd it came from; both options or neither",
    )
    include_metadata: bool = option(
        "includeMetadata",
        SOURCE,
        Flag(),
        "give all columns; false gives `body` alone, which is faster",
        default="true",
    )
    mode: str = option(
        "mode",
        (BATCH,),
        Choice("consume", "peek"),
        "`consume` takes the messages out of the channel, `peek` puts them back",
        default="consume",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a streaming or batch write takes."""

    topic: str | None = option(
        "topic",
        (SINK,),
        TARGET,
        "where rows go that name no topic of their own in a column `topic`",
    )
    servers: Servers
    access: Access = field(default_factory=Access)
    max_batch_bytes: int = option(
        "maxBatchBytes",
        (SINK,),
        Size("1k", "1g"),
        "the most bytes in one MPUB; nsqd's own limit is its `--max-body-size` (5m)",
        default="1000000",
    )


OPTIONS = Table(SourceOptions, SinkOptions, Servers, Access)
"""Every option; ``topic`` is there twice, as the two sides mean different things by it."""


def parse_stream(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of ``readStream``."""
    return _source(OPTIONS.read(options, STREAM))


def parse_batch(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of ``read``."""
    return _source(OPTIONS.read(options, BATCH))


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of ``write`` and ``writeStream``."""
    given = OPTIONS.read(options, SINK)
    servers = Servers.of(given)
    return make(SinkOptions, given, servers=servers, access=Access.of(given, servers))


def _source(given: Mapping[str, Any]) -> SourceOptions:
    servers = Servers.of(given).with_http()
    source = make(SourceOptions, given, servers=servers, access=Access.of(given, servers))
    if ("topics" in given) == ("topic_pattern" in given):
        both = "both" if source.topics else "neither"
        raise ConfigError(f"{both} of topic and topicPattern; give one of the two")
    if not source.channel:
        raise ConfigError("channel is missing; it takes a channel's name, of this query alone")
    if source.spool is None and source.mode == "consume":
        raise ConfigError(f"spoolLocation is missing; it takes {Location()}")
    _check_limits(source, given)
    _check_dead_letters(source)
    return source


def _check_limits(source: SourceOptions, given: Mapping[str, Any]) -> None:
    least, most = source.min_messages_per_trigger, source.max_messages_per_trigger
    if least is None and "max_trigger_delay" in given:
        raise ConfigError(
            f"maxTriggerDelay {source.max_trigger_delay:g}s without minMessagesPerTrigger; "
            "it says how long fewer than that may wait"
        )
    if least is not None and least > most:
        raise ConfigError(
            f"minMessagesPerTrigger {least}; allowed is maxMessagesPerTrigger ({most}) or less"
        )
    if source.idle_timeout >= source.msg_timeout:
        # Who waits for more holds what has come, and nsqd would take it back meanwhile.
        raise ConfigError(
            f"idleTimeout {source.idle_timeout:g}s; allowed is less than msgTimeout "
            f"({source.msg_timeout:g}s)"
        )


def _check_dead_letters(source: SourceOptions) -> None:
    topic, pattern = source.dead_letter_topic, source.topic_pattern
    if (source.max_attempts is None) != (topic is None):
        missing = "maxAttempts" if topic else "deadLetterTopic"
        raise ConfigError(f"{missing} is missing; maxAttempts and deadLetterTopic go together")
    if topic is None:
        return
    if topic in source.topics or (pattern is not None and re.fullmatch(pattern, topic)):
        raise ConfigError(f"deadLetterTopic {topic!r}; allowed is a topic that is not read here")
