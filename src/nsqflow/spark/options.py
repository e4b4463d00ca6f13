"""The options of ``format("nsq")``, checked before anything is connected.

A wrong option is a ``ConfigError`` of one line: the option, its value, and what is allowed.
Secrets are never shown, nor is the value of an unknown option: it may be a misspelt secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from nsqflow.address import default_http_address
from nsqflow.config.addresses import HTTP, NSQD
from nsqflow.config.kinds import Boolean, Choice, List, Text, matching
from nsqflow.config.names import CHANNEL, PATTERN, TARGET, TOPIC, TOPICS
from nsqflow.config.numbers import Duration, Integer, Size
from nsqflow.config.options import OptionTable, camel_case, check_exactly_one, create, option
from nsqflow.config.security import Security
from nsqflow.errors import ConfigError

STREAM, BATCH, SINK = "stream", "batch", "sink"
SCOPES = (STREAM, BATCH, SINK)

_SOURCE = (STREAM, BATCH)
_CALLS = {STREAM: "readStream", BATCH: "read", SINK: "write and writeStream"}

# Options of writeStream that Spark passes on to a sink.
_WRITE_STREAM = ("checkpointlocation", "queryname")

_MESSAGES = Integer(1, 10**9)
_READ_ID = Text("1 to 64 letters, digits, '.', '_' and '-'", matching(r"[A-Za-z0-9._-]{1,64}"))
_HTTP_LIST = List(HTTP, secret=True)


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
class ServerOptions:
    """The addresses of the servers: of nsqlookupd, or of the nsqd themselves."""

    # A URL may contain a password.
    lookupd: tuple[str, ...] = option(
        (),
        _HTTP_LIST,
        "HTTP addresses of nsqlookupd, which knows the nsqd; give either this or `nsqd`",
        secret=True,
    )
    nsqd: tuple[str, ...] = option(
        (), List(NSQD), "TCP addresses of the nsqd, where there is no nsqlookupd"
    )
    nsqd_http: tuple[str, ...] = option(
        (),
        _HTTP_LIST,
        "HTTP addresses of the nsqd, as many as in `nsqd` and in the same order; by default the "
        "same hosts with the TCP port + 1",
        scopes=_SOURCE,
        secret=True,
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options that are set; raise ``ConfigError`` if they contradict each other."""
        servers = create(cls, given)
        check_exactly_one(lookupd=servers.lookupd, nsqd=servers.nsqd)
        if servers.nsqd_http and len(servers.nsqd_http) != len(servers.nsqd):
            raise ConfigError(
                f"nsqdHttp has {len(servers.nsqd_http)} addresses and nsqd {len(servers.nsqd)}: "
                "give one for each nsqd"
            )
        return servers

    def with_http(self) -> Self:
        """Return them with default HTTP addresses of the nsqd, if none are given."""
        if self.nsqd_http:
            return self
        return replace(self, nsqd_http=tuple(_http_address_of(nsqd) for nsqd in self.nsqd))

    @property
    def use_https(self) -> bool:
        """Whether an HTTP API uses TLS."""
        return any(text.lower().startswith("https:") for text in (*self.lookupd, *self.nsqd_http))


def _http_address_of(nsqd: str) -> str:
    address = default_http_address(nsqd)
    if address is None:
        raise ConfigError(f"nsqd {nsqd!r} has no port + 1: give its HTTP address in nsqdHttp")
    return HTTP.parse("nsqd", address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access(Security):
    """How to talk to an nsqd: TLS, AUTH and compression."""

    snappy: bool = option(False, Boolean(), "compress the traffic with nsqd with snappy")
    deflate: bool = option(False, Boolean(), "compress it with deflate; not together with `snappy`")

    @classmethod
    def of(cls, given: Mapping[str, Any], servers: ServerOptions) -> Self:
        """Return the options that are set; raise ``ConfigError`` if they contradict each other."""
        access = create(cls, given)
        if access.snappy and access.deflate:
            raise ConfigError("both snappy and deflate are set: choose one of them")
        access.check_given(given, https=servers.use_https)
        return access

    @staticmethod
    def name_of(field: str) -> str:
        """Return the name by which users know a field."""
        return camel_case(field)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a streaming or batch read."""

    topics: tuple[str, ...] = option(
        (),
        TOPICS,
        "the topics to read; give either this or `topicPattern`",
        name="topic",
        scopes=_SOURCE,
    )
    topic_pattern: str | None = option(
        None,
        PATTERN,
        "read every topic whose whole name matches, including topics created later",
        scopes=_SOURCE,
    )
    channel: str = option(
        "", CHANNEL, "the channel to read from; required, and for this query alone", scopes=_SOURCE
    )
    servers: ServerOptions
    access: Access = field(default_factory=Access)
    spool: str | None = option(
        None,
        _LOCATION,
        "where messages are kept between nsqd and Spark; required, except to peek",
        name="spoolLocation",
        scopes=_SOURCE,
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
        scopes=_SOURCE,
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
        scopes=_SOURCE,
    )
    partitions_per_nsqd: int = option(
        1,
        Integer(1, 100),
        "how many tasks read from each nsqd and topic at once; above 1 a stall may duplicate",
        scopes=_SOURCE,
    )
    max_messages_per_partition: int | None = option(
        None, _MESSAGES, "split a larger share of one nsqd into more partitions", scopes=_SOURCE
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
        scopes=_SOURCE,
    )
    msg_timeout: float = option(
        60.0,
        Duration(1, 86_400),
        "how long nsqd waits for an answer before it delivers a message again",
        scopes=_SOURCE,
    )
    starting_position: str = option(
        "existing",
        Choice("existing", "latest"),
        "where a new query starts; `latest` empties the channel first",
        scopes=(STREAM,),
    )
    fail_on_data_loss: bool = option(
        True,
        Boolean(),
        "fail when messages may have been lost, instead of logging a warning",
        scopes=_SOURCE,
    )
    dedupe: str = option(
        "redelivered",
        Choice("redelivered", "always", "off"),
        "which messages are looked up among those read before",
        scopes=_SOURCE,
    )
    max_attempts: int | None = option(
        None,
        Integer(1, 65534),
        "a message delivered more often than this goes to `deadLetterTopic`",
        scopes=_SOURCE,
    )
    dead_letter_topic: str | None = option(
        None,
        TOPIC,
        "where it goes, on the nsqd it came from; give both options or neither",
        scopes=_SOURCE,
    )
    include_metadata: bool = option(
        True,
        Boolean(),
        "return all columns; false returns `body` alone, which is a tenth faster",
        scopes=_SOURCE,
    )
    mode: str = option(
        "consume",
        Choice("consume", "peek"),
        "`consume` takes the messages out of the channel, `peek` puts them back",
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
    return _source(OPTIONS.parse(options, BATCH))


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
    if not source.channel:
        raise ConfigError("channel is missing: must be a channel's name, for this query alone")
    if source.spool is None and source.mode == "consume":
        raise ConfigError(f"spoolLocation is missing: must be {_LOCATION}")
    if "spool_permissions" in given and (source.spool or "").startswith("s3:"):
        raise ConfigError(
            f"spoolPermissions={source.spool_permissions!r} is invalid for a spool on S3: the "
            "bucket's policy decides there"
        )
    if source.read_id is not None and source.mode == "peek":
        raise ConfigError(
            f"readId={source.read_id!r} is invalid with mode=peek: nothing is finished, and each "
            "read may have other messages"
        )
    _check_limits(source, given)
    _check_dead_letters(source)
    return source


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
