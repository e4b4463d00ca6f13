"""The topic that ``nsqflow spool recover --publish`` publishes to, and what it keeps of each row.

A row of the redesigned NSQ goes to its partition, as its order may matter, with its headers, tag
and trace id. What the topic can't keep is an error, not dropped: the row would be another message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqflow.cli.cluster import NEEDS_LOOKUPD, CliCluster
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.publish_options import MessageOptions
from nsqflow.cli.servers import CliServers
from nsqflow.client.body_compression import CODEC_HEADER, SIZE_HEADER

if TYPE_CHECKING:
    from nsqflow.admin import PartitionedTopic
    from nsqflow.spark.spool.recovery import SpooledMessage

_RESERVED = "##"  # how the names of nsqd's own headers begin


class RowTarget:
    """A topic that rows are published to."""

    def __init__(self, servers: CliServers, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._found: PartitionedTopic | None = None
        self._was_asked = False

    async def options_for(self, message: SpooledMessage) -> MessageOptions:
        """Return what a row is published with; raise ``CommandError`` for what can't be kept."""
        if message.partition is None:
            return MessageOptions()
        if not self._was_asked:
            self._found = await CliCluster(self._servers).partitioned_topic(self._topic)
            self._was_asked = True
        headers = _own_headers(message)
        if headers or message.tag is not None:
            self._check_headers(message)
        if self._found is None:
            return MessageOptions()
        self._check_partition(self._found, message)
        return MessageOptions(
            partition=message.partition,
            trace=message.trace_id or None,
            headers=headers or None,
            tag=message.tag,
        )

    # Private methods

    def _check_headers(self, message: SpooledMessage) -> None:
        found = self._found
        if found is not None and found.meta.extend_support:
            return
        hint = "'nsqflow create TOPIC --extended' creates one that does, for --topic"
        raise CommandError(
            f"rows of {message.topic!r} have headers or tags, and {self._topic!r} takes none",
            hint if self._servers.lookupd else NEEDS_LOOKUPD,
            USAGE_ERROR,
        )

    def _check_partition(self, found: PartitionedTopic, message: SpooledMessage) -> None:
        count = found.meta.partition_num
        assert message.partition is not None
        if message.partition >= count:
            raise CommandError(
                f"rows of {message.topic!r} are of partition {message.partition}, and "
                f"{self._topic!r} has only {count}",
                "name a topic with as many partitions by --topic",
                USAGE_ERROR,
            )


def _own_headers(message: SpooledMessage) -> dict[str, object]:
    """Return the headers that its publisher has set."""
    return {
        name: value
        for name, value in (message.headers or {}).items()
        if not name.startswith(_RESERVED) and name not in (CODEC_HEADER, SIZE_HEADER)
    }
