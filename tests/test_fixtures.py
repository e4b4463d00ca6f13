"""The fixtures do what the tests that use them rely on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from nsqflow import protocol as nsq
from nsqflow.errors import AuthFailedError, RemoteProtocolError, UnauthorizedError
from tests.conformance.driver import Client
from tests.fixtures import scripted
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd
from tests.fixtures.threads import no_thread_left

HELLO = nsq.ClientSession().data_to_send()  # what a client says first: magic and IDENTIFY


def connect(address: str) -> Client:
    host, port = address.split(":")
    return Client(socket.create_connection((host, int(port)), timeout=PATIENCE))


def converse(address: str) -> list[str]:
    """All that is said to a client which publishes and subscribes."""
    with connect(address) as client:
        heard = client.negotiate()
        heard.append(client.request(nsq.Pub("fixtures_published", b"x"), nsq.Published))
        heard.append(client.request(nsq.Sub("fixtures_read", "ch"), nsq.Subscribed))
        client.send(nsq.Rdy(1))
        heard.append(client.request(nsq.Cls(), nsq.CloseWait))
    return [type(event).__name__ for event in heard]


@asynccontextmanager
async def stream(
    address: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw connection in the test's own loop."""
    reader, writer = await asyncio.open_connection(*address.split(":"), ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):  # it was reset, as the test wanted
            await writer.wait_closed()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_reaches_a_process_that_a_test_starts(signum: signal.Signals) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        child.send_signal(signum)
        try:
            assert child.wait(timeout=PATIENCE) == -signum
        finally:
            child.kill()


def test_an_interrupt_reaches_the_process_of_the_tests() -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_signals_reach_tests_that_a_background_job_runs(workers: str) -> None:
    """A shell without job control starts ``command &`` with SIGINT and SIGQUIT ignored."""
    tests = f"{__file__}::test_a_signal_reaches_a_process_that_a_test_starts"
    itself = f"{__file__}::test_an_interrupt_reaches_the_process_of_the_tests"
    command = [sys.executable, "-m", "pytest", "-n", workers]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT QUIT TERM; exec "$@"', "sh", *command, tests, itself],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_a_thread_that_is_left_is_held_against_the_test_that_started_it() -> None:
    released = threading.Event()
    thread = threading.Thread(target=released.wait, name="left")
    with pytest.raises(AssertionError, match="left"), no_thread_left("left"):
        thread.start()
    with no_thread_left("left"):
        assert thread.is_alive()
    released.set()
    thread.join()


def test_what_an_async_test_does_not_close_fails_it_by_name() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="forgotten thread")
    tasks = []  # asyncio itself would let them be collected

    @asynchronous
    async def leave_a_task() -> None:
        tasks.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten task"))

    @asynchronous
    async def leave_a_thread() -> None:
        await asyncio.to_thread(thread.start)  # the loop's own thread is no leftover

    @asynchronous
    async def let_a_callback_fail() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match=r"tasks still running.*forgotten task"):
        leave_a_task()
    with pytest.raises(AssertionError, match=r"^threads still running: forgotten thread$"):
        leave_a_thread()
    release.set()
    thread.join()
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        let_a_callback_fail()


@asynchronous
async def test_eventually_waits_for_a_condition_and_names_one_that_never_holds() -> None:
    tries = count()
    await eventually(lambda: next(tries) == 3)
    assert next(tries) == 4
    with pytest.raises(AssertionError, match="pigs fly"):
        await eventually(lambda: False, timeout=0.01, what="pigs fly")


@asynchronous
async def test_a_scripted_nsqd_answers_as_the_real_one(nsqd: Nsqd) -> None:
    async with scripted.ScriptedNsqd() as peer:
        heard = await asyncio.to_thread(converse, peer.address)
        assert heard == await asyncio.to_thread(converse, nsqd.tcp_address)
        names = [command.name for command in peer.commands]
        assert names == ["IDENTIFY", "PUB", "SUB", "RDY", "CLS"]
        assert peer.connections[0].commands == peer.commands


@asynchronous
async def test_a_scripted_nsqd_follows_its_script() -> None:
    one, two, three = (nsq.Pub("t", body) for body in (b"1", b"2", b"3"))

    def publish(address: str) -> None:
        with connect(address) as client:
            client.negotiate()
            client.request(one, nsq.Published)
            assert client.request(two, nsq.CommandFailed).error.code == "E_ODD"
            client.send_raw(three.encode())
            client.expect_end()

    async with scripted.ScriptedNsqd() as peer:
        odd = nsq.encode_frame(nsq.FrameType.ERROR, b"E_ODD")
        peer.on(nsq.Publish, [scripted.BEHAVE, odd, lambda wire, _: wire.close()])
        await asyncio.to_thread(publish, peer.address)
        await peer.connections[0].ended()
        assert await peer.received(lambda command: command == three) == three
        assert [await peer.received(nsq.Pub), await peer.received(nsq.Pub)] == [one, two]


@asynchronous
async def test_a_scripted_nsqd_pushes_messages_and_heartbeats() -> None:
    def consume(address: str) -> list[bytes]:
        with connect(address) as client:
            client.negotiate()
            client.request(nsq.Sub("t", "ch"), nsq.Subscribed)
            client.send(nsq.Rdy(2))
            messages = client.messages(2)
            client.expect(nsq.Heartbeat)
            client.send(nsq.Fin(messages[0].id))
            return [message.body for message in messages]

    async with scripted.ScriptedNsqd() as peer:
        consumer = asyncio.create_task(asyncio.to_thread(consume, peer.address))
        connection = await peer.connected()
        assert await peer.received(nsq.Rdy) == nsq.Rdy(2)
        connection.send_messages(nsq.Message(1, 1, b"%016d" % i, b"body %d" % i) for i in range(2))
        connection.send_heartbeat()
        assert await peer.received(nsq.Fin) == nsq.Fin(b"%016d" % 0)
        assert await consumer == [b"body 0", b"body 1"]


@asynchronous
async def test_a_scripted_nsqd_sends_its_identify_reply() -> None:
    def identify(address: str) -> int:
        with connect(address) as client:
            client.negotiate()
            return client.session.reply.max_rdy_count

    async with scripted.ScriptedNsqd(nsq.IdentifyReply(max_rdy_count=7)) as peer:
        assert await asyncio.to_thread(identify, peer.address) == 7
        peer.reply = None
        assert await asyncio.to_thread(identify, peer.address) == 2500
        peer.reply = nsq.IdentifyReply(snappy=True)
        with pytest.raises(RemoteProtocolError, match="snappy was granted but not requested"):
            await asyncio.to_thread(identify, peer.address)


@asynchronous
async def test_a_scripted_nsqd_freezes_stops_and_starts_at_the_same_address() -> None:
    async with scripted.ScriptedNsqd() as peer, stream(peer.address) as (reader, writer):
        (await peer.connected()).freeze()
        writer.write(HELLO)
        await asyncio.to_thread(converse, peer.address)
        assert [len(connection.commands) for connection in peer.connections] == [0, 5]
        address = peer.address
        await peer.stop()
        with suppress(ConnectionResetError):  # for what it never read
            assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address.split(":"))
        await peer.start()
        assert peer.address == address
        await asyncio.to_thread(converse, address)


@asynchronous
async def test_a_client_that_breaks_the_protocol_fails_the_test() -> None:
    with pytest.raises(RemoteProtocolError, match="invalid command"):
        async with scripted.ScriptedNsqd() as peer, stream(peer.address) as (reader, writer):
            writer.write(b"  V2NO SUCH COMMAND\n")
            assert b"E_INVALID" in await reader.read()


@asynchronous
async def test_a_scripted_lookupd_answers_by_path_or_not_at_all(certificates: Certificates) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificates.cert, certificates.key)
    trust = ssl.create_default_context(cafile=certificates.ca)
    lookupd = scripted.ScriptedLookupd(
        {"/lookup?topic=a": scripted.HANG, "/lookup": (200, b"{}")}, server
    )
    async with lookupd, stream(lookupd.address, trust) as (reader, writer):
        paths = ["/lookup?topic=a", "/lookup?topic=b", "/nodes"]
        for path in paths:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert (await reader.readuntil(b"NOT_FOUND")).startswith(b"HTTP/1.1 404 ")
        assert await lookupd.requested("/nodes") == ("/nodes", {"host": "here"})
        assert [request.path for request in lookupd.requests] == paths
        lookupd.answers = lambda path, headers: scripted.RESET
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read()


@asynchronous
async def test_a_conversation_is_the_same_in_single_bytes_and_late(nsqd: Nsqd) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        plain = await asyncio.to_thread(converse, proxy.address)
        proxy.chop = 1
        assert await asyncio.to_thread(converse, proxy.address) == plain
        proxy.chop, proxy.delay = None, 0.02
        begin = time.monotonic()
        assert await asyncio.to_thread(converse, proxy.address) == plain
        assert time.monotonic() - begin > 4 * 2 * proxy.delay  # four answers, there and back
        assert proxy.connections == 3
        await eventually(lambda: proxy.open_connections == 0)


@asynchronous
async def test_a_hanging_proxy_forwards_nothing_until_it_resumes(nsqd: Nsqd) -> None:
    async with Proxy(nsqd.tcp_address) as proxy, stream(proxy.address) as (reader, writer):
        proxy.hang()
        writer.write(HELLO)
        answer = asyncio.create_task(reader.read(1000))
        await eventually(lambda: proxy.open_connections == 1)
        assert not (await asyncio.wait([answer], timeout=0.05))[0]
        assert (proxy.to_server, proxy.to_client) == (0, 0)
        proxy.chop = 3
        proxy.resume()
        assert len(await answer) <= 6  # two pieces, should this reader be late
        assert proxy.to_server == len(HELLO)


@asynchronous
async def test_a_proxy_closes_with_fin_or_rst_or_after_a_given_byte_or_refuses(nsqd: Nsqd) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        async with stream(proxy.address) as (cut, _), stream(proxy.address) as (other, _):
            await eventually(lambda: proxy.open_connections == 2)
            proxy.cut()
            assert await cut.read() + await other.read() == b""
        async with stream(proxy.address) as (reader, _):
            await eventually(lambda: proxy.open_connections == 1)
            proxy.reset()
            with pytest.raises(ConnectionResetError):
                await reader.read()
        proxy.limit(11)
        async with stream(proxy.address) as (reader, writer):
            writer.write(HELLO)
            assert len(await reader.read()) == proxy.to_client == 11
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*proxy.address.split(":"))
        proxy.accept()
        await asyncio.to_thread(converse, proxy.address)


@asynchronous(uvloop=True)
async def test_proxy_and_scripted_peer_do_the_same_on_uvloop() -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    async with scripted.ScriptedNsqd() as peer, Proxy(peer.address) as proxy:
        proxy.chop = 1
        await asyncio.to_thread(converse, proxy.address)
        peer.on(nsq.Identify, scripted.RESET)
        async with stream(proxy.address) as (reader, writer):
            writer.write(HELLO)
            with pytest.raises(ConnectionResetError):
                await reader.read()


def test_nsqd_asks_the_auth_server_for_permissions(tmp_path: Path) -> None:
    authorization = Authorization(topic="^allowed$", permissions=["publish"])
    with (
        AuthServer({"s3cret": [authorization]}) as auth,
        start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as nsqd,
    ):
        with Client(nsqd.connect()) as client:
            client.negotiate()
            reply = client.request(nsq.Auth(b"s3cret"), nsq.Authenticated).reply
            assert (reply.identity, reply.permission_count) == ("a-user", 1)
            client.request(nsq.Pub("allowed", b"x"), nsq.Published)
            failed = client.request(nsq.Pub("forbidden", b"x"), nsq.CommandFailed)
            assert isinstance(failed.error, UnauthorizedError)
        with Client(nsqd.connect()) as client:
            client.negotiate()
            failed = client.request(nsq.Auth(b"wrong"), nsq.CommandFailed)
            assert isinstance(failed.error, AuthFailedError)
        assert [request["secret"] for request in auth.requests] == ["s3cret", "wrong"]
