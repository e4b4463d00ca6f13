"""Discovery through real nsqlookupd, and through HTTP servers that misbehave."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nsqflow.client.config import ClientConfig
from nsqflow.client.lookup_poller import LookupPoller, list_nodes, lookup_topic
from nsqflow.errors import (
    ConfigError,
    DiscoveryError,
    NetworkError,
    NoResponseError,
    NsqError,
    RequestTimeout,
)
from nsqflow.http.client import HttpClient
from nsqflow.protocol import ACCEPT_V1, LookupAnswer
from tests.conformance.web import CLOSE, HANG, RESET, WebServer, answer, server_context
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import Deed, asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd

NODE = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151}


def addresses(answer: LookupAnswer) -> list[str]:
    return [node.address for node in answer.producers]


def create_topic(nsqd: Nsqd, topic: str, lookupd: Nsqlookupd) -> None:
    """Create a topic, and wait until nsqlookupd has heard of it."""
    assert nsqd.ask(f"/topic/create?topic={topic.replace('#', '%23')}", "POST")[0] == 200
    lookupd.await_log(rf"REGISTER category:topic key:{topic} ")


class Polling:
    """A poller at work within an ``async with`` block, and what it says."""

    def __init__(
        self,
        lookupds: list[str],
        topic: str,
        *,
        interval: float = 0.01,
        timeout: float = PATIENCE,
    ) -> None:
        self.answers: asyncio.Queue[LookupAnswer] = asyncio.Queue()
        self.failures: list[tuple[str, NsqError]] = []
        config = ClientConfig(
            lookupd=tuple(lookupds), lookupd_poll_interval=interval, lookupd_poll_timeout=timeout
        )
        self.poller = LookupPoller(
            config,
            partial(lookup_topic, topic=topic),
            HttpClient(timeout=timeout),
            on_answer=self.answers.put_nowait,
            on_failure=lambda address, error: self.failures.append((address, error)),
        )

    async def next(self) -> list[str]:
        async with asyncio.timeout(PATIENCE):
            return addresses(await self.answers.get())

    async def __aenter__(self) -> Polling:
        self._task = asyncio.create_task(self.poller.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


# --- real nsqlookupd


@asynchronous
async def test_two_nsqlookupd_that_know_different_nsqd_are_united(
    server_kind: Kind, tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with (
        start_nsqlookupd(kind=server_kind) as first,
        start_nsqlookupd(kind=server_kind) as second,
        start_nsqd(tmp_path / "1", kind=server_kind, lookupd=[first]) as one,
        start_nsqd(tmp_path / "2", kind=server_kind, lookupd=[second]) as two,
    ):
        create_topic(one, "orders", first)
        create_topic(two, "orders", second)
        lookupds = [first.http_address, second.http_address]
        async with Polling(lookupds, "orders", interval=3600) as polling:
            assert await polling.next() == [one.tcp_address, two.tcp_address]
            second.kill()
            polling.poller.retry()
            assert await polling.next() == [one.tcp_address]
            assert [address for address, _ in polling.failures] == [second.http_address]


@asynchronous
async def test_a_name_with_a_hash_is_found(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd
) -> None:
    http = HttpClient(timeout=PATIENCE)
    with start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd]) as nsqd:
        create_topic(nsqd, "ds_passing#ephemeral", nsqlookupd)
        found = await lookup_topic(http, nsqlookupd.http_address, "ds_passing#ephemeral")
        assert addresses(found) == [nsqd.tcp_address]
        assert nsqd.tcp_address in addresses(await list_nodes(http, nsqlookupd.http_address))


@asynchronous
async def test_an_unknown_topic_has_no_nsqd_and_is_not_a_failure(nsqlookupd: Nsqlookupd) -> None:
    async with Polling([nsqlookupd.http_address], "ds_unheard_of") as polling:
        assert await polling.next() == []
    assert polling.failures == []


@asynchronous
async def test_a_topic_that_appears_is_found_by_a_later_round(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd
) -> None:
    with start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd]) as nsqd:
        async with Polling([nsqlookupd.http_address], "ds_late") as polling:
            assert await polling.next() == []
            create_topic(nsqd, "ds_late", nsqlookupd)
            async with asyncio.timeout(PATIENCE):
                while await polling.next() != [nsqd.tcp_address]:
                    pass


@asynchronous
async def test_one_that_hangs_delays_no_round_after_three_failures(
    nsqlookupd: Nsqlookupd,
) -> None:
    async with WebServer(lambda _: HANG) as hanging:
        lookupds = [hanging.address, nsqlookupd.http_address]
        async with Polling(lookupds, "ds_any", timeout=1) as polling:
            await eventually(lambda: sum("/lookup" in each for each in hanging.requests) == 4)
            assert len(polling.failures) == 3
            while not polling.answers.empty():
                polling.answers.get_nowait()
            for _ in range(3):
                await polling.next()
            assert len(polling.failures) == 3, "rounds went by while the question was open"


# --- answers of other kinds


@asynchronous
async def test_an_answer_in_an_envelope_is_understood() -> None:
    data = {"channels": ["billing"], "producers": [NODE]}
    envelope = {"status_code": 200, "status_txt": "OK", "data": data}
    async with WebServer(lambda _: answer(200, envelope)) as server:
        found = await lookup_topic(HttpClient(timeout=PATIENCE), server.address, "orders#ephemeral")
    assert addresses(found) == ["10.0.0.1:4150"]
    assert found.channels == ("billing",)
    line, *headers = server.requests[0].splitlines()
    assert line == "GET /lookup?topic=orders%23ephemeral&access=r&metainfo=true HTTP/1.1"
    assert f"Accept: {ACCEPT_V1}".lower() in [header.lower() for header in headers]


@asynchronous
async def test_an_error_names_the_server() -> None:
    async with WebServer(lambda _: answer(500, {"message": "INTERNAL"})) as server:
        with pytest.raises(DiscoveryError, match=f"{server.address}: status 500: 'INTERNAL'"):
            await list_nodes(HttpClient(timeout=PATIENCE), server.address)


@asynchronous
async def test_https_headers_credentials_and_prefix_reach_the_server(
    certificates: Certificates,
) -> None:
    ours = ssl.create_default_context(cafile=str(certificates.ca))
    tls = server_context(certificates)
    async with WebServer(lambda _: answer(200, {"producers": [NODE]}), tls) as server:
        url = f"https://user:hunter2@{server.address}/nsq"
        http = HttpClient(tls=ours, headers={"X-Key": "a-secret"}, timeout=PATIENCE)
        assert addresses(await lookup_topic(http, url, "orders")) == ["10.0.0.1:4150"]
        line, *headers = server.requests[0].lower().splitlines()
        assert line == "get /nsq/lookup?topic=orders&access=r&metainfo=true http/1.1"
        assert "x-key: a-secret" in headers
        assert "authorization: basic dxnlcjpodw50zxiy" in headers


@asynchronous
async def test_a_server_with_an_untrusted_certificate_is_not_queried(nsqd: Nsqd) -> None:
    url = f"https://user:hunter2@{nsqd.https_address}/nsq"
    with pytest.raises(NetworkError, match="certificate verify failed") as caught:
        await HttpClient(timeout=PATIENCE).get(url, "/ping")
    assert not isinstance(caught.value, NoResponseError)
    assert f"https://{nsqd.https_address}/nsq" in str(caught.value)
    assert "hunter2" not in str(caught.value)


# --- when there is no answer


@pytest.mark.parametrize(
    "reply",
    [CLOSE, RESET, b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
)
@asynchronous
async def test_a_broken_answer_is_a_network_error_that_names_the_server(
    reply: bytes | Deed,
) -> None:
    async with WebServer(lambda _: reply) as server:
        with pytest.raises(NoResponseError, match=server.address):
            await HttpClient(timeout=PATIENCE).get(server.address, "/ping")


@asynchronous
async def test_a_truncated_answer_is_an_error() -> None:
    cut = answer(200, b"0123456789")[:-1]

    def say_and_close(_: str) -> Deed:
        server.connections[-1].send_raw(cut)
        return CLOSE

    async with WebServer(say_and_close) as server:
        with pytest.raises(NoResponseError):
            await HttpClient(timeout=PATIENCE).get(server.address, "/ping")


@asynchronous
async def test_an_answer_has_a_maximum_size() -> None:
    async with WebServer(lambda _: answer(200, b"x" * 1001)) as server:
        with pytest.raises(NoResponseError, match="more than 1000 bytes"):
            await HttpClient(timeout=PATIENCE, max_response=1000).get(server.address, "/")
        http = HttpClient(timeout=PATIENCE, max_response=1001)
        response = await http.get(server.address, "/")
    assert (response.status, len(response.body)) == (200, 1001)


@asynchronous
async def test_a_server_that_is_silent_is_given_up_and_the_connection_closed() -> None:
    async with WebServer(lambda _: HANG) as server:
        with pytest.raises(NoResponseError, match=rf"{server.address}: no answer within 0\.05 s"):
            await HttpClient(timeout=0.05).get(server.address, "/ping")
        await server.connections[0].ended()


@asynchronous
async def test_a_request_that_was_never_sent_is_distinguished_from_one_that_was() -> None:
    # A server that never does its part of the TLS handshake: no byte of the request goes out.
    async with WebServer(lambda _: HANG) as server:
        with pytest.raises(RequestTimeout, match="no connection within"):
            await HttpClient(timeout=0.1).get(f"https://{server.address}", "/ping")
        await (await server.connected()).ended()
    with pytest.raises(NetworkError, match=server.address) as caught:
        await HttpClient(timeout=PATIENCE).get(server.address, "/ping")
    assert not isinstance(caught.value, NoResponseError)


@pytest.mark.parametrize("scheme", ["http", "https"])
@asynchronous
async def test_a_cancelled_request_leaves_no_connection(
    certificates: Certificates, scheme: str
) -> None:
    tls = server_context(certificates) if scheme == "https" else None
    ours = ssl.create_default_context(cafile=str(certificates.ca))
    async with WebServer(lambda _: HANG, tls) as server:
        http = HttpClient(tls=ours, timeout=PATIENCE)
        request = asyncio.create_task(http.get(f"{scheme}://{server.address}", "/ping"))
        connection = await server.connected()
        await eventually(lambda: len(server.requests) == 1)
        request.cancel()
        await asyncio.wait([request])
        assert request.cancelled()
        await connection.ended()


@asynchronous
async def test_a_proxy_in_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, nsqlookupd: Nsqlookupd
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
        answered = await HttpClient(timeout=PATIENCE).get(nsqlookupd.http_address, "/ping")
    assert (answered.status, answered.body) == (200, b"OK")


@asynchronous
async def test_a_closed_client_sends_no_request() -> None:
    http = HttpClient(timeout=PATIENCE)
    http.close()
    with pytest.raises(NetworkError, match="is closed"):
        await http.get("127.0.0.1:4161", "/ping")


# --- headers


@pytest.mark.parametrize(
    "make",
    [
        lambda: HttpClient(headers={"X-Key": "hunter2\r\nX-Evil: 1"}, timeout=1),
        lambda: HttpClient(headers={"X Key": "hunter2"}, timeout=1),
        lambda: HttpClient(headers={"Content-Length": "1"}, timeout=1),
        lambda: HttpClient(timeout=0),
    ],
)
def test_headers_and_timeouts_that_cannot_work_are_refused(
    make: Callable[[], HttpClient],
) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert "hunter2" not in str(caught.value)


@asynchronous
async def test_a_name_that_dns_cannot_have_is_a_network_error() -> None:
    with pytest.raises(NetworkError, match="a:4161"):
        await HttpClient(timeout=PATIENCE).get("a" * 70 + ":4161", "/ping")
