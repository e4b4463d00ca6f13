"""Batches: what goes out in one command, its futures, and how bodies are split."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.producer.message_options import make_batch
from nsqflow.client.producer.publish_batch import (
    PartitionQueue,
    PublishBatch,
    PublishFuture,
    TopicQueue,
    check_bodies,
    check_body,
    split_by_size,
    timeout_error,
    uncertain_error,
)
from nsqflow.errors import (
    BadMessageError,
    ConfigError,
    NetworkError,
    PublishUncertain,
)
from nsqflow.protocol import Dpub, Mpub, MpubTrace, Pub
from nsqflow.protocol.publish import Bodies
from tests.fixtures.loops import asynchronous


def new_batch(*bodies: bytes) -> PublishBatch:
    """A batch of the topic "t", with a future for each body."""
    batch = PublishBatch("t", 10.0)
    for body in bodies:
        batch.add(body, asyncio.get_running_loop().create_future())
    return batch


def shared_batch(*bodies: bytes) -> PublishBatch:
    """A batch with one future for all bodies."""
    batch = PublishBatch("t", 10.0)
    batch.bodies = [*bodies]
    batch.futures = [asyncio.get_running_loop().create_future()]
    return batch


def results(batch: PublishBatch) -> list[str]:
    """What became of each future."""
    return [result(future) for future in batch.futures]


def result(future: PublishFuture) -> str:
    if not future.done():
        return "open"
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return "stored" if error is None else type(error).__name__


# Commands


@asynchronous
async def test_one_body_is_pub_several_are_mpub_and_a_delay_is_dpub() -> None:
    assert new_batch(b"1").command() == Pub("t", b"1")
    assert new_batch(b"1", b"2").command() == Mpub("t", [b"1", b"2"])
    assert shared_batch(b"1", b"2").command() == Mpub("t", [b"1", b"2"])
    assert shared_batch(b"1").command() == Pub("t", b"1")
    later = PublishBatch("t", 10.0, delay_ms=0)
    later.add(b"1", asyncio.get_running_loop().create_future())
    assert later.command() == Dpub("t", 0, b"1")


@asynchronous
async def test_several_messages_may_have_trace_ids_and_are_then_joined_with_no_other() -> None:
    batch = new_batch(b"1", b"2")
    batch.traces = [7, 0]
    assert batch.command() == MpubTrace("t", [(7, b"1"), (0, b"2")])
    assert not batch.is_plain
    assert not batch.has_only_destination


@asynchronous
async def test_the_size_is_that_of_the_body_of_mpub() -> None:
    batch = new_batch(b"1", b"22", b"333")
    command = batch.command()
    assert command is not None
    _, _, rest = command.encode().partition(b"\n")
    assert batch.size + 4 == len(rest) - 4 == int.from_bytes(rest[:4], "big")


@asynchronous
async def test_cancelled_messages_are_not_sent() -> None:
    batch = new_batch(b"1", b"2", b"3")
    batch.futures[1].cancel()
    assert batch.command() == Mpub("t", [b"1", b"3"])
    batch.futures[0].cancel()
    assert batch.command() == Pub("t", b"3")
    batch.futures[0].cancel()
    assert batch.command() is None


@asynchronous
async def test_a_batch_with_one_future_is_cancelled_as_a_whole() -> None:
    batch = shared_batch(b"1", b"2")
    batch.futures[0].cancel()
    assert batch.command() is None


# Outcomes


@asynchronous
async def test_all_futures_get_the_result() -> None:
    batch = new_batch(b"1", b"2", b"3")
    batch.futures[1].cancel()
    batch.set_result(None)
    assert results(batch) == ["stored", "cancelled", "stored"]
    batch.set_exception(NetworkError("late"))
    assert results(batch) == ["stored", "cancelled", "stored"]


@asynchronous
async def test_each_future_has_an_exception_of_its_own() -> None:
    batch = new_batch(b"1", b"2")
    error = BadMessageError("E_BAD_MESSAGE", "too big")
    error.add_note("a note")
    batch.set_exception(error)
    errors = [future.exception() for future in batch.futures]
    assert errors[0] is not errors[1]
    assert [str(each) for each in errors] == ["E_BAD_MESSAGE too big"] * 2
    assert {type(each) for each in errors} == {BadMessageError}


@asynchronous
async def test_what_may_be_stored_already_fails_as_uncertain() -> None:
    batch = new_batch(b"1")
    batch.uncertainty = uncertain_error("t", "host:1", "closed by nsqd")
    batch.set_exception(timeout_error("t", "no nsqd"))
    error = batch.futures[0].exception()
    assert isinstance(error, PublishUncertain)
    assert "host:1" in str(error)
    assert "no nsqd" in str(error)


@asynchronous
async def test_parts_keep_what_they_were_parts_of() -> None:
    batch = new_batch(b"1", b"2")
    batch.uncertainty = uncertain_error("t", "host:1", "closed by nsqd")
    parts = batch.split()
    assert [part.bodies for part in parts] == [[b"1"], [b"2"]]
    assert [part.futures for part in parts] == [[future] for future in batch.futures]
    assert {(part.topic, part.deadline, part.uncertainty) for part in parts} == {
        ("t", 10.0, batch.uncertainty)
    }


@asynchronous
async def test_an_expired_batch_holds_no_bodies() -> None:
    batch = new_batch(b"1")
    batch.set_exception(uncertain_error("t", "host:1", "no answer in time"))
    assert results(batch) == ["PublishUncertain"]
    batch.expire()
    assert (batch.bodies, batch.futures) == ([], [])
    batch.set_result(None)


# Queues


@given(st.lists(st.integers(0, 20)), st.integers(-1, 21))
def test_a_queue_returns_exactly_the_batches_that_are_due(deadlines: list[int], until: int) -> None:
    queue = TopicQueue()
    for deadline in deadlines:
        queue.append(PublishBatch("t", deadline))
    before = list(queue.batches)
    assert queue.take_due(until) == [batch for batch in before if batch.deadline <= until]
    assert list(queue.batches) == [batch for batch in before if batch.deadline > until]
    assert queue.take_due(until) == []


# Bodies


@given(st.lists(st.binary(min_size=1, max_size=30)), st.integers(38, 120))
def test_chunks_hold_all_bodies_in_order_and_each_fits(bodies: list[bytes], limit: int) -> None:
    ranges = split_by_size(bodies, limit)
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
    assert check_body(kind(b"abc"), 3) == b"abc"
    assert type(check_body(kind(b"abc"), 3)) is bytes
    assert check_bodies(iter([b"a", kind(b"abc")]), 3) == [b"a", b"abc"]


@given(st.lists(st.binary(max_size=5)))
def test_the_first_body_out_of_range_is_named(bodies: list[bytes]) -> None:
    bad = next((i for i, body in enumerate(bodies) if not 1 <= len(body) <= 3), None)
    if bad is None:
        assert check_bodies(bodies, 3) == bodies
    else:
        with pytest.raises(
            ConfigError,
            match=f"body {bad} of {len(bodies[bad])} bytes",
        ):
            check_bodies(bodies, 3)


@pytest.mark.parametrize("given", ["text", 5, None, [b"x"]])
def test_what_is_not_bytes_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match=f"body is {type(given).__name__}: must be bytes"):
        check_body(given, 10)
    with pytest.raises(TypeError, match=f"body 1 is {type(given).__name__}"):
        check_bodies([b"x", given], 10)


# --- batches of a partition


def keyed_batch(body: bytes, deadline: float = 10.0) -> PublishBatch:
    """A message with a key, as publish() makes it."""
    batch = PublishBatch("t", deadline, Bodies((body,)))
    batch.futures = [asyncio.get_running_loop().create_future()]
    return batch


@asynchronous
async def test_batches_of_a_partition_that_wait_are_sent_as_one() -> None:
    queue, bodies = PartitionQueue(), [b"a", b"bb", 300 * b"c", b"dddd"]
    for body in bodies:
        queue.append(keyed_batch(body))
    batch = queue.next(1000)
    command = batch.command()
    assert command is not None
    assert command.encode() == Mpub("t", bodies).encode()
    assert (batch.size, len(batch.futures), queue.outstanding) == (16 + 307, 4, batch)
    assert not queue.batches


@asynchronous
async def test_a_batch_of_a_partition_is_joined_up_to_a_size_and_a_second_of_deadlines() -> None:
    queue = PartitionQueue()
    for body, deadline in ((b"a", 10.0), (b"b", 11.0), (b"c", 11.1), (b"d", 11.1)):
        queue.append(keyed_batch(body, deadline))
    assert queue.next(1000).bodies == [b"a", b"b"]
    assert queue.next(9).bodies == [b"c"]
    assert queue.next(9).bodies == [b"d"]


@asynchronous
async def test_a_traced_message_of_a_partition_is_sent_alone_and_in_its_place() -> None:
    queue = PartitionQueue()
    for body in (b"a", b"b", b"c", b"d"):
        queue.append(keyed_batch(body))
    queue.batches[1].trace = 7
    sent = [queue.next(1000).bodies for _ in range(3)]
    assert sent == [[b"a"], [b"b"], [b"c", b"d"]]


@asynchronous
async def test_a_batch_of_a_partition_is_joined_by_none_that_times_out_before_it() -> None:
    queue = PartitionQueue()
    for body, deadline in ((b"a", 10.0), (b"b", 9.9), (b"c", 10.0)):
        queue.append(keyed_batch(body, deadline))
    assert queue.next(1000).bodies == [b"a"]
    assert queue.next(1000).bodies == [b"b", b"c"]


@asynchronous
async def test_the_messages_of_a_refused_batch_are_not_joined_again() -> None:
    queue = PartitionQueue()
    queue.batches.extend(new_batch(b"a", b"b").split())
    queue.append(keyed_batch(b"c"))
    assert [queue.next(1000).bodies for _ in range(3)] == [[b"a"], [b"b"], [b"c"]]


@asynchronous
async def test_only_what_comes_after_a_failed_batch_fails_with_it() -> None:
    queue = PartitionQueue()
    for body in (b"a", b"b", b"c", b"d"):
        queue.append(keyed_batch(body))
    failed = queue.batches[1]
    queue.batches.remove(failed)
    assert [batch.bodies for batch in queue.take_after(failed)] == [[b"c"], [b"d"]]
    assert [batch.bodies for batch in queue.batches] == [[b"a"]]


def test_headers_take_memory_too() -> None:
    assert make_batch("t", b"x", 10.0, headers={"h": "y" * 1000}).size > 1000
