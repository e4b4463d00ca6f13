"""What all nsqd of a cluster count of each topic and channel; and the rates between two looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nsqflow.admin import ChannelStats, NsqdStats, TopicStats

Key = tuple[str, str | None]
"""A topic, and a channel of it or None for the topic itself."""


@dataclass(slots=True)
class Counts:
    """A topic or a channel, over the whole cluster."""

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    """All that came, since each nsqd was started."""
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    nsqds: int = 0
    """How many nsqd have it."""
    paused: bool = False
    """On one of them at least."""

    @property
    def backlog(self) -> int:
        """What is not finished yet."""
        return self.depth + self.in_flight + self.deferred

    def add(self, stats: TopicStats | ChannelStats) -> None:
        """Add what one nsqd counts."""
        self.depth += stats.depth
        self.messages += stats.message_count
        self.paused |= stats.paused
        self.nsqds += 1
        if isinstance(stats, ChannelStats):
            self.in_flight += stats.in_flight_count
            self.deferred += stats.deferred_count
            self.requeued += stats.requeue_count
            self.timed_out += stats.timeout_count
            self.clients += stats.client_count


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second that came, and that were done with."""

    come: float
    gone: float


def sum_up(answers: Iterable[NsqdStats], topics: Iterable[str] = ()) -> dict[Key, Counts]:
    """Sum up what all nsqd count, by name; of some topics, or of all."""
    wanted = {*topics}
    found: dict[Key, Counts] = {}
    for stats in answers:
        for topic in stats.topics:
            if not wanted or topic.name in wanted:
                found.setdefault((topic.name, None), Counts()).add(topic)
                for channel in topic.channels:
                    found.setdefault((topic.name, channel.name), Counts()).add(channel)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "")))


def rates(
    now: Mapping[Key, Counts], before: Mapping[Key, Counts], seconds: float
) -> dict[Key, Rates]:
    """Tell the rates since the look before; none for what was not there, or has begun anew."""
    found: dict[Key, Rates] = {}
    for key, counts in now.items():
        earlier = before.get(key)
        # An nsqd that was started again, or could not be asked, counts from the beginning.
        if earlier and counts.nsqds == earlier.nsqds and counts.messages >= earlier.messages:
            come = counts.messages - earlier.messages
            gone = max(come - (counts.backlog - earlier.backlog), 0)
            found[key] = Rates(come / seconds, gone / seconds)
    return found
