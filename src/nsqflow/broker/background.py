"""The broker on a thread of its own, for code that has no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from nsqflow.broker.embedded import Broker
from nsqflow.errors import LocalProtocolError

T = TypeVar("T")

_PATIENCE = 60.0  # seconds for the broker to do what it is told


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
        """Where clients connect to; also of nodes that are stopped."""
        return self._broker.nsqd_addresses

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """Where the HTTP APIs of the nsqd are."""
        return self._broker.nsqd_http_addresses

    @property
    def lookupd_addresses(self) -> list[str]:
        """Where nsqlookupd is asked, over HTTP."""
        return self._broker.lookupd_addresses

    def start(self) -> None:
        """Start all nodes."""
        if self._loop is not None:
            raise LocalProtocolError("the broker has been started already")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nsqflow-broker")
        self._thread.daemon = True  # a program that forgets to stop it must still end
        self._thread.start()
        try:
            self._wait(self._broker.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop all that runs, and the thread; no matter if it is stopped already."""
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
        """Create a topic on all nodes that run."""
        self._wait(self._broker.create_topic(name, partitions, replicas, ordered, extended))

    def start_node(self, node: int) -> None:
        """Start a node that was stopped or killed, on the ports that it had."""
        self._wait(self._broker.start_node(node))

    def stop_node(self, node: int) -> None:
        """Stop a node as SIGTERM does: it keeps its messages."""
        self._wait(self._broker.stop_node(node))

    def kill_node(self, node: int) -> None:
        """End a node as ``kill -9`` does: what is not on disk is lost, but for the names."""
        self._wait(self._broker.kill_node(node))

    def fail_next(self, command: str, code: str) -> None:
        """Have the next command of this name, on whichever node, answered with an error."""
        self._call(self._broker.fail_next, command, code)

    def drop_connections(self) -> None:
        """Cut all connections of clients."""
        self._call(self._broker.drop_connections)

    def slow(self, seconds: float) -> None:
        """Delay all that clients are sent by so much, until it is set to 0 again."""
        self._call(self._broker.slow, seconds)

    def _call(self, act: Any, *arguments: object) -> None:
        async def call() -> None:
            act(*arguments)

        self._wait(call())

    def _wait(self, doing: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            doing.close()
            raise LocalProtocolError("the broker is not running: call start() first")
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(_PATIENCE)

    def _end(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()
        self._loop = self._thread = None
