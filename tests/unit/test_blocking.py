"""The background thread of ``nsqflow.blocking``, and what crosses over to it."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsqflow import ClientEvent, LocalProtocolError, Message
from nsqflow import protocol as nsq
from nsqflow.blocking import Consumer
from nsqflow.blocking import loop_thread as module
from nsqflow.blocking.loop_thread import CoroutineCall, LoopThread, LoopUser
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import HANG, Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


class Roadblock:
    """Keeps the loop busy until it is lifted."""

    def __init__(self, thread: LoopThread) -> None:
        self.lift = threading.Event()
        reached = threading.Event()

        def block() -> None:
            reached.set()
            self.lift.wait(PATIENCE)

        thread.post(block)
        assert reached.wait(PATIENCE)


def count_wakes(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    wakes: list[object] = []
    wake = thread._loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: Any) -> object:
        wakes.append(callback)
        return wake(callback, *args)

    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", counted)
    return wakes


def test_a_burst_of_calls_wakes_the_loop_once(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    roadblock = Roadblock(thread)
    wakes = count_wakes(thread, monkeypatch)
    begun: list[int] = []
    for number in range(100):
        thread.post(lambda number=number: begun.append(number))  # type: ignore[misc]
    roadblock.lift.set()
    assert thread.call(lambda: list(begun)) == list(range(100))
    assert len(wakes) <= 2  # the burst, and the question what came of it


def test_an_interrupt_while_waking_the_loop_leaves_it_to_the_next(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(thread._loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.post(list)
    assert thread.call(lambda: "awake") == "awake"


def test_a_result_is_returned_or_raised_in_the_waiting_thread(thread: LoopThread) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError("in the loop")

    async def succeed() -> str:
        return threading.current_thread().name

    assert thread.run(succeed) == "nsqflow"
    with pytest.raises(ZeroDivisionError) as caught:
        thread.run(fail)
    names = [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)]
    here = "test_a_result_is_returned_or_raised_in_the_waiting_thread"
    assert (names[0], names[-1]) == (here, "fail")


def test_a_plain_call_that_raises_is_raised_here(thread: LoopThread) -> None:
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)
    with pytest.raises(LocalProtocolError, match="own background thread"):
        thread.call(lambda: thread.run(lambda: asyncio.sleep(0)))


def test_calls_after_one_that_fails_are_made(
    thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    roadblock = Roadblock(thread)
    later = threading.Event()
    thread.post(lambda: 1 // 0)
    thread.post(later.set)
    roadblock.lift.set()
    assert later.wait(PATIENCE)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_would_end_a_program_does_not_end_the_loop(
    thread: LoopThread, error: type[BaseException]
) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(error):
        thread.run(fail)
    assert thread.call(lambda: "alive") == "alive"


def test_a_call_that_waits_when_the_thread_ends_raises() -> None:
    thread = LoopThread()
    call = CoroutineCall[None](lambda: asyncio.sleep(PATIENCE))
    thread.post(call.start)
    thread.stop()
    call.wait()
    with pytest.raises(LocalProtocolError, match="closed"):
        call.result()


def test_a_call_after_the_end_raises() -> None:
    thread = LoopThread()
    thread.stop()
    with pytest.raises(LocalProtocolError, match="closed"):
        thread.call(list)


def test_a_call_during_the_end_has_a_result() -> None:
    """Each posted call has a result, at whatever moment the thread ends."""
    for _ in range(20):
        thread = LoopThread()
        outcomes: list[object] = []
        ready = threading.Barrier(5)

        def ask(
            thread: LoopThread = thread,
            outcomes: list[object] = outcomes,
            ready: threading.Barrier = ready,
        ) -> None:
            ready.wait(PATIENCE)
            try:
                while True:
                    thread.run(lambda: asyncio.sleep(0))
            except LocalProtocolError as error:
                outcomes.append(error)

        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        ready.wait(PATIENCE)
        thread.stop()
        for asker in askers:
            asker.join(PATIENCE)
        assert len(outcomes) == 4


async def do_nothing() -> None: ...


def test_the_thread_runs_as_long_as_it_has_a_user() -> None:
    first, second = LoopUser(do_nothing, list), LoopUser(do_nothing, list)
    thread = module.lease(first)
    assert module.lease(second) is thread
    module.release(first, thread)
    assert thread.call(lambda: "alive") == "alive"
    module.release(second, thread)
    assert not thread._thread.is_alive()
    another = module.lease(first)
    assert another is not thread
    module.release(first, another)


# The thread queue


def messages(*numbers: int) -> list[nsq.Message]:
    return [nsq.Message(0, 1, b"%016d" % number, b"%d" % number) for number in numbers]


@asynchronous
async def test_what_a_lost_connection_had_sent_is_not_handed_out() -> None:
    # Scripted: a real nsqd can't be made to die between two of its messages.
    lost = threading.Event()
    batches = iter([messages(1, 2, 3), messages(4)])

    def deliver(connection: Connection, rdy: nsq.Rdy) -> None:
        if rdy.count and connection not in served:
            served.append(connection)
            connection.send_messages(next(batches))

    def on_event(event: ClientEvent) -> None:
        if event.kind == "disconnected":
            lost.set()

    def consume() -> list[bytes]:
        with Consumer(
            "topic", "ch", nsqd=peer.address, reconnect_delay=0.1, on_event=on_event
        ) as consumer:
            bodies = [_finish(next(consumer))]
            asked.set()
            assert lost.wait(PATIENCE)
            return [*bodies, _finish(next(consumer))]

    served: list[Connection] = []
    asked = threading.Event()
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, deliver)
        consuming = asyncio.create_task(asyncio.to_thread(consume))
        await asyncio.to_thread(asked.wait, PATIENCE)
        served[0].reset()
        assert await consuming == [b"1", b"4"]


@asynchronous
async def test_messages_in_the_thread_queue_are_requeued_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Scripted: it must be known what was delivered before the other nsqd refuses.
    fetched, ended = threading.Event(), threading.Event()

    def consume() -> None:
        addresses = [good.address, bad.address]
        with Consumer("topic", "ch", nsqd=addresses, max_in_flight=20) as consumer:
            _finish(next(consumer))
            fetched.set()
            assert ended.wait(PATIENCE)

    async with ScriptedNsqd() as good, ScriptedNsqd() as bad:
        good.on(nsq.Rdy, [lambda connection, _: connection.send_messages(messages(1, 2, 3))])
        bad.on(nsq.Sub, HANG)
        consuming = asyncio.create_task(asyncio.to_thread(consume))
        await asyncio.to_thread(fetched.wait, PATIENCE)
        await bad.received(nsq.Sub)
        bad.connections[0].send_error(b"E_BAD_CHANNEL no")
        await eventually(lambda: "E_BAD_CHANNEL" in caplog.text)
        ended.set()
        await consuming
        answers = [c for c in good.commands if isinstance(c, nsq.Fin | nsq.Req)]
        assert [type(answer) for answer in answers] == [nsq.Fin, nsq.Req, nsq.Req]


def _finish(message: Message) -> bytes:
    message.finish()
    return message.body
