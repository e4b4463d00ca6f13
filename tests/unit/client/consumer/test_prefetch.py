"""Prefetch: what is asked for ahead of the readers, and a model of nsqd that times out."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.client.consumer.expiry import UnseenDeliveries
from nsqflow.client.consumer.prefetch import Prefetch, PrefetchLimit, ReaderState

T = 60.0  # msg_timeout


def busy_at(at: float, handed: int, **more: float) -> ReaderState:
    """One reader, which holds a message since ``at``."""
    return ReaderState(outstanding=1, handed=handed, handed_at=at, **more)  # type: ignore[arg-type]


def free_at(handed: int, idle: float = 0.0, handed_at: float = 0.0) -> ReaderState:
    return ReaderState(free=1, handed=handed, idle=idle, handed_at=handed_at)


def test_without_demand_nothing_is_asked_for() -> None:
    prefetch = Prefetch(200)
    assert prefetch.update(ReaderState(), 0) == 0
    assert prefetch.limit is PrefetchLimit.NO_DEMAND
    assert prefetch.next_update_at == math.inf


def test_the_first_demand_asks_for_one_message_per_reader() -> None:
    assert Prefetch(200).update(ReaderState(free=1), 5) == 1
    assert Prefetch(200).update(ReaderState(total=20, free=20), 5) == 20
    assert Prefetch(4).update(ReaderState(total=20, free=20), 5) == 4


def test_a_reader_that_waited_in_vain_for_a_second_may_get_a_small_burst() -> None:
    prefetch = Prefetch(200)
    prefetch.update(ReaderState(free=1), 0)
    assert prefetch.next_update_at == 1
    assert prefetch.update(ReaderState(free=1, idle=1.0), 1) == 11
    assert prefetch.limit is PrefetchLimit.RATE


def test_a_fast_reader_has_the_full_window_after_a_few_round_trips() -> None:
    prefetch, handed, trips = Prefetch(200), 0, 0
    now = 0.0
    window = prefetch.update(ReaderState(free=1), now)
    while window < 200:
        now += 0.001
        handed += window
        trips += 1
        window = prefetch.update(free_at(handed, handed_at=now), now)
    assert trips <= 5
    assert prefetch.limit is PrefetchLimit.MAX_IN_FLIGHT


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.1, 150), (1, 15), (10, 1), (20, 1), (25, 0), (40, 0)]
)
def test_what_waits_can_start_within_half_of_the_timeout_and_end_in_time(
    seconds: float, ahead: int
) -> None:
    prefetch, window = Prefetch(200), 0
    for handed in range(1, 400):
        window = prefetch.update(busy_at(handed * seconds, handed), handed * seconds)
    assert window - 1 == pytest.approx(ahead, rel=0.25, abs=0.5)
    assert (window - 1) * seconds <= T / 2
    assert window == 1 or window * seconds <= T


def test_waiting_for_messages_does_not_make_a_reader_slow() -> None:
    prefetch, window = Prefetch(200), 0
    now = idle = 0.0
    for handed in range(1, 100):  # a message each minute, handled within a millisecond
        window = prefetch.update(busy_at(now, handed, idle=idle), now)
        now += 60
        idle += 59.999
        prefetch.update(free_at(handed, idle, now - 59.999), now)
    assert window == 200


def test_many_readers_that_are_seldom_busy_are_measured_by_what_they_could_do() -> None:
    prefetch, window = Prefetch(200), 0
    now = idle = 0.0
    for handed in range(1, 50):  # ten readers, a minute per message, one busy at a time
        now += 60
        idle += 9 * 60
        window = prefetch.update(
            ReaderState(total=10, free=9, outstanding=1, handed=handed, idle=idle, handed_at=now),
            now,
        )
    assert prefetch.rate == pytest.approx(10 / 60, rel=0.1)
    assert 10 <= window <= 10 + 2  # two more are not worth a command


def test_no_reader_free_for_half_of_the_timeout_is_a_stall_and_a_free_one_ends_it() -> None:
    prefetch, window = Prefetch(200), 0
    for handed in range(1, 1000):
        window = prefetch.update(busy_at(handed / 1000, handed), handed / 1000)
    assert window == 200
    assert prefetch.next_update_at == pytest.approx(0.999 + T / 2)
    stalled = busy_at(0.999, 999)
    assert prefetch.update(stalled, 0.999 + T / 2) == 0
    assert prefetch.limit is PrefetchLimit.STALLED
    assert prefetch.update(free_at(999), 70) == 1  # small again


def test_a_message_that_has_waited_for_long_stops_the_flow_before_it_times_out() -> None:
    prefetch = Prefetch(200)
    for handed in range(1, 100):
        prefetch.update(busy_at(handed / 100, handed), handed / 100)
    waiting = busy_at(30, 100, oldest_deadline=30 + T / 4)
    assert prefetch.update(waiting, 30) == 0
    assert prefetch.limit is PrefetchLimit.STALLED


def test_a_gathered_batch_is_demand_whatever_the_rate() -> None:
    prefetch = Prefetch(200)
    for handed in range(1, 20):
        prefetch.update(busy_at(handed * 50.0, handed), handed * 50.0)
    gathering = ReaderState(free=1, gathering=100, chunk=100, handed=20, handed_at=1000)
    assert prefetch.update(gathering, 1000) >= 100
    assert Prefetch(30).update(ReaderState(free=1, gathering=30, chunk=100), 0) == 30


def test_messages_answered_later_do_not_limit_the_window() -> None:
    prefetch = Prefetch(200)
    for held in range(50):  # a reader that comes back at once, and answers later
        window = prefetch.update(
            ReaderState(free=1, outstanding=held, handed=held, handed_at=held / 10), held / 10
        )
        assert window > held


def test_unseen_deliveries_are_subtracted_and_the_oldest_forgotten() -> None:
    unseen = UnseenDeliveries(2)
    unseen.add("a", b"1")
    unseen.add("a", b"1")
    unseen.add("a", b"2")
    assert (unseen.seen("a", b"1", 6), unseen.seen("b", b"1", 6)) == (4, 6)
    unseen.add("a", b"3")
    assert (len(unseen), unseen.seen("a", b"1", 6), unseen.seen("a", b"3", 6)) == (2, 6, 5)


# --- against a model of nsqd


@dataclass
class Model:
    """An nsqd that pushes up to RDY, times messages out, and a consumer that follows prefetch.

    ReaderState take one message at a time, for as long as ``seconds`` says; the wire takes
    ``latency`` each way.
    """

    seconds: list[float]
    readers: int
    max_in_flight: int
    latency: float
    total: int
    now: float = 0.0
    rdy: int = 0
    depth: list[int] = field(default_factory=list)
    in_flight: dict[int, float] = field(default_factory=dict)  # at nsqd, and until when
    queue: list[tuple[int, float]] = field(default_factory=list)  # in the client, with deadlines
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    free: int = 0
    handed: int = 0
    outstanding: set[tuple[int, float]] = field(default_factory=set)
    idle: float = 0.0
    handed_at: float = -math.inf
    unseen: dict[int, int] = field(default_factory=dict)  # in this stall
    most_unseen: int = 0
    most_in_flight: int = 0
    finished: int = 0

    def __post_init__(self) -> None:
        self.prefetch = Prefetch(self.max_in_flight, T)
        self.order = count()
        self.depth = list(range(self.total))
        self.free = self.readers

    def at(self, delay: float, what: str, number: int = 0) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), what, number))

    def run(self, until: float) -> None:
        self.update()
        while self.events and self.events[0][0] <= until and self.finished < self.total:
            now, _, what, number = heapq.heappop(self.events)
            self.idle += self.free * (now - self.now)
            self.now = now
            getattr(self, what)(number)
            self.update()

    # nsqd

    def set_rdy(self, rdy: int) -> None:
        self.rdy = rdy
        self.push()

    def push(self) -> None:
        while self.depth and len(self.in_flight) < self.rdy:
            number = self.depth.pop(0)
            self.in_flight[number] = self.now + T
            self.at(self.latency, "arrive", number)
            self.at(T, "time_out", number)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))

    def time_out(self, number: int) -> None:
        if self.in_flight.get(number, math.inf) <= self.now:
            del self.in_flight[number]
            self.depth.append(number)
            self.push()

    def finish(self, number: int) -> None:
        if self.in_flight.pop(number, None) is not None:
            self.finished += 1
        self.push()

    # the consumer

    def arrive(self, number: int) -> None:
        self.queue.append((number, self.now + T))
        self.at(T, "expire")

    def expire(self, _: int) -> None:
        expired = [number for number, deadline in self.queue if deadline <= self.now]
        self.queue = [each for each in self.queue if each[1] > self.now]
        for number in expired:
            self.unseen[number] = self.unseen.get(number, 0) + 1
            self.most_unseen = max(self.most_unseen, self.unseen[number])
        self.outstanding = {each for each in self.outstanding if each[1] > self.now}

    def done(self, number: int) -> None:
        self.outstanding = {each for each in self.outstanding if each[0] != number}
        self.free += 1
        self.unseen.clear()  # a reader is free: the stall is over
        self.at(self.latency, "finish", number)

    def look(self, _: int) -> None:
        pass  # the update comes after every event

    def update(self) -> None:
        while self.free and self.queue:
            number, deadline = self.queue.pop(0)
            self.free -= 1
            self.handed_at = self.now
            self.outstanding.add((number, deadline))
            self.at(self.seconds[self.handed % len(self.seconds)], "done", number)
            self.handed += 1
        before = self.prefetch.window
        window = self.prefetch.update(
            ReaderState(
                total=self.readers,
                free=self.free,
                stuck=self.readers - self.free - len(self.outstanding),
                outstanding=len(self.outstanding),
                handed=self.handed,
                idle=self.idle,
                handed_at=self.handed_at,
                oldest_deadline=self.queue[0][1] if self.queue else math.inf,
            ),
            self.now,
        )
        assert 0 <= window <= self.max_in_flight
        assert self.prefetch.next_update_at > self.now, "the owner would do nothing else"
        if window != before:
            self.at(self.latency, "set_rdy", window)
        if self.prefetch.next_update_at < math.inf:
            self.at(max(0.0, self.prefetch.next_update_at - self.now), "look")


speeds = st.one_of(
    st.floats(0.001, 1), st.floats(1, T / 2), st.floats(T / 2, 3 * T), st.just(0.001), st.just(300)
)


@given(
    seconds=st.lists(speeds, min_size=1, max_size=12),
    readers=st.integers(1, 5),
    max_in_flight=st.sampled_from([1, 3, 20, 200]),
    latency=st.sampled_from([0.0005, 0.05, 0.5]),
    total=st.integers(1, 60),
)
@settings(deadline=None)
def test_no_message_is_left_unseen_more_than_once_per_stall(
    seconds: list[float], readers: int, max_in_flight: int, latency: float, total: int
) -> None:
    model = Model(seconds, readers, max_in_flight, latency, total)
    model.run(until=40 * T)
    assert model.most_unseen <= 1
    assert model.most_in_flight <= max_in_flight


@given(
    seconds=st.floats(0.001, T / 3),
    readers=st.integers(1, 5),
    latency=st.sampled_from([0.0005, 0.05]),
)
@settings(deadline=None, max_examples=30)
def test_steady_readers_leave_no_message_unseen_and_come_to_an_end(
    seconds: float, readers: int, latency: float
) -> None:
    model = Model([seconds], readers, 200, latency, 100)
    model.run(until=math.inf)
    assert (model.most_unseen, model.finished) == (0, 100)
