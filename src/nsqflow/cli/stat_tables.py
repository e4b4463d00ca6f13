"""The rows of ``nsqflow stat``: channels or clients, as a table and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import compress
from typing import Any

from nsqflow.cli.channel_stats import (
    ChannelClient,
    ChannelKey,
    ChannelTotals,
    ClientStats,
    Rates,
    Totals,
)
from nsqflow.cli.stat_view import Sort, StatView, sort_rows
from nsqflow.cli.terminal import Cell, show_name

_CHANNEL_COLUMNS: tuple[str, ...] = (
    *("topic", "channel", "depth", "in flight", "deferred", "in/s", "out/s"),
    *("requeued", "timed out", "clients", "nsqd"),
)
_CLIENT_COLUMNS: tuple[str, ...] = (
    *("topic", "channel", "client", "address", "user agent", "nsqd", "RDY", "in flight"),
    *("finished", "requeued", "connected", "why starved"),
)
# Columns that are shown only on terminals of at least this width.
_MIN_WIDTH = {
    **dict.fromkeys(("requeued", "timed out", "nsqd"), 110),
    **dict.fromkeys(("finished", "connected"), 110),
    **dict.fromkeys(("address", "user agent"), 170),
}
_MIN_CLIENT_WIDTH = _MIN_WIDTH | {"nsqd": 170}
_CLIENT_FIELDS = [one.name for one in fields(ClientStats) if one.name != "state"]
_DAY = 24 * 3600


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The statistics of a cluster at one moment."""

    at: float
    """Seconds since 1970."""
    servers: str
    counts: Totals
    rates: dict[ChannelKey, Rates]
    channel_clients: list[ChannelClient] | None
    """None if clients were not requested."""
    errors: list[str]
    """Errors of servers that did not answer."""


def make_table(
    snapshot: Snapshot, view: StatView, width: int | None
) -> tuple[list[str], list[list[Cell]]]:
    """Return headers and rows; a narrow table omits less important columns."""
    rows: list[list[Cell]]
    if view.clients:
        heads, widths = _CLIENT_COLUMNS, _MIN_CLIENT_WIDTH
        rows = [_client_row(one, snapshot.at) for one in _sorted_clients(snapshot, view)]
    else:
        heads, widths = _CHANNEL_COLUMNS, _MIN_WIDTH
        rows = [
            _channel_row(*key, snapshot.counts[key], snapshot.rates.get(key))
            for key in _sorted_keys(snapshot, view)
        ]
    wanted = [width is None or width >= widths.get(head, 0) for head in heads]
    return [*compress(heads, wanted)], [[*compress(row, wanted)] for row in rows]


def make_objects(snapshot: Snapshot, view: StatView) -> list[dict[str, Any]]:
    """Return each row as an object for JSON."""
    if view.clients:
        return [_client_object(one, snapshot.at) for one in _sorted_clients(snapshot, view)]
    return [
        _channel_object(*key, snapshot.counts[key], snapshot.rates.get(key), snapshot.at)
        for key in _sorted_keys(snapshot, view)
    ]


def _sorted_keys(snapshot: Snapshot, view: StatView) -> list[ChannelKey]:
    value = _VALUES.get(view.sort)
    return sort_rows(
        snapshot.counts,
        lambda key: (key[0], key[1] or ""),
        value and (lambda key: value(key[1], snapshot.counts[key], snapshot.rates.get(key))),
        reverse=view.reverse,
    )


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
        lambda one: (*one.key, *_client_name(one.client), one.nsqd),
        number if value else None,
        reverse=view.reverse,
    )


_VALUES: dict[Sort, Callable[[str | None, ChannelTotals, Rates | None], float | None]] = {
    Sort.DEPTH: lambda channel, counts, rate: counts.depth,
    # A topic itself has no such counts.
    Sort.IN_FLIGHT: lambda channel, counts, rate: counts.in_flight if channel else None,
    Sort.DEFERRED: lambda channel, counts, rate: counts.deferred if channel else None,
    Sort.CLIENTS: lambda channel, counts, rate: counts.clients if channel else None,
    Sort.IN_RATE: lambda channel, counts, rate: rate.in_rate if rate else None,
    Sort.OUT_RATE: lambda channel, counts, rate: rate.out_rate if rate else None,
}


def _channel_row(
    topic: str, channel: str | None, counts: ChannelTotals, rate: Rates | None
) -> list[Cell]:
    paused = " (paused)" if counts.paused else ""
    rates = (rate.in_rate, rate.out_rate) if rate else (None, None)
    if channel is None:
        # Counts that only a channel has stay empty.
        names, sizes = (show_name(topic) + paused, "-"), (counts.depth, None, None)
        return [*names, *sizes, *rates, None, None, None, counts.nsqd]
    names = show_name(topic), show_name(channel) + paused
    held = counts.depth, counts.in_flight, counts.deferred
    return [*names, *held, *rates, counts.requeued, counts.timed_out, counts.clients, counts.nsqd]


def _channel_object(
    topic: str, channel: str | None, counts: ChannelTotals, rate: Rates | None, at: float
) -> dict[str, Any]:
    rates = {"in_rate": rate and rate.in_rate, "out_rate": rate and rate.out_rate}
    return {"at": at, "topic": topic, "channel": channel, **asdict(counts), **rates}


def _client_row(one: ChannelClient, at: float) -> list[Cell]:
    client, why = one.client, one.starvation
    about: tuple[Cell, ...] = ("-", "-", "-", one.nsqd, *[None] * 4, "-")
    if client is not None:
        counts = client.rdy, client.in_flight, client.finished, client.requeued
        since = _connected_since(client.connected, at)
        about = (*_client_name(client), client.user_agent, one.nsqd, *counts, since)
    return [*map(show_name, one.key), *about, why.text if why else "-"]


def _client_object(one: ChannelClient, at: float) -> dict[str, Any]:
    why = one.starvation
    about = {name: getattr(one.client, name, None) for name in _CLIENT_FIELDS}
    return {
        "at": at,
        "topic": one.topic.name,
        "channel": one.channel.name,
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
