"""Creates the channels of a pipeline's sinks in the partitions of topics of the redesigned NSQ.

A channel belongs to one partition there, and begins at its end. So all channels are created in all
partitions before the first is read: else what is published meanwhile would be missing in some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from nsqflow.admin import Cluster
from nsqflow.errors import DiscoveryError, NetworkError
from nsqflow.protocol import LookupAnswer
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.offsets import make_key
from nsqflow.spark.source.partition_monitor import PartitionMonitor

logger = logging.getLogger(__name__)

_TIMEOUT = 15.0  # seconds for all partitions to have a leader that answers
_REQUEST_TIMEOUT = 5.0
_RETRY_INTERVAL = 0.5


async def create_partition_channels(
    options: SourceOptions,
    channels: Sequence[str],
    answers: Mapping[str, LookupAnswer],
    cluster: Cluster,
) -> None:
    """Create channels in all partitions of the topics that ``answers`` describe.

    While a partition has no leader, the topics are looked up again. If that lasts, the queries
    create its channels later.
    """
    tls = options.access.http_context
    monitors = [PartitionMonitor(replace(options, channel=name), tls) for name in channels]
    deadline = monotonic() + _TIMEOUT
    try:
        while missing := await _create(monitors, answers):
            if monotonic() >= deadline:
                break
            await asyncio.sleep(_RETRY_INTERVAL)
            with suppress(DiscoveryError):
                answers = await cluster.lookup([*answers])
    finally:
        for monitor in monitors:
            monitor.close()
    if missing:
        logger.warning(
            "%s: no leader answers; its channels are created when one does",
            ", ".join(sorted(missing)),
        )


async def _create(
    monitors: Sequence[PartitionMonitor], answers: Mapping[str, LookupAnswer]
) -> set[str]:
    """Create each channel where it is missing; return the partitions that lack one then."""
    missing: set[str] = set()
    for monitor in monitors:
        monitor.update(answers)
        wanted = {
            make_key(topic, number)
            for topic, each in monitor.topics.items()
            for number in range(each.meta.partition_num)
        }
        with suppress(NetworkError, DiscoveryError):
            wanted -= {backlog.key for backlog in await monitor.poll(_REQUEST_TIMEOUT)}
        missing |= wanted
    return missing
