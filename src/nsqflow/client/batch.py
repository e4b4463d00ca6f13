"""Batches: messages that are handled, and answered, together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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


async def gather(inbox: Inbox, size: int, max_wait: float) -> AsyncIterator[Batch]:
    """Give batches of up to ``size``.

    A batch goes out early when ``max_wait`` has passed since its first message, when nothing
    more can come before some are answered, or when half of ``msg_timeout`` is over.
    """
    while messages := await inbox.gather(size, max_wait):
        yield Batch(messages)
        # A caller that does not wait while handling a batch gives the loop no turn.
        await asyncio.sleep(0)
