"""Web pages have no access to the HTTP APIs of the broker; programs have."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from nsqflow.broker import BackgroundBroker
from tests.fixtures.servers import PATIENCE

REBOUND = {"Host": "evil.example:4151"}
FOREIGN = {"Origin": "https://evil.example"}


def ask(address: str, method: str, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request(method, path, b"x" if method == "POST" else None, headers)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    assert "Access-Control-Allow-Origin" not in response.headers
    return response.status, json.loads(body) if body.startswith(b"{") else body


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker() as broker:
        yield broker


@pytest.fixture(scope="module", params=["nsqd", "nsqlookupd"])
def address(request: pytest.FixtureRequest, broker: BackgroundBroker) -> str:
    addresses = {"nsqd": broker.nsqd_http_addresses, "nsqlookupd": broker.lookupd_addresses}
    return addresses[request.param][0]


@pytest.mark.parametrize("headers", [REBOUND, FOREIGN, {"Origin": "null"}])
def test_a_web_page_can_neither_write_nor_read(address: str, headers: dict[str, str]) -> None:
    status, answer = ask(address, "POST", "/topic/create?topic=page", **headers)
    assert (status, list(answer)) == (403, ["message"])
    assert next(iter(headers.values())) in answer["message"]
    for path in ("/ping", "/info", "/nowhere"):
        assert ask(address, "GET", path, **headers)[0] == 403
    assert ask(address, "OPTIONS", "/topic/create", **headers)[0] == 403


def test_a_web_page_cannot_publish_or_delete(broker: BackgroundBroker) -> None:
    nsqd = broker.nsqd_http_addresses[0]
    assert ask(nsqd, "POST", "/pub?topic=orders")[0] == 200
    for headers in (REBOUND, FOREIGN):
        assert ask(nsqd, "POST", "/pub?topic=orders", **headers)[0] == 403
        assert ask(nsqd, "POST", "/topic/delete?topic=orders", **headers)[0] == 403
    (topic,) = ask(nsqd, "GET", "/stats?format=json&topic=orders")[1]["topics"]
    assert topic["message_count"] == 1


@pytest.mark.parametrize("name", ["localhost", socket.gethostname(), "127.0.0.1", "[::1]"])
def test_curl_and_nsqadmin_are_served(address: str, name: str) -> None:
    port = address.rpartition(":")[2]
    assert ask(address, "GET", "/ping", Host=f"{name}:{port}") == (200, b"OK")


def test_a_program_that_names_no_host_is_served(address: str) -> None:
    with socket.create_connection(tuple(address.split(":")), timeout=PATIENCE) as client:  # type: ignore[arg-type]
        client.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        assert client.makefile("rb").readline() == b"HTTP/1.1 200 OK\r\n"


def test_a_name_can_be_allowed() -> None:
    with BackgroundBroker(allowed_host=["broker"]) as broker:
        for address in broker.nsqd_http_addresses + broker.lookupd_addresses:
            assert ask(address, "GET", "/ping", Host="broker:4151") == (200, b"OK")
            assert ask(address, "GET", "/ping", **REBOUND)[0] == 403


def test_on_all_interfaces_the_name_of_a_container_is_served_and_a_web_page_is_not() -> None:
    with BackgroundBroker(http_address="0.0.0.0:0", broadcast_address="127.0.0.1") as broker:
        address = "127.0.0.1:" + broker.nsqd_http_addresses[0].rpartition(":")[2]
        assert ask(address, "GET", "/ping", Host="broker:4151") == (200, b"OK")
        assert ask(address, "GET", "/ping", Host="broker:4151", **FOREIGN)[0] == 403
