"""Detects lost data, by what is missing on the servers and in the spool.

With ``failOnDataLoss=true`` a loss is an error, with ``false`` a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqflow.errors import DataLossError
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.offsets import (
    Offset,
    PartitionId,
    describe_place,
    partition_of,
    split_key,
)

if TYPE_CHECKING:
    from nsqflow.spark.source.progress import LostRange
    from nsqflow.spark.spool.slots import SlotInventory

logger = logging.getLogger(__name__)

MISSING = "missing"  # the reason for a slot that does not exist

_MAX_REASONS = 3  # lost slots that an error names with the reason


class DataLossDetector:
    """Checks the spool and the channels of one query, in the driver."""

    def __init__(self, location: str, channel: str, *, fail: bool) -> None:
        self._location = location
        self._channel = channel
        self._fail = fail
        self._existing: dict[str, ChannelBacklog] = {}  # the channels at the last check

    def report_missing_batch(self, end: Offset) -> None:
        """Report that a planned batch is not in the spool."""
        self._report(
            f"spoolLocation {self._location!r} has nothing of batch {end.seq} of generation "
            f"{end.generation}: it was lost, or is another one than before. Up to "
            f"{end.planned} messages of it may be lost"
        )

    def check_checkpoint(self, start: Offset, found: Iterable[int]) -> None:
        """Report a checkpoint that was restored to before the oldest batch in the spool."""
        first = min(found, default=start.seq + 1)
        if first > start.seq + 1:
            self._report(
                f"the checkpoint was restored to batch {start.seq}, but spoolLocation "
                f"{self._location!r} begins with batch {first} (spoolRetentionBatches): the "
                f"messages of the {first - start.seq - 1} between them are finished and gone"
            )

    def check_backlogs(self, backlogs: Iterable[ChannelBacklog], deleted: Iterable[str]) -> None:
        """Report channels and topics that were deleted since the last call.

        ``deleted`` are the keys whose topic was found to be deleted.
        """
        for key in deleted:
            if self._existing.pop(key, None) is not None:
                topic, nsqd = split_key(key)
                self._report(f"topic {topic!r} is gone from {nsqd}, with the messages it had")
        for backlog in backlogs:
            if backlog.partition is not None:
                continue  # its messages outlive the channel: ReadProgress finds what is lost
            before = self._existing.get(backlog.key)
            self._existing[backlog.key] = backlog
            if before is not None and (not backlog.exists or backlog.was_recreated(before)):
                self._report(
                    f"channel {self._channel!r} of topic {backlog.topic!r} is gone from "
                    f"{backlog.nsqd}, with the messages it had"
                )

    def report_lost_range(self, loss: LostRange) -> None:
        """Report that messages of a partition are gone."""
        topic, number = split_key(loss.key)
        self._report(f"partition {number} of topic {topic!r} has lost messages: {loss.why}")

    def _report(self, text: str) -> None:
        report_loss(text, fail=self._fail)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGap:
    """Consecutive slots that were written and can't be read."""

    reasons: Mapping[int, str]
    """Why, for each of them."""
    next: int
    """The slot after them."""
    ended: bool
    """There is no slot after them."""
    rows: int | None
    """How many rows they had together; None if unknown."""


def find_gap(
    inventory: SlotInventory, reasons: Mapping[int, str], rows_before: int, rows_after: int | None
) -> SlotGap | None:
    """Return the gap of consecutive slots that can't be read; None if none of them was written.

    ``reasons`` has these slots. ``rows_before`` is the number of rows in the slots before them,
    ``rows_after`` the number of rows before the next good slot; None if there is no such slot.
    """
    lost = {number: why for number, why in reasons.items() if number < inventory.count}
    if not lost:
        return None
    end = max(lost) + 1
    ended = inventory.ended and end == inventory.count
    if rows_after is None and ended and inventory.count_marker is not None:
        rows_after = inventory.count_marker.rows
    return SlotGap(
        reasons=lost,
        next=end,
        ended=ended,
        rows=None if rows_after is None else max(0, rows_after - rows_before),
    )


def report_loss(text: str, *, fail: bool, instead: str = "") -> None:
    """Raise ``DataLossError``, or log a warning; ``instead`` names another solution."""
    if fail:
        raise DataLossError(
            f"{text}; {instead}start once with failOnDataLoss=false to continue without them"
        )
    logger.warning("%s; continuing without them", text)


def describe_gap(gap: SlotGap, partition: PartitionId, channel: str, location: str) -> str:
    """Describe which slots are lost, of which partition, and with how many messages."""
    topic, place = split_key(partition.key)
    if partition_of(partition.key) is None:
        place = f"nsqd {place}, partition {partition.number}"
    else:
        place = describe_place(partition.key)
    first, count = min(gap.reasons), len(gap.reasons)
    named = f"slot {first}" if count == 1 else f"slots {first}-{gap.next - 1}"
    reasons = [f"{number:06d} ({why})" for number, why in gap.reasons.items()]
    details = ", ".join(reasons[:_MAX_REASONS])
    if count > _MAX_REASONS:
        details += f" and {count - _MAX_REASONS} more"
    rows = "an unknown number of" if gap.rows is None else gap.rows
    return (
        f"the spool has lost {named} of batch {partition.seq}, topic {topic!r}, channel "
        f"{channel!r}, {place}, in {location}: {details}. "
        f"{rows} messages may be lost"
    )
