"""The visitors of a web site: what they look at, as messages; now and then one is broken."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime

# How often a page is looked at, and how long it takes in the middle, in milliseconds.
_PAGES = {
    "/": (24, 90),
    "/search": (18, 240),
    "/product": (22, 120),
    "/cart": (7, 110),
    "/checkout": (3, 380),
    "/orders": (5, 210),
    "/login": (6, 140),
    "/profile": (3, 100),
    "/help": (4, 60),
    "/contact": (1, 70),
    "/blog": (6, 80),
    "/report": (1, 900),
}
_REFERRERS = (
    None,
    "https://search.example/",
    "https://news.example/today",
    "https://social.example/",
)
_USERS = 5000
_BROKEN = 0.01  # of all messages
_TURN = 10.0  # seconds for traffic to rise and fall once


class Visits:
    """Makes messages, and remembers what has been made of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pages = tuple(_PAGES)
        self._weights = tuple(often for often, _ in _PAGES.values())
        self.good = 0
        """How many can be parsed; their ``n`` are the numbers below."""
        self.sum_ms = 0
        """All their ``ms`` together."""
        self.broken: list[bytes] = []

    @property
    def total(self) -> int:
        """All that were made."""
        return self.good + len(self.broken)

    def make(self, count: int, now: float) -> list[bytes]:
        """So many more, at ``now`` in seconds since the epoch."""
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        return [self._make(at) for _ in range(count)]

    def _make(self, at: str) -> bytes:
        pick = self._random
        (page,) = pick.choices(self._pages, self._weights)
        view: dict[str, object] = {
            "n": self.good,
            "at": at,
            "user": f"u{int(_USERS * pick.random() ** 2):04}",  # some come more often than others
            "page": page,
            "referrer": pick.choice(_REFERRERS),
            # Most take about as long, a few much longer.
            "ms": (ms := max(1, round(_PAGES[page][1] * pick.lognormvariate(0, 0.6)))),
        }
        if pick.random() < _BROKEN:
            self.broken.append(self._break(view))
            return self.broken[-1]
        self.good += 1
        self.sum_ms += ms
        return json.dumps(view).encode()

    def _break(self, view: dict[str, object]) -> bytes:
        """What goes wrong in practice; its number tells it from all others."""
        view["n"] = f"broken-{len(self.broken)}"
        match self._random.randrange(4):
            case 0:  # cut off
                return json.dumps(view).encode()[: self._random.randrange(40, 80)]
            case 1:  # of another type
                return json.dumps(view | {"ms": "fast"}).encode()
            case 2:  # no text
                return json.dumps(view).encode() + b"\xff\xfe"
            case _:  # not meant for this topic
                return b"GET /favicon.ico %d" % len(self.broken)


def due(seconds: float, rate: float) -> int:
    """How many messages there should have been after so many seconds.

    Traffic rises to one and a half of ``rate`` and falls to half of it, as on any site.
    """
    turn = 2 * math.pi / _TURN
    return int(rate * (seconds + 0.5 / turn * (1 - math.cos(turn * seconds))))
