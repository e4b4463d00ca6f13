"""Starting and stopping an nsqd, and continuing with the messages of another."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.storage import StorageError
from nsqflow.broker.storage.database import Database
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.lookupd.fake_nsqd import lookupd
from tests.unit.broker.nsqd.frames import pub, receive_message
from tests.unit.broker.nsqd.running import RawClient, connected, make_nsqd, new_name


async def subscribe(raw: RawClient, topic: str) -> None:
    await raw.command(b"SUB %s ch\n" % topic.encode())
    raw.writer.write(b"RDY 1\n")


async def refuses(address: str) -> bool:
    """Return whether connections are refused."""
    host, port = address.rsplit(":", 1)
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    writer.close()
    await writer.wait_closed()
    return False


# Stopping


@pytest.mark.parametrize("end", [NsqdDaemon.stop, NsqdDaemon.kill])
@asynchronous
async def test_an_nsqd_that_has_ended_has_no_listeners_and_no_clients(
    end: Callable[[NsqdDaemon], Awaitable[None]],
) -> None:
    nsqd = make_nsqd()
    await nsqd.start()
    async with connected(nsqd.tcp_address) as raw:
        await raw.command(pub(new_name(), b"x"))
        async with asyncio.timeout(PATIENCE):
            await end(nsqd)
            assert await raw.reader.read() == b""
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
async def test_messages_in_flight_at_a_stop_are_delivered_by_the_next_nsqd() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.command(pub(topic, b"x"))
        await subscribe(raw, topic)
        first = await receive_message(raw)
        await nsqd.stop()
    async with (
        NsqdDaemon(nsqd.options, nsqd.engine) as again,
        connected(again.tcp_address) as raw,
    ):
        await subscribe(raw, topic)
        second = await receive_message(raw)
    assert (second.id, second.attempts) == (first.id, 2)


@asynchronous
async def test_a_topic_does_not_wait_for_a_lookup_that_a_stop_cancelled(
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
            async with connected(nsqd.tcp_address) as raw:
                await raw.command(pub(topic, b"1"))
                await asyncio.wait_for(asked.wait(), PATIENCE)
        async with (
            NsqdDaemon(nsqd.options, nsqd.engine) as again,
            connected(again.tcp_address) as raw,
        ):
            await subscribe(raw, topic)
            message = await receive_message(raw)
            assert message.body == b"1"
            raw.writer.write(b"FIN %s\n" % message.id)
            await raw.command(pub(topic, b"2"))
            assert (await receive_message(raw)).body == b"2"


# Starting


@asynchronous
async def test_an_nsqd_whose_port_is_in_use_releases_its_data_path(tmp_path: Path) -> None:
    async with make_nsqd() as other:
        for listener in ("tcp_address", "http_address"):
            taken = getattr(other, listener)
            with pytest.raises(OSError, match=f"{listener} {taken}"):
                await make_nsqd(data_path=tmp_path, **{listener: taken}).start()
    async with make_nsqd(data_path=tmp_path):  # the data path is free
        pass


@asynchronous
async def test_an_nsqd_whose_http_port_is_in_use_closes_its_tcp_port() -> None:
    async with make_nsqd() as other:
        nsqd = make_nsqd(http_address=other.http_address)
        with pytest.raises(OSError, match="http_address"):
            await nsqd.start()
        assert await refuses(nsqd.tcp_address)


@asynchronous
async def test_two_nsqd_cannot_use_the_same_data_path(tmp_path: Path) -> None:
    async with make_nsqd(data_path=tmp_path):
        with pytest.raises(ConfigError, match="data_path="):
            await make_nsqd(data_path=tmp_path).start()


@asynchronous
async def test_an_nsqd_needs_no_http() -> None:
    async with make_nsqd(http_address="") as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.command(pub(new_name(), b"x"))
        assert (nsqd.http_address, nsqd.http_port, nsqd.https_port) == ("", -1, -1)


@asynchronous
async def test_a_connection_above_the_limit_is_closed_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as first:
        await first.command(pub(new_name(), b"x"))
        monkeypatch.setattr(resource, "getrlimit", lambda _: (2, 2))
        async with connected(nsqd.tcp_address) as second:
            with contextlib.suppress(ConnectionResetError):  # if it sent before it was refused
                assert await asyncio.wait_for(second.reader.read(), PATIENCE) == b""
        assert "TCP: refusing a client: 1 are connected, the maximum" in caplog.text
        await first.command(pub(new_name(), b"y"))


# Waiting for the store


@asynchronous
async def test_stored_raises_if_the_store_fails(
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
async def test_a_stored_callback_that_raises_does_not_prevent_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[Exception | None] = []

    def fail(_: Exception | None) -> None:
        raise ValueError("of this one")

    async with make_nsqd(data_path=tmp_path) as nsqd:
        nsqd.when_stored(fail)
        nsqd.when_stored(results.append)
        await eventually(lambda: results == [None])
    assert "ValueError: of this one" in caplog.text


@asynchronous
async def test_without_a_data_path_everything_counts_as_stored() -> None:
    results: list[Exception | None] = []
    async with make_nsqd() as nsqd:
        nsqd.when_stored(results.append)
        assert results == [None]
        await nsqd.stored()
