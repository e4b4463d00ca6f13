"""nsqlookupd as a whole: registration, HTTP API, starting and stopping."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from nsqflow.broker.lookupd import daemon
from nsqflow.errors import ConfigError
from nsqflow.protocol import Ping, Register
from tests.fixtures.loops import asynchronous
from tests.unit.broker.lookupd.fake_nsqd import FakeNsqd, ask, lookupd, until


@asynchronous
async def test_a_star_means_every_topic() -> None:
    async with lookupd() as ours, FakeNsqd(ours.tcp_address) as one:
        await one.identify(1)
        await one.request(Register("a", "x"))
        await one.request(Register("b", "y"))
        _, found = await ask(ours.http_address, "/lookup", {"topic": "*"})
        assert found["channels"] == ["x", "y"]
        assert [each["remote_address"] for each in found["producers"]] == [one.address]
        await ask(ours.http_address, "/topic/delete", {"topic": "*"}, "POST")
        assert await ask(ours.http_address, "/topics") == (200, {"topics": []})


@asynchronous
async def test_an_inactive_nsqd_is_not_listed() -> None:
    set_timeouts = lookupd(inactive_producer_timeout=0.05)
    async with set_timeouts as ours, FakeNsqd(ours.tcp_address) as one:
        await one.identify(1)
        await one.request(Register("t"))
        await until(ours.http_address, "/lookup", "t", {"channels": [], "producers": []})
        assert await ask(ours.http_address, "/nodes") == (200, {"producers": []})
        assert "topic:t:" in (await ask(ours.http_address, "/debug"))[1]


@pytest.mark.parametrize(("inactive", "silence"), [(0.05, 1000.0), (1000.0, 0.05)])
@asynchronous
async def test_an_nsqd_is_closed_only_after_both_timeouts(
    inactive: float, silence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_SILENCE_TIMEOUT", silence)
    ours = lookupd(inactive_producer_timeout=inactive)
    monkeypatch.setattr(daemon, "_IDENTIFY_TIMEOUT", 0.2)
    other = lookupd()
    async with ours, other, FakeNsqd(ours.tcp_address) as nsqd:
        await nsqd.identify(1)
        async with FakeNsqd(other.tcp_address) as silent:
            await silent.wait_closed()  # by then the shorter timeout has passed
        assert (await nsqd.request(Ping())).error is None


@asynchronous
async def test_idle_connections_do_not_lock_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_MAX_CONNECTIONS", 5)
    async with lookupd() as ours, contextlib.AsyncExitStack() as stack:
        for address in [ours.tcp_address, ours.http_address] * 10:
            await stack.enter_async_context(FakeNsqd(address))
        async with FakeNsqd(ours.tcp_address) as nsqd:
            await nsqd.identify(1)
            _, found = await ask(ours.http_address, "/nodes")
            assert [each["remote_address"] for each in found["producers"]] == [nsqd.address]


@asynchronous
async def test_the_log_has_the_version_and_the_addresses(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsqflow.broker.lookupd")
    async with lookupd() as ours:
        assert caplog.messages[0].startswith("nsqlookupd v1.3.0-nsqflow (built w/python3.")
        assert f"TCP: listening on {ours.tcp_address}" in caplog.messages
        assert f"HTTP: listening on {ours.http_address}" in caplog.messages
        assert await ask(ours.http_address, "/info") == (200, {"version": "1.3.0+nsqflow"})
        assert f"TCP: closing {ours.tcp_address}" not in caplog.messages
    assert f"TCP: closing {ours.tcp_address}" in caplog.messages


@asynchronous
async def test_an_address_in_use_closes_the_other_listener() -> None:
    async with lookupd() as ours:
        other = lookupd(tcp_address=ours.tcp_address)
        with pytest.raises(OSError, match=f"tcp_address {ours.tcp_address}"):
            await other.start()
        with pytest.raises((ConnectionError, OSError)):
            await asyncio.open_connection(*other.http_address.rsplit(":", 1))


@asynchronous
async def test_stopping_closes_every_connection() -> None:
    await check_stopping()


@asynchronous(uvloop=True)
async def test_stopping_closes_every_connection_on_uvloop() -> None:
    await check_stopping()


async def check_stopping() -> None:
    async with lookupd() as ours, FakeNsqd(ours.tcp_address) as one:
        await one.identify(1)
        async with FakeNsqd(ours.tcp_address) as two:
            await two.identify(2)
            assert len((await ask(ours.http_address, "/nodes"))[1]["producers"]) == 2
            await ours.stop()
            await one.wait_closed()
            await two.wait_closed()
    assert ours.db.registrations() == {}


@asynchronous
async def test_nsqlookupd_listens_on_unix_sockets(tmp_path: Path) -> None:
    tcp, web = tmp_path / "lookupd.sock", tmp_path / "http.sock"
    async with lookupd(tcp_address=str(tcp), http_address=str(web)):
        reader, writer = await asyncio.open_unix_connection(tcp)
        writer.write(b"  V1PING\n")
        assert await reader.readexactly(6) == b"\0\0\0\2OK"
        writer.transport.abort()
        reader, writer = await asyncio.open_unix_connection(web)
        writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"OK")
        writer.transport.abort()
    assert not tcp.exists()
    assert not web.exists()


def test_options_are_checked_when_they_are_given() -> None:
    with pytest.raises(ConfigError, match="tcp_address"):
        lookupd(tcp_address="nonsense")
