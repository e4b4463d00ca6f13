"""``nsqflow.blocking``: the client for plain code, on the real nsqd."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nsqflow import ClientEvent, ConfigError, LocalProtocolError, Message, RequestTimeout
from nsqflow.blocking import Consumer, Producer, run
from tests.conformance.driver import wait_until
from tests.conformance.server_side import channel_stats, topic_of
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, Nsqlookupd, start_nsqd
from tests.fixtures.threads import no_thread_left


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    with no_thread_left("nsqflow"):
        yield


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, bodies)


def consume(consumer: Consumer, count: int) -> list[bytes]:
    bodies = []
    for message in consumer:
        with message:
            bodies.append(message.body)
        if len(bodies) == count:
            break
    return sorted(bodies)


def numbers(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


# Publishing


@pytest.mark.proves(wishes=[2, 3])
def test_a_script_publishes_with_nothing_but_a_call(nsqd: Nsqd, topic: str) -> None:
    producer = Producer(nsqd.tcp_address)
    assert producer.publish(topic, b"once") is None
    producer.publish_many(topic, [b"more", b"than once"])
    producer.close()
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        assert consume(consumer, 3) == [b"more", b"once", b"than once"]


@pytest.mark.proves(wishes=[3])
def test_a_publish_waits_for_an_nsqd_that_is_not_up_yet(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as first:
        address = first.tcp_address
    called = threading.Event()

    def on_event(event: ClientEvent) -> None:
        if event.kind == "connect_failed":
            called.set()

    with (
        Producer(address, reconnect_delay=0.1, on_event=on_event) as producer,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(producer.publish, topic, b"patient")
        assert called.wait(PATIENCE)
        assert not waiting.done()
        with start_nsqd(tmp_path, kind=server_kind, options=[f"-tcp-address={address}"]):
            assert waiting.result(PATIENCE) is None


def test_a_publish_that_cannot_be_sent_raises_when_its_time_is_up(topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with Producer(address) as producer, pytest.raises(RequestTimeout) as caught:
            producer.publish(topic, b"x", timeout=0.1)
    assert __file__ in [str(entry.path) for entry in caught.traceback]


def test_many_threads_publish_through_one_producer(nsqd: Nsqd, topic: str) -> None:
    bodies = numbers(1000)
    with Producer(nsqd.tcp_address) as producer, ThreadPoolExecutor(50) as pool:
        assert set(pool.map(lambda body: producer.publish(topic, body), bodies)) == {None}
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        assert consume(consumer, 1000) == bodies


def test_one_bad_topic_among_threads_fails_alone(nsqd: Nsqd, topic: str) -> None:
    topics = [topic, "no good", topic, topic]
    with Producer(nsqd.tcp_address) as producer, ThreadPoolExecutor(4) as pool:
        outcomes = [pool.submit(producer.publish, name, b"x") for name in topics]
        errors = [outcome.exception(PATIENCE) for outcome in outcomes]
    assert [type(error) for error in errors] == [type(None), ConfigError, type(None), type(None)]


@pytest.mark.parametrize("options", [{"timeout": 0}, {"delay": -1}, {"key": b"k"}], ids=str)
def test_what_no_server_takes_is_refused(nsqd: Nsqd, topic: str, options: dict[str, float]) -> None:
    with Producer(nsqd.tcp_address) as producer, pytest.raises(ConfigError):
        producer.publish(topic, b"x", **options)  # type: ignore[arg-type]


def test_a_body_that_is_empty_or_no_bytes_is_refused(nsqd: Nsqd, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer:
        with pytest.raises(ConfigError, match="0 bytes"):
            producer.publish(topic, b"")
        with pytest.raises(TypeError, match="str"):
            producer.publish(topic, "text")  # type: ignore[arg-type]


def test_a_closed_producer_says_so(nsqd: Nsqd, topic: str) -> None:
    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic, b"x")
    producer.close()
    with pytest.raises(LocalProtocolError, match="producer is closed"):
        producer.publish(topic, b"y")
    with pytest.raises(LocalProtocolError, match="producer is closed"):
        producer.publish_many(topic, [b"y"])


def test_a_small_max_pending_makes_threads_wait_in_line(nsqd: Nsqd, topic: str) -> None:
    limits = {"max_msg_size": 8, "max_body_size": 16, "max_pending": 16}
    bodies = numbers(100)
    with Producer(nsqd.tcp_address, **limits) as producer, ThreadPoolExecutor(20) as pool:  # type: ignore[arg-type]
        assert set(pool.map(lambda body: producer.publish(topic, body), bodies)) == {None}
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        assert consume(consumer, 100) == bodies


# Consuming


def test_a_message_is_delivered_again_when_its_block_raises(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"hard")
    attempts = []
    options = {"default_requeue_delay": 0, "max_backoff_duration": 0}
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **options) as consumer:  # type: ignore[arg-type]
        for message in consumer:
            with message:
                attempts.append(message.attempts)
                if len(attempts) == 1:
                    raise ValueError("at first it fails")
            if len(attempts) == 2:
                break
        assert consumer.stats().counts.failed == 1
    assert attempts == [1, 2]
    assert channel_stats(nsqd, topic)["depth"] == 0


def test_several_threads_iterate_over_one_consumer(nsqd: Nsqd, topic: str) -> None:
    bodies = numbers(500)
    publish(nsqd, topic, *bodies)
    seen: list[bytes] = []
    all_seen = threading.Event()

    def work() -> None:
        for message in consumer:
            with message:
                seen.append(message.body)
            if len(seen) == 500:
                all_seen.set()

    with ThreadPoolExecutor(5) as pool:
        with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=20) as consumer:
            workers = [pool.submit(work) for _ in range(5)]
            assert all_seen.wait(PATIENCE)
        for worker in workers:
            worker.result(PATIENCE)  # closing the consumer ends them all
    assert sorted(seen) == bodies


@pytest.mark.parametrize("allowed", [1, 2, 7])
def test_never_more_than_max_in_flight_are_outstanding(
    nsqd: Nsqd, topic: str, allowed: int
) -> None:
    publish(nsqd, topic, *numbers(40))
    with (
        Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=allowed) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        held = [next(consumer) for _ in range(allowed)]
        for _ in range(10):
            another = pool.submit(next, consumer)
            assert consumer.stats().outstanding == allowed
            assert channel_stats(nsqd, topic)["in_flight_count"] == allowed
            assert not another.done()
            held.pop(0).finish()
            held.append(another.result(PATIENCE))
        for message in held:
            message.finish()


def test_a_lowered_max_in_flight_holds_for_what_was_fetched_before(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *numbers(40))
    with (
        Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=40) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        held = next(consumer)
        consumer.set_max_in_flight(1)
        another = pool.submit(next, consumer)
        assert consumer.stats().outstanding == 1
        assert not another.done()
        held.finish()
        another.result(PATIENCE).finish()


def test_a_thread_that_waits_is_served_whatever_else_is_done(nsqd: Nsqd, topic: str) -> None:
    with (
        Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        for number in range(8):
            waiting = pool.submit(consume, consumer, 1)
            consumer.set_max_in_flight(10 + number)
            consumer.batches()
            publish(nsqd, topic, b"%d" % number)
            assert waiting.result(PATIENCE) == [b"%d" % number]


def test_batches_are_finished_as_a_whole(nsqd: Nsqd, topic: str) -> None:
    bodies = numbers(100)
    publish(nsqd, topic, *bodies)
    seen: list[bytes] = []
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        for batch in consumer.batches(size=30, max_wait=0.2):
            assert len(batch) <= 30
            with batch:
                seen += [message.body for message in batch]
            if len(seen) == 100:
                break
    assert sorted(seen) == bodies
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["requeue_count"]) == (0, 0)


def test_a_batch_is_delivered_again_when_its_block_raises(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *numbers(3))
    options = {"default_requeue_delay": 0, "max_backoff_duration": 0}
    done: list[bytes] = []
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address, **options) as consumer:  # type: ignore[arg-type]
        for batch in consumer.batches(size=3, max_wait=0.2):
            with batch:
                if any(message.attempts == 1 for message in batch):
                    raise ValueError("at first it fails")
                done += [message.body for message in batch]
            if len(done) == 3:
                break
    assert sorted(done) == numbers(3)


def test_batches_get_what_an_iteration_left_in_the_queue(nsqd: Nsqd, topic: str) -> None:
    bodies = numbers(200)
    publish(nsqd, topic, *bodies)
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=50) as consumer:
        seen = consume(consumer, 1)
        for batch in consumer.batches(size=20):
            seen += [message.body for message in batch]
            batch.finish()
            if len(seen) == 200:
                break
        publish(nsqd, topic, b"last")
        assert consume(consumer, 1) == [b"last"]
    assert sorted(seen) == bodies


def test_batches_end_when_the_consumer_is_closed_between_two(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"one")
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address)
    for batch in consumer.batches():
        batch.finish()
        consumer.close()
    assert list(consumer.batches()) == []
    assert list(consumer) == []


def test_closing_requeues_what_was_not_handed_out(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *numbers(20))
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address)
    for _ in range(10):
        next(consumer).finish()
    wait_until(lambda: consumer.stats().queued > 0)
    drained = consumer.close()
    assert (drained.handled, drained.abandoned) == (10, 0)
    assert 1 <= drained.requeued <= 10
    assert consumer.close() == drained
    stats = channel_stats(nsqd, topic)
    assert (stats["depth"], stats["in_flight_count"]) == (10, 0)


def test_an_exception_leaves_the_block_without_waiting_for_messages(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"x")
    with pytest.raises(ZeroDivisionError), Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        message = next(consumer)
        raise ZeroDivisionError
    assert message.answered
    with pytest.raises(LocalProtocolError, match=r"close\(\)"):
        message.finish()
    assert channel_stats(nsqd, topic)["depth"] == 1


def test_pausing_stops_the_flow_until_it_is_resumed(nsqd: Nsqd, topic: str) -> None:
    with (
        Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        publish(nsqd, topic, b"before")
        assert consume(consumer, 1) == [b"before"]
        consumer.pause()
        assert consumer.stats().paused
        publish(nsqd, topic, b"after")
        after = pool.submit(consume, consumer, 1)
        assert "paused" in consumer.explain()
        assert not consumer.is_starved()
        assert not after.done()
        consumer.resume()
        assert after.result(PATIENCE) == [b"after"]


def test_a_consumer_finds_its_nsqd_through_nsqlookupd(
    server_kind: Kind, nsqlookupd: Nsqlookupd, tmp_path: Path, topic: str
) -> None:
    with start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd]) as nsqd:
        publish(nsqd, topic, b"found")
        lookup = {"lookupd": nsqlookupd.http_address, "lookupd_poll_interval": 0.2}
        with Consumer(topic, "ch", **lookup) as consumer:  # type: ignore[arg-type]
            assert consume(consumer, 1) == [b"found"]


def test_what_no_retry_can_fix_is_raised_in_the_iteration(nsqd: Nsqd, topic: str) -> None:
    options = {"sample_rate": 99, "msg_timeout": 10**6}
    with (
        pytest.raises(ConfigError, match="refused"),
        Consumer(topic, "ch", nsqd=nsqd.tcp_address, **options) as consumer,  # type: ignore[arg-type]
    ):
        next(consumer)


def test_a_dead_letter_may_go_through_a_blocking_producer(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"hopeless")
    with Producer(nsqd.tcp_address) as producer:

        def store(message: Message, error: BaseException | None) -> None:
            producer.publish(topic + "_dead", message.body)

        def fail(message: Message) -> None:
            raise ValueError

        with (
            Consumer(
                topic, "ch", nsqd=nsqd.tcp_address, max_attempts=1, dead_letter=store,
                default_requeue_delay=0, max_backoff_duration=0,
            ) as consumer,
            Consumer(topic + "_dead", "ch", nsqd=nsqd.tcp_address) as dead,
            ThreadPoolExecutor() as pool,
        ):  # fmt: skip
            running = pool.submit(consumer.run, fail)
            assert consume(dead, 1) == [b"hopeless"]
            consumer.close()
            running.result(PATIENCE)


# Handlers, signals


def test_a_handler_runs_on_threads_until_the_consumer_is_closed(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"left", b"right")
    meeting = threading.Barrier(3)

    def handle(message: Message) -> None:
        meeting.wait(PATIENCE)

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(consumer.run, handle, concurrency=2)
        meeting.wait(PATIENCE)  # both at the same time
        assert consumer.close() == running.result(PATIENCE)
    assert consumer.stats().counts.finished == 2
    assert consumer.run(handle) == consumer.close()


def test_an_async_handler_is_refused(nsqd: Nsqd, topic: str) -> None:
    async def handle(message: Message) -> None: ...

    with pytest.raises(ConfigError, match="async"):
        Consumer(topic, "ch", nsqd=nsqd.tcp_address).run(handle)
    with pytest.raises(ConfigError, match="async"):
        run({(topic, "ch"): handle}, nsqd=nsqd.tcp_address)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_the_old_handlers_are_back(
    nsqd: Nsqd, topic: str, number: signal.Signals
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    publish(nsqd, topic, b"x")

    def handle(message: Message) -> None:
        os.kill(os.getpid(), number)

    drained = Consumer(topic, "ch", nsqd=nsqd.tcp_address).run(handle)
    assert (drained.requeued, drained.abandoned) == (0, 0)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert channel_stats(nsqd, topic)["depth"] == 0


def test_a_second_signal_ends_at_once(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"slow")
    released = threading.Event()

    def handle(message: Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # another: two of the same could come as one
        released.wait(PATIENCE)

    drained = Consumer(topic, "ch", nsqd=nsqd.tcp_address).run(handle)
    released.set()
    assert drained.abandoned == 1


def test_several_channels_run_as_one_program(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"x")
    publish(nsqd, topic + "_b", b"y")
    meeting = threading.Barrier(2, lambda: os.kill(os.getpid(), signal.SIGTERM))

    def handle(message: Message) -> None:
        meeting.wait(PATIENCE)

    keys = [(topic, "ch"), (topic + "_b", "ch")]
    drained = run(dict.fromkeys(keys, handle), nsqd=nsqd.tcp_address)
    assert list(drained) == keys
    with pytest.raises(ConfigError, match=r"^handlers="):
        run({}, nsqd=nsqd.tcp_address)


def test_a_handler_that_exits_ends_the_run_and_nothing_else(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"x")

    def handle(message: Message) -> None:
        raise SystemExit(3)

    with Producer(nsqd.tcp_address) as producer:
        producer.publish(topic + "_b", b"before")
        with pytest.raises(SystemExit, match="3"):
            Consumer(topic, "ch", nsqd=nsqd.tcp_address).run(handle)
        producer.publish(topic + "_b", b"after")  # they had the background thread in common
    assert channel_stats(nsqd, topic)["depth"] == 1


def interrupt_soon() -> threading.Timer:
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    return timer


def test_ctrl_c_gets_through_an_iteration(nsqd: Nsqd, topic: str) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer,
    ):
        interrupt_soon()
        next(consumer)
    publish(nsqd, topic, b"for the next one")
    with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer, next(consumer) as message:
        assert message.attempts == 1


def test_ctrl_c_gets_through_batches_and_loses_none_of_them(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, b"half a batch")
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        next(consumer.batches(size=2, max_wait=PATIENCE))
    assert consumer.close().abandoned == 0
    assert channel_stats(nsqd, topic)["depth"] == 1


def test_ctrl_c_gets_through_a_publish_that_is_then_not_sent(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    with start_nsqd(tmp_path, kind=server_kind) as first:
        address = first.tcp_address
    with Producer(address, reconnect_delay=0.3) as producer:
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            producer.publish(topic, b"withdrawn")
        with start_nsqd(tmp_path, kind=server_kind, options=[f"-tcp-address={address}"]) as nsqd:
            producer.publish(topic, b"sent")
            with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
                assert consume(consumer, 1) == [b"sent"]
            assert channel_stats(nsqd, topic)["depth"] == 0


def test_ctrl_c_gets_through_a_run_without_signals(nsqd: Nsqd, topic: str) -> None:
    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        consumer.run(print, signals=False)
    consumer.close()


# Threads


def test_a_callback_in_the_background_thread_cannot_block_it(nsqd: Nsqd, topic: str) -> None:
    errors: list[Exception] = []
    begun, done = threading.Event(), threading.Event()

    def on_event(event: ClientEvent) -> None:
        begun.wait(PATIENCE)  # it may connect before there is a name for it below
        for call in (
            lambda: producer.publish(topic, b"x"),
            lambda: producer.publish_many(topic, [b"x"]),
            lambda: next(consumer),
            lambda: next(consumer.batches()),
            producer.close,
            consumer.close,
        ):
            try:
                call()
            except LocalProtocolError as error:
                errors.append(error)
        consumer.pause()  # what does not wait may be called
        done.set()

    consumer = Consumer(topic, "ch", nsqd=nsqd.tcp_address)
    with Producer(nsqd.tcp_address, on_event=on_event) as producer:
        begun.set()
        assert done.wait(PATIENCE)
        assert consumer.stats().paused
        consumer.close()
    assert len(errors) == 6
    assert all("own background thread" in str(error) for error in errors)


def test_it_can_be_used_where_an_event_loop_runs(nsqd: Nsqd, topic: str) -> None:
    async def main() -> list[bytes]:
        publish(nsqd, topic, b"from a coroutine")
        with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
            return consume(consumer, 1)

    assert asyncio.run(main()) == [b"from a coroutine"]


def test_all_objects_share_one_thread(nsqd: Nsqd, topic: str) -> None:
    with (
        Producer(nsqd.tcp_address) as producer,
        Producer(nsqd.tcp_address) as another,
        Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer,
    ):
        producer.publish(topic, b"x")
        another.publish(topic, b"y")
        assert consume(consumer, 2) == [b"x", b"y"]
        names = [thread.name for thread in threading.enumerate()]
    assert names.count("nsqflow") == 1


def test_an_unreachable_nsqd_is_named_in_the_error(topic: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with Producer(address) as producer, pytest.raises(RequestTimeout, match=address):
        producer.publish(topic, b"x", timeout=1)
