"""When what is to be sent is written: messages gathered, answers at once, late on demand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.nsqd.negotiation import Settings
from nsqflow.broker.nsqd.output import Output
from nsqflow.broker.nsqd.timers import Timers
from nsqflow.broker.options import NsqdOptions
from nsqflow.protocol import ServerSession
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.nsqd.frames import OK, Frame, frames_in

LONG = 3600.0
OVERHEAD = 34  # bytes of a message beside its body


class Bench:
    """An output with all that it needs, and what was written by it."""

    def __init__(self, size: int = 16384, timeout: float = LONG) -> None:
        self.delay = 0.0
        self.written: list[list[Frame]] = []
        self.session = ServerSession()
        self.session.receive_data(b"  V2SUB t ch\n")
        self.session.events()
        self.timers = Timers()
        settings = replace(
            Settings.default(NsqdOptions()), output_buffer_size=size, output_buffer_timeout=timeout
        )
        self.output = Output(self.session, settings, self.timers, lambda: self.delay)
        self.output.attach(cast("asyncio.Transport", self))
        self._news = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written.append(frames_in(data))
        self._news.set()

    def message(self, body: bytes, *, more: bool = True) -> None:
        self.output.messages([Entry(b"0" * 16, 0, body)], more)

    def answer(self) -> None:
        self.session.send_response()
        self.output.flush()

    async def news(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._news.wait()
        self._news.clear()

    @property
    def bodies(self) -> list[list[bytes]]:
        """What was written each time: the bodies of messages, and answers."""
        return [[f.data[26:] if f.type == 2 else f.data for f in each] for each in self.written]


@asynchronous
async def test_messages_wait_while_the_client_takes_more_and_answers_take_them_along() -> None:
    bench = Bench()
    bench.message(b"1")
    bench.message(b"2")
    assert bench.written == []
    bench.answer()
    assert bench.bodies == [[b"1", b"2", b"OK"]]
    bench.timers.cancel_all()


@asynchronous
async def test_messages_go_out_when_the_client_takes_no_more() -> None:
    bench = Bench()
    bench.message(b"1")
    bench.message(b"2", more=False)
    assert bench.bodies == [[b"1", b"2"]]


@asynchronous
async def test_messages_go_out_when_they_are_as_large_as_the_buffer() -> None:
    bench = Bench(size=2 * OVERHEAD + 10)
    bench.message(b"12345")
    bench.message(b"1234")  # one byte is left
    assert bench.written == []
    bench.answer()
    bench.message(b"12345")
    bench.message(b"12345")
    assert bench.bodies == [[b"12345", b"1234", b"OK"], [b"12345", b"12345"]]
    bench.timers.cancel_all()


@asynchronous
async def test_messages_go_out_after_some_time_and_the_next_ones_too() -> None:
    bench = Bench(timeout=0.01)
    for body in (b"1", b"2"):
        bench.message(body)
        await bench.news()
    assert bench.bodies == [[b"1"], [b"2"]]


@asynchronous
async def test_without_a_timeout_messages_wait_for_an_answer() -> None:
    bench, clock = Bench(timeout=0), Bench(timeout=0.01)
    bench.message(b"1")
    clock.message(b"")
    await clock.news()
    assert bench.written == []
    bench.answer()
    assert bench.bodies == [[b"1", b"OK"]]


@asynchronous
async def test_nothing_is_written_where_there_is_nothing() -> None:
    bench = Bench()
    bench.output.flush()
    assert bench.written == []


@asynchronous
async def test_what_is_late_comes_later_and_in_its_order() -> None:
    bench = Bench()
    bench.delay = 0.3
    bench.answer()
    assert bench.written == []
    assert bench.output.is_late
    bench.delay = 0
    bench.message(b"behind", more=False)
    assert bench.written == []
    while bench.output.is_late:
        await bench.news()
    assert bench.bodies == [[b"OK"], [b"behind"]]
    bench.answer()
    assert bench.written[-1] == [OK]


@asynchronous
async def test_one_can_wait_until_nothing_is_late() -> None:
    bench = Bench()
    done: list[int] = []
    bench.output.when_written(lambda: done.append(len(bench.written)))
    assert done == [0]
    bench.delay = 0.01
    bench.answer()
    bench.output.when_written(lambda: done.append(len(bench.written)))
    await bench.news()
    assert done == [0, 1]


@asynchronous
async def test_nothing_is_written_to_a_connection_that_is_gone() -> None:
    bench = Bench()
    bench.delay = 0.01
    bench.answer()
    bench.output.detach()
    assert not bench.output.is_late
    bench.delay = 0
    bench.answer()
    assert bench.written == []
    bench.timers.cancel_all()
