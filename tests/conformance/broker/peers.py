"""What nsqlookupd takes for an nsqd."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.broker.dialogue import LOOKUP_MAGIC, Line, sized
from tests.fixtures.servers import Nsqlookupd

PEER = {
    "broadcast_address": "10.0.0.1",
    "hostname": "somewhere",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


def introduce(**values: Any) -> bytes:
    """Magic and IDENTIFY of the peer, but for these values."""
    return LOOKUP_MAGIC + b"IDENTIFY\n" + sized(json.dumps(PEER | values).encode())


class Registrant(Line):
    """A connection on which the peer has introduced itself."""

    def __init__(self, nsqlookupd: Nsqlookupd) -> None:
        super().__init__(nsqlookupd)
        self.say(introduce())
        assert self.take().startswith(b"{")

    def register(self, topic: str, channel: str = "") -> None:
        self.request(f"REGISTER {topic} {channel}\n".encode())

    def unregister(self, topic: str, channel: str = "") -> None:
        self.request(f"UNREGISTER {topic} {channel}\n".encode())

    def request(self, command: bytes) -> None:
        """Say something to which the answer must be OK."""
        self.say(command)
        assert self.take() == b"OK"
