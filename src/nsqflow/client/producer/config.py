"""The options of a producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nsqflow.client.body_compression import CODECS
from nsqflow.client.config import ClientConfig
from nsqflow.client.producer.partitioner import PARTITIONERS, Partitioner
from nsqflow.config.kinds import Boolean, Instance
from nsqflow.config.numbers import Integer, Number
from nsqflow.config.options import option
from nsqflow.errors import ConfigError

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """The options of a ``Producer``."""

    publish_timeout: float = option(
        30.0, Number(0, above=True), "seconds for a publish without a `timeout` of its own"
    )
    max_msg_size: int = option(
        MEBIBYTE,
        Integer(1, 2**31 - 9),
        "maximum bytes of a message; larger ones are refused before they are sent (nsqd has its "
        "own `--max-msg-size`)",
    )
    max_body_size: int = option(
        5 * MEBIBYTE, Integer(9, 2**31 - 1), "maximum bytes of a batch (nsqd's `--max-body-size`)"
    )
    max_pending: int = option(
        64 * MEBIBYTE,
        Integer(1),
        "bytes accepted and not answered yet; beyond them `publish` waits and `send` raises "
        "`BufferFullError`",
    )
    connections_per_nsqd: int = option(1, Integer(1, 1000), "connections to each nsqd")
    retry_uncertain: bool = option(
        False,
        Boolean(),
        "send again what was sent and not answered: at least once, instead of `PublishUncertain`",
    )
    partitioner: str | Partitioner = option(
        "murmur3",
        Instance(
            "'murmur3', 'java' or a function of key and number of partitions",
            lambda value: value in PARTITIONERS or callable(value),
        ),
        "which partition a `key` belongs to, on the redesigned NSQ: `murmur3` (as Go's client "
        "recommends), `java` (as the Java SDK does) or a function of key and number of "
        "partitions; the same for all producers of a topic",
    )

    body_compression: Mapping[str, str] = option(
        dict,
        Instance(
            "a mapping of topics to 'gzip', 'snappy' or 'lz4'",
            lambda value: isinstance(value, Mapping) and {*value.values()} <= {*CODECS},
        ),
        "topics of the redesigned NSQ, with headers, whose message bodies are compressed: "
        "`gzip`, `snappy` or `lz4`, as Go's client does and unpacks",
    )

    def __post_init__(self) -> None:
        # (super() without arguments does not work in a dataclass with slots.)
        super(ProducerConfig, self).__post_init__()
        if self.max_body_size < self.max_msg_size + 8:
            raise ConfigError(
                f"max_body_size={self.max_body_size} is invalid: must be >= "
                f"{self.max_msg_size + 8}, which one message of max_msg_size takes"
            )
        if self.max_pending < self.max_body_size:
            raise ConfigError(
                f"max_pending={self.max_pending} is invalid: must be >= max_body_size "
                f"({self.max_body_size})"
            )
