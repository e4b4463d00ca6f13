"""The consumer for plain code."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, Unpack

from nsqflow.blocking import loop
from nsqflow.blocking.batches import each
from nsqflow.blocking.signals import stopping
from nsqflow.client import consumer as client
from nsqflow.client.batch import Batch
from nsqflow.client.handoff import Handoff
from nsqflow.client.message import Message
from nsqflow.client.options import ConsumerOptions
from nsqflow.client.stats import ConsumerStats, Drained
from nsqflow.client.workers import is_async
from nsqflow.errors import ConfigError, LocalProtocolError

T = TypeVar("T")

Handler = Callable[[Message], Any]


class Consumer:
    """Consumes a channel of a topic; from any thread, or from several.

        with Consumer("orders", "billing", lookupd=["127.0.0.1:4161"]) as consumer:
            for message in consumer:
                with message:
                    charge(message.body)

    Iterating ends when the consumer is closed; it raises what no second try can mend, such
    as a secret that nsqd refuses. It belongs to the process that started it.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ConsumerOptions],
    ) -> None:
        _move_callbacks(options)
        self._client = client.Consumer(topic, channel, nsqd=nsqd, lookupd=lookupd, **options)
        self.topic = topic
        self.channel = channel
        self._thread: loop.LoopThread | None = None
        self._handoff: Handoff | None = None
        self._drained: Drained | None = None
        self._closing = threading.RLock()
        self._disowned = False

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        self._begin().call(self._client._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an exception nobody comes to answer what was in hands here.
        self.close(client.DRAIN_TIMEOUT if error is None else 0)

    # Consuming

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        handoff = self._handoff or self._begin_handoff()
        message = None if handoff is None else handoff.take()
        if message is None:
            raise StopIteration
        return message

    def batches(self, size: int = 100, max_wait: float = 0.5) -> Iterator[Batch]:
        """Give messages in batches of up to ``size``.

        A batch comes early, with what there is, ``max_wait`` seconds after its first message,
        or when nothing more can come before some messages are answered; at the latest when
        half of ``msg_timeout`` is over.
        """
        if self._drained is not None:
            return iter(())
        thread = self._begin()
        batches = thread.call(partial(self._client.batches, size, max_wait))
        gather = partial(self._gather, batches)
        return each(thread, gather, self._put_back, lambda: self._drained is not None)

    def run(
        self,
        handler: Handler,
        concurrency: int = 1,
        *,
        signals: bool = True,
        auto_answer: bool = True,
        drain_timeout: float = client.DRAIN_TIMEOUT,
    ) -> Drained:
        """Give each message to ``handler`` until the consumer is closed; return the counts.

        It runs on ``concurrency`` threads. What it returns from is finished, what it raises
        on is requeued with a delay. In the main thread SIGINT and SIGTERM close the consumer
        and wait up to ``drain_timeout`` seconds for its handlers; a second one requeues what
        they have and ends at once. ``auto_answer=False`` leaves it to the handler to answer,
        now or later.
        """
        check_handler(handler)
        if self._drained is not None:
            return self._drained
        thread = self._begin()
        work = partial(
            self._client.run,
            handler,
            concurrency,
            signals=False,
            auto_answer=auto_answer,
            drain_timeout=drain_timeout,
        )
        try:
            with stopping(self._stop, wanted=signals):
                thread.call(self._clear_handoff)
                return thread.run(work)
        finally:
            self._part()

    # Control

    def is_starved(self) -> bool:
        """Tell whether nothing more can come from some nsqd before messages are answered."""
        return self._look(self._client.is_starved)

    def pause(self) -> None:
        """Stop the flow (RDY 0); what has arrived is still handed out."""
        self._begin().call(self._client.pause)

    def resume(self) -> None:
        """Let messages flow again."""
        self._begin().call(self._client.resume)

    def set_max_in_flight(self, count: int) -> None:
        """Allow so many messages in your hands from now on."""
        self._begin().call(partial(self._set_max_in_flight, count))

    def stats(self) -> ConsumerStats:
        """Return what was counted so far, and how things stand."""
        return self._look(self._client.stats)

    def explain(self) -> str:
        """Say in words how each connection stands, and why nothing arrives where it does not."""
        return self._look(self._client.explain)

    def close(self, drain_timeout: float = client.DRAIN_TIMEOUT) -> Drained:
        """Take no more messages, wait for unanswered ones, give back the rest; return the counts.

        After ``drain_timeout`` seconds, those that are still unanswered are requeued.
        """
        with self._closing:
            if self._drained is None and not self._disowned:
                thread = self._thread
                if thread is not None:
                    self._drained = thread.run(partial(self._close, drain_timeout))
                    self._thread = self._handoff = None
                    loop.release(self, thread)
                else:
                    self._drained = Drained()
            return self._drained or Drained()

    def _stop(self, number: signal.Signals) -> None:
        """Begin to close, as ``run`` does on a signal; on a second one, at once."""
        if self._thread is not None:
            self._thread.post(partial(self._client._stop, number))

    def _part(self) -> None:
        """Let go of the thread if the draining is over; who interrupts it does not wait."""
        closing = self._client._closing
        if closing is not None and closing.done():
            self.close()

    # For the background thread

    async def _leave(self) -> None:
        """Close: the interpreter exits."""
        await self._close(0)

    def _forked(self) -> object:
        """Be of no more use: the connections, and the messages, are the parent's."""
        intake = self._client._intake
        for subscription in [] if intake is None else intake.subscriptions.values():
            subscription.disown(self._refuse)
        inherited = (self._client, self._handoff)
        self._thread = self._handoff = None
        self._closing = threading.RLock()
        self._disowned = True
        return inherited

    # Private methods

    def _begin(self) -> loop.LoopThread:
        thread = self._thread
        if thread is not None:
            return thread
        with loop.lock:
            if self._disowned:
                self._refuse()
            if self._drained is not None:
                raise LocalProtocolError("the consumer is closed")
            if self._thread is None:
                self._thread = loop.lease(self)
            return self._thread

    def _begin_handoff(self) -> Handoff | None:
        if self._drained is not None:
            return None
        thread = self._begin()
        return thread.call(partial(self._open_handoff, thread))

    def _refuse(self, *_: object) -> NoReturn:
        raise LocalProtocolError(
            f"{self!r} belongs to the parent of this process; make one of the child's own"
        )

    def _look(self, work: Callable[[], T]) -> T:
        if self._disowned:
            self._refuse()
        thread = self._thread
        return work() if thread is None else thread.call(work)

    # In the loop

    def _open_handoff(self, thread: loop.LoopThread) -> Handoff:
        if self._handoff is None:
            inbox = self._client._start().inbox
            self._handoff = Handoff(inbox, thread.post, before_waiting=thread.forbid_inside)
        return self._handoff

    def _clear_handoff(self) -> None:
        if self._handoff is not None:
            self._handoff.clear()

    async def _gather(self, batches: AsyncIterator[Batch]) -> Batch | None:
        self._clear_handoff()  # what was read ahead for an iteration goes into the batch
        return await anext(batches, None)

    def _set_max_in_flight(self, count: int) -> None:
        self._client.set_max_in_flight(count)
        # What was read ahead was read under the old number.
        self._clear_handoff()

    def _put_back(self, batch: Batch) -> None:
        """Keep a batch that was gathered for a caller that has gone."""
        self._client._start().inbox.put_back(batch)

    async def _close(self, drain_timeout: float) -> Drained:
        if self._handoff is not None:
            self._handoff.end()
        return await self._client.close(drain_timeout)


def _move_callbacks(options: ConsumerOptions) -> None:
    """Have what may block called on threads of its own, not in the loop."""
    letter, last_word = options.get("dead_letter"), options.get("on_giving_up")
    if callable(letter):
        options["dead_letter"] = _on_a_thread(letter)
    if last_word is not None:
        options["on_giving_up"] = _on_a_thread(last_word)


def _on_a_thread(callback: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, None]]:
    async def call(message: Message, error: BaseException | None) -> None:
        await asyncio.to_thread(callback, message, error)

    return call


def check_handler(handler: Handler) -> None:
    """Raise for a coroutine function: here nobody would await it."""
    if is_async(handler):
        raise ConfigError(f"handler {handler!r} is async; nsqflow.Consumer runs those")
