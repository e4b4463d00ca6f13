"""The life of an nsqd: how it starts, ends, and goes on with what another one had."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nsqflow.broker.nsqd.daemon import Nsqd
from nsqflow.broker.storage import StorageError
from nsqflow.broker.storage.database import Database
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.lookupd.registrant import lookupd
from tests.unit.broker.nsqd.frames import hear_message, pub
from tests.unit.broker.nsqd.running import Speaker, connected, make_nsqd, new_name


async def subscribe(speaker: Speaker, topic: str) -> None:
    await speaker.say(b"SUB %s ch\n" % topic.encode())
    speaker.writer.write(b"RDY 1\n")


async def refuses(address: str) -> bool:
    """Whether nobody listens there."""
    host, port = address.rsplit(":", 1)
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    writer.close()
    await writer.wait_closed()
    return False


# Its end


@pytest.mark.parametrize("end", [Nsqd.stop, Nsqd.kill])
@asynchronous
async def test_an_nsqd_that_has_ended_has_no_doors_and_no_clients(
    end: Callable[[Nsqd], Awaitable[None]],
) -> None:
    nsqd = make_nsqd()
    await nsqd.start()
    async with connected(nsqd.tcp_address) as speaker:
        await speaker.say(pub(new_name(), b"x"))
        async with asyncio.timeout(PATIENCE):
            await end(nsqd)
            assert await speaker.reader.read() == b""
    assert nsqd.clients == set()
    assert await refuses(nsqd.tcp_address)
    assert await refuses(nsqd.http_address)


@asynchronous
async def test_an_nsqd_can_be_stopped_twice(tmp_path: Path) -> None:
    nsqd = make_nsqd(data_path=tmp_path)
    await nsqd.start()
    await nsqd.stop()
    await nsqd.stop()


@asynchronous
async def test_what_an_nsqd_had_in_flight_when_it_stopped_is_delivered_by_the_next() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.say(pub(topic, b"x"))
        await subscribe(speaker, topic)
        first = await hear_message(speaker)
        await nsqd.stop()
    async with Nsqd(nsqd.options, nsqd.engine) as again, connected(again.tcp_address) as speaker:
        await subscribe(speaker, topic)
        second = await hear_message(speaker)
    assert (second.id, second.attempts) == (first.id, 2)


@asynchronous
async def test_a_topic_does_not_wait_for_an_answer_that_a_stop_has_prevented(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_name()
    asked = asyncio.Event()

    async def channels_of(_: str) -> None:
        asked.set()
        await asyncio.get_running_loop().create_future()

    async with lookupd() as peer:
        async with make_nsqd(lookupd_tcp_address=peer.tcp_address) as nsqd:
            await nsqd.lookup_peers.registered()
            monkeypatch.setattr(nsqd.lookup_peers, "channels_of", channels_of)
            async with connected(nsqd.tcp_address) as speaker:
                await speaker.say(pub(topic, b"1"))
                await asyncio.wait_for(asked.wait(), PATIENCE)
        async with (
            Nsqd(nsqd.options, nsqd.engine) as again,
            connected(again.tcp_address) as speaker,
        ):
            await subscribe(speaker, topic)
            message = await hear_message(speaker)
            assert message.body == b"1"
            speaker.writer.write(b"FIN %s\n" % message.id)
            await speaker.say(pub(topic, b"2"))
            assert (await hear_message(speaker)).body == b"2"


# Its start


@asynchronous
async def test_an_nsqd_that_finds_its_port_taken_leaves_nothing(tmp_path: Path) -> None:
    async with make_nsqd() as other:
        for door in ("tcp_address", "http_address"):
            taken = getattr(other, door)
            with pytest.raises(OSError, match=f"{door} {taken}: Address already in use"):
                await make_nsqd(data_path=tmp_path, **{door: taken}).start()
    async with make_nsqd(data_path=tmp_path):  # it is not in use
        pass


@asynchronous
async def test_an_nsqd_whose_second_port_is_taken_closes_the_first() -> None:
    async with make_nsqd() as other:
        nsqd = make_nsqd(http_address=other.http_address)
        with pytest.raises(OSError, match="http_address"):
            await nsqd.start()
        assert await refuses(nsqd.tcp_address)


@asynchronous
async def test_two_can_not_have_the_same_data(tmp_path: Path) -> None:
    async with make_nsqd(data_path=tmp_path):
        with pytest.raises(ConfigError, match="is in use by another nsqd"):
            await make_nsqd(data_path=tmp_path).start()


@asynchronous
async def test_an_nsqd_needs_no_http() -> None:
    async with make_nsqd(http_address="") as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.say(pub(new_name(), b"x"))
        assert (nsqd.http_address, nsqd.http_port, nsqd.https_port) == ("", -1, -1)


@asynchronous
async def test_a_connection_too_many_is_closed_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as first:
        await first.say(pub(new_name(), b"x"))
        monkeypatch.setattr(resource, "getrlimit", lambda _: (2, 2))
        async with connected(nsqd.tcp_address) as second:
            with contextlib.suppress(ConnectionResetError):  # if its first bytes came too late
                assert await asyncio.wait_for(second.reader.read(), PATIENCE) == b""
        assert "TCP: there are 1 clients, as many as there may be" in caplog.text
        await first.say(pub(new_name(), b"y"))


# What is stored


@asynchronous
async def test_who_waits_for_the_store_is_told_whether_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise StorageError("disk full")

    async with make_nsqd(data_path=tmp_path) as nsqd:
        nsqd.engine.topic("first", nsqd.now())
        await nsqd.stored()
        with monkeypatch.context() as disk:
            disk.setattr(Database, "write", write)
            nsqd.engine.topic("second", nsqd.now())
            with pytest.raises(StorageError, match="disk full"):
                await nsqd.stored()
            assert nsqd.health == "NOK - disk full"
        await nsqd.stored()
        assert nsqd.health == "OK"


@asynchronous
async def test_one_that_fails_to_hear_what_is_stored_keeps_it_from_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Exception | None] = []

    def fail(_: Exception | None) -> None:
        raise ValueError("of this one")

    async with make_nsqd(data_path=tmp_path) as nsqd:
        nsqd.when_stored(fail)
        nsqd.when_stored(heard.append)
        await eventually(lambda: heard == [None])
    assert "ValueError: of this one" in caplog.text


@asynchronous
async def test_without_a_data_path_all_counts_as_stored_at_once() -> None:
    heard: list[Exception | None] = []
    async with make_nsqd() as nsqd:
        nsqd.when_stored(heard.append)
        assert heard == [None]
        await nsqd.stored()
