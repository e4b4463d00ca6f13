"""The output buffer: buffered messages, immediate responses, injected delays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.nsqd.identify import ClientSettings
from nsqflow.broker.nsqd.output import ConnectionTimers, OutputBuffer
from nsqflow.broker.options import NsqdOptions
from nsqflow.protocol import ServerSession
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.nsqd.frames import OK, Frame, frames_in

LONG = 3600.0
OVERHEAD = 34  # bytes of a message beside its body


class Output:
    """An output buffer and what it has written."""

    def __init__(self, size: int = 16384, timeout: float = LONG) -> None:
        self.delay = 0.0
        self.written: list[list[Frame]] = []
        self.session = ServerSession()
        self.session.receive_data(b"  V2SUB t ch\n")
        self.session.events()
        self.timers = ConnectionTimers()
        settings = replace(
            ClientSettings.default(NsqdOptions()),
            output_buffer_size=size,
            output_buffer_timeout=timeout,
        )
        self.buffer = OutputBuffer(self.session, settings, self.timers, lambda: self.delay)
        self.buffer.attach(cast("asyncio.Transport", self))
        self._event = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written.append(frames_in(data))
        self._event.set()

    def message(self, body: bytes, *, more: bool = True) -> None:
        self.buffer.send_messages([QueuedMessage(b"0" * 16, 0, body)], more)

    def respond(self) -> None:
        self.session.send_response()
        self.buffer.flush()

    async def wait_write(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._event.wait()
        self._event.clear()

    @property
    def bodies(self) -> list[list[bytes]]:
        """The content of each write: bodies of messages, and responses."""
        return [[f.data[26:] if f.type == 2 else f.data for f in each] for each in self.written]


@asynchronous
async def test_messages_are_buffered_until_a_response_is_written() -> None:
    output = Output()
    output.message(b"1")
    output.message(b"2")
    assert output.written == []
    output.respond()
    assert output.bodies == [[b"1", b"2", b"OK"]]
    output.timers.cancel_all()


@asynchronous
async def test_messages_are_written_when_the_client_accepts_no_more() -> None:
    output = Output()
    output.message(b"1")
    output.message(b"2", more=False)
    assert output.bodies == [[b"1", b"2"]]


@asynchronous
async def test_messages_are_written_when_the_buffer_is_full() -> None:
    output = Output(size=2 * OVERHEAD + 10)
    output.message(b"12345")
    output.message(b"1234")  # one byte less than the buffer
    assert output.written == []
    output.respond()
    output.message(b"12345")
    output.message(b"12345")
    assert output.bodies == [[b"12345", b"1234", b"OK"], [b"12345", b"12345"]]
    output.timers.cancel_all()


@asynchronous
async def test_messages_are_written_after_the_timeout_each_time() -> None:
    output = Output(timeout=0.01)
    for body in (b"1", b"2"):
        output.message(body)
        await output.wait_write()
    assert output.bodies == [[b"1"], [b"2"]]


@asynchronous
async def test_without_a_timeout_messages_wait_for_a_response() -> None:
    output, clock = Output(timeout=0), Output(timeout=0.01)
    output.message(b"1")
    clock.message(b"")
    await clock.wait_write()
    assert output.written == []
    output.respond()
    assert output.bodies == [[b"1", b"OK"]]


@asynchronous
async def test_a_flush_of_an_empty_buffer_writes_nothing() -> None:
    output = Output()
    output.buffer.flush()
    assert output.written == []


@asynchronous
async def test_delayed_data_is_written_later_and_in_order() -> None:
    output = Output()
    output.delay = 0.3
    output.respond()
    assert output.written == []
    assert output.buffer.has_delayed
    output.delay = 0
    output.message(b"later", more=False)
    assert output.written == []
    while output.buffer.has_delayed:
        await output.wait_write()
    assert output.bodies == [[b"OK"], [b"later"]]
    output.respond()
    assert output.written[-1] == [OK]


@asynchronous
async def test_when_written_waits_for_delayed_data() -> None:
    output = Output()
    done: list[int] = []
    output.buffer.when_written(lambda: done.append(len(output.written)))
    assert done == [0]
    output.delay = 0.01
    output.respond()
    output.buffer.when_written(lambda: done.append(len(output.written)))
    await output.wait_write()
    assert done == [0, 1]


@asynchronous
async def test_nothing_is_written_after_detach() -> None:
    output = Output()
    output.delay = 0.01
    output.respond()
    output.buffer.detach()
    assert not output.buffer.has_delayed
    output.delay = 0
    output.respond()
    assert output.written == []
    output.timers.cancel_all()
