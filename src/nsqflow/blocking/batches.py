"""Batches for plain code: each is gathered in the loop, and crosses over as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from nsqflow.blocking.calls import Errand
from nsqflow.blocking.loop import LoopThread
from nsqflow.client.batch import Batch
from nsqflow.errors import LocalProtocolError


def each(
    thread: LoopThread,
    gather: Callable[[], Coroutine[Any, Any, Batch | None]],
    put_back: Callable[[Batch], None],
    closed: Callable[[], bool],
) -> Iterator[Batch]:
    """Return one after the other, until the consumer is closed."""
    while True:
        try:
            batch = thread.ask(_Gathering(gather, put_back))
        except LocalProtocolError:
            if closed():  # while the last batch was handled
                return
            raise
        if batch is None:
            return
        yield batch


class _Gathering(Errand[Batch | None]):
    """A batch that is being gathered."""

    __slots__ = ("_put_back",)

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, Batch | None]],
        put_back: Callable[[Batch], None],
    ) -> None:
        super().__init__(work)
        self._put_back = put_back

    def withdraw(self) -> None:
        """Stop gathering, or keep what is gathered already for the next caller."""
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(self._keep)

    def _keep(self, task: asyncio.Task[Batch | None]) -> None:
        if not task.cancelled() and task.exception() is None and (batch := task.result()):
            self._put_back(batch)
