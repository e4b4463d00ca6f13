"""A compressed stream that expands a lot is decompressed in slices, so that other tasks run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nsqflow import protocol as nsq
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.errors import NetworkError, NsqError, RemoteProtocolError
from nsqflow.transport.connection import Connection
from nsqflow.transport.handler import ConnectionHandler
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import Connection as Wire
from tests.fixtures.scripted import ScriptedNsqd
from tests.fixtures.servers import PATIENCE

COUNT = 800
MESSAGES = [nsq.Message(1, 1, b"%016d" % number, bytes(20_000)) for number in range(COUNT)]
WINDOWS = 60  # of 256 KiB, or a few more

uvloop = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


@pytest.fixture(autouse=True)
def _shortest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yield after every window, however fast the machine is."""
    monkeypatch.setattr("nsqflow.transport.connection._SLICE", 0, raising=False)


class Recorder(ConnectionHandler):
    """Records what it is called with, and in which iteration of the loop."""

    def __init__(self) -> None:
        self.turns: list[int] = []
        self.turn = 0
        self.ids: list[bytes] = []
        self.lost: list[NsqError] = []
        self.failed: list[nsq.AnswerFailed] = []
        self.ids_after_loss: list[bytes] = []
        self.on_first: Callable[[], object] = lambda: None
        self.on_last: Callable[[], object] = lambda: None

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def messages_received(self, batch: nsq.MessageBatch) -> None:
        first = not self.ids
        ids = [message.id for message in batch.messages()]
        self.turns.append(self.turn)
        self.ids += ids
        if self.lost:
            self.ids_after_loss += ids
        if first:
            self.on_first()
        if len(self.ids) == COUNT:
            self.on_last()

    def connection_lost(self, error: NsqError) -> None:
        self.lost.append(error)

    def answer_failed(self, event: nsq.AnswerFailed) -> None:
        self.failed.append(event)


def send_all(wire: Wire, _: nsq.Command) -> None:
    wire.send_messages(MESSAGES)


@asynccontextmanager
async def receiving(
    react: Callable[[Wire, nsq.Rdy], None] = send_all,
    method: str = "deflate",
) -> AsyncIterator[tuple[Connection, Recorder, ScriptedNsqd]]:
    """A connection to a peer that sends far more than was asked for at the first RDY."""
    options: dict[str, Any] = {method: True} if method else {}
    handler = Recorder()
    async with ScriptedNsqd(nsq.IdentifyReply(version="1.3.0", **options)) as peer:
        peer.on(nsq.Rdy, react)
        config = ProducerConfig.of("Producer", peer.address, (), options)
        connection = Connection(peer.address, config.connection_settings(), handler)
        await connection.open(nsq.Sub("t", "ch"))
        ticker = asyncio.create_task(handler.count_turns())
        try:
            yield connection, handler, peer
        finally:
            ticker.cancel()
            await connection.drop()
            await asyncio.wait([ticker])


def all_ids() -> list[bytes]:
    return [message.id for message in MESSAGES]


@uvloop
@pytest.mark.parametrize("method", ["deflate", "snappy"])
def test_other_tasks_have_their_turns_while_a_stream_is_unpacked(method: str, uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def receive() -> None:
        async with receiving(method=method) as (connection, handler, _):
            connection.send(nsq.Rdy(1))
            await eventually(lambda: len(handler.ids) == COUNT)
            assert handler.ids == all_ids()
            assert len(handler.turns) >= WINDOWS
            assert len(set(handler.turns)) == len(handler.turns)
            connection.send(nsq.Rdy(1))  # it is read from again
            await eventually(lambda: len(handler.ids) == 2 * COUNT)

    receive()


@asynchronous
async def test_a_plain_stream_is_handled_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "_defer", lambda _: pytest.fail("it was put off"))
    async with receiving(method="") as (connection, handler, _):
        connection.send(nsq.Rdy(1))
        await eventually(lambda: len(handler.ids) == COUNT)
        assert handler.ids == all_ids()


@uvloop
def test_nothing_is_read_while_a_stream_is_unpacked(
    uvloop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    @asynchronous(uvloop=uvloop)
    async def receive() -> None:
        async with receiving() as (connection, handler, peer):
            take = connection.session.receive_data

            def receive_data(data: bytes) -> None:
                reads.append(len(handler.ids))
                take(data)

            monkeypatch.setattr(connection.session, "receive_data", receive_data)
            # The second load is sent while the first is unpacked, and waits in the socket.
            handler.on_first = lambda: peer.connections[0].send_messages(MESSAGES)
            connection.send(nsq.Rdy(1))
            await eventually(lambda: len(handler.ids) == 2 * COUNT)

    receive()
    # (The first load itself may come in several pieces, after each of which all is unpacked.)
    assert reads[0] == 0
    assert reads.count(COUNT) == 1
    assert len(reads) < WINDOWS


@asynchronous
async def test_heartbeats_inside_are_answered_in_between() -> None:
    def send_with_heartbeat(wire: Wire, _: nsq.Command) -> None:
        wire.session.send_messages(MESSAGES[:10])
        wire.session.send_heartbeat()
        wire.send_messages(MESSAGES[10:])

    answered: list[bool] = []
    async with receiving(send_with_heartbeat) as (connection, handler, peer):
        handler.on_last = lambda: answered.append(
            any(isinstance(c, nsq.Nop) for c in peer.commands)
        )
        connection.send(nsq.Rdy(1))
        await eventually(lambda: len(handler.ids) == COUNT)
        assert answered == [True]


@uvloop
def test_after_an_abort_nothing_more_is_handed_on(uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def receive() -> None:
        async with receiving() as (connection, handler, _):
            handler.on_first = connection.abort
            connection.send(nsq.Rdy(1))
            await asyncio.wait_for(connection.wait_ended(), PATIENCE)
            ids, turn = handler.ids.copy(), handler.turn
            await eventually(lambda: handler.turn > turn + 10)
            assert handler.ids == ids == all_ids()[: len(ids)]
            assert len(handler.turns) == len(handler.lost) == 1

    receive()


@uvloop
def test_after_an_abort_nothing_more_of_the_same_slice_is_handed_on(
    uvloop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqflow.transport.connection._SLICE", PATIENCE)

    @asynchronous(uvloop=uvloop)
    async def receive() -> None:
        async with receiving() as (connection, handler, _):
            handler.on_first = connection.abort
            connection.send(nsq.Rdy(1))
            await asyncio.wait_for(connection.wait_ended(), PATIENCE)
            assert len(handler.turns) == len(handler.lost) == 1

    receive()


@uvloop
def test_after_an_abort_no_more_events_of_the_same_read_are_handed_on(uvloop: bool) -> None:
    def send_events(wire: Wire, _: nsq.Command) -> None:
        for message in MESSAGES[:3]:
            wire.session.send_messages([message])
            wire.session.send_error("E_FIN_FAILED", f"FIN {message.id.decode()} failed")
        wire.send_heartbeat()  # with it go the others

    @asynchronous(uvloop=uvloop)
    async def receive() -> None:
        async with receiving(send_events, method="") as (connection, handler, _):
            handler.on_first = connection.abort
            connection.send(nsq.Rdy(1))
            await asyncio.wait_for(connection.wait_ended(), PATIENCE)
            assert (len(handler.ids), handler.failed, len(handler.lost)) == (1, [], 1)

    receive()


@uvloop
def test_what_came_before_a_close_is_handed_on_before_the_end(uvloop: bool) -> None:
    def send_and_close(wire: Wire, command: nsq.Command) -> None:
        send_all(wire, command)
        wire.close()

    @asynchronous(uvloop=uvloop)
    async def receive() -> None:
        async with receiving(send_and_close) as (connection, handler, _):
            connection.send(nsq.Rdy(1))
            error = await asyncio.wait_for(connection.wait_ended(), PATIENCE)
            assert "closed by nsqd" in str(error)
            assert (handler.ids, handler.ids_after_loss) == (all_ids(), [])
            assert handler.lost == [error]

    receive()


@pytest.mark.parametrize("ending", ["none", "finish", "drop"])
@uvloop
def test_a_connection_that_is_lost_meanwhile_is_reported_after_the_rest(
    uvloop: bool, ending: str
) -> None:
    @asynchronous(uvloop=uvloop)
    async def receive() -> None:
        async with receiving() as (connection, handler, _):

            def lose() -> None:
                connection.connection_lost(ConnectionResetError("reset"))

            loop = asyncio.get_running_loop()
            handler.on_first = lambda: loop.call_soon(lose)
            connection.send(nsq.Rdy(1))
            await eventually(lambda: connection._lost)
            assert not handler.lost
            assert connection.closed, "what is published now goes elsewhere"
            if ending == "finish":
                await connection.finish(PATIENCE)
            elif ending == "drop":
                await connection.drop()
            error = await asyncio.wait_for(connection.wait_ended(), PATIENCE)
            assert isinstance(error, NetworkError)
            assert "reset" in str(error)
            assert (handler.lost, handler.ids_after_loss) == ([error], [])
            if ending == "drop":
                assert len(handler.ids) < COUNT
            else:
                assert handler.ids == all_ids()
                assert len(set(handler.turns)) == len(handler.turns)

    receive()


@asynchronous
async def test_damage_in_a_stream_ends_the_connection_after_the_data_before_it() -> None:
    def send_and_break(wire: Wire, command: nsq.Command) -> None:
        send_all(wire, command)
        wire.send_raw(b"\xff" * 100)  # no deflate

    async with receiving(send_and_break) as (connection, handler, peer):
        connection.send(nsq.Rdy(1))
        error = await asyncio.wait_for(connection.wait_ended(), PATIENCE)
        assert isinstance(error, RemoteProtocolError)
        assert error.__notes__ == [f"from {peer.address}"]
        assert handler.ids == all_ids()
        assert len(set(handler.turns)) == len(handler.turns)


@asynchronous
async def test_an_error_in_a_later_slice_ends_the_connection_as_in_the_first() -> None:
    contexts: list[dict[str, Any]] = []

    def fail() -> None:
        raise ZeroDivisionError("a defect")

    async with receiving() as (connection, handler, _):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: contexts.append(context))
        handler.on_last = fail
        connection.send(nsq.Rdy(1))
        error = await asyncio.wait_for(connection.wait_ended(), PATIENCE)
        assert str(error) == f"{connection.address}: a defect"
        assert handler.lost == [error]
        assert [str(context["exception"]) for context in contexts] == ["a defect"]
