"""What clients see while a cluster changes: connections that publish, and sequences of answers.

watch = Watch(held=producer.publish, w=lambda: cluster.leaders("w"))
watch.look()
with meanwhile(cluster.broker.move_leader, TOPIC, 0, 1):
    watch.until("held", NOT_LEADER)
assert watch.seen["held"] == [STORED, NOT_WRITABLE, NOT_LEADER]
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.conformance.redesigned.http_driver import CHANNEL, TOPIC, Cluster
from tests.conformance.redesigned.wire import OK, Wire, code_of, pub
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE

SUB = f"SUB {TOPIC} {CHANNEL} 0"
SUB_ORDERED = f"SUB_ORDERED {TOPIC} {CHANNEL} 0"

STORED = "OK"
ENDED = "EOF"
NOT_LEADER = "E_FAILED_ON_NOT_LEADER"
NOT_WRITABLE = "E_FAILED_ON_NOT_WRITABLE"

WINDOW = 1.0
"""Seconds for which a state lasts that a test has to see, on a machine that is busy."""


class Publisher(Wire):
    """A connection that publishes to partition 0 of the topic."""

    def __init__(self, cluster: Cluster, node: int = 0) -> None:
        super().__init__(cluster.broker.nsqd_addresses[node])
        self.acknowledged: list[bytes] = []
        self._count = 0
        self._node = node

    def publish(self) -> str:
        """Publish one message; return the answer without its text."""
        body = b"%d of node %d" % (self._count, self._node)
        self._count += 1
        answer = self.result(pub(TOPIC, body))
        if answer == STORED:
            self.acknowledged.append(body)
        return answer

    def result(self, *data: bytes) -> str:
        """Send something, or nothing, and return the next answer without its text."""
        try:
            self.send(*data)
            frame = self.frame()
        except (EOFError, ConnectionError):
            return ENDED
        return STORED if frame == OK else code_of(frame)

    @property
    def answered(self) -> bool:
        """Whether an answer has come already."""
        return bool(select.select([self.socket], [], [], 0)[0])


class Watch:
    """Repeats some steps, and keeps what each returned, without repetitions."""

    def __init__(self, **steps: Callable[[], object]) -> None:
        self.seen: dict[str, list[object]] = {name: [] for name in steps}
        self._steps = steps

    def look(self) -> None:
        """Run each step once, in their order."""
        for name, step in self._steps.items():
            found, seen = step(), self.seen[name]
            if not seen or seen[-1] != found:
                seen.append(found)

    def until(self, name: str, *last: object) -> None:
        """Repeat all steps until one has returned these in a row, at the end."""
        deadline = time.monotonic() + PATIENCE
        while self.seen[name][-len(last) :] != [*last]:
            assert time.monotonic() < deadline, f"no {last} of {name}: {self.seen}"
            time.sleep(POLL_INTERVAL)
            self.look()


@contextmanager
def meanwhile(call: Callable[..., Any], *args: Any) -> Iterator[None]:
    """Run a call on another thread during the block, and wait for its end."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(call, *args)
        yield
        done.result(PATIENCE)


def consumer(cluster: Cluster, node: int = 0, line: str = SUB, rdy: int = 1) -> Wire:
    """Subscribe; this must succeed."""
    wire = Wire(cluster.broker.nsqd_addresses[node])
    wire.subscribe(line, rdy)
    return wire


def try_to_subscribe(cluster: Cluster, node: int, line: str = SUB) -> str:
    """Subscribe on a connection of its own; return the answer. A refusal must end it."""
    with Publisher(cluster, node) as wire:
        answer = wire.result(f"{line}\n".encode())
        if answer != STORED:
            wire.expect_closed()
        return answer


def check_delivery(cluster: Cluster, node: int, bodies: list[bytes]) -> None:
    """Check that a consumer gets these messages once each, as if for the first time."""
    with consumer(cluster, node, rdy=2500) as wire:
        messages = [wire.message() for _ in bodies]
        assert sorted(each.body for each in messages) == sorted(bodies)
        assert {each.attempts for each in messages} == {1}
        stats = cluster.channel_stats(node)
        assert (stats["depth"], stats["in_flight_count"]) == (len(bodies), len(bodies))
