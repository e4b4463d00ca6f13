"""The stats of nsqd as people read them, line by line as nsqd prints them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import datetime

from nsqflow.broker.nsqd.stats import Stats

_SECOND = 10**9


def render(stats: Stats, now: int) -> str:
    """Write them out; ``now`` is in nanoseconds since 1970."""
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
        yield f"   {_client(client, now)}"


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
            yield f"        {_client(client, now)}"


def _client(client: Stats, now: int) -> str:
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
    """Write a time as Go does: 1h2m3.5s; without leading parts that are 0."""
    seconds, fraction = divmod(max(nanoseconds, 0), _SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{fraction:09}".rstrip("0").rstrip(".") + "s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
