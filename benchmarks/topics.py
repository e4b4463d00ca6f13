"""Fresh topics on a real nsqd: filled before a run, counted after it, and gone at the end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from itertools import count
from struct import Struct
from time import monotonic, sleep
from typing import Any, Self

from benchmarks.clients.worker import CHANNEL

PATIENCE = 20.0  # seconds in which nsqd must have done what it was asked
FILL_SIZE = 20_000  # messages at once: with bodies of 200 bytes below nsqd's limit of 5 MiB

SIZE = Struct(">l")
NUMBERS = count(1)


class Topic:
    """A topic which exists as long as its ``with`` block."""

    clients = "client_count"
    states: tuple[str, ...] = ("depth", "in_flight_count", "deferred_count")

    def __init__(self, nsqd: str, http_address: str) -> None:
        self.name = f"bench-{next(NUMBERS)}"
        self.nsqd = nsqd
        self._connection = http.client.HTTPConnection(http_address, timeout=PATIENCE)

    def create_channel(self) -> None:
        """Create the topic's one channel."""
        self._ask("POST", f"/channel/create?topic={self.name}&channel={CHANNEL}")

    def fill(self, messages: int, body: bytes) -> None:
        """Put messages into the topic's one channel, ready to be consumed."""
        self.create_channel()
        one = SIZE.pack(len(body)) + body
        for start in range(0, messages, FILL_SIZE):
            number = min(FILL_SIZE, messages - start)
            data = SIZE.pack(number) + one * number
            self._ask("POST", f"/mpub?topic={self.name}&binary=true", data)
        self._await(lambda: self.unfinished() == messages)

    def published(self) -> int:
        """How many messages have come into the topic."""
        return int(self._stats()["message_count"])

    def unfinished(self) -> int:
        """How many messages of the channel are not finished."""
        channel = self._channel()
        return sum(int(channel[state]) for state in self.states)

    def await_departure(self) -> None:
        """Wait until nsqd has seen that the consumers are gone, and has read all they sent."""
        self._await(lambda: int(self._channel()[self.clients]) == 0)

    def _channel(self) -> dict[str, Any]:
        channels: list[dict[str, Any]] = self._stats()["channels"]
        return channels[0]

    def _stats(self) -> dict[str, Any]:
        stats = json.loads(self._ask("GET", f"/stats?format=json&topic={self.name}"))
        topics: list[dict[str, Any]] = stats["topics"]
        return topics[0]

    def _await(self, condition: Callable[[], bool]) -> None:
        deadline = monotonic() + PATIENCE
        while not condition():
            if monotonic() > deadline:
                raise TimeoutError(f"nsqd did not get done with {self.name} in {PATIENCE:g} s")
            sleep(0.01)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, path, body)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"nsqd answers {response.status} to {path}: {answer!r}")
        return answer

    def __enter__(self) -> Self:
        self._ask("POST", f"/topic/create?topic={self.name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("POST", f"/topic/delete?topic={self.name}")
        self._connection.close()


class PartitionTopic(Topic):
    """A topic of the redesigned NSQ, with one partition."""

    clients = "client_num"
    states = ("depth",)  # which has those in flight too

    def __init__(self, nsqd: str, http_address: str, lookupd: str) -> None:
        super().__init__(nsqd, http_address)
        self._lookupd = http.client.HTTPConnection(lookupd, timeout=PATIENCE)

    def __enter__(self) -> Self:
        self._change(f"/topic/create?topic={self.name}&partition_num=1&replicator=1")
        return self

    def __exit__(self, *_: object) -> None:
        self._change(f"/topic/delete?topic={self.name}&partition=**")
        self._lookupd.close()
        self._connection.close()

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        answer = super()._ask(method, path, body)
        if path.startswith("/stats"):  # in an envelope
            return json.dumps(json.loads(answer)["data"]).encode()
        return answer

    def _change(self, path: str) -> None:
        self._lookupd.request("POST", path)
        response = self._lookupd.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"nsqlookupd answers {response.status} to {path}: {answer!r}")
