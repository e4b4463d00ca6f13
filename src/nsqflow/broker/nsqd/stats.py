"""What nsqd tells of itself at ``/stats``: the same names in the same order, as JSON.

Where Go has a list that was never made, JSON has null: no topic of that name, no producers,
clients that nobody asked for.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.engine.topic import Topic
from nsqflow.broker.version import VERSION

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.client import Client
    from nsqflow.broker.nsqd.daemon import Nsqd

Stats = dict[str, Any]

# nsqd measures these only if it is told to, and then says so with more than this.
_LATENCY = {"count": 0, "percentiles": None}

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def gather(
    nsqd: Nsqd,
    topic: str = "",
    channel: str = "",
    *,
    include_clients: bool = True,
    include_mem: bool = True,
) -> Stats:
    """Return the stats, of one topic or channel if its name is given."""
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


def _clients(nsqd: Nsqd, topic: str) -> dict[Subscriber, Stats]:
    return {
        client.subscriber: _client(client, topic)
        for client in nsqd.clients
        if client.subscriber is not None
    }


def _topic(topic: Topic, channel: str, clients: Mapping[Subscriber, Stats] | None) -> Stats:
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


def _channel(channel: Channel, clients: Mapping[Subscriber, Stats] | None) -> Stats:
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


def _client(client: Client, topic: str) -> Stats:
    subscriber = client.subscriber
    return {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": "V2",
        "remote_address": client.remote.address,
        "state": client.state,
        "ready_count": subscriber.rdy if subscriber else 0,
        "in_flight_count": subscriber.in_flight if subscriber else 0,
        "message_count": subscriber.message_count if subscriber else 0,
        "finish_count": subscriber.finish_count if subscriber else 0,
        "requeue_count": subscriber.requeue_count if subscriber else 0,
        "connect_ts": client.connect_time,
        "sample_rate": client.settings.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": client.user_agent,
        **_authorization(client),
        **_pub_counts(client, topic),
        "tls": client.remote.tls,
        "tls_cipher_suite": client.remote.tls_cipher,
        "tls_version": client.remote.tls_version,
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": client.remote.tls,  # so says Go, of every connection
    }


def _authorization(client: Client) -> Stats:
    state = client.authorization
    if state is None:
        return {}
    values = {
        "authed": bool(state.count),
        "auth_identity": state.identity,
        "auth_identity_url": state.identity_url,
    }
    return {name: value for name, value in values.items() if value}


def _pub_counts(client: Client, topic: str) -> Stats:
    # nsqd means to tell of all topics and stops at the first.
    counts = [
        {"topic": name, "count": count}
        for name, count in client.pub_counts.items()
        if topic in ("", name)
    ]
    return {"pub_counts": counts} if counts else {}


def _memory() -> Stats:
    # Go's names for what comes nearest to it here; 0 where nothing does.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": usage.ru_maxrss * _RSS_UNIT,  # the most it ever was
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }
