"""The options of ``nsqflow pub`` about each message, and whether the topic can take them.

It is checked before anything is published: what is refused later may follow messages that are
stored already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import typer

from nsqflow.admin import PartitionedTopic
from nsqflow.cli.cluster import CliCluster, is_redesigned_node, unknown_topic
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.partitions import check_lookupd, choose_partitions, find_partitioned
from nsqflow.client.producer.message_options import make_batch
from nsqflow.errors import ConfigError

KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="TEXT",
        help="Publish to the partition of this key, in order. For topics of the redesigned NSQ, "
        "as --partition, --trace, --header and --tag are.",
    ),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", metavar="N", min=0, help="Publish to this partition, in order."),
]
TraceOption = Annotated[
    int | None,
    typer.Option(
        "--trace",
        metavar="ID",
        help="Trace the messages by this number, and print where each is stored.",
    ),
]
HeadersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME=VALUE",
        help="A header of each message; may be repeated. For topics that were created with "
        "headers (extended).",
    ),
]
TagOption = Annotated[
    str | None,
    typer.Option("--tag", metavar="TAG", help="The tag of each message; for the same topics."),
]


# How an error begins that names an argument of Producer.publish.
_ARGUMENT = re.compile("^(key|tag|trace|header)(?:=b?| )")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """What each message is published with."""

    delay: float | None = None
    key: str | None = None
    partition: int | None = None
    trace: int | None = None
    headers: Mapping[str, Any] | None = None
    tag: str | None = None

    @classmethod
    def of(cls, *, headers: Iterable[str] | None, **options: Any) -> Self:
        """Return the options; raise ``ConfigError`` for what no topic takes."""
        made = cls(headers=_parse_headers(headers or ()) or None, **options)
        if made.key is not None and made.partition is not None:
            raise CommandError("--key and --partition are both given: give one", code=USAGE_ERROR)
        try:
            make_batch("topic", b"body", 0.0, **made.for_topic, **made.for_message)
        except ConfigError as error:
            raise ConfigError(_ARGUMENT.sub(r"--\1 ", str(error))) from None
        return made

    @property
    def for_topic(self) -> dict[str, Any]:
        """The options of ``Producer.publish`` that ``publish_many`` has too."""
        key = None if self.key is None else os.fsencode(self.key)
        return {"key": key, "partition": self.partition}

    @property
    def for_message(self) -> dict[str, Any]:
        """The options that a message must be published on its own for."""
        names = ("delay", "trace", "headers", "tag")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _redesigned_option(self) -> str | None:
        """Return the first option for topics of the redesigned NSQ that is given."""
        for name in ("key", "partition", "trace", "headers", "tag"):
            if getattr(self, name) is not None:
                return f"--{name}".removesuffix("s")
        return None

    async def check_topic(self, cluster: CliCluster, name: str) -> None:
        """Raise ``CommandError`` if the topic can't take them."""
        option = self._redesigned_option()
        if option is not None:
            hint = "classic NSQ has no partitions, keys, trace ids, headers or tags"
            self._check_partitioned(await find_partitioned(cluster, name, option, hint))
            return
        if (topic := await cluster.partitioned_topic(name)) is not None:
            self._check_partitioned(topic)
        elif cluster.lookupds and all(map(is_redesigned_node, await cluster.nodes())):
            known = await cluster.topics()
            if name not in known:  # and no publish would create it
                raise unknown_topic(name, known)

    def check_servers(self, cluster: CliCluster) -> None:
        """Raise ``CommandError`` if an option needs nsqlookupd, and none is named."""
        if (option := self._redesigned_option()) is not None:
            check_lookupd(cluster.servers, option)

    def _check_partitioned(self, topic: PartitionedTopic) -> None:
        if self.delay is not None:
            raise CommandError(
                f"--delay is for topics of the classic NSQ: {topic.name!r} is one of the "
                "redesigned NSQ, which defers nothing that is published",
                "a consumer can requeue a message with a delay",
                USAGE_ERROR,
            )
        if self.partition is not None:
            choose_partitions(topic, [self.partition])
        if (self.headers or self.tag) and not topic.meta.extend_support:
            raise CommandError(
                f"{'--header' if self.headers else '--tag'} needs a topic with headers: "
                f"{topic.name!r} was created without",
                "'nsqflow create TOPIC --extended' creates one",
                USAGE_ERROR,
            )


def _parse_headers(texts: Iterable[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (sign and name):
            raise CommandError(f"--header {text!r} is invalid: must be NAME=VALUE", "", USAGE_ERROR)
        if name in headers:
            raise CommandError(f"--header {name!r} is given twice", "", USAGE_ERROR)
        headers[name] = value
    return headers
