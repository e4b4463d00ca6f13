"""nsqd's ``/stats`` as objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as shorten
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_COUNT = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStats:
    """One channel of a topic on one nsqd."""

    name: str
    depth: int = 0
    """Messages waiting, in memory and on disk."""
    backend_depth: int = 0
    """Messages waiting on disk."""
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    """Messages received since nsqd started."""
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    clients: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """As nsqd describes them; empty if not requested."""
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """One topic on one nsqd; its depth counts messages that no channel has yet."""

    name: str
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: bool = False
    channels: tuple[ChannelStats, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdStats:
    """One nsqd."""

    version: str = ""
    health: str = ""
    """``OK``, or ``NOK`` and why."""
    start_time: float = 0.0
    """Seconds since the epoch."""
    topics: tuple[TopicStats, ...] = ()


def parse_stats(data: Mapping[str, Any]) -> NsqdStats:
    """Parse the answer to ``/stats?format=json``; raise ValueError if it is invalid.

    Missing and null fields get defaults; unknown fields are ignored.
    """
    return NsqdStats(
        version=_read(data, "version", ""),
        health=_read(data, "health", ""),
        start_time=float(_read(data, "start_time", 0)),
        topics=tuple(map(_topic, _objects(data, "topics"))),
    )


def _topic(data: Mapping[str, Any]) -> TopicStats:
    counts = ("depth", "backend_depth", "message_count", "message_bytes")
    return TopicStats(
        name=_read(data, "topic_name", ""),
        paused=_read(data, "paused", False),
        channels=tuple(map(_channel, _objects(data, "channels"))),
        **{name: _read(data, name, 0) for name in counts},
    )


def _channel(data: Mapping[str, Any]) -> ChannelStats:
    counts = (
        *("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count"),
        *("requeue_count", "timeout_count"),
    )
    clients = _objects(data, "clients")
    return ChannelStats(
        name=_read(data, "channel_name", ""),
        client_count=_read(data, "client_count", len(clients)),  # missing in old versions
        clients=clients,
        paused=_read(data, "paused", False),
        **{name: _read(data, name, 0) for name in counts},
    )


def _objects(data: Mapping[str, Any], name: str) -> tuple[dict[str, Any], ...]:
    items = _read(data, name, list[Any]())
    if not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{name} is {shorten(items)}; expected objects")
    return tuple(items)


def _read(data: Mapping[str, Any], name: str, default: T) -> T:
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not type(default):
        raise ValueError(f"{name} is {shorten(value)}; expected {type(default).__name__}")
    if isinstance(value, int) and abs(value) > _MAX_COUNT:
        raise ValueError(f"{name} is {shorten(value)}; expected 64 bits at most")
    return value
