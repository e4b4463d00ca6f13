"""Losses: what must have been lost, told by what is missing.

``failOnDataLoss=true`` makes an error of it, ``false`` a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from nsqflow.errors import NsqError
from nsqflow.spark.backlog import Backlog
from nsqflow.spark.offsets import Offset, split_key

logger = logging.getLogger(__name__)


class DataLoss(NsqError):
    """Messages may have been lost; ``failOnDataLoss=false`` goes on with a warning."""


class Losses:
    """Watches the spool and the channels of one query."""

    def __init__(self, location: str, channel: str, *, fail: bool) -> None:
        self._location = location
        self._channel = channel
        self._fail = fail
        self._existing: dict[str, Backlog] = {}  # the channels as they were seen last

    def batch_is_missing(self, end: Offset) -> None:
        """A batch that was planned is not in the spool."""
        self._tell(
            f"spoolLocation {self._location!r} has nothing of batch {end.seq} of generation "
            f"{end.gen}: it was lost, or is another one than before. Up to {end.planned} messages "
            "of it may be lost"
        )

    def batches_are_missing(self, start: Offset, found: Iterable[int]) -> None:
        """The checkpoint was taken back further than the spool reaches."""
        first = min(found, default=start.seq + 1)
        if first > start.seq + 1:
            self._tell(
                f"the checkpoint was taken back to batch {start.seq}, but spoolLocation "
                f"{self._location!r} begins with batch {first} (spoolRetentionBatches): the "
                f"messages of the {first - start.seq - 1} between them are finished and gone"
            )

    def look_at(self, backlogs: Iterable[Backlog], gone: Iterable[str]) -> None:
        """Compare what there is with what there was; ``gone`` are keys whose topic is."""
        for key in gone:
            if self._existing.pop(key, None) is not None:
                topic, nsqd = split_key(key)
                self._tell(f"topic {topic!r} is gone from {nsqd}, with the messages it had")
        for backlog in backlogs:
            before = self._existing.get(backlog.key)
            self._existing[backlog.key] = backlog
            if before is not None and (not backlog.exists or backlog.is_anew(before)):
                self._tell(
                    f"channel {self._channel!r} of topic {backlog.topic!r} is gone from "
                    f"{backlog.nsqd}, with the messages it had"
                )

    def _tell(self, text: str) -> None:
        if self._fail:
            raise DataLoss(f"{text}; start once with failOnDataLoss=false to go on without")
        logger.warning("%s; going on without", text)
