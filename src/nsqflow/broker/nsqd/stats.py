"""nsqd's ``/stats`` as JSON and as text, with the same names in the same order as nsqd.

Where Go has a nil list, JSON has null: an unknown topic, no producers, clients not requested.
"""

from __future__ import annotations

import gc
import platform
import resource
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.topic import Topic
from nsqflow.broker.version import VERSION
from nsqflow.protocol import ServerState

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.connection import ClientConnection
    from nsqflow.broker.nsqd.daemon import NsqdDaemon


Stats = dict[str, Any]

# What nsqd reports unless it is configured to measure latency.
_LATENCY = {"count": 0, "percentiles": None}

_STATES = {ServerState.SUBSCRIBED: 3, ServerState.CLOSING: 4}  # nsqd's numbers
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def gather(
    nsqd: NsqdDaemon,
    topic: str = "",
    channel: str = "",
    *,
    include_clients: bool = True,
    include_mem: bool = True,
) -> Stats:
    """Return the stats; of one topic or channel if its name is given."""
    stats: Stats = {
        "version": VERSION,
        "health": nsqd.health,
        "start_time": nsqd.started,
        "topics": None,
    }
    if include_mem:
        stats["memory"] = _memory()
    stats["producers"] = None
    if topic and topic not in nsqd.engine.topics:
        return stats
    topics = [nsqd.engine.topics[topic]] if topic else _by_name(nsqd.engine.topics)
    clients = _clients(nsqd, topic) if include_clients else None
    stats["topics"] = [
        _topic(each, channel, clients) for each in topics if not channel or channel in each.channels
    ]
    if include_clients:
        producers = [_client(each, topic) for each in nsqd.clients if each.pub_counts]
        stats["producers"] = producers or None
    return stats


def _by_name(things: Mapping[str, Any]) -> list[Any]:
    return [things[name] for name in sorted(things)]


def _clients(nsqd: NsqdDaemon, topic: str) -> dict[Any, Stats]:
    return {
        client.subscriber: _client(client, topic)
        for client in nsqd.clients
        if client.subscriber is not None
    }


def _topic(topic: Topic, channel: str, clients: Mapping[Any, Stats] | None) -> Stats:
    channels = [topic.channels[channel]] if channel else _by_name(topic.channels)
    return {
        "topic_name": topic.name,
        "channels": [_channel(each, clients) for each in channels],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _LATENCY,
    }


def _channel(channel: Channel, clients: Mapping[Any, Stats] | None) -> Stats:
    subscribers = channel.subscribers
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(subscribers),
        "clients": None if clients is None else [clients[each] for each in subscribers],
        "paused": channel.paused,
        "e2e_processing_latency": _LATENCY,
    }


def _client(client: ClientConnection, topic: str) -> Stats:
    subscriber, identify = client.subscriber, client.identify
    return {
        "client_id": identify.client_id if identify else client.peer.ip,
        "hostname": identify.hostname if identify else client.peer.ip,
        "version": "V2",
        "remote_address": client.peer.address,
        "state": _STATES.get(client.session.state, 0),
        "ready_count": subscriber.rdy if subscriber else 0,
        "in_flight_count": subscriber.in_flight_count if subscriber else 0,
        "message_count": subscriber.message_count if subscriber else 0,
        "finish_count": subscriber.finish_count if subscriber else 0,
        "requeue_count": subscriber.requeue_count if subscriber else 0,
        "connect_ts": client.connect_time,
        "sample_rate": client.settings.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": identify.user_agent if identify else "",
        **_authorization(client),
        **_pub_counts(client, topic),
        "tls": client.peer.tls,
        "tls_cipher_suite": client.peer.tls_cipher,
        "tls_version": client.peer.tls_version,
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": client.peer.tls,  # as Go reports for every connection
    }


def _authorization(client: ClientConnection) -> Stats:
    state = client.authorization
    if state is None:
        return {}
    values = {
        "authed": bool(state.count),
        "auth_identity": state.identity,
        "auth_identity_url": state.identity_url,
    }
    return {name: value for name, value in values.items() if value}


def _pub_counts(client: ClientConnection, topic: str) -> Stats:
    # nsqd intends to list all topics, but stops at the first.
    counts = [
        {"topic": name, "count": count}
        for name, count in client.pub_counts.items()
        if topic in ("", name)
    ]
    return {"pub_counts": counts} if counts else {}


def _memory() -> Stats:
    # Go's names for the nearest values here; 0 where there is none.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": usage.ru_maxrss * _RSS_UNIT,  # the maximum so far
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


_SECOND = 10**9


def render(stats: Stats, now: int) -> str:
    """Format the stats as text; ``now`` is in nanoseconds since 1970."""
    return "\n".join(_lines(stats, now)) + "\n"


def _lines(stats: Stats, now: int) -> Iterator[str]:
    started = stats["start_time"]
    yield f"nsqd v{stats['version']} (built w/python{platform.python_version()})"
    yield f"start_time {_rfc3339(started)}"
    yield f"uptime {_duration(now - started * _SECOND)}"
    yield f"\nHealth: {stats['health']}"
    if "memory" in stats:
        yield "\nMemory:"
        for name, value in stats["memory"].items():
            yield f"   {name:<25}\t{value}"
    yield "\nTopics:" if stats["topics"] else "\nTopics: None"
    for number, topic in enumerate(stats["topics"] or ()):
        if number:
            yield ""
        yield from _topic_lines(topic, now)
    yield "\nProducers:" if stats["producers"] else "\nProducers: None"
    for client in stats["producers"] or ():
        yield f"   {_client_text(client, now)}"


def _topic_lines(topic: Stats, now: int) -> Iterator[str]:
    yield (
        f"{'*P' if topic['paused'] else '  '} [{topic['topic_name']:<15}] "
        f"depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5} "
        f"msgs: {topic['message_count']:<8} e2e%: "
    )
    for channel in topic["channels"]:
        yield (
            f"   {'*P' if channel['paused'] else '  '} [{channel['channel_name']:<25}] "
            f"depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5} "
            f"inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4} "
            f"re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5} "
            f"msgs: {channel['message_count']:<8} e2e%: "
        )
        for client in channel["clients"] or ():
            yield f"        {_client_text(client, now)}"


def _client_text(client: Stats, now: int) -> str:
    port = client["remote_address"].rpartition(":")[2]
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    connected = _duration((now // _SECOND - client["connect_ts"]) * _SECOND)
    if counts := client.get("pub_counts"):
        total = sum(each["count"] for each in counts)
        topics = ",".join(f"{each['topic']}={each['count']}" for each in counts)
        return f"[V2 {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {name:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} "
        f"re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8} "
        f"connected: {connected}"
    )


def _rfc3339(seconds: int) -> str:
    text = datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    return text.replace("+00:00", "Z")


def _duration(nanoseconds: int) -> str:
    """Format a duration as Go does: 1h2m3.5s, without leading parts that are 0."""
    seconds, fraction = divmod(max(nanoseconds, 0), _SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{fraction:09}".rstrip("0").rstrip(".") + "s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
