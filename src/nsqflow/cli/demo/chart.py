"""Draws throughput and latency over time as SVG, which every browser can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

_WIDTH, _HEIGHT = 860, 530
_LEFT, _RIGHT = 70, 20  # margins
_PANEL = 180  # height
_TOPS = (60, 300)  # where the panels begin
_TIME = "seconds since the first message"

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line through points; x is in seconds, ascending."""

    name: str
    color: str
    points: Sequence[Point]


def per_second(moments: Iterable[tuple[float, int]], seconds: int) -> list[Point]:
    """Return the count per second, from pairs of a time and a count."""
    counts = [0] * seconds
    for moment, count in moments:
        if 0 <= moment < seconds:
            counts[int(moment)] += count
    return [(second + 0.5, float(count)) for second, count in enumerate(counts)]


def spread(times: Iterable[float], start: float) -> list[tuple[float, int]]:
    """Spread points at the same time over the time since the previous ones.

    A batch ends at one moment, but was processed all the time.
    """
    spread, before = [], start
    for moment, together in groupby(sorted(times)):
        count = sum(1 for _ in together)
        spread += [(before + (moment - before) * (n + 0.5) / count, 1) for n in range(count)]
        before = moment
    return spread


def quantile_per_second(points: Iterable[Point], quantile: float, seconds: int) -> list[Point]:
    """Return the quantile of the values in each second that has any."""
    values: list[list[float]] = [[] for _ in range(seconds)]
    for moment, value in points:
        if 0 <= moment < seconds:
            values[int(moment)].append(value)
    return [
        (second + 0.5, sorted(some)[min(len(some) - 1, int(quantile * len(some)))])
        for second, some in enumerate(values)
        if some
    ]


def draw(
    title: str,
    throughput: Sequence[Series],
    latency: Sequence[Series],
    seconds: int,
    warm_up: float = 0.0,
) -> str:
    """Draw both panels; latency starts after ``warm_up`` seconds."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="28" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    above, below = _TOPS
    seconds = max(1, seconds)
    parts += _panel("throughput", "messages per second", throughput, above, seconds)
    parts += _warm_up(min(warm_up, seconds), below, seconds)
    parts += _panel("latency, from view to archive", "seconds", latency, below, seconds)
    return "\n".join([*parts, "</svg>", ""])


def _warm_up(until: float, top: int, seconds: int) -> list[str]:
    """Mark the time that the panel omits."""
    if until <= 0:
        return []
    width = (_WIDTH - _LEFT - _RIGHT) * until / seconds
    return [
        f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_PANEL}" fill="#f0f0f0"/>',
        f'<text x="{_LEFT + 6}" y="{top + 16}" fill="#777">warm-up</text>',
    ]


def _panel(name: str, unit: str, lines: Sequence[Series], top: int, seconds: int) -> list[str]:
    highest = max((y for line in lines for _, y in line.points), default=1.0)
    step = _step(highest)
    steps = max(1, math.ceil(highest / step))
    highest, across = step * steps, _WIDTH - _LEFT - _RIGHT
    middle = top + _PANEL / 2
    parts = [
        f'<text x="{_LEFT}" y="{top - 10}" fill="#555">{escape(name)}</text>',
        f'<text x="16" y="{middle}" transform="rotate(-90 16 {middle})" text-anchor="middle" '
        f'fill="#555">{escape(unit)}</text>',
        f'<text x="{_LEFT + across / 2}" y="{top + _PANEL + 34}" text-anchor="middle" '
        f'fill="#555">{_TIME}</text>',
    ]
    for number in range(steps + 1):
        y = top + _PANEL * (1 - number / steps)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">'
            f"{number * step:,g}</text>"
        )
    every = max(1, math.ceil(_step(seconds)))
    for second in range(0, seconds + 1, every):
        x = _LEFT + across * second / seconds
        parts.append(
            f'<text x="{x:.1f}" y="{top + _PANEL + 18}" text-anchor="middle" fill="#555">'
            f"{second}</text>"
        )
    for index, line in enumerate(lines):
        points = " ".join(
            f"{_LEFT + across * x / seconds:.1f},{top + _PANEL * (1 - y / highest):.1f}"
            for x, y in line.points
        )
        x = _WIDTH - _RIGHT - 110 * (len(lines) - index) + 20
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.color}" stroke-width="2"/>'
            f'<line x1="{x}" x2="{x + 16}" y1="{top - 14}" y2="{top - 14}" stroke="{line.color}" '
            f'stroke-width="3"/><text x="{x + 22}" y="{top - 10}">{escape(line.name)}</text>'
        )
    return parts


def _step(highest: float) -> float:
    """Return a round step such that about five reach the highest value."""
    rough = max(highest, 1e-3) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= rough)
