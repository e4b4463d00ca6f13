"""Publishes messages that were delivered too often to the topic for dead letters, in a task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqflow.errors import NetworkError
from nsqflow.protocol import Columns, CommandFailed, Mpub, Published
from nsqflow.spark.connection import connect
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.server_options import Access

if TYPE_CHECKING:
    from nsqflow.spark.source.reader import NsqInputPartition

logger = logging.getLogger(__name__)

_MAX_BODY = 1024 * 1024  # bytes of dead letters in one MPUB, unless a single one is larger
_MAX_UNPACKED = 1024 * 1024  # bytes of a message that nsqd takes by default
_PUBLISH_TIMEOUT = 30.0


class ExhaustedMessage(NamedTuple):
    """A message of the redesigned NSQ, as it was delivered."""

    id: bytes
    body: bytes
    ext: bytes | None
    """Its headers as JSON."""


def publish_dead_letters(
    partition: NsqInputPartition,
    options: SourceOptions,
    topic: str,
    columns: Sequence[Columns],
    indexes: Sequence[int],
) -> None:
    """Publish the messages at these indexes; nsqd has acknowledged them when this returns.

    Those of the redesigned NSQ keep their headers, if the topic for dead letters can have them.
    """
    if not indexes:
        return
    bodies = [body for part in columns for body in part.bodies()]
    if partition.coverage is None:
        with closing(DeadLetterPublisher(partition.nsqd, options.access, topic)) as publisher:
            publisher.publish([bodies[index] for index in indexes])
        return
    ids = b"".join([part.ids for part in columns])
    exts = [ext for part in columns for ext in part.exts or [None] * len(part)]
    letters = [ExhaustedMessage(ids[16 * i : 16 * i + 16], bodies[i], exts[i]) for i in indexes]
    publish_to_partitions(options, topic, letters)


def publish_to_partitions(
    options: SourceOptions, topic: str, letters: Sequence[ExhaustedMessage]
) -> None:
    """Publish to a topic of the redesigned NSQ."""
    # Imported here: few tasks have dead letters.
    import asyncio

    if any(letter.ext for letter in letters) and asyncio.run(_takes_headers(options, topic)):
        _publish_with_headers(options, topic, letters)
    else:
        _publish_bodies(options, topic, [_plain_body(letter, topic) for letter in letters])


class DeadLetterPublisher:
    """Publishes to the classic nsqd that the messages came from."""

    def __init__(self, nsqd: str, access: Access, topic: str) -> None:
        self._topic = topic
        self._link = connect(nsqd, access)

    def publish(self, bodies: list[bytes]) -> None:
        """Publish all of them; nsqd has acknowledged them when this returns."""
        batch: list[bytes] = []
        size = 0
        for body in bodies:
            if batch and size + len(body) > _MAX_BODY:
                self._publish(batch)
                batch, size = [], 0
            batch.append(body)
            size += len(body)
        if batch:
            self._publish(batch)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _publish(self, batch: list[bytes]) -> None:
        self._link.send(Mpub(self._topic, batch))
        deadline = monotonic() + _PUBLISH_TIMEOUT
        while (left := deadline - monotonic()) > 0:
            for event in self._link.receive(left):
                if type(event) is Published:
                    return
                if type(event) is CommandFailed:
                    raise event.error
        raise NetworkError(
            f"{self._link.address}: dead letters not acknowledged in {_PUBLISH_TIMEOUT:g} s"
        )


def _publish_with_headers(
    options: SourceOptions, topic: str, letters: Sequence[ExhaustedMessage]
) -> None:
    """Publish the messages as they came: the body stays packed, and a header says how."""
    from nsqflow.client.producer.publish_batch import PublishBatch
    from nsqflow.protocol.publish import Bodies
    from nsqflow.spark.options import SinkOptions
    from nsqflow.spark.sink.partition_publisher import PartitionPublisher
    from nsqflow.spark.source.headers import republished_headers

    servers = SinkOptions(servers=options.servers, access=options.access)
    with closing(PartitionPublisher(servers, give_up_after=_PUBLISH_TIMEOUT)) as publisher:
        for part in _in_parts(letters):
            batch = PublishBatch(topic, 0.0, Bodies(letter.body for letter in part))
            batch.headers = [republished_headers(letter.ext) for letter in part]
            batch.size += sum(map(len, batch.headers))
            publisher.publish(batch)
        publisher.finish()


def _in_parts(letters: Sequence[ExhaustedMessage]) -> Iterator[list[ExhaustedMessage]]:
    part, size = list[ExhaustedMessage](), 0
    for letter in letters:
        more = len(letter.body) + len(letter.ext or b"")
        if part and size + more > _MAX_BODY:
            yield part
            part, size = [], 0
        part.append(letter)
        size += more
    if part:
        yield part


def _publish_bodies(options: SourceOptions, topic: str, bodies: Sequence[bytes]) -> None:
    """Publish to a topic whose messages have no headers."""
    from nsqflow.blocking import Producer

    access = options.access
    # nsqd has accepted these bodies before: they may be larger than the producer's default.
    largest = max(_MAX_UNPACKED, *map(len, bodies))
    settings: dict[str, Any] = {
        "snappy": access.snappy,
        "deflate": access.deflate,
        "max_msg_size": largest,
        "max_body_size": largest + 8,
    }
    settings["max_pending"] = 2 * settings["max_body_size"]
    if options.servers.use_https:
        settings["lookupd_tls"] = access.http_context()
    if access.tls:
        settings["tls"] = access.http_context()
    if (secret := access.secret()) is not None:
        settings["auth_secret"] = secret
    with Producer(
        lookupd=options.servers.lookupd, publish_timeout=_PUBLISH_TIMEOUT, **settings
    ) as producer:
        producer.publish_many(topic, bodies)


def _plain_body(letter: ExhaustedMessage, topic: str) -> bytes:
    """Return what is published of a message without its headers: its body, unpacked if it fits."""
    from nsqflow.spark.source.headers import codec_of, unpack_body

    body = unpack_body(letter.body, letter.ext)
    if 0 < len(body) <= max(_MAX_UNPACKED, len(letter.body)):
        return body
    logger.warning(
        "dead letter %s is published to %r as it came, compressed by %s: unpacked it has %d bytes, "
        "and nsqd takes 1 to %d by default; %r takes no headers, which would say so",
        letter.id.hex(),
        topic,
        codec_of(letter.ext),
        len(body),
        _MAX_UNPACKED,
        topic,
    )
    return letter.body


async def _takes_headers(options: SourceOptions, topic: str) -> bool:
    from nsqflow.admin.cluster import Cluster

    tls = options.access.http_context() if options.servers.use_https else None
    answer = (await Cluster(lookupd=options.servers.lookupd, tls=tls).lookup([topic]))[topic]
    return answer.meta is not None and answer.meta.extend_support
