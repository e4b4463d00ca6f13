"""Connections of nsqd to nsqlookupd."""

from __future__ import annotations

import json
import struct

import pytest

from nsqflow.protocol import PeerIdentify
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import Nsqlookupd
from tests.unit.broker.lookupd.fake_nsqd import lookupd, peer
from tests.unit.broker.lookupd.raw_responses import responses_to

IDENTIFY = PeerIdentify(peer(1)).encode()


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def variant(**changes: object) -> bytes:
    values = {"broadcast_address": "h", "tcp_port": 1, "http_port": 2, "version": "1"} | changes
    return identify(json.dumps(values).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"  V2",
        b"  V1",
        b"GET / HTTP/1.1\r\n\r\n"[:4],
        b"  V1PING\n",
        b"  V1PING\nPING\r\n PING \nPING and more\n",
        b"  V1PONG\n",
        b"  V1ping\n",
        b"  V1\n",
        b"  V1REGISTER t\n",
        b"  V1UNREGISTER t\n",
        b"  V1REGISTER\n",
        b"  V1" + IDENTIFY + IDENTIFY[:9],
        b"  V1" + identify(b"{"),
        b"  V1" + identify(b""),
        b"  V1" + identify(b"[]"),
        b"  V1" + identify(b"{}"),
        b"  V1" + variant(broadcast_address=""),
        b"  V1" + variant(tcp_port=0),
        b"  V1" + variant(http_port=0),
        b"  V1" + variant(version=""),
        b"  V1" + variant(tcp_port="1"),
        b"  V1" + variant(version=None),
        b"  V1" + IDENTIFY + b"REGISTER\n",
        b"  V1" + IDENTIFY + b"REGISTER a$b\n",
        b"  V1" + IDENTIFY + b"REGISTER test_connection c$d\n",
        b"  V1" + IDENTIFY + b"REGISTER  c\n",
        b"  V1" + IDENTIFY + b"UNREGISTER\n",
        b"  V1" + IDENTIFY + b"UNREGISTER a$b\n",
        b"  V1" + IDENTIFY + b"UNREGISTER test_connection c$d\n",
        b"  V1" + IDENTIFY + b"UNREGISTER never_seen\nUNREGISTER never_seen c\nPING\n",
        b"  V1" + IDENTIFY + b"REGISTER test_connection\nREGISTER test_connection c extra\n"
        b"REGISTER test_connection  \nREGISTER test_connection c\r\nUNREGISTER test_connection\n",
    ],
)  # fmt: skip
@asynchronous
async def test_commands_are_answered_as_by_the_real_nsqlookupd(
    data: bytes, nsqlookupd: Nsqlookupd
) -> None:
    async with lookupd() as ours:
        answers = await responses_to(ours.tcp_address, data)
    expected = await responses_to(nsqlookupd.tcp_address, data)
    assert [plain(each) for each in answers] == [plain(each) for each in expected]


def plain(answer: bytes) -> bytes:
    """Return a response without the server's own addresses."""
    return b"{" if answer.startswith(b"{") else answer.strip()
