"""Totals, rates and clients of topics and channels, from the /stats of all nsqd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

from nsqflow.admin import ChannelStats, NsqdStats, PartitionChannelStats, TopicStats
from nsqflow.cli.partition_table import LocatedPartition, channel_stats, topic_stats

K = TypeVar("K")

ChannelKey = tuple[str, str | None]
"""A topic and one of its channels, or None for the topic itself."""

PartitionKey = tuple[str, str | None, int]
"""The same in one partition."""

_NANOSECONDS = 10**9


@dataclass(slots=True)
class ChannelTotals:
    """A topic or a channel, summed over all nsqd."""

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    messages: int = 0
    """All messages received since nsqd started."""
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    nsqd: int = 0
    """How many nsqd have it."""
    paused: bool = False
    """On at least one nsqd."""
    partitions: int | None = None
    """Redesigned: how many partitions have it."""
    age: float | None = None
    """Redesigned: seconds since the message was published that was read last, the longest of all
    partitions; None if no message waits, or none was read."""

    @property
    def backlog(self) -> int:
        """Messages that are not finished yet."""
        return self.depth + self.in_flight + self.deferred

    def add(self, stats: TopicStats | ChannelStats) -> None:
        """Add the counts of one nsqd."""
        self.depth += stats.depth
        self.messages += stats.message_count
        self.paused |= stats.paused
        self.nsqd += 1
        if isinstance(stats, ChannelStats):
            self.in_flight += stats.in_flight_count
            self.deferred += stats.deferred_count
            self.requeued += stats.requeue_count
            self.timed_out += stats.timeout_count
            self.clients += stats.client_count

    def add_age(self, channel: PartitionChannelStats, at: float) -> None:
        """Add the age of the backlog in one partition."""
        if channel.depth and channel.depth_timestamp:
            age = max(at - channel.depth_timestamp / _NANOSECONDS, 0.0)
            self.age = age if self.age is None else max(self.age, age)


Totals = dict[ChannelKey, ChannelTotals]
PartitionTotals = dict[PartitionKey, ChannelTotals]


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second that arrive, and that leave."""

    in_rate: float
    out_rate: float


def sum_stats(answers: Iterable[NsqdStats], topics: Iterable[str] = ()) -> Totals:
    """Sum the stats of all nsqd by name, for some topics or for all."""
    wanted = {*topics}
    found: Totals = {}
    for stats in answers:
        for topic in stats.topics:
            if not wanted or topic.name in wanted:
                found.setdefault((topic.name, None), ChannelTotals()).add(topic)
                for channel in topic.channels:
                    found.setdefault((topic.name, channel.name), ChannelTotals()).add(channel)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or "")))


def count_partitions(partitions: Iterable[LocatedPartition], at: float) -> PartitionTotals:
    """Return the counts of each partition that has a leader; ``at`` is the time now."""
    found: PartitionTotals = {}
    for each in partitions:
        if (stats := each.stats) is None:
            continue
        key = (stats.topic, None, stats.partition)
        found[key] = ChannelTotals(partitions=1)
        found[key].add(topic_stats(stats))
        for channel in stats.channels:
            counts = found[stats.topic, channel.name, stats.partition] = ChannelTotals(partitions=1)
            counts.add(channel_stats(channel, stats.message_count))
            counts.add_age(channel, at)
    return found


def sum_partitions(partitions: Iterable[LocatedPartition], at: float) -> Totals:
    """Sum the counts of all partitions by name; those without a leader only count as such."""
    found: Totals = {}
    leaders: dict[ChannelKey, set[str | None]] = {}

    def totals(key: ChannelKey, leader: str | None) -> ChannelTotals:
        leaders.setdefault(key, set()).add(leader)
        counts = found.setdefault(key, ChannelTotals(partitions=0))
        counts.partitions = (counts.partitions or 0) + 1
        return counts

    for each in partitions:
        counts = totals((each.topic.name, None), each.leader)
        if each.stats is None:
            continue
        counts.add(topic_stats(each.stats))
        for channel in each.stats.channels:
            counts = totals((each.topic.name, channel.name), each.leader)
            counts.add(channel_stats(channel, each.stats.message_count))
            counts.add_age(channel, at)
    for key, counts in found.items():
        counts.nsqd = len(leaders[key] - {None})  # one may lead several
    return found


def compute_rates(
    now: Mapping[K, ChannelTotals], before: Mapping[K, ChannelTotals], seconds: float
) -> dict[K, Rates]:
    """Return the rates since the previous sample; new channels and reset counters have none."""
    found: dict[K, Rates] = {}
    for key, counts in now.items():
        earlier = before.get(key)
        # An nsqd that was restarted counts from 0 again; one that did not answer is missing.
        if earlier and counts.nsqd == earlier.nsqd and counts.messages >= earlier.messages:
            in_rate = counts.messages - earlier.messages
            out_rate = max(in_rate - (counts.backlog - earlier.backlog), 0)
            found[key] = Rates(in_rate / seconds, out_rate / seconds)
    return found


_CLOSING = 4  # nsqd/client_v2.go: stateClosing, after CLS


class Starvation(NamedTuple):
    """Why a client gets no messages."""

    code: str
    """For programs: ``rdy-0``, for example."""
    text: str
    """For people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """One connection that has subscribed to a channel."""

    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""
    version: str = ""
    """Of the protocol."""
    state: int = 0
    rdy: int = 0
    """How many messages may be in flight to it."""
    in_flight: int = 0
    messages: int = 0
    """All messages that were sent to it."""
    finished: int = 0
    requeued: int = 0
    connected: int = 0
    """Seconds since 1970."""


# nsqd's names of these fields, where they differ.
_NAMES = {
    "rdy": "ready_count",
    "in_flight": "in_flight_count",
    "messages": "message_count",
    "finished": "finish_count",
    "requeued": "requeue_count",
    "connected": "connect_ts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelClient:
    """A client of a channel on one nsqd; ``client`` is None for a channel without any."""

    nsqd: str
    topic: TopicStats
    channel: ChannelStats
    client: ClientStats | None = None
    partition: int | None = None
    """Redesigned: the one that it reads."""

    @property
    def key(self) -> tuple[str, str]:
        """The names of topic and channel."""
        return self.topic.name, self.channel.name

    @property
    def starvation(self) -> Starvation | None:
        """Why it gets no messages; None if it gets them or there are none."""
        return why_starved(self.client, self.topic, self.channel)


def why_starved(
    client: ClientStats | None, topic: TopicStats, channel: ChannelStats
) -> Starvation | None:
    """Return why a client gets no messages; None if nothing holds them back from it.

    The rules are those of nsqd's ``IsReadyForMessages``: it sends while the channel is not paused
    and fewer than RDY messages are in flight.
    """
    if client is None:
        return Starvation("no-client", f"no client: {channel.depth:,} waiting")
    if client.state == _CLOSING:
        return Starvation("closing", f"closing: {client.in_flight:,} still in flight")
    if channel.paused:
        return Starvation("channel-paused", f"channel paused: {channel.depth:,} waiting")
    if client.rdy <= 0:
        return Starvation("rdy-0", "RDY 0: paused or in backoff")
    if channel.depth > 0 and client.in_flight >= client.rdy:
        held = f"{client.in_flight:,} of {client.rdy:,} in flight"
        return Starvation("slow", f"slow handlers: {held}")
    if channel.depth > 0 or client.in_flight > 0:
        return None
    if topic.paused:
        return Starvation("topic-paused", f"topic paused: {topic.depth:,} held back")
    return Starvation("nothing", f"nothing to deliver{_elsewhere(channel)}")


def list_clients(
    answers: Iterable[tuple[str, NsqdStats]],
    topics: Iterable[str] = (),
    partitions: Iterable[LocatedPartition] = (),
) -> list[ChannelClient]:
    """Return the clients of all channels, sorted by name, for some topics or for all.

    Each answer is paired with the address of its nsqd.
    """
    wanted = {*topics}
    found = [
        one
        for nsqd, stats in answers
        for topic in stats.topics
        if not wanted or topic.name in wanted
        for one in _list_of_topic(nsqd, topic)
    ]
    for each in partitions:
        if each.stats is not None and each.leader is not None:
            found += _list_of_topic(each.leader, topic_stats(each.stats), each.number)
    return sorted(found, key=_sort_key)


def _list_of_topic(
    nsqd: str, topic: TopicStats, partition: int | None = None
) -> Iterator[ChannelClient]:
    for channel in topic.channels:
        for client in (*map(read_client, channel.clients), *([] if channel.clients else [None])):
            yield ChannelClient(
                nsqd=nsqd, topic=topic, channel=channel, client=client, partition=partition
            )


def read_client(data: Mapping[str, Any]) -> ClientStats:
    """Read one client of nsqd's /stats; fields that are missing or mistyped stay empty."""
    found: dict[str, Any] = {}
    for one in fields(ClientStats):
        value = data.get(_NAMES.get(one.name, one.name))
        if one.name == "client_id":
            value = value or data.get("name")  # before nsqd 0.3.0
        if type(value) is type(one.default):
            found[one.name] = value
    return ClientStats(**found)


def _sort_key(one: ChannelClient) -> tuple[str, ...]:
    client = one.client or ClientStats()
    partition = "" if one.partition is None else f"{one.partition:05}"
    return (*one.key, client.client_id, partition, client.remote_address, one.nsqd)


def _elsewhere(channel: ChannelStats) -> str:
    """Describe where messages are while the channel has none waiting."""
    parts = [
        f"{number:,} {where}"
        for number, where in (
            (channel.in_flight_count, "in flight to other clients"),
            (channel.deferred_count, "deferred"),
        )
        if number > 0
    ]
    return f": {', '.join(parts)}" if parts else ""
