"""The broker on a thread of its own, for code without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from nsqflow.broker.embedded import Broker
from nsqflow.errors import LocalProtocolError

T = TypeVar("T")

_TIMEOUT = 60.0  # seconds for each call
_GRACE = 1.0  # seconds for calls that are under way when the broker has stopped


class BackgroundBroker:
    """A ``Broker`` with the same methods as plain calls; usable from any thread.

    with BackgroundBroker(nodes=2) as broker:
        producer = nsqflow.blocking.Producer(broker.nsqd_addresses)
    """

    def __init__(
        self,
        dialect: str = "classic",
        nodes: int = 1,
        data_path: str | Path | None = None,
        **nsqd_options: Any,
    ) -> None:
        self._broker = Broker(dialect, nodes, data_path, **nsqd_options)
        self._loop: asyncio.AbstractEventLoop | None = None  # while it runs
        self._thread: threading.Thread | None = None

    @property
    def nsqd_addresses(self) -> list[str]:
        """The TCP addresses of all nsqd, including stopped nodes."""
        return self._broker.nsqd_addresses

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """The HTTP addresses of all nsqd."""
        return self._broker.nsqd_http_addresses

    @property
    def lookupd_addresses(self) -> list[str]:
        """The HTTP addresses of all nsqlookupd."""
        return self._broker.lookupd_addresses

    def start(self) -> None:
        """Start all nodes."""
        if self._loop is not None:
            raise LocalProtocolError("the broker has been started already")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nsqflow-broker")
        self._thread.daemon = True  # a program that does not stop the broker must still exit
        self._thread.start()
        try:
            self._wait(self._broker.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop all nodes and the thread; do nothing if it is stopped already."""
        if self._loop is None:
            return
        try:
            self._wait(self._broker.stop())
        finally:
            self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        ordered: bool = False,
        extended: bool = False,
    ) -> None:
        """Create a topic on all running nodes."""
        self._wait(self._broker.create_topic(name, partitions, replicas, ordered, extended))

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel on all nodes."""
        self._wait(self._broker.create_channel(topic, channel))

    def start_node(self, node: int) -> None:
        """Start a node that was stopped or killed, on the same ports."""
        self._wait(self._broker.start_node(node))

    def stop_node(self, node: int) -> None:
        """Stop a node as SIGTERM does: it keeps its messages."""
        self._wait(self._broker.stop_node(node))

    def kill_node(self, node: int) -> None:
        """End a node as ``kill -9`` does."""
        self._wait(self._broker.kill_node(node))

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Let another node of a redesigned cluster lead a partition."""
        self._wait(self._broker.move_leader(topic, partition, node))

    def stop_lookupd(self, number: int) -> None:
        """Stop one of the nsqlookupd of a redesigned cluster."""
        self._wait(self._broker.stop_lookupd(number))

    def start_lookupd(self, number: int) -> None:
        """Start an nsqlookupd that was stopped."""
        self._wait(self._broker.start_lookupd(number))

    def fail_next(self, command: str, code: str) -> None:
        """Respond to the next command of this name, on any node, with an error."""
        self._call(self._broker.fail_next, command, code)

    def drop_connections(self) -> None:
        """Abort all client connections."""
        self._call(self._broker.drop_connections)

    def slow(self, seconds: float) -> None:
        """Delay everything sent to clients by ``seconds``; 0 ends the delay."""
        self._call(self._broker.slow, seconds)

    def _call(self, act: Any, *arguments: object) -> None:
        async def call() -> None:
            act(*arguments)

        self._wait(call())

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            coroutine.close()
            raise LocalProtocolError("the broker is not running: call start() first")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_TIMEOUT)

    def _end(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        try:
            self._wait(_end_other_calls())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_TIMEOUT)
            self._loop.close()
            self._loop = self._thread = None


async def _end_other_calls() -> None:
    """Wait for calls of other threads, which end with the broker; cancel those that do not."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        _, pending = await asyncio.wait(others, timeout=_GRACE)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
