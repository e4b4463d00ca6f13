"""The queue of threads: a thread that waits gets messages again after others were taken back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from nsqflow.client.consumer.queue import MessageQueue
from nsqflow.client.consumer.thread_queue import ThreadQueue
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE


class Reader:
    """Reads ahead one message at a time, which is lost as soon as it is read, but for the last."""

    def __init__(self, messages: list[Any]) -> None:
        self.queue = MessageQueue(10)
        self._messages = messages
        self._ended = asyncio.Event()

    def update_rdy(self) -> None: ...

    def drop_expired(self) -> None: ...

    def put_back(self, messages: list[Any]) -> None: ...

    async def wait(self, *, demand: bool) -> bool:
        if not self._messages:
            await self._ended.wait()
        return True

    def take_many(self, size: int) -> list[Any]:
        message = self._messages.pop(0)
        if self._messages:
            # As soon as the queue is filled, before a thread can take it.
            [queue] = self.queue.thread_queues
            asyncio.get_running_loop().call_soon(queue.recall, lambda each: each is message)
        return [message]


class LateMessage:
    """A message that can be handed out."""

    answer = None

    def __init__(self) -> None:
        self.delivery = self
        self.subscription = self
        self.deadline = float("inf")
        self.removed = False


@asynchronous
async def test_a_thread_waits_on_after_its_message_was_taken_back() -> None:
    loop = asyncio.get_running_loop()
    messages = [LateMessage() for _ in range(50)]
    last: Any = messages[-1]
    queue = ThreadQueue(cast(Any, Reader(messages)), loop.call_soon_threadsafe, readers=1)
    taken: list[Any] = []

    def work() -> None:
        while (message := queue.take()) not in (None, last):
            taken.append(message)
        taken.append(message)

    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        await eventually(lambda: last in taken, PATIENCE / 4, what="the last message")
    finally:
        queue.end()
        await working
        await asyncio.sleep(0)  # the feeder ends
