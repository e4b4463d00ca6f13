"""The outbox: what was published and is not answered yet.

    publish ──> open parcels ──> waiting, by topic ──> an outlet ──> stored, refused, uncertain
                (one loop turn)   (no nsqd to take it)  (a connection)

What is published within one turn of the loop goes out in one parcel. One timer looks after
the deadlines of all of them, and the bytes of all are bounded: who comes when the outbox is
full waits, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from nsqflow.client.config import ProducerConfig
from nsqflow.client.news import Newsroom
from nsqflow.client.outlet import Outlet
from nsqflow.client.parcel import Line, Outcome, Parcel, copy_of, out_of_time, uncertain
from nsqflow.client.reconnect_schedule import TRIGGER_GAP
from nsqflow.client.room import Room
from nsqflow.errors import NsqError, PublishUncertain, ServerError
from nsqflow.protocol import check_topic

_NOT_STORED = ("E_PUB_FAILED", "E_DPUB_FAILED")  # another nsqd may do better
_ONE_OF_THEM = ("E_BAD_MESSAGE", "E_BAD_BODY")  # what is wrong with a batch may be one message
_SWEEP_GAP = 0.02  # seconds: a sweep looks at all there is, so many deadlines share one


class Carriers(Protocol):
    """Who takes parcels to nsqd."""

    def pick(self, parcel: Parcel) -> Outlet | None:
        """Choose a connection that can take it now."""

    def connect(self, topic: str) -> None:
        """Dial now, as far as allowed: something waits, and no connection takes it."""

    def final_error(self, topic: str) -> NsqError | None:
        """Return the error that waiting can't fix; None: a connection may come at any time."""

    def why_waiting(self, topic: str) -> str:
        """Say in words why nothing was taken."""

    def nsqds(self, topic: str) -> int:
        """How many nsqd could take it."""


class Outbox:
    """Gathers parcels, hands them to connections, keeps their deadlines and their size."""

    def __init__(self, config: ProducerConfig, carriers: Carriers, news: Newsroom) -> None:
        self.room = Room(config.max_pending, self._sweep_by)  # for what has no outcome yet
        self._config = config
        self._carriers = carriers
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._open: dict[str, Parcel] = {}
        self._turn_ends = False
        self._waiting: dict[str, Line] = {}
        self._unanswered: set[Outlet] = set()
        self._sweep_at = float("inf")
        self._sweeper: asyncio.TimerHandle | None = None
        self._redial_at = float("inf")  # for what waits then; part of the sweep
        self._closed: NsqError | None = None

    # Taking in

    def add(self, topic: str, body: bytes, timeout: float) -> Outcome:
        """Put a body into the parcel of this turn."""
        parcel = self._open.get(topic)
        size = len(body) + 4
        if (
            parcel is None
            or parcel.timeout != timeout
            or parcel.size + size > self._config.max_body_size
        ):
            parcel = self._begin(topic, timeout)
        self.room.taken += size
        outcome: Outcome = asyncio.Future(loop=self._loop)
        parcel.bodies.append(body)
        parcel.outcomes.append(outcome)
        parcel.size += size
        return outcome

    def put(self, parcel: Parcel, *, at_once: bool) -> None:
        """Take in a whole parcel, behind what was published to its topic before.

        ``at_once``: hand it over now, not at the end of the turn.
        """
        self._check_open()
        self.room.taken += parcel.size - 4
        self._end_open(parcel.topic)
        self._sweep_by(parcel.deadline)
        if at_once and parcel.topic not in self._waiting and self._hand_over(parcel):
            return
        self._queue(parcel)
        if at_once:
            self.pump()
        else:
            self._schedule()

    # What became of a parcel

    def done(self, parcel: Parcel) -> None:
        """Forget a parcel: it has its outcome."""
        self.room.free(parcel.size - 4)

    def refused(self, parcel: Parcel, nsqd: str, error: ServerError) -> None:
        """Its nsqd answered with an error: try elsewhere, one by one, or give it back."""
        many = len(parcel.bodies) > 1
        parcel.refused_by.add(nsqd)
        if error.code in _ONE_OF_THEM and many and not parcel.shared:
            # Nothing of it was stored: each goes again by itself, and the bad one fails alone.
            parts = parcel.split()
            self.room.free(parcel.size - 4 - sum(part.size - 4 for part in parts))
            self._put_back(parts)
        elif error.code == "E_MPUB_FAILED" and many:
            self.lost([parcel], nsqd, error)
        elif error.code in _NOT_STORED and len(parcel.refused_by) < self._carriers.nsqds(
            parcel.topic
        ):
            self._put_back([parcel])
        else:
            parcel.fail(error)
            self.done(parcel)

    def lost(self, parcels: Iterable[Parcel], nsqd: str, error: NsqError) -> None:
        """They were sent, and no answer will come."""
        # The outlet is of no more use: don't keep it until the next sweep.
        self._unanswered = {outlet for outlet in self._unanswered if outlet.unanswered}
        again: list[Parcel] = []
        for parcel in parcels:
            failure = uncertain(parcel.topic, nsqd, error)
            if self._config.retry_uncertain:
                parcel.doubt = failure
                again.append(parcel)
            else:
                self._fail_uncertain(parcel, nsqd, failure)
        self._put_back(again)

    def untouched(self, parcels: list[Parcel]) -> None:
        """They were sent behind one that nsqd refused, so it has read none of them."""
        self._put_back(parcels)

    # Handing out

    def flush(self) -> None:
        """End the turn: hand over what can be."""
        self._turn_ends = False
        if self._open:
            parcels, self._open = self._open, {}
            for parcel in parcels.values():
                self._queue(parcel)
        self.pump()

    def pump(self) -> None:
        """Hand waiting parcels to connections."""
        touched: set[Outlet] = set()
        for topic in list(self._waiting):
            line = self._waiting[topic]
            while line.parcels and (outlet := self._carriers.pick(line.parcels[0])) is not None:
                if outlet.load(line.parcels.popleft()):
                    touched.add(outlet)
            if line.parcels:
                self._await_connection(topic, line)
            if not line.parcels:
                del self._waiting[topic]
        for outlet in touched:
            outlet.flush()
            self._unanswered.add(outlet)

    async def empty(self) -> None:
        """Wait until nobody waits for an outcome."""
        while awaited := list(self._awaited()):
            await asyncio.wait(awaited)

    def abandon(self, error: NsqError) -> None:
        """Fail all that was not sent, and all that wait for room; what was sent is uncertain."""
        self._closed = error
        self.room.close(error)
        for topic in list(self._open):
            self._end_open(topic)
        for line in self._waiting.values():
            for parcel in line.parcels:
                self._fail(parcel, error)
        self._waiting.clear()
        for outlet in self._unanswered:
            for parcel in outlet.unanswered:
                self._expire(parcel, outlet.address, error)
        if self._sweeper is not None:
            self._sweeper.cancel()

    # Private methods

    def _check_open(self) -> None:
        if self._closed is not None:
            raise copy_of(self._closed)

    def _begin(self, topic: str, timeout: float) -> Parcel:
        if not self._end_open(topic):
            self._check_open()
            check_topic(topic)
        parcel = self._open[topic] = Parcel(topic, self._loop.time() + timeout)
        parcel.timeout = timeout
        self._sweep_by(parcel.deadline)
        self._schedule()
        return parcel

    def _hand_over(self, parcel: Parcel) -> bool:
        """Send a parcel that has none before it; tell whether a connection could take it."""
        outlet = self._carriers.pick(parcel)
        if outlet is not None and outlet.load(parcel):
            outlet.flush()
            self._unanswered.add(outlet)
        return outlet is not None

    def _end_open(self, topic: str) -> bool:
        """Let what this turn has of a topic wait; more of it goes into another parcel."""
        parcel = self._open.pop(topic, None)
        if parcel is not None:
            self._queue(parcel)
        return parcel is not None

    def _schedule(self) -> None:
        if not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self.flush)

    def _queue(self, parcel: Parcel) -> None:
        self._line(parcel.topic).append(parcel)

    def _put_back(self, parcels: list[Parcel]) -> None:
        for parcel in reversed(parcels):
            self._line(parcel.topic).put_back(parcel)
        if parcels:
            self._schedule()

    def _line(self, topic: str) -> Line:
        line = self._waiting.get(topic)
        if line is None:
            line = self._waiting[topic] = Line()
        return line

    def _await_connection(self, topic: str, line: Line) -> None:
        """Let parcels wait until their timeout, but fail those that no wait can help."""
        error = self._carriers.final_error(topic)
        if error is not None:
            for parcel in line.take_due(float("inf")):
                self._fail(parcel, error)
        if line.fresh:  # after the look at the error: they have failed with the last one
            line.fresh = False
            self._carriers.connect(topic)
        if line.parcels and self._redial_at == float("inf"):
            self._redial_at = self._loop.time() + TRIGGER_GAP
            self._sweep_by(self._redial_at)

    def _fail(self, parcel: Parcel, error: NsqError) -> None:
        parcel.fail(error)
        self.done(parcel)

    def _fail_uncertain(self, parcel: Parcel, nsqd: str, failure: PublishUncertain) -> None:
        self._fail(parcel, failure)
        self._news.tell("uncertain", nsqd, str(failure), failure)

    def _awaited(self) -> Iterator[asyncio.Future[Any]]:
        """One for each parcel: the others of it have their outcome at the same time."""
        lines = [*self._waiting.values()]
        parcels = [*self._open.values(), *(parcel for line in lines for parcel in line.parcels)]
        parcels += [parcel for outlet in self._unanswered for parcel in outlet.unanswered]
        for parcel in parcels:
            waiting = next((o for o in parcel.outcomes if not o.done()), None)
            if waiting is not None:
                yield waiting
        yield from self.room.waiting()

    # Deadlines

    def _sweep_by(self, deadline: float) -> None:
        if deadline < self._sweep_at:
            self._sweep_at = deadline
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        self._sweep_at = float("inf")
        # Who waits for room comes first: what the others leave is not for those out of time.
        soonest = min(self.room.expire(now), self._sweep_waiting(now), self._sweep_sent(now))
        soonest = min(soonest, self._redial(now))
        self._sweep_by(max(soonest, now + _SWEEP_GAP))

    def _redial(self, now: float) -> float:
        """Dial again for what still waits; return when to do so the next time."""
        if now >= self._redial_at:
            topics = [topic for topic, line in self._waiting.items() if line.parcels]
            for topic in topics:
                self._carriers.connect(topic)
            self._redial_at = now + TRIGGER_GAP if topics else float("inf")
        return self._redial_at

    def _sweep_waiting(self, now: float) -> float:
        for topic, line in self._waiting.items():
            for parcel in line.take_due(now):
                self._fail(parcel, out_of_time(topic, self._carriers.why_waiting(topic)))
        deadlines = [parcel.deadline for parcel in self._open.values()]
        deadlines += [line.soonest for line in self._waiting.values()]
        return min(deadlines, default=float("inf"))

    def _sweep_sent(self, now: float) -> float:
        soonest = float("inf")
        for outlet in list(self._unanswered):
            if not outlet.unanswered:
                self._unanswered.discard(outlet)
            for parcel in outlet.unanswered:
                if parcel.deadline > now:
                    soonest = min(soonest, parcel.deadline)
                else:
                    self._expire(parcel, outlet.address, "no answer in time")
        return soonest

    def _expire(self, parcel: Parcel, nsqd: str, why: object) -> None:
        """Wait no longer for the answer; it may still come, and is then nobody's."""
        if not parcel.expired:
            self._fail_uncertain(parcel, nsqd, uncertain(parcel.topic, nsqd, why))
            parcel.expire()
