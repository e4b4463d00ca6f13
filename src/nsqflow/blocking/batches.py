"""Batches for plain code: each is gathered in the loop, and crosses over as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from nsqflow.blocking.calls import Errand
from nsqflow.blocking.loop import LoopThread
from nsqflow.client.batch import Batch
from nsqflow.errors import LocalProtocolError


def each(
    thread: LoopThread, batches: AsyncIterator[Batch], closed: Callable[[], bool]
) -> Iterator[Batch]:
    """Give one after the other, until the consumer is closed."""
    while True:
        try:
            batch = thread.ask(_Gathering(partial(_next, batches)))
        except LocalProtocolError:
            if closed():  # while the last batch was handled
                return
            raise
        if batch is None:
            return
        yield batch


class _Gathering(Errand[Batch | None]):
    """A batch that is being gathered."""

    __slots__ = ()

    def withdraw(self) -> None:
        """Stop gathering, or give back what is gathered already."""
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_give_back)


async def _next(batches: AsyncIterator[Batch]) -> Batch | None:
    return await anext(batches, None)


def _give_back(task: asyncio.Task[Batch | None]) -> None:
    if not task.cancelled() and task.exception() is None and (batch := task.result()):
        batch.requeue(0, backoff=False)
