"""Parcels: what goes out in one command, who waits for it, and how bodies are cut into them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.parcel import (
    Line,
    Outcome,
    Parcel,
    as_bodies,
    as_body,
    chunks,
    copy_of,
    out_of_time,
    uncertain,
)
from nsqflow.errors import (
    BadMessageError,
    ConfigError,
    NetworkError,
    NsqError,
    PublishUncertain,
    RemoteProtocolError,
    RequestTimeout,
    ServerError,
)
from nsqflow.protocol import Dpub, Mpub, Pub
from tests.fixtures.loops import asynchronous


def new_parcel(*bodies: bytes) -> Parcel:
    """A parcel of the topic "t", with an outcome for each body."""
    parcel = Parcel("t", 10.0)
    for body in bodies:
        parcel.add(body, asyncio.get_running_loop().create_future())
    return parcel


def shared_parcel(*bodies: bytes) -> Parcel:
    """A parcel with one outcome for all bodies."""
    parcel = Parcel("t", 10.0)
    parcel.bodies = [*bodies]
    parcel.outcomes = [asyncio.get_running_loop().create_future()]
    return parcel


def fates(parcel: Parcel) -> list[str]:
    """What became of each outcome."""
    return [fate(outcome) for outcome in parcel.outcomes]


def fate(outcome: Outcome) -> str:
    if not outcome.done():
        return "open"
    if outcome.cancelled():
        return "cancelled"
    error = outcome.exception()
    return "stored" if error is None else type(error).__name__


# Commands


@asynchronous
async def test_one_body_is_pub_several_are_mpub_and_a_delay_is_dpub() -> None:
    assert new_parcel(b"1").command() == Pub("t", b"1")
    assert new_parcel(b"1", b"2").command() == Mpub("t", [b"1", b"2"])
    assert shared_parcel(b"1", b"2").command() == Mpub("t", [b"1", b"2"])
    assert shared_parcel(b"1").command() == Pub("t", b"1")
    later = Parcel("t", 10.0, delay_ms=0)
    later.add(b"1", asyncio.get_running_loop().create_future())
    assert later.command() == Dpub("t", 0, b"1")


@asynchronous
async def test_the_size_is_that_of_the_body_of_mpub() -> None:
    parcel = new_parcel(b"1", b"22", b"333")
    command = parcel.command()
    assert command is not None
    _, _, rest = command.encode().partition(b"\n")
    assert parcel.size == len(rest) - 4 == int.from_bytes(rest[:4], "big")


@asynchronous
async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    parcel = new_parcel(b"1", b"2", b"3")
    parcel.outcomes[1].cancel()
    assert parcel.command() == Mpub("t", [b"1", b"3"])
    parcel.outcomes[0].cancel()
    assert parcel.command() == Pub("t", b"3")
    parcel.outcomes[0].cancel()
    assert parcel.command() is None


@asynchronous
async def test_a_shared_parcel_is_given_up_as_a_whole() -> None:
    parcel = shared_parcel(b"1", b"2")
    parcel.outcomes[0].cancel()
    assert parcel.command() is None


# Outcomes


@asynchronous
async def test_all_who_wait_are_told() -> None:
    parcel = new_parcel(b"1", b"2", b"3")
    parcel.outcomes[1].cancel()
    parcel.stored(None)
    assert fates(parcel) == ["stored", "cancelled", "stored"]
    parcel.fail(NetworkError("late"))
    assert fates(parcel) == ["stored", "cancelled", "stored"]


@asynchronous
async def test_each_who_waits_has_an_exception_of_its_own() -> None:
    parcel = new_parcel(b"1", b"2")
    error = BadMessageError("E_BAD_MESSAGE", "too big")
    error.add_note("a note")
    parcel.fail(error)
    errors = [outcome.exception() for outcome in parcel.outcomes]
    assert errors[0] is not errors[1]
    assert [str(each) for each in errors] == ["E_BAD_MESSAGE too big"] * 2
    assert {type(each) for each in errors} == {BadMessageError}


@asynchronous
async def test_what_may_be_stored_already_fails_as_uncertain() -> None:
    parcel = new_parcel(b"1")
    parcel.doubt = uncertain("t", "host:1", "closed by nsqd")
    parcel.fail(out_of_time("t", "no nsqd"))
    error = parcel.outcomes[0].exception()
    assert isinstance(error, PublishUncertain)
    assert "host:1" in str(error)
    assert "no nsqd" in str(error)


@asynchronous
async def test_parts_keep_what_they_were_parts_of() -> None:
    parcel = new_parcel(b"1", b"2")
    parcel.doubt = uncertain("t", "host:1", "closed by nsqd")
    parts = parcel.split()
    assert [part.bodies for part in parts] == [[b"1"], [b"2"]]
    assert [part.outcomes for part in parts] == [[outcome] for outcome in parcel.outcomes]
    assert {(part.topic, part.deadline, part.doubt) for part in parts} == {
        ("t", 10.0, parcel.doubt)
    }


@asynchronous
async def test_an_expired_parcel_holds_no_bodies() -> None:
    parcel = new_parcel(b"1")
    parcel.fail(uncertain("t", "host:1", "no answer in time"))
    assert fates(parcel) == ["PublishUncertain"]
    parcel.expire()
    assert (parcel.bodies, parcel.outcomes) == ([], [])
    parcel.stored(None)


@pytest.mark.parametrize(
    "error",
    [
        ServerError("E_NEW", "text"),
        BadMessageError("E_BAD_MESSAGE"),
        RemoteProtocolError("text", "E_INVALID"),
        RequestTimeout("text"),
        ConfigError("text"),
    ],
)
def test_a_copy_says_the_same(error: NsqError) -> None:
    error.add_note("from host:1")
    error.__cause__ = OSError("why")
    copy = copy_of(error)
    assert copy is not error
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__notes__ == ["from host:1"]
    assert copy.__cause__ is error.__cause__
    if isinstance(error, ServerError | RemoteProtocolError):
        assert isinstance(copy, ServerError | RemoteProtocolError)
        assert copy.code == error.code


# Lines


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20))), st.integers(-1, 21))
def test_a_line_gives_up_exactly_those_that_are_due(
    deadlines: list[tuple[bool, int]], until: int
) -> None:
    line = Line()
    for front, deadline in deadlines:
        (line.put_back if front else line.append)(Parcel("t", deadline))
    before = list(line.parcels)
    assert line.soonest <= min((parcel.deadline for parcel in before), default=float("inf"))
    due = line.take_due(until)
    assert due == [parcel for parcel in before if parcel.deadline <= until]
    assert list(line.parcels) == [parcel for parcel in before if parcel.deadline > until]
    assert line.take_due(until) == []
    # It may be too careful where the first was taken by somebody else, never too late.
    if line.parcels:
        line.parcels.popleft()
    assert line.soonest <= min((parcel.deadline for parcel in line.parcels), default=float("inf"))


def test_a_line_keeps_its_order() -> None:
    line = Line()
    first, second, third = (Parcel("t", deadline) for deadline in (1.0, 2.0, 3.0))
    line.append(second)
    line.append(third)
    line.put_back(first)
    assert list(line.parcels) == [first, second, third]


# Bodies


@given(st.lists(st.binary(min_size=1, max_size=30)), st.integers(38, 120))
def test_chunks_hold_all_bodies_in_order_and_each_fits(bodies: list[bytes], limit: int) -> None:
    ranges = chunks(bodies, limit)
    assert [i for part in ranges for i in part] == list(range(len(bodies)))
    for part in ranges:
        assert sum(4 + len(bodies[i]) for i in part) + 4 <= limit
    if bodies:
        assert all(ranges), "none is empty"
    for part, following in pairwise(ranges):
        full = sum(4 + len(bodies[i]) for i in part) + 4
        assert full + 4 + len(bodies[following.start]) > limit, "and as many as fit"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bodies_of_any_kind_of_bytes_become_bytes(kind: type) -> None:
    assert as_body(kind(b"abc"), 3) == b"abc"
    assert type(as_body(kind(b"abc"), 3)) is bytes
    assert as_bodies(iter([b"a", kind(b"abc")]), 3) == [b"a", b"abc"]


@given(st.lists(st.binary(max_size=5)))
def test_the_first_body_out_of_range_is_named(bodies: list[bytes]) -> None:
    bad = next((i for i, body in enumerate(bodies) if not 1 <= len(body) <= 3), None)
    if bad is None:
        assert as_bodies(bodies, 3) == bodies
    else:
        with pytest.raises(ConfigError, match=f"body {bad} of {len(bodies[bad])} bytes; 1 to 3"):
            as_bodies(bodies, 3)


@pytest.mark.parametrize("given", ["text", 5, None, [b"x"]])
def test_what_is_not_bytes_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match=f"body is {type(given).__name__}; it must be bytes"):
        as_body(given, 10)
    with pytest.raises(TypeError, match=f"body 1 is {type(given).__name__}"):
        as_bodies([b"x", given], 10)
