"""Sends batches to the leader of a partition, and writes the trace lines of publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqflow.client.producer.publish_batch import PublishBatch
from nsqflow.errors import NsqError, PublishUncertain, ServerError
from nsqflow.protocol import Receipt
from nsqflow.trace import write_line

if TYPE_CHECKING:
    from nsqflow.client.producer.pool import Sender


class PartitionSender:
    """A sender to the nsqd that leads a partition, for that partition."""

    __slots__ = ("_clock", "_partition", "_sender", "address", "flush")

    def __init__(self, sender: Sender, partition: int, clock: Callable[[], float]) -> None:
        self.address = f"{sender.address}/{partition}"
        self.flush = sender.flush
        self._sender = sender
        self._partition = partition
        self._clock = clock

    @property
    def ready(self) -> bool:
        """Whether it can take a batch now."""
        return self._sender.ready

    @property
    def stalled(self) -> bool:
        """Whether its nsqd does not answer."""
        return self._sender.stalled

    def send(self, batch: PublishBatch) -> bool:
        """Queue a batch for its partition; return False if all of it was cancelled."""
        batch.partition = self._partition
        batch.sent_at = self._clock()
        if batch.trace is not None:
            batch.ends = self._sender.connection.local_address, self._sender.address
        return self._sender.send(batch)


# Trace lines


def trace_failure(batch: PublishBatch, error: NsqError) -> None:
    """Write the line of a traced message that was not stored, or may not have been."""
    if batch.uncertainty is not None or isinstance(error, PublishUncertain):
        outcome = "uncertain"
    else:
        outcome = "refused" if isinstance(error, ServerError) else "not sent"
    trace_publish(batch, outcome)


def trace_publish(batch: PublishBatch, outcome: str, receipt: Receipt | None = None) -> None:
    """Write the line of a traced message."""
    client, nsqd = batch.ends
    write_line(
        "publish",
        batch.topic,
        partition=batch.partition,
        internal_id=receipt and receipt.internal_id,
        trace_id=batch.trace,
        offset=receipt and receipt.offset,
        size=receipt and receipt.size,
        client=client,
        nsqd=nsqd,
        outcome=outcome,
    )
