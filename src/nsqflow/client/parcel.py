"""A parcel: bodies that go to nsqd in one command, and who waits for the outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from operator import countOf
from typing import Any

from nsqflow.errors import ConfigError, NsqError, PublishUncertain, RequestTimeout, ServerError
from nsqflow.protocol import Dpub, Mpub, Pub, Publish, Receipt
from nsqflow.protocol.publish import Bodies

Outcome = asyncio.Future[Receipt | None]


class Parcel:
    """One PUB, MPUB or DPUB.

    There is an outcome for each body, or (``publish_many``) one for all of them.
    """

    __slots__ = (
        "bodies",
        "deadline",
        "delay_ms",
        "doubt",
        "expired",
        "outcomes",
        "refused_by",
        "size",
        "timeout",
        "topic",
    )

    def __init__(self, topic: str, deadline: float, delay_ms: int | None = None) -> None:
        self.topic = topic
        self.deadline = deadline
        self.delay_ms = delay_ms  # None: at once
        self.bodies: list[bytes] = []
        self.outcomes: list[Outcome] = []
        self.size = 4  # bytes as MPUB's body: a count, then size and content of each
        self.timeout = 0.0  # that of all who put something in
        self.expired = False  # sent, and told to be uncertain
        self.doubt: PublishUncertain | None = None  # it goes again, and may be stored already
        self.refused_by: set[str] = set()  # the nsqd that could not store it

    def add(self, body: bytes, outcome: Outcome) -> None:
        """Put a body in."""
        self.bodies.append(body)
        self.outcomes.append(outcome)
        self.size += 4 + len(body)

    @property
    def shared(self) -> bool:
        """One outcome stands for all bodies."""
        return len(self.outcomes) < len(self.bodies)

    def command(self) -> Publish | None:
        """Return what to send; None if nobody waits for any of it any more."""
        self._drop_forsaken()
        if not self.outcomes:
            return None
        if self.delay_ms is not None:
            return Dpub(self.topic, self.delay_ms, self.bodies[0])
        if len(self.bodies) == 1:
            return Pub(self.topic, self.bodies[0])
        return Mpub(self.topic, self.bodies)

    def _drop_forsaken(self) -> None:
        # Cancelled, or out of time, before it was sent: then it shall not be sent.
        if any(map(asyncio.Future.done, self.outcomes)):
            bodies = [] if self.shared else self.bodies
            waiting = [
                (body, outcome)
                for body, outcome in zip(bodies, self.outcomes, strict=False)
                if not outcome.done()
            ]
            self.bodies = [body for body, _ in waiting]
            self.outcomes = [outcome for _, outcome in waiting]

    def split(self) -> list[Parcel]:
        """Return one parcel for each body."""
        parcels = []
        for body, outcome in zip(self.bodies, self.outcomes, strict=True):
            parcel = Parcel(self.topic, self.deadline)
            parcel.doubt = self.doubt
            parcel.add(body, outcome)
            parcels.append(parcel)
        return parcels

    def stored(self, receipt: Receipt | None) -> None:
        """Tell all that wait: nsqd has it."""
        for outcome in self.outcomes:
            if not outcome.done():
                outcome.set_result(receipt)

    def fail(self, error: NsqError) -> None:
        """Tell all that wait why it failed; each gets an exception of its own."""
        if self.doubt is not None:
            error = PublishUncertain(f"{self.doubt}; sent again, and failed: {error}")
        for outcome in self.outcomes:
            if not outcome.done():
                outcome.set_exception(copy_of(error))

    def expire(self) -> None:
        """Let go of the bodies: it was sent, and nobody waits for the answer any more."""
        self.expired = True
        self.bodies = []
        self.outcomes = []


class Line:
    """Parcels of one topic that wait, the first to go first."""

    __slots__ = ("fresh", "parcels", "soonest")

    def __init__(self) -> None:
        self.fresh = False  # there are new ones, for which nothing was dialled yet
        self.parcels: deque[Parcel] = deque()
        self.soonest = float("inf")  # none has a deadline before it

    def append(self, parcel: Parcel) -> None:
        """Let a parcel wait behind the others."""
        self.fresh = True
        self.parcels.append(parcel)
        self.soonest = min(self.soonest, parcel.deadline)

    def put_back(self, parcel: Parcel) -> None:
        """Let a parcel wait before the others."""
        self.parcels.appendleft(parcel)
        self.soonest = min(self.soonest, parcel.deadline)

    def take_due(self, until: float) -> list[Parcel]:
        """Take out those whose deadline is not after ``until``; quick if there are none."""
        if self.soonest > until:
            return []
        due = [parcel for parcel in self.parcels if parcel.deadline <= until]
        self.parcels = deque(parcel for parcel in self.parcels if parcel.deadline > until)
        self.soonest = min((p.deadline for p in self.parcels), default=float("inf"))
        return due


def uncertain(topic: str, nsqd: str, why: object) -> PublishUncertain:
    """Say that nobody knows whether it was stored."""
    return PublishUncertain(f"publish to {topic!r} was sent to {nsqd}, stored or not: {why}")


def out_of_time(topic: str, why: object) -> RequestTimeout:
    """Say that it was not sent."""
    return RequestTimeout(f"publish to {topic!r} was not sent in time: {why}")


def copy_of(error: NsqError) -> NsqError:
    """Return an exception like it; one raised in several tasks gathers their tracebacks."""
    if isinstance(error, ServerError):
        copy: NsqError = type(error)(error.code, error.text)
    else:
        copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        copy.add_note(note)
    return copy


def mpub_size(bodies: Bodies) -> int:
    """Return the size of MPUB's body: a count, then size and content of each."""
    return 4 + 4 * len(bodies) + bodies.total


def chunks(bodies: Sequence[bytes], max_body_size: int) -> list[range]:
    """Cut ``bodies`` into ranges that fit into one MPUB each."""
    ranges, start, size = [], 0, 4
    for i, body in enumerate(bodies):
        size += 4 + len(body)
        if size > max_body_size:
            ranges.append(range(start, i))
            start, size = i, 8 + len(body)
    ranges.append(range(start, len(bodies)))
    return ranges


def as_bodies(given: Iterable[Any], max_msg_size: int) -> Bodies:
    """Return all of them as bytes; raise, naming the first that no nsqd would take."""
    anything = list(given)
    if anything and countOf(map(type, anything), bytes) == len(anything):  # nearly always so
        bodies = Bodies(anything)
        if bodies.smallest and bodies.largest <= max_msg_size:
            return bodies
    return Bodies(as_body(body, max_msg_size, f"body {i}") for i, body in enumerate(anything))


def as_body(given: Any, max_msg_size: int, what: str = "body") -> bytes:
    """Return ``given`` as bytes; raise for what no nsqd would take."""
    if type(given) is not bytes and not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is {type(given).__name__}; it must be bytes")
    body = bytes(given)  # bytes are not copied
    if not 1 <= len(body) <= max_msg_size:
        raise ConfigError(
            f"{what} of {len(body)} bytes; 1 to {max_msg_size} (max_msg_size) are allowed"
        )
    return body
