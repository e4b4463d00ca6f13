"""Checks at the start of a query that its spool has the generation of its checkpoint."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace

from nsqflow.errors import ConfigError, NsqError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.data_loss import report_loss
from nsqflow.spark.source.offsets import Offset, split_key
from nsqflow.spark.spool.generation import GenerationMarker
from nsqflow.spark.spool.layout import generation_marker
from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)


def new_marker(options: SourceOptions) -> GenerationMarker:
    """Return the marker of a generation that begins with these options."""
    return GenerationMarker(
        channel=options.channel, topics=options.topics, pattern=options.topic_pattern or ""
    )


def check_generation(store: ObjectStore, start: Offset, options: SourceOptions) -> None:
    """Check that the spool belongs to the checkpoint and to this channel."""
    if not start.generation:
        return
    name = generation_marker(start.generation)
    try:
        marker = GenerationMarker.decode(bytes(store.read(name)))
    except FileNotFoundError:
        report_loss(
            f"spoolLocation {store.location!r} has nothing of generation {start.generation}, "
            "which the checkpoint belongs to: it was emptied, or is another one than before. "
            "Messages that were read and not committed may be lost, and repeated ones are not "
            "recognized",
            fail=options.fail_on_data_loss,
            instead="set the spoolLocation back, or ",
        )
        store.write(name, new_marker(options).encode())
        return
    except ValueError as error:
        logger.warning("%s/%s is damaged and not used: %s", store.location, name, error)
        return
    if marker.channel != options.channel:
        raise ConfigError(
            f"channel={options.channel!r} is invalid: the checkpoint is that of a query "
            f"on channel {marker.channel!r}; give a new query a new checkpointLocation"
        )
    planned = (split_key(key)[0] for key in start.plan)
    restarted = marker.restarted(options.topics, options.topic_pattern or "", planned)
    if restarted != marker:
        store.write(name, restarted.encode())
    if restarted.former_topics:
        _warn_of_former_topics(restarted.former_topics, options)


def _warn_of_former_topics(topics: tuple[str, ...], options: SourceOptions) -> None:
    """Warn of channels that still exist though their topics are not read any more."""
    with closing(BacklogMonitor(replace(options, topics=topics, topic_pattern=None))) as monitor:
        try:
            backlogs = monitor.find()
        except NsqError:  # the next restart tries again
            return
    waiting: dict[str, int] = {}
    for each in backlogs:
        waiting[each.topic] = waiting.get(each.topic, 0) + each.depth + each.topic_depth
    for topic, count in sorted(waiting.items()):
        logger.warning(
            "topic %r is not read any more, and its channel %r keeps filling (%d messages wait): "
            "nsqflow delete %s %s removes it",
            topic,
            options.channel,
            count,
            topic,
            options.channel,
        )
