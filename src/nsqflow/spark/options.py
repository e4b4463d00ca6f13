"""The options of ``format("nsq")``, checked before anything is connected.

A wrong option is a ``ConfigError`` of one line: the option, its value, and what is allowed.
Secrets are never shown, nor is the value of an unknown option: it may be a misspelt secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsqflow.config.kinds import Boolean, Choice, Text, matching
from nsqflow.config.names import CHANNEL, PATTERN, TARGET, TOPIC, TOPICS
from nsqflow.config.numbers import Duration, Integer, Size
from nsqflow.config.options import OptionTable, camel_case, check_exactly_one, create, option
from nsqflow.errors import ConfigError
from nsqflow.spark.server_options import BATCH, SINK, SOURCE, STREAM, Access, ServerOptions
from nsqflow.spark.starting_position import (
    ENDING_TIMESTAMP,
    EXISTING,
    STARTING_POSITION,
    is_time,
    time_of,
)

_CALLS = {STREAM: "readStream", BATCH: "read", SINK: "write and writeStream"}

# Options of writeStream that Spark passes on to a sink.
_WRITE_STREAM = ("checkpointlocation", "queryname")

_MESSAGES = Integer(1, 10**9)
_READ_ID = Text("1 to 64 letters, digits, '.', '_' and '-'", matching(r"[A-Za-z0-9._-]{1,64}"))


def _spool_location(text: str) -> str:
    from nsqflow.spark.spool.store import check_location

    return check_location(text)


class _Location(Text):
    """The location of a spool; the errors of its store name the option."""

    def parse(self, name: str, text: str) -> str:
        """Return it as the store writes it."""
        return self.validate(text)


_LOCATION = _Location("an absolute path, a file:// URL or s3://bucket/prefix", _spool_location)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a streaming or batch read."""

    topics: tuple[str, ...] = option(
        (),
        TOPICS,
        "the topics to read; give either this or `topicPattern`",
        name="topic",
        scopes=SOURCE,
    )
    topic_pattern: str | None = option(
        None,
        PATTERN,
        "read every topic whose whole name matches, including topics created later",
        scopes=SOURCE,
    )
    channel: str = option(
        "",
        CHANNEL,
        "the channel to read from; required but for `mode=range`, and for this query alone",
        scopes=SOURCE,
    )
    servers: ServerOptions
    access: Access = field(default_factory=Access)
    spool: str | None = option(
        None,
        _LOCATION,
        "where messages are kept between nsqd and Spark; required, except for `mode=peek` and "
        "`mode=range`",
        name="spoolLocation",
        scopes=SOURCE,
    )
    spool_retention_batches: int = option(
        2,
        Integer(1, 10_000),
        "how many batches the spool keeps after they are committed",
        scopes=(STREAM,),
    )
    spool_permissions: str = option(
        "owner",
        Choice("owner", "group", "umask"),
        "which users of the machine may read and write the spool's files",
        scopes=SOURCE,
    )
    lease_timeout: float = option(
        30.0,
        Duration(3, 600),
        "how long the heartbeat of a query on another machine may stand still before a restart "
        "takes its spool over",
        scopes=(STREAM,),
    )
    allow_shared_channel: bool = option(
        False,
        Boolean(),
        "read a channel that another query reads too: each gets a part of the messages",
        scopes=SOURCE,
    )
    partitions_per_nsqd: int = option(
        1,
        Integer(1, 100),
        "how many tasks read from each nsqd and topic at once; above 1 a stall may duplicate",
        scopes=SOURCE,
    )
    max_messages_per_partition: int | None = option(
        None,
        _MESSAGES,
        "split a larger share of one nsqd into more partitions; of a partition of the redesigned "
        "NSQ a batch takes no more than this, and only `mode=range` splits it",
        scopes=SOURCE,
    )
    max_messages_per_trigger: int = option(
        500_000, _MESSAGES, "maximum number of messages in one batch", scopes=(STREAM,)
    )
    max_bytes_per_trigger: int | None = option(
        None,
        Size("1", "1024g"),
        "maximum bytes of message bodies in one batch; each partition takes at least one message",
        scopes=(STREAM,),
    )
    min_messages_per_trigger: int | None = option(
        None,
        _MESSAGES,
        "wait for this many messages before a batch is started, up to `maxTriggerDelay`",
        scopes=(STREAM,),
    )
    max_trigger_delay: float = option(
        900.0,
        Duration(0.001, 7 * 86_400),
        "how long fewer than `minMessagesPerTrigger` may wait",
        scopes=(STREAM,),
    )
    idle_timeout: float = option(
        0.5,
        Duration(0.01, 3600),
        "how long a task waits for the next message of its share before it ends without it",
        scopes=SOURCE,
    )
    msg_timeout: float = option(
        60.0,
        Duration(1, 86_400),
        "how long nsqd waits for an answer before it delivers a message again",
        scopes=SOURCE,
    )
    starting_position: str = option(
        EXISTING,
        STARTING_POSITION,
        "where a new query starts, or a range; `latest` empties a classic channel first, the "
        "others are for the redesigned NSQ",
        scopes=SOURCE,
    )
    ending_timestamp: str | None = option(
        None,
        ENDING_TIMESTAMP,
        "where a read with `mode=range` ends: before the first message at this time",
        scopes=(BATCH,),
    )
    ordered: bool = option(
        False,
        Boolean(),
        "read an ordinary topic of the redesigned NSQ in order, one message at a time; topics that "
        "are ordered are read so anyway",
        scopes=SOURCE,
    )
    fail_on_data_loss: bool = option(
        True,
        Boolean(),
        "fail when messages may have been lost, instead of logging a warning",
        scopes=SOURCE,
    )
    dedupe: str = option(
        "redelivered",
        Choice("redelivered", "always", "off"),
        "which messages are looked up among those read before",
        scopes=SOURCE,
    )
    max_attempts: int | None = option(
        None,
        Integer(1, 65534),
        "a message delivered more often than this goes to `deadLetterTopic`",
        scopes=SOURCE,
    )
    dead_letter_topic: str | None = option(
        None,
        TOPIC,
        "where it goes: on the nsqd it came from, or to any partition of a topic of the redesigned "
        "NSQ; give both options or neither",
        scopes=SOURCE,
    )
    include_metadata: bool = option(
        True,
        Boolean(),
        "return all columns; false returns `body` alone, which is a tenth faster",
        scopes=SOURCE,
    )
    mode: str = option(
        "consume",
        Choice("consume", "peek", "range"),
        "`consume` takes the messages out of the channel, `peek` leaves them there, `range` reads "
        "a part of a topic of the redesigned NSQ without a channel",
        scopes=(BATCH,),
    )
    read_id: str | None = option(
        None,
        _READ_ID,
        "a name for this read: the same name has the same rows, until it is released",
        scopes=(BATCH,),
    )
    max_messages: int | None = option(
        None, _MESSAGES, "maximum number of messages to read", scopes=(BATCH,)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a streaming or batch write."""

    topic: str | None = option(
        None, TARGET, "the topic of rows that have none in a column `topic`", scopes=(SINK,)
    )
    servers: ServerOptions
    access: Access = field(default_factory=Access)
    max_batch_bytes: int = option(
        1_000_000,
        Size("1k", "1g"),
        "maximum bytes of one MPUB; nsqd's own limit is its `--max-body-size` (5m)",
        scopes=(SINK,),
    )
    partitioner: str | None = option(
        None,
        Choice("murmur3", "java"),
        "which partition of a topic of the redesigned NSQ a `key` belongs to; the same for all of "
        "the topic's producers",
        default_text="murmur3",
        scopes=(SINK,),
    )


class _SparkOptions(OptionTable):
    """The options of ``format("nsq")``, by the calls that take them."""

    def unknown(self, name: str, scope: str = "") -> ConfigError:
        """Return the error for a name that is unknown, or belongs to another call."""
        lower = name.lower()
        if lower in ("path", "paths"):
            return ConfigError(f"{name}: load, save and start take no path; see option topic")
        if lower in _WRITE_STREAM:
            return ConfigError(f"{name} is an option of writeStream, not of {_CALLS[scope]}")
        elsewhere = [one for one in self if one.name.lower() == lower]
        if elsewhere:
            calls = " and ".join(_CALLS[place] for place in elsewhere[-1].scopes)
            return ConfigError(
                f"{elsewhere[-1].name} is an option of {calls}, not of {_CALLS[scope]}"
            )
        return super().unknown(name, scope)


OPTIONS = _SparkOptions(SourceOptions, SinkOptions, ServerOptions, Access, naming=camel_case)
"""All options; there are two ``topic``, one for sources and one for sinks."""


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether there is an option that only ``read`` has."""
    found = (OPTIONS.get(name, BATCH) for name in options)
    return any(each is not None and each.scopes == (BATCH,) for each in found)


def parse_stream(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of ``readStream``."""
    return _source(OPTIONS.parse(options, STREAM))


def parse_batch(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of ``read``."""
    given = OPTIONS.parse(options, BATCH)
    source = _source(given)
    _check_mode(source, given)
    return source


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of ``write`` and ``writeStream``."""
    own = {name: text for name, text in options.items() if name.lower() not in _WRITE_STREAM}
    given = OPTIONS.parse(own, SINK)
    servers = ServerOptions.of(given)
    return create(SinkOptions, given, servers=servers, access=Access.of(given, servers))


def _source(given: Mapping[str, Any]) -> SourceOptions:
    servers = ServerOptions.of(given).with_http()
    source = create(SourceOptions, given, servers=servers, access=Access.of(given, servers))
    check_exactly_one(topic="topics" in given, topicPattern="topic_pattern" in given)
    if not source.channel and source.mode != "range":
        raise ConfigError("channel is missing: must be a channel's name, for this query alone")
    if source.spool is None and source.mode == "consume":
        raise ConfigError(f"spoolLocation is missing: must be {_LOCATION}")
    if "spool_permissions" in given and (source.spool or "").startswith("s3:"):
        raise ConfigError(
            f"spoolPermissions={source.spool_permissions!r} is invalid for a spool on S3: the "
            "bucket's policy decides there"
        )
    _check_limits(source, given)
    _check_dead_letters(source)
    return source


def _check_mode(source: SourceOptions, given: Mapping[str, Any]) -> None:
    if source.read_id is not None and source.mode != "consume":
        raise ConfigError(
            f"readId={source.read_id!r} is invalid with mode={source.mode}: nothing is finished, "
            "and there is nothing to keep"
        )
    if source.mode == "range":
        if source.channel:
            raise ConfigError(
                f"channel={source.channel!r} is invalid with mode=range, which leaves all channels "
                "alone"
            )
        if source.starting_position == EXISTING and "starting_position" in given:
            raise ConfigError(
                "startingPosition='existing' is invalid with mode=range: no channel is read"
            )
        _check_times(source)
        if not source.servers.lookupd:
            raise ConfigError("lookupd is missing: mode=range is for topics of the redesigned NSQ")
    elif source.ending_timestamp is not None:
        raise ConfigError(
            f"endingTimestamp={source.ending_timestamp!r} is invalid with mode={source.mode}: must "
            "be given with mode=range"
        )
    elif "starting_position" in given:
        raise ConfigError(
            f"startingPosition={source.starting_position!r} is invalid with mode={source.mode}: "
            "must be given with mode=range, or with readStream"
        )


def _check_times(source: SourceOptions) -> None:
    """Check that a range does not end before it begins."""
    start, end = source.starting_position, source.ending_timestamp
    if end is not None and is_time(start) and time_of(end) < time_of(start):
        raise ConfigError(
            f"endingTimestamp={end!r} is invalid: must not be before startingPosition ({start})"
        )


def _check_limits(source: SourceOptions, given: Mapping[str, Any]) -> None:
    low, high = source.min_messages_per_trigger, source.max_messages_per_trigger
    if low is None and "max_trigger_delay" in given:
        raise ConfigError(
            f"maxTriggerDelay={source.max_trigger_delay:g}s is invalid without "
            "minMessagesPerTrigger: it is how long fewer messages than that may wait"
        )
    if low is not None and low > high:
        raise ConfigError(
            f"minMessagesPerTrigger={low} is invalid: must be <= maxMessagesPerTrigger ({high})"
        )
    if source.idle_timeout >= source.msg_timeout:
        # A task that waits for more messages holds those that arrived, and nsqd would requeue them
        # meanwhile.
        raise ConfigError(
            f"idleTimeout={source.idle_timeout:g}s is invalid: must be less than msgTimeout "
            f"({source.msg_timeout:g}s)"
        )


def _check_dead_letters(source: SourceOptions) -> None:
    topic, pattern = source.dead_letter_topic, source.topic_pattern
    if (source.max_attempts is None) != (topic is None):
        missing = "maxAttempts" if topic else "deadLetterTopic"
        raise ConfigError(f"{missing} is missing: maxAttempts and deadLetterTopic go together")
    if topic is None:
        return
    if topic in source.topics or (pattern is not None and re.fullmatch(pattern, topic)):
        raise ConfigError(
            f"deadLetterTopic={topic!r} is invalid: must be a topic that is not read here"
        )
