"""Batches: messages that are handled, and answered, together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
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


async def gather(
    inbox: Inbox, starved: Callable[[], bool], size: int, max_wait: float
) -> AsyncIterator[Batch]:
    """Give batches of up to ``size``.

    A batch is given out early when ``max_wait`` has passed since its first message, or when
    nothing more can come before some are answered.
    """
    loop = asyncio.get_running_loop()
    while await inbox.wait():
        batch = Batch(inbox.take_many(size))
        deadline = loop.time() + max_wait
        try:
            while len(batch) < size and not starved() and inbox.in_hands < inbox.max_in_flight:
                async with asyncio.timeout_at(deadline):
                    if not await inbox.wait():
                        break
                batch += inbox.take_many(size - len(batch))
        except TimeoutError:
            pass
        except BaseException:
            # Nobody was given it, so nobody else can answer for it.
            batch.requeue(0, backoff=False)
            raise
        yield batch
        # Who does not wait while handling a batch gives the loop no turn.
        await asyncio.sleep(0)
