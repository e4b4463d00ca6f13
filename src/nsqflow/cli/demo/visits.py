"""The visitors of a web site: what they look at, as messages; now and then one is broken."""

from __future__ import annotations

import json
import math
import random
from array import array
from datetime import UTC, datetime
from zlib import crc32

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


DIGEST = "crc32(concat_ws('|', n, unix_millis(at), user, page, coalesce(referrer, ''), ms))"
"""What Spark makes of a view to compare it with what was published."""


class Visits:
    """Makes messages, and remembers of each what is needed to know it again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pages = tuple(_PAGES)
        self._weights = tuple(often for often, _ in _PAGES.values())
        self.digests = array("L")
        """Of each view that can be parsed, at the place of its ``n``."""
        self.broken: list[bytes] = []
        self.moments: list[tuple[float, int]] = []
        """When how many of both were made."""

    @property
    def good(self) -> int:
        """How many can be parsed."""
        return len(self.digests)

    @property
    def total(self) -> int:
        """All that were made."""
        return self.good + len(self.broken)

    def make(self, count: int, now: float) -> list[bytes]:
        """So many more, at ``now`` in seconds since the epoch."""
        at_ms = int(now * 1000)
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        self.moments.append((now, count))
        return [self._make(at, at_ms) for _ in range(count)]

    def _make(self, at: str, at_ms: int) -> bytes:
        pick = self._random
        (page,) = pick.choices(self._pages, self._weights)
        view: dict[str, object] = {
            "n": self.good,
            "at": at,
            "user": f"u{int(_USERS * pick.random() ** 2):04}",  # some come more often than others
            "page": page,
            "referrer": pick.choice(_REFERRERS),
            # Most take about as long, a few much longer.
            "ms": max(1, round(_PAGES[page][1] * pick.lognormvariate(0, 0.6))),
        }
        if pick.random() < _BROKEN:
            self.broken.append(self._break(view))
            return self.broken[-1]
        text = f"{view['n']}|{at_ms}|{view['user']}|{page}|{view['referrer'] or ''}|{view['ms']}"
        self.digests.append(crc32(text.encode()))
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
