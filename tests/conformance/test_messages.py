"""Messages on real nsqd: how they are answered, how often they come, and where they end."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nsqflow.protocol as nsq
from nsqflow import ClientEvent, Consumer, Message
from nsqflow.client.message import FIN
from nsqflow.errors import BadTopicError, ConfigError, NsqError
from tests.conformance.server_side import (
    bodies_from,
    channel_stats,
    kinds,
    publish,
    reading,
    take,
    topic_of,
)
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, start_nsqd

# nsqd keeps what it sends for a quarter of a second otherwise.
PROMPT: Any = {"output_buffer_timeout": 0.025}
# A failed message comes again at once, without backoff.
ONCE_MORE: Any = {**PROMPT, "default_requeue_delay": 0, "max_backoff_duration": 0}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


@pytest.fixture(scope="module")
def timely_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that looks after the channel "ch" of these topics from its first moment on.

    On a channel that is made while nsqd runs, delays and timeouts may come five seconds late.
    """
    folder = tmp_path_factory.mktemp("timely-nsqd")
    with start_nsqd(folder, kind=server_kind) as server:
        for topic in ("touched", "untouched", "late", "delayed"):
            assert server.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
            assert server.ask(f"/channel/create?topic={topic}&channel=ch", "POST")[0] == 200
    with start_nsqd(folder, kind=server_kind) as server:
        yield server


async def settled(nsqd: Nsqd, topic: str) -> None:
    """Wait until nsqd has nothing of a channel, neither waiting nor in flight nor deferred."""

    def empty() -> bool:
        stats = channel_stats(nsqd, topic)
        counts = ("depth", "in_flight_count", "deferred_count")
        return stats["clients"] != [] and not any(stats[name] for name in counts)

    await eventually(empty, what="an empty channel")


# --- answers


@pytest.mark.proves(rows=[32], defects=[12])
@asynchronous
async def test_a_message_can_be_touched_requeued_and_finished(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"x")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **ONCE_MORE) as consumer:
        [first] = await take(consumer, 1)
        first.touch()
        assert not first.answered
        first.requeue(0)
        [second] = await take(consumer, 1)
        assert (first.id, first.attempts) == (second.id, 1)
        assert (second.body, second.attempts, second.timestamp) == (b"x", 2, first.timestamp)
        second.finish()
        await settled(nsqd, topic)
        counts = consumer.stats().counts
        assert (counts.received, counts.requeued, counts.finished) == (2, 1, 1)
        assert (counts.refused, counts.late, counts.failed) == (0, 0, 0)


@pytest.mark.proves(rows=[32])
@asynchronous
async def test_messages_can_be_answered_from_other_threads(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"a", b"b", b"c")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:
        messages = {message.body: message for message in await take(consumer, 3)}
        await asyncio.to_thread(messages[b"a"].touch)
        await asyncio.gather(
            asyncio.to_thread(messages[b"a"].finish),
            asyncio.to_thread(messages[b"b"].finish),
            asyncio.to_thread(messages[b"c"].requeue, 0, backoff=False),
        )
        [again] = await take(consumer, 1)
        assert (again.body, again.attempts) == (b"c", 2)
        await asyncio.to_thread(again.finish)
        await settled(nsqd, topic)
        assert consumer.stats().counts.refused == 0


@pytest.mark.proves(rows=[32])
@asynchronous
async def test_a_touched_message_stays_in_flight_beyond_its_timeout(timely_nsqd: Nsqd) -> None:
    await publish(timely_nsqd, "touched", b"by hand", b"kept alive", b"left alone")
    consumer = Consumer("touched", "ch", nsqd=timely_nsqd.tcp_address, msg_timeout=2, **PROMPT)
    async with consumer:
        messages = {message.body: message for message in await take(consumer, 3)}
        by_hand = messages[b"by hand"]
        async with messages[b"kept alive"].keep_alive():
            again = asyncio.create_task(take(consumer, 1))
            while not (await asyncio.wait([again], timeout=0.2))[0]:
                by_hand.touch()
            assert by_hand.deadline > messages[b"left alone"].deadline
        [back] = await again
        assert (back.body, back.attempts) == (b"left alone", 2)
        for message in (by_hand, messages[b"kept alive"], back):
            message.finish()
        await settled(timely_nsqd, "touched")
        assert consumer.stats().counts.refused == 0
        await consumer.close(0)  # the one that was taken from us is still in our hands
    assert channel_stats(timely_nsqd, "touched")["timeout_count"] == 1


@pytest.mark.proves(rows=[36])
@asynchronous
async def test_no_message_is_touched_unasked(timely_nsqd: Nsqd) -> None:
    await publish(timely_nsqd, "untouched", b"x")
    seen: list[int] = []
    taken = asyncio.Event()
    consumer = Consumer("untouched", "ch", nsqd=timely_nsqd.tcp_address, msg_timeout=1, **PROMPT)

    async def hang_first(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 2:
            taken.set()
        await taken.wait()
        message.finish()
        await consumer.close()

    # Without a word nsqd takes it away from the handler that has it, and gives it to the next.
    async with asyncio.timeout(PATIENCE):
        await consumer.run(hang_first, 2, signals=False, auto_answer=False)
    assert seen == [1, 2]


@pytest.mark.proves(rows=[30], defects=[9])
@asynchronous
async def test_an_answer_after_the_deadline_is_reported(timely_nsqd: Nsqd) -> None:
    events: list[ClientEvent] = []
    await publish(timely_nsqd, "late", b"x")
    consumer = Consumer(
        "late", "ch", nsqd=timely_nsqd.tcp_address, msg_timeout=1, on_event=events.append, **PROMPT
    )
    async with consumer:
        first, second = await take(consumer, 2)
        assert (first.id, first.attempts, second.attempts) == (second.id, 1, 2)
        # nsqd counts from when it sent the first, the client from when it arrived.
        await eventually(lambda: first.deadline < time.monotonic())
        first.finish()  # nsqd takes it for the second delivery: same id, same connection
        second.finish()
        await eventually(lambda: consumer.stats().counts.refused == 1)
        await publish(timely_nsqd, "late", b"y")
        assert await bodies_from(consumer, 1) == [b"y"]
        assert consumer.stats().counts.late == 1
    [late] = [each for each in events if each.kind == "answer_late"]
    assert late.nsqd == timely_nsqd.tcp_address
    assert "1 answered after their deadline" in late.text
    assert kinds(events).count("answer_failed") == 1


@pytest.mark.proves(rows=[30], defects=[9])
@asynchronous
async def test_answers_that_nsqd_does_not_take_are_counted_and_the_flow_goes_on(
    nsqd: Nsqd, topic: str
) -> None:
    events: list[ClientEvent] = []
    await publish(nsqd, topic, b"1", b"2", b"3")
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, on_event=events.append, **ONCE_MORE)
    async with consumer:
        finished, requeued, touched = await take(consumer, 3)
        status, _ = nsqd.ask(f"/channel/empty?topic={topic}&channel=ch", "POST")
        assert status == 200  # it forgets what is in flight, too
        finished.finish()
        requeued.requeue(0)
        touched.touch()
        await eventually(lambda: consumer.stats().counts.refused == 3)
        errors = [each.error for each in events if each.kind == "answer_failed"]
        assert sorted(str(error).split()[0] for error in errors) == [
            "E_FIN_FAILED",
            "E_REQ_FAILED",
            "E_TOUCH_FAILED",
        ]
        await publish(nsqd, topic, b"next")
        assert await bodies_from(consumer, 1) == [b"next"]
        assert kinds(events).count("connected") == 1
        touched.finish()


@asynchronous
async def test_the_deadline_is_that_of_the_timeout_which_nsqd_granted(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, b"x")
    for asked, granted in ((7.5, 7.5), (None, 60.0)):
        async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, msg_timeout=asked) as consumer:
            before = time.monotonic()
            [message] = await take(consumer, 1)
            assert before + granted <= message.deadline <= time.monotonic() + granted
            message.requeue(0, backoff=False)


@asynchronous
async def test_touching_moves_the_deadline_up_to_the_longest_that_nsqd_allows() -> None:
    # No real nsqd takes so short timeouts.
    reply = nsq.IdentifyReply(version="1.3.0", msg_timeout=400, max_msg_timeout=500)
    async with ScriptedNsqd(reply) as peer:
        peer.on(nsq.Rdy, [sends(b"x")])
        async with Consumer("t", "ch", nsqd=peer.address) as consumer:
            [message] = await take(consumer, 1)
            first = message.deadline
            await eventually(lambda: time.monotonic() > first - 0.2)
            message.touch()
            await peer.received(nsq.Touch)
            assert message.deadline == pytest.approx(first + 0.1)
            message.finish()


# --- async with


@pytest.mark.proves(rows=[33])
@asynchronous
async def test_a_block_that_ends_well_finishes_and_one_that_fails_requeues(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(nsqd, topic, b"a secret")
    seen: list[int] = []
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **ONCE_MORE) as consumer:
        while len(seen) < 3:
            [message] = await take(consumer, 1)
            async with message:
                seen.append(message.attempts)
                if len(seen) < 3:
                    raise ValueError("not yet")
        await settled(nsqd, topic)
        counts = consumer.stats().counts
        assert (counts.received, counts.failed, counts.requeued, counts.finished) == (3, 2, 2, 1)
    assert seen == [1, 2, 3]
    assert caplog.text.count("ValueError: not yet") == 2
    assert "a secret" not in caplog.text


@asynchronous
async def test_a_cancelled_block_requeues_the_message_at_once_and_without_backoff(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, b"x")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:

        async def consume() -> None:
            async with await anext(consumer):
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(consume())
        await eventually(lambda: consumer.stats().outstanding == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [again] = await take(consumer, 1)  # with the default delay it would take 90 seconds
        assert again.attempts == 2
        assert (consumer.stats().backoff_level, consumer.stats().counts.failed) == (0, 0)
        again.finish()


@pytest.mark.proves(rows=[33])
@asynchronous
async def test_answers_given_in_the_block_stand(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"finished", b"requeued")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **ONCE_MORE) as consumer:
        for message in await take(consumer, 2):
            async with message:
                if message.body == b"finished":
                    message.finish()
                    raise ValueError
                message.requeue(0)
        [again] = await take(consumer, 1)
        assert (again.body, again.attempts) == (b"requeued", 2)
        again.finish()
        await settled(nsqd, topic)
        counts = consumer.stats().counts
        assert (counts.finished, counts.requeued, counts.failed) == (2, 1, 1)


# --- delays


def sends(*bodies: bytes, attempts: int = 1) -> Callable[[Connection, nsq.Rdy], None]:
    """A reaction: send these, whatever RDY says, with ids of their own."""

    def send(connection: Connection, _: nsq.Rdy) -> None:
        connection.send_messages(
            nsq.Message(1, attempts, b"%016d" % number, body)
            for number, body in enumerate(bodies, start=1)
        )

    return send


@pytest.mark.proves(rows=[8, 34])
@asynchronous
async def test_a_message_stays_away_the_longer_the_more_often_it_failed(timely_nsqd: Nsqd) -> None:
    await publish(timely_nsqd, "delayed", b"x")
    failed: list[float] = []
    waits: list[float] = []
    consumer = Consumer(
        "delayed", "ch", nsqd=timely_nsqd.tcp_address, default_requeue_delay=0.25,
        max_requeue_delay=0.6, max_backoff_duration=0, **PROMPT,
    )  # fmt: skip
    async with consumer:
        for _ in range(4):
            [message] = await take(consumer, 1)
            waits += [time.monotonic() - at for at in failed[-1:]]
            async with message:
                failed.append(time.monotonic())
                if len(failed) < 4:
                    raise ValueError
    for wait, delay in zip(waits, (0.25, 0.5, 0.6), strict=True):
        assert wait >= delay


@pytest.mark.parametrize(
    ("attempts", "delay"), [(1, 90_000), (2, 180_000), (9, 810_000), (11, 900_000), (50, 900_000)]
)
@pytest.mark.proves(rows=[8, 34])
def test_the_delay_is_the_default_times_the_attempts_up_to_a_limit(
    attempts: int, delay: int
) -> None:
    # A scripted nsqd: the real one would take too long.
    @asynchronous
    async def fail() -> None:
        async with ScriptedNsqd() as peer:
            peer.on(nsq.Rdy, [sends(b"x", attempts=attempts)])
            async with Consumer("t", "ch", nsqd=peer.address, max_attempts=0) as consumer:
                async with await anext(consumer):
                    raise ValueError
                assert (await peer.received(nsq.Req)).delay_ms == delay

    fail()


# --- giving up


@pytest.mark.proves(rows=[7, 35], wishes=[24])
@asynchronous
async def test_the_handler_sees_n_attempts_and_the_next_is_given_up(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"x")
    seen: list[int] = []
    events: list[ClientEvent] = []
    given_up: asyncio.Future[tuple[int, str, bool]] = asyncio.get_running_loop().create_future()

    def on_giving_up(message: Message, error: BaseException | None) -> None:
        given_up.set_result((message.attempts, str(error), message.answered))

    consumer = Consumer(
        topic, "ch", nsqd=nsqd.tcp_address, max_attempts=3, on_giving_up=on_giving_up,
        on_event=events.append, **ONCE_MORE,
    )  # fmt: skip

    async def fail(message: Message) -> None:
        seen.append(message.attempts)
        raise ValueError(f"attempt {message.attempts}")

    running = asyncio.create_task(consumer.run(fail, signals=False))
    assert await asyncio.wait_for(given_up, PATIENCE) == (4, "attempt 3", False)
    await settled(nsqd, topic)
    counts = consumer.stats().counts
    assert (counts.failed, counts.requeued, counts.gave_up, counts.finished) == (3, 3, 1, 1)
    await consumer.close()
    await running
    assert seen == [1, 2, 3]
    assert kinds(events).count("gave_up") == 1


@pytest.mark.proves(rows=[7])
@asynchronous
async def test_without_a_limit_no_message_is_given_up(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"x")
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_attempts=0, **ONCE_MORE)
    async with consumer:
        for attempt in range(1, 11):
            [message] = await take(consumer, 1)
            assert message.attempts == attempt
            message.requeue(0)
        [message] = await take(consumer, 1)
        message.finish()


@pytest.mark.proves(defects=[11])
@pytest.mark.parametrize("attempts", [32_767, 32_768, 40_000, 65_535])
def test_attempts_are_counted_beyond_what_a_signed_number_holds(attempts: int) -> None:
    # No real nsqd delivers a message so often within the time of a test.
    @asynchronous
    async def consume() -> None:
        async with ScriptedNsqd() as peer:
            peer.on(nsq.Rdy, [sends(b"x", attempts=attempts)])
            async with Consumer("t", "ch", nsqd=peer.address, max_attempts=0) as consumer:
                [message] = await take(consumer, 1)
                assert message.attempts == attempts
                message.finish()
        async with ScriptedNsqd() as peer:
            peer.on(nsq.Rdy, [sends(b"x", attempts=attempts)])
            async with Consumer("t", "ch", nsqd=peer.address) as consumer, reading(consumer):
                await peer.received(nsq.Fin)
                assert consumer.stats().counts.gave_up == 1

    consume()


# --- dead letters


async def exhaust(nsqd: Nsqd, topic: str, **options: Any) -> None:
    """Let a message fail until it is given up, and nsqd has nothing of it any more."""
    await publish(nsqd, topic, b"exhausted")
    consumer = Consumer(
        topic, "ch", nsqd=nsqd.tcp_address, max_attempts=1, **{**ONCE_MORE, **options}
    )

    async def fail(message: Message) -> None:
        raise ValueError("wrong")

    running = asyncio.create_task(consumer.run(fail, signals=False))
    await eventually(lambda: consumer.stats().counts.finished == 1)
    await settled(nsqd, topic)
    await consumer.close()
    await running


@pytest.mark.proves(wishes=[23])
@asynchronous
async def test_a_dead_letter_can_go_to_a_topic(nsqd: Nsqd, topic: str) -> None:
    await exhaust(nsqd, topic, dead_letter=f"{topic}_dead")
    async with Consumer(f"{topic}_dead", "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:
        assert await bodies_from(consumer, 1) == [b"exhausted"]


@pytest.mark.proves(wishes=[23])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_dead_letter_can_go_to_a_file(
    nsqd: Nsqd, topic: str, tmp_path: Path, kind: type[str] | type[Path]
) -> None:
    path = tmp_path / "dead_letters"
    asynchronous(exhaust)(nsqd, topic, dead_letter=kind(path))
    dead_letter = json.loads(path.read_text())
    assert (dead_letter["body"], dead_letter["error"]) == ("exhausted", "ValueError: wrong")
    assert (dead_letter["topic"], dead_letter["attempts"]) == (topic, 2)
    assert dead_letter["nsqd"] == nsqd.tcp_address


DeadLetterCallback = Callable[[Message, BaseException | None], Awaitable[None] | None]


def both(store: Callable[[Message], None]) -> dict[str, DeadLetterCallback]:
    """A callable as a plain function and as a coroutine function."""

    async def later(message: Message, error: BaseException | None) -> None:
        await asyncio.sleep(0)
        store(message)

    return {"plain": lambda message, error: store(message), "async": later}


@pytest.mark.proves(wishes=[23])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_message_is_requeued_until_its_dead_letter_is_stored(
    nsqd: Nsqd, topic: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored: list[int] = []

    def store(message: Message) -> None:
        if message.attempts < 4:
            raise OSError("disk full")
        stored.append(message.attempts)

    asynchronous(exhaust)(nsqd, topic, dead_letter=both(store)[kind])
    assert stored == [4]
    assert caplog.text.count("it is requeued") == 2
    assert "exhausted" not in caplog.text


def test_a_full_disk_has_the_message_requeued_until_its_dead_letter_is_complete(
    nsqd: Nsqd, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dead_letters"
    path.write_bytes(before := b'{"body": "an earlier dead letter"}\n')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class FreesDisk(logging.Handler):
        """Free the disk the second time that a dead letter is not stored."""

        def emit(self, record: logging.LogRecord) -> None:
            if caplog.text.count("it is requeued") == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    frees_disk = FreesDisk()
    logging.getLogger().addHandler(frees_disk)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        asynchronous(exhaust)(nsqd, topic, dead_letter=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        logging.getLogger().removeHandler(frees_disk)
    bodies = [json.loads(line)["body"] for line in path.read_text().splitlines()]
    assert bodies == ["an earlier dead letter", "exhausted"]
    assert caplog.text.count("it is requeued") == 2


@pytest.mark.proves(wishes=[23])
@asynchronous
async def test_the_message_is_finished_only_once_its_dead_letter_is_stored(
    nsqd: Nsqd, topic: str
) -> None:
    storing, stored = asyncio.Event(), asyncio.Event()

    async def store(message: Message, error: BaseException | None) -> None:
        storing.set()
        await stored.wait()

    task = asyncio.create_task(exhaust(nsqd, topic, dead_letter=store))
    await asyncio.wait_for(storing.wait(), PATIENCE)
    assert channel_stats(nsqd, topic)["in_flight_count"] == 1
    stored.set()
    await task


# --- several nsqd


@pytest.mark.proves(wishes=[33])
@asynchronous
async def test_messages_of_different_nsqd_with_the_same_id_are_kept_apart() -> None:
    # Real ones count from their own start times and ids; here it is sure that they meet.
    async with ScriptedNsqd() as one, ScriptedNsqd() as two:
        for peer, body in ((one, b"one"), (two, b"two")):
            peer.on(nsq.Rdy, [sends(body)])
        async with Consumer("t", "ch", nsqd=[one.address, two.address]) as consumer:
            first, second = await take(consumer, 2)
            assert first.id == second.id
            peers = {one.address: one, two.address: two}
            peers[first.nsqd].on(nsq.Fin, b"")
            first.finish()
            assert (await peers[first.nsqd].received(nsq.Fin)).id == first.id
            second.requeue(3)
            assert await peers[second.nsqd].received(nsq.Req) == nsq.Req(second.id, 3000)
            assert {first.body, second.body} == {b"one", b"two"}
            assert {first.nsqd, second.nsqd} == {one.address, two.address}
        answers = [[c for c in p.commands if isinstance(c, nsq.Fin | nsq.Req)] for p in (one, two)]
        assert sorted(map(len, answers)) == [1, 1]


# --- batches


@asynchronous
async def test_batches_come_full_and_when_their_time_is_over(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *(b"%d" % number for number in range(25)))
    sizes: list[int] = []
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **PROMPT) as consumer:
        async with asyncio.timeout(PATIENCE):
            async for batch in consumer.batches(10, 0.2):
                sizes.append(len(batch))
                batch.finish()
                if sum(sizes) == 25:
                    break
        await settled(nsqd, topic)
        assert consumer.stats().counts.finished == 25
    # (The first may come with RDY 1.)
    assert max(sizes) <= 10


@asynchronous
async def test_a_batch_larger_than_max_in_flight_never_stalls(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *(b"%d" % number for number in range(20)))
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=4, **PROMPT)
    seen = 0
    async with consumer, asyncio.timeout(PATIENCE):
        async for batch in consumer.batches(500, 3600):
            assert len(batch) <= 4
            seen += len(batch)
            async with batch:
                pass
            if seen == 20:
                break
        await settled(nsqd, topic)


@asynchronous
async def test_a_batch_that_fails_is_delivered_again_but_for_what_was_answered(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, b"1", b"2", b"3")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **ONCE_MORE) as consumer:
        seen: list[tuple[bytes, int]] = []
        async with asyncio.timeout(PATIENCE):
            async for batch in consumer.batches(3, 0.3):
                async with batch:
                    seen += [(message.body, message.attempts) for message in batch]
                    batch[0].finish()
                    if batch[0].attempts == 1 and len(batch) > 1:
                        raise ValueError
                if consumer.stats().counts.finished + batch_answers(batch) >= 3:
                    break
        await settled(nsqd, topic)
        counts = consumer.stats().counts
        assert counts.finished == 3
        assert counts.failed == counts.requeued == len(seen) - 3
    assert {body for body, _ in seen} == {b"1", b"2", b"3"}


def batch_answers(batch: list[Message]) -> int:
    """How many of them are finished; nsqd may not have read that yet."""
    return sum(message.answer is FIN for message in batch)


@pytest.mark.parametrize(
    ("size", "max_wait"),
    [(0, 1), (-1, 1), (1, -1), (1, float("inf")), ("5", 1), (2.5, 1), (1, "1")],
)
def test_batches_of_no_size_or_time_are_refused(size: int, max_wait: float) -> None:
    consumer = Consumer("t", "ch", nsqd="127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"(size|max_wait)="):
        consumer.batches(size, max_wait)


# --- errors that end it


async def iterate(consumer: Consumer) -> None:
    async for _ in consumer:
        raise AssertionError("a message")


async def gather(consumer: Consumer) -> None:
    async for _ in consumer.batches():
        raise AssertionError("a batch")


async def run_async(consumer: Consumer) -> None:
    async def handle(message: Message) -> None: ...

    await consumer.run(handle, 3, signals=False)


async def run_plain(consumer: Consumer) -> None:
    await consumer.run(lambda message: None, 3, signals=False)


@pytest.mark.proves(rows=[31], wishes=[11])
@pytest.mark.parametrize("consume", [iterate, gather, run_async, run_plain])
def test_an_error_that_no_retry_can_fix_is_raised_to_the_reader(
    nsqd: Nsqd, topic: str, consume: Callable[[Consumer], Awaitable[None]]
) -> None:
    @asynchronous
    async def fail() -> None:
        # More than this nsqd's --max-msg-timeout.
        async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, msg_timeout=10_000) as consumer:
            for _ in range(2):  # and not only the first time
                with pytest.raises(ConfigError, match="E_BAD_BODY IDENTIFY msg timeout"):
                    await asyncio.wait_for(consume(consumer), PATIENCE)

    fail()


@pytest.mark.proves(rows=[31], wishes=[11])
@asynchronous
async def test_an_error_while_consuming_is_raised_after_what_came_before() -> None:
    # No real nsqd refuses a topic of which it has sent messages.
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [sends(b"x")])
        consumer = Consumer("t", "ch", nsqd=peer.address, reconnect_delay=0.05)
        async with consumer:
            [message] = await take(consumer, 1)
            peer.on(nsq.Sub, lambda connection, _: connection.send_error(b"E_BAD_TOPIC gone"))
            peer.connections[0].close()
            with pytest.raises(BadTopicError, match="gone"):
                await asyncio.wait_for(anext(consumer), PATIENCE)
            message.finish()


@pytest.mark.proves(wishes=[11])
@asynchronous
async def test_a_lost_connection_is_no_end_of_the_iteration(nsqd: Nsqd, topic: str) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [sends(b"1")])
        consumer = Consumer(topic, "ch", nsqd=peer.address, reconnect_delay=0.05)
        async with consumer:
            assert await bodies_from(consumer, 1) == [b"1"]
            peer.on(nsq.Rdy, [sends(b"2")])
            peer.connections[0].reset()
            assert await bodies_from(consumer, 1) == [b"2"]


@asynchronous
async def test_bodies_stay_out_of_the_log(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await publish(nsqd, topic, b"a secret")
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_attempts=1, **ONCE_MORE)
    async with consumer:
        async with await anext(consumer):
            raise NsqError("wrong")
        async with reading(consumer):
            await eventually(lambda: consumer.stats().counts.gave_up == 1)
        await settled(nsqd, topic)
    assert "handler failed on <Message" in caplog.text
    assert "giving up <Message" in caplog.text
    assert "a secret" not in caplog.text
