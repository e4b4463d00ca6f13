"""Batches: messages that are handled and answered together."""

from __future__ import annotations

import asyncio
from typing import Self

from nsqflow.client.consumer.reader import MessageReader
from nsqflow.client.message import Message, finish_all


class Batch(list[Message]):
    """A list of messages; ``finish`` and ``requeue`` skip those that were answered singly."""

    def finish(self) -> None:
        """Finish all messages that were not answered yet."""
        finish_all(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Requeue all messages that were not answered yet."""
        for message in self:
            if not message.answered:
                message.requeue(delay, backoff=backoff)

    def touch(self) -> None:
        """Ask for more time for all messages that were not answered yet."""
        for message in self:
            if not message.answered:
                message.touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            self.finish()
            return False
        # If all were answered, the error is reported for the first of them.
        failed = [message for message in self if not message.answered] or self[:1]
        others = len(failed) - 1  # logged with the first, not one by one
        for message in failed:
            message.delivery.subscription.handler_failed(message, error, others=others)
            others = -1
        return isinstance(error, Exception)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return self.__exit__(kind, error, traceback)


class Batches:
    """Iterates over batches of up to ``size``; a call that is cancelled loses nothing.

    A batch is complete early when ``max_wait`` has passed since its first message, when nothing
    more can arrive before some are answered, or when half of ``msg_timeout`` is over.
    """

    def __init__(self, reader: MessageReader, size: int, max_wait: float) -> None:
        self._reader = reader
        self._size = size
        self._max_wait = max_wait

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        # A caller that never awaits while it handles a batch would block the event loop.
        await asyncio.sleep(0)
        messages = await self._reader.take_batch(self._size, self._max_wait)
        if not messages:
            raise StopAsyncIteration
        return Batch(messages)
