"""Batches: messages that are handled, and answered, together."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from nsqflow.client.inbox import Inbox
from nsqflow.client.message import FIN, Message


class Batch(list[Message]):
    """Some messages; what is answered by itself is left out of ``finish`` and ``requeue``."""

    def finish(self) -> None:
        """Finish all that were not answered yet."""
        for message in self:
            if message._answer is None:
                message._answer = FIN
                subscription = message._delivery.subscription
                subscription._answers.append(message)  # as answered() does, for each of them
                if not subscription._flush_comes:
                    subscription._schedule()

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Requeue all that were not answered yet."""
        for message in self:
            if not message.answered:
                message.requeue(delay, backoff=backoff)

    def touch(self) -> None:
        """Ask for more time for all that were not answered yet."""
        for message in self:
            if not message.answered:
                message.touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            self.finish()
            return False
        # Where all were answered one of them stands for the rest: the error is not lost.
        failed = [message for message in self if not message.answered] or self[:1]
        others = len(failed) - 1  # told of with the first, not one by one
        for message in failed:
            message._delivery.subscription.failed(message, error, others=others)
            others = -1
        return isinstance(error, Exception)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self.__exit__(kind, error, traceback)


class Batches:
    """Iterates over batches of up to ``size``; a call that is cancelled loses nothing.

    A batch goes out early when ``max_wait`` has passed since its first message, when nothing
    more can come before some are answered, or when half of ``msg_timeout`` is over.
    """

    def __init__(self, inbox: Inbox, size: int, max_wait: float) -> None:
        self._inbox = inbox
        self._size = size
        self._max_wait = max_wait

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        # A caller that does not wait while handling a batch gives the loop no turn.
        await asyncio.sleep(0)
        messages = await self._inbox.gather(self._size, self._max_wait)
        if not messages:
            raise StopAsyncIteration
        return Batch(messages)
