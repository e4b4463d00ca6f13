"""The rows of ``nsqflow stat``: channels, also by partition, or clients; a table, and JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import compress
from typing import Any

from nsqflow.cli.channel_stats import (
    ChannelClient,
    ChannelKey,
    ChannelTotals,
    ClientStats,
    PartitionKey,
    PartitionTotals,
    Rates,
    Totals,
)
from nsqflow.cli.partition_table import LocatedPartition
from nsqflow.cli.stat_view import Sort, StatView, sort_rows
from nsqflow.cli.terminal import Cell, show_name

_CHANNEL_COLUMNS: tuple[str, ...] = (
    *("topic", "channel", "depth", "in flight", "deferred", "in/s", "out/s", "age"),
    *("requeued", "timed out", "clients", "partitions", "nsqd"),
)
_PARTITION_COLUMNS: tuple[str, ...] = (
    *("topic", "channel", "partition", "leader", "replicas", "depth", "in flight", "deferred"),
    *("in/s", "out/s", "age", "requeued", "timed out", "clients"),
)
_CLIENT_COLUMNS: tuple[str, ...] = (
    *("topic", "channel", "client", "address", "user agent", "partition", "nsqd", "RDY"),
    *("in flight", "finished", "requeued", "connected", "why starved"),
)
_REDESIGNED = ("age", "partitions", "partition")
"""Columns that are shown only if there are topics of the redesigned NSQ."""
# Columns that are shown only on terminals of at least this width.
_MIN_WIDTH = {
    **dict.fromkeys(("requeued", "timed out", "nsqd"), 110),
    **dict.fromkeys(("finished", "connected", "partitions"), 110),
    **dict.fromkeys(("address", "user agent"), 170),
}
_MIN_PARTITION_WIDTH = {
    **dict.fromkeys(("deferred", "clients"), 110),
    **dict.fromkeys(("requeued", "timed out", "replicas"), 150),
}
_MIN_CLIENT_WIDTH = _MIN_WIDTH | {"nsqd": 170}
_CLIENT_FIELDS = [one.name for one in fields(ClientStats) if one.name != "state"]
_MINUTE, _HOUR, _DAY = 60, 3600, 24 * 3600

RowKey = ChannelKey | PartitionKey


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The statistics of a cluster at one moment."""

    at: float
    """Seconds since 1970."""
    servers: str
    counts: Totals
    rates: Mapping[RowKey, Rates]
    channel_clients: list[ChannelClient] | None
    """None if clients were not requested."""
    errors: list[str]
    """Errors of servers that did not answer."""
    partitions: Mapping[tuple[str, int], LocatedPartition] = field(default_factory=dict)
    """All partitions of topics of the redesigned NSQ."""
    partition_counts: PartitionTotals = field(default_factory=dict)


def make_table(
    snapshot: Snapshot, view: StatView, width: int | None
) -> tuple[list[str], list[list[Cell]]]:
    """Return headers and rows; a narrow table omits less important columns."""
    rows: list[list[Cell]]
    if view.clients:
        heads, widths = _CLIENT_COLUMNS, _MIN_CLIENT_WIDTH
        rows = [_client_row(one, snapshot.at) for one in _sorted_clients(snapshot, view)]
    elif view.partitions:
        heads, widths = _PARTITION_COLUMNS, _MIN_PARTITION_WIDTH
        rows = [_partition_row(snapshot, key) for key in _sorted_keys(snapshot, view)]
    else:
        heads, widths = _CHANNEL_COLUMNS, _MIN_WIDTH
        rows = [_channel_row(snapshot, key) for key in _sorted_keys(snapshot, view)]
    hidden = () if snapshot.partitions else _REDESIGNED
    wanted = [
        head not in hidden and (width is None or width >= widths.get(head, 0)) for head in heads
    ]
    return [*compress(heads, wanted)], [[*compress(row, wanted)] for row in rows]


def make_objects(snapshot: Snapshot, view: StatView) -> list[dict[str, Any]]:
    """Return each row as an object for JSON."""
    if view.clients:
        return [_client_object(one, snapshot.at) for one in _sorted_clients(snapshot, view)]
    return [_row_object(snapshot, key) for key in _sorted_keys(snapshot, view)]


def _sorted_keys(snapshot: Snapshot, view: StatView) -> list[RowKey]:
    value = _VALUES.get(view.sort)
    keys: list[RowKey] = [*snapshot.counts]
    if view.partitions:
        # A partition without a leader has a row as well.
        known = {topic for topic, _ in snapshot.partitions}
        lone = {(topic, None, number) for topic, number in snapshot.partitions}
        keys = [key for key in snapshot.counts if key[0] not in known]
        keys += {*snapshot.partition_counts} | lone
    return sort_rows(
        keys,
        lambda key: (key[0], key[1] or "", *(f"{number:05}" for number in key[2:])),
        value and (lambda key: value(key[1], _counts_of(snapshot, key), snapshot.rates.get(key))),
        reverse=view.reverse,
    )


def _counts_of(snapshot: Snapshot, key: RowKey) -> ChannelTotals:
    if len(key) == 2:
        return snapshot.counts[key]
    return snapshot.partition_counts.get(key) or ChannelTotals(partitions=1)


def _sorted_clients(snapshot: Snapshot, view: StatView) -> list[ChannelClient]:
    value = _VALUES.get(view.sort)

    def number(one: ChannelClient) -> float | None:
        if view.sort is Sort.IN_FLIGHT:
            return one.client.in_flight if one.client else None
        # Everything else is counted per channel.
        counts = snapshot.counts.get(one.key)
        if not value or not counts:
            return None
        return value(one.channel.name, counts, snapshot.rates.get(one.key))

    return sort_rows(
        snapshot.channel_clients or (),
        _client_order,
        number if value else None,
        reverse=view.reverse,
    )


def _client_order(one: ChannelClient) -> tuple[str, ...]:
    name, address = _client_name(one.client)
    return (*one.key, name, f"{one.partition or 0:05}", address, one.nsqd)


_VALUES: dict[Sort, Callable[[str | None, ChannelTotals, Rates | None], float | None]] = {
    Sort.DEPTH: lambda channel, counts, rate: counts.depth,
    # A topic itself has no such counts.
    Sort.IN_FLIGHT: lambda channel, counts, rate: counts.in_flight if channel else None,
    Sort.DEFERRED: lambda channel, counts, rate: counts.deferred if channel else None,
    Sort.CLIENTS: lambda channel, counts, rate: counts.clients if channel else None,
    Sort.IN_RATE: lambda channel, counts, rate: rate.in_rate if rate else None,
    Sort.OUT_RATE: lambda channel, counts, rate: rate.out_rate if rate else None,
    Sort.AGE: lambda channel, counts, rate: counts.age,
}


def _channel_row(snapshot: Snapshot, key: RowKey) -> list[Cell]:
    counts = _counts_of(snapshot, key)
    held, more = _show_counts(snapshot, key)
    return [*_names(key, counts), *held, *more, counts.partitions, counts.nsqd]


def _partition_row(snapshot: Snapshot, key: RowKey) -> list[Cell]:
    held, more = _show_counts(snapshot, key)
    place: list[Cell] = ["-", "-", "-"]
    if len(key) == 3:
        each = snapshot.partitions[key[0], key[2]]
        place = [str(each.number), each.leader or "none", _show_copies(each)]
    return [*_names(key, _counts_of(snapshot, key)), *place, *held, *more]


def _names(key: RowKey, counts: ChannelTotals) -> list[Cell]:
    paused = " (paused)" * counts.paused
    topic = show_name(key[0])
    return [topic + paused, "-"] if key[1] is None else [topic, show_name(key[1]) + paused]


def _show_counts(snapshot: Snapshot, key: RowKey) -> tuple[list[Cell], list[Cell]]:
    """Return the cells from the depth to the age, and those after it."""
    counts, rate = _counts_of(snapshot, key), snapshot.rates.get(key)
    rates = (rate.in_rate, rate.out_rate) if rate else (None, None)
    if key[1] is None:
        # Counts that only a channel has stay empty.
        return [counts.depth, None, None, *rates, "-"], [None, None, None]
    held = counts.depth, counts.in_flight, counts.deferred
    return [*held, *rates, _show_age(counts.age)], [
        *(counts.requeued, counts.timed_out, counts.clients)
    ]


def _show_age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _show_copies(each: LocatedPartition) -> str:
    """Return the nsqd that have a copy, and of how many if some are missing."""
    wanted, names = each.topic.meta.replica, ", ".join(each.copies)
    if len(each.copies) >= wanted:
        return names
    return f"{names or 'none'} ({len(each.copies)} of {wanted})"


def _row_object(snapshot: Snapshot, key: RowKey) -> dict[str, Any]:
    counts, rate = asdict(_counts_of(snapshot, key)), snapshot.rates.get(key)
    rates = {"in_rate": rate and rate.in_rate, "out_rate": rate and rate.out_rate}
    place: dict[str, Any] = {}
    if len(key) == 3:
        del counts["partitions"], counts["nsqd"]
        each = snapshot.partitions[key[0], key[2]]
        place = {
            "partition": each.number,
            "leader": each.leader,
            "replicas": [*each.copies],
            "replica_count": each.topic.meta.replica,
            "writable": each.stats is not None and each.stats.writable,
        }
    return {"at": snapshot.at, "topic": key[0], "channel": key[1], **place, **counts, **rates}


def _client_row(one: ChannelClient, at: float) -> list[Cell]:
    client, why = one.client, one.starvation
    partition = "-" if one.partition is None else str(one.partition)
    about: tuple[Cell, ...] = ("-", "-", "-", partition, one.nsqd, *[None] * 4, "-")
    if client is not None:
        counts = client.rdy, client.in_flight, client.finished, client.requeued
        since = _connected_since(client.connected, at)
        names = (*_client_name(client), client.user_agent)
        about = (*names, partition, one.nsqd, *counts, since)
    return [*map(show_name, one.key), *about, why.text if why else "-"]


def _client_object(one: ChannelClient, at: float) -> dict[str, Any]:
    why = one.starvation
    about = {name: getattr(one.client, name, None) for name in _CLIENT_FIELDS}
    return {
        "at": at,
        "topic": one.topic.name,
        "channel": one.channel.name,
        "partition": one.partition,
        "nsqd": one.nsqd,
        **about,
        "depth": one.channel.depth,
        "starved": why and why.code,
        "why": why and why.text,
    }


def _client_name(client: ClientStats | None) -> tuple[str, str]:
    """Return a client's name, with its host if that differs, and its address."""
    if client is None:
        return "", ""
    # The default id is the first part of the hostname.
    plain = client.hostname.partition(".")[0] in ("", client.client_id)
    host = "" if plain else f" ({client.hostname})"
    return f"{client.client_id or client.hostname}{host}", client.remote_address


def _connected_since(connected: int, at: float) -> str:
    """Format when a client connected: a time within a day, else a date."""
    if connected <= 0:
        return "-"
    form = "%H:%M:%S" if at - connected < _DAY else "%Y-%m-%d"
    try:
        return time.strftime(form, time.localtime(connected))
    except (OverflowError, OSError, ValueError):  # servers are not trusted
        return "-"
