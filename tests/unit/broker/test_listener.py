"""Listening on ports of one or both address families, and on unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from nsqflow.broker.listener import Acceptor, Listener, listen
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")


class Greeter(asyncio.Protocol):
    """Sends hello and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(b"hello")
        transport.close()


@asynccontextmanager
async def opened(text: str) -> AsyncIterator[Listener]:
    listener = await listen("tcp_address", text, Greeter)
    try:
        yield listener
    finally:
        listener.close()


async def greeting(host: str, port: int) -> bytes:
    return await _read(*await asyncio.open_connection(host, port))


async def unix_greeting(path: str) -> bytes:
    return await _read(*await asyncio.open_unix_connection(path))


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    async with asyncio.timeout(PATIENCE):
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
    return data


@asynchronous
async def test_a_port_chosen_by_the_system_is_reported() -> None:
    async with opened("127.0.0.1:0") as listener:
        assert listener.port > 0
        assert listener.address == f"127.0.0.1:{listener.port}"
        assert await greeting("127.0.0.1", listener.port) == b"hello"
    with pytest.raises(ConnectionRefusedError):
        await greeting("127.0.0.1", listener.port)


@needs_ipv6
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_all_interfaces_have_the_same_port_for_both_families(uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with opened(":0") as listener:
            assert listener.address == f"0.0.0.0:{listener.port}"
            for host in ("127.0.0.1", "::1"):
                assert await greeting(host, listener.port) == b"hello"

    run()


@asynchronous
async def test_without_ipv6_all_interfaces_means_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with opened(":0") as listener:
        assert await greeting("127.0.0.1", listener.port) == b"hello"


@needs_ipv6
@asynchronous
async def test_an_ipv6_address_is_reported_in_brackets() -> None:
    async with opened("[::1]:0") as listener:
        assert listener.address == f"[::1]:{listener.port}"
        assert await greeting("::1", listener.port) == b"hello"


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
@asynchronous
async def test_a_port_in_use_is_named_with_its_option(host: str) -> None:
    async with opened(f"{host}:0") as listener:
        text = f"tcp_address {host}:{listener.port}: Address already in use"
        with pytest.raises(OSError, match=text):
            await listen("tcp_address", f"{host}:{listener.port}", Greeter)


@asynchronous
async def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="tcp_address='nowhere'"):
        await listen("tcp_address", "nowhere", Greeter)


@asynchronous
async def test_a_unix_socket_is_removed_on_closing(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with opened(str(path)) as listener:
        assert (listener.address, listener.port) == (str(path), -1)
        assert await unix_greeting(str(path)) == b"hello"
    assert not path.exists()
    listener.close()  # does nothing


@asynchronous
async def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
    async with opened(path):
        assert await unix_greeting(path) == b"hello"


@asynchronous
async def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    async with opened(path):
        with pytest.raises(OSError, match=f"tcp_address {path}: Address already in use"):
            await listen("tcp_address", path, Greeter)
        assert await unix_greeting(path) == b"hello"


@asynchronous
async def test_a_socket_whose_owner_does_not_accept_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as stack:
        busy.bind(path)
        busy.listen(0)
        for _ in range(3):  # more than its queue holds
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect_ex(path)
        with pytest.raises(OSError, match=f"tcp_address {path}: Address already in use"):
            await listen("tcp_address", path, Greeter)


@asynchronous
async def test_a_file_or_folder_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    for each in (path, tmp_path):
        text = f"tcp_address {each}: a file or folder with that name is not a socket"
        with pytest.raises(OSError, match=text) as caught:
            await listen("tcp_address", str(each), Greeter)
        assert caught.value.errno == errno.ENOTSOCK
    assert path.read_text() == "text"


@asynchronous
async def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)
    with pytest.raises(OSError, match=f"tcp_address {path}: AF_UNIX path too long"):
        await listen("tcp_address", str(path), Greeter)


@asynchronous
async def test_the_error_of_the_system_for_a_path_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "socket"
    with pytest.raises(OSError, match=f"tcp_address {path}: No such file or directory"):
        await listen("tcp_address", str(path), Greeter)


@pytest.mark.parametrize("host", ["nowhere.invalid", "no..where", "x" * 64])
@asynchronous
async def test_an_unknown_host_is_named(host: str) -> None:
    with pytest.raises(OSError, match=rf"tcp_address {host}:0: \w+"):
        await listen("tcp_address", f"{host}:0", Greeter)


@asynchronous
async def test_a_host_with_several_addresses_listens_on_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def usual_localhost(
        host: str, port: int, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[Any, ...]]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
        ]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", usual_localhost)
        listener = await listen("tcp_address", "localhost:0", Greeter)
    assert listener.address == f"127.0.0.1:{listener.port}"
    assert await greeting("127.0.0.1", listener.port) == b"hello"
    listener.close()


@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_connection_accepted_while_closing_is_closed(uvloop: bool) -> None:
    async def test() -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        acceptor = Acceptor(sock, asyncio.Protocol)
        with socket.create_connection(sock.getsockname()) as client:
            client.settimeout(PATIENCE)
            while not acceptor.handshake_count:  # noqa: ASYNC110 -- no protocol yet, for one turn
                await asyncio.sleep(0)
            acceptor.close()
            assert await asyncio.to_thread(client.recv, 1) == b""

    asynchronous(uvloop=uvloop)(test)()
    gc.collect()  # an open socket would cause a warning
