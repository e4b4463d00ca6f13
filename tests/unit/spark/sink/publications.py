"""MPUB commands for the publisher, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import pyarrow as pa
import pytest

from nsqflow.errors import (
    NsqError,
)
from nsqflow.spark.server_options import Access
from nsqflow.spark.sink.columns import ColumnIndexes
from nsqflow.spark.sink.encoder import PackedMpub
from nsqflow.spark.sink.publisher import Publication, Publisher
from tests.unit.spark.sink.record_batches import BatchEncoder

PLAIN = Access()


def commands(topic: str, number: int, each: int = 1) -> list[PackedMpub]:
    """Return ``number`` commands of ``each`` different messages."""
    made: list[PackedMpub] = []
    for n in range(number):
        bodies = [b"%d:%d " % (n, m) + b"." * 200 for m in range(each)]
        batch = pa.RecordBatch.from_arrays([pa.array(bodies)], names=["body"])
        (command,) = BatchEncoder(ColumnIndexes(0), topic, 2**30).commands(batch)
        assert isinstance(command, PackedMpub)
        made.append(command)
    return made


def bodies_of(command: PackedMpub) -> list[bytes]:
    bodies = []
    rest = bytes(command.bodies)
    while rest:
        size = 4 + int.from_bytes(rest[:4], "big")
        bodies.append(rest[4:size])
        rest = rest[size:]
    return bodies


def publish_all(publisher: Publisher, sent: Iterable[Publication]) -> None:
    for command in sent:
        publisher.publish(command)
    publisher.finish()


def refusal(
    address: str, sent: Iterable[Publication], access: Access = PLAIN, **limits: float
) -> NsqError:
    """What comes of publishing what can't be published."""
    with (
        closing(Publisher([address], access, **limits)) as publisher,
        pytest.raises(NsqError) as caught,
    ):
        publish_all(publisher, sent)
    return caught.value
