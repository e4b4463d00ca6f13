"""The consumer for plain code, and ``run`` for several of them as one program."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, Self, TypeVar, Unpack

from nsqflow.blocking import loop_thread
from nsqflow.blocking.loop_thread import CoroutineCall, LoopThread, LoopUser
from nsqflow.client.consumer import consumer as client
from nsqflow.client.consumer.batch import Batch
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.consumer.stats import ConsumerStats, DrainResult
from nsqflow.client.consumer.thread_queue import ThreadQueue
from nsqflow.client.consumer.workers import is_async
from nsqflow.client.message import Message
from nsqflow.client.options import ConsumerOptions
from nsqflow.client.run import Key, check_handlers, run_consumers
from nsqflow.config.reference import with_options
from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.signals import handle_signals

T = TypeVar("T")

Handler = Callable[[Message], Any]


@with_options(ConsumerConfig, omit=("nsqd", "lookupd"))
class Consumer:
    """Consumes a channel of a topic; from any thread, or from several.

        with Consumer("orders", "billing", lookupd=["127.0.0.1:4161"]) as consumer:
            for message in consumer:
                with message:
                    charge(message.body)

    Iterating ends when the consumer is closed; it raises errors that another attempt cannot
    fix, such as a secret that nsqd refuses. A consumer belongs to the process that started it.
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
        _run_callbacks_in_threads(options)
        self._client = client.Consumer(topic, channel, nsqd=nsqd, lookupd=lookupd, **options)
        self.topic = topic
        self.channel = channel
        self._thread: LoopThread | None = None
        self._thread_queue: ThreadQueue | None = None
        self._drained: DrainResult | None = None
        self._closing = threading.RLock()
        self._detached = False  # this is a forked child, and the consumer its parent's
        self._user = LoopUser(self._close_at_exit, self._detach_after_fork)

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Self:
        self._start().run(self._client.__aenter__)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # After an exception no code is left to answer outstanding messages.
        self.close(client.DRAIN_TIMEOUT if error is None else 0)

    # Consuming

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        thread_queue = self._thread_queue or self._start_thread_queue()
        message = None if thread_queue is None else thread_queue.take()
        if message is None:
            raise StopIteration
        return message

    def batches(self, size: int = 100, max_wait: float = 0.5) -> Iterator[Batch]:
        """Iterate over batches of up to ``size`` messages.

        A batch is returned before it is full ``max_wait`` seconds after its first message, or
        when no more messages can arrive before some are answered; at the latest after half of
        ``msg_timeout``.
        """
        if self._drained is not None:
            return iter(())
        thread = self._start()
        batches = thread.call(partial(self._client.batches, size, max_wait))
        return self._iter_batches(thread, batches)

    def run(
        self,
        handler: Handler,
        concurrency: int = 1,
        *,
        signals: bool = True,
        auto_answer: bool = True,
        drain_timeout: float = client.DRAIN_TIMEOUT,
    ) -> DrainResult:
        """Call ``handler`` with each message until the consumer is closed; return the counts.

        It runs on ``concurrency`` threads. A message is finished when the handler returns, and
        requeued with a delay when it raises. In the main thread SIGINT and SIGTERM close the
        consumer and wait up to ``drain_timeout`` seconds for the handlers; a second signal
        requeues their messages and returns at once. With ``auto_answer=False`` the handler
        answers each message itself, now or later.
        """
        _check_handler(handler)
        if self._drained is not None:
            return self._drained
        thread = self._start()
        work = partial(
            self._client.run,
            handler,
            concurrency,
            signals=False,
            auto_answer=auto_answer,
            drain_timeout=drain_timeout,
        )
        try:
            with handle_signals(self._stop, enabled=signals):
                thread.call(self._clear_thread_queue)
                return thread.run(work)
        finally:
            self._release_if_drained()

    # Control

    def is_starved(self) -> bool:
        """Return whether some nsqd sends nothing more before messages are answered."""
        return self._read(self._client.is_starved)

    def pause(self) -> None:
        """Stop receiving (RDY 0); messages that have arrived are still handed out."""
        self._start().call(self._client.pause)

    def resume(self) -> None:
        """Receive messages again."""
        self._start().call(self._client.resume)

    def set_max_in_flight(self, count: int) -> None:
        """Change ``max_in_flight``."""
        self._start().call(partial(self._set_max_in_flight, count))

    def stats(self) -> ConsumerStats:
        """Return the counts so far and the current state."""
        return self._read(self._client.stats)

    def explain(self) -> str:
        """Describe the state of each connection, and why it receives nothing if it does not."""
        return self._read(self._client.explain)

    def close(self, drain_timeout: float = client.DRAIN_TIMEOUT) -> DrainResult:
        """Stop receiving, wait for outstanding messages, requeue the rest; return the counts.

        Messages not answered after ``drain_timeout`` seconds are requeued.
        """
        with self._closing:
            if self._drained is None and not self._detached:
                thread = self._thread
                if thread is not None:
                    self._drained = thread.run(partial(self._close, drain_timeout))
                    self._thread = self._thread_queue = None
                    loop_thread.release(self._user, thread)
                else:
                    self._drained = DrainResult()
            return self._drained or DrainResult()

    def _stop(self, number: signal.Signals) -> None:
        """Close as ``run`` does on a signal; at once on a second one."""
        if self._thread is not None:
            self._thread.post(partial(self._client.stop, number))

    def _release_if_drained(self) -> None:
        """Release the thread if the consumer is drained; after Ctrl-C don't wait for that."""
        if self._client.is_closed:
            self.close()

    # For the background thread

    async def _close_at_exit(self) -> None:
        await self._close(0)

    def _detach_after_fork(self) -> object:
        """Refuse every call in a forked child: connections and messages are the parent's."""
        self._client.detach_after_fork(self._refuse)
        inherited = (self._client, self._thread_queue)
        self._thread = self._thread_queue = None
        self._closing = threading.RLock()
        self._detached = True
        return inherited

    # Private methods

    def _start(self) -> LoopThread:
        with loop_thread.lock:
            if self._detached:
                self._refuse()
            if self._drained is not None:
                raise LocalProtocolError("the consumer is closed")
            if self._thread is None:
                self._thread = loop_thread.lease(self._user)
            return self._thread

    def _start_thread_queue(self) -> ThreadQueue | None:
        if self._drained is not None:
            return None
        thread = self._start()
        return thread.call(partial(self._open_thread_queue, thread))

    def _refuse(self, *_: object) -> NoReturn:
        raise LocalProtocolError(
            f"{self!r} belongs to the parent of this process; create one in the child"
        )

    def _iter_batches(self, thread: LoopThread, batches: AsyncIterator[Batch]) -> Iterator[Batch]:
        while True:
            try:
                batch = thread.wait_for(
                    _BatchCall(partial(self._next_batch, batches), self._put_back)
                )
            except LocalProtocolError:
                if self._drained is not None:  # closed while the last batch was handled
                    return
                raise
            if batch is None:
                return
            yield batch

    def _read(self, function: Callable[[], T]) -> T:
        if self._detached:
            self._refuse()
        thread = self._thread
        return function() if thread is None else thread.call(function)

    # In the loop

    def _open_thread_queue(self, thread: LoopThread) -> ThreadQueue:
        if self._thread_queue is None:
            self._thread_queue = ThreadQueue(
                self._client.start(), thread.post, before_waiting=thread.forbid_inside
            )
        return self._thread_queue

    def _clear_thread_queue(self) -> None:
        if self._thread_queue is not None:
            self._thread_queue.clear()

    async def _next_batch(self, batches: AsyncIterator[Batch]) -> Batch | None:
        self._clear_thread_queue()  # messages read ahead for an iteration go into the batch
        return await anext(batches, None)

    def _set_max_in_flight(self, count: int) -> None:
        self._client.set_max_in_flight(count)
        # Messages were read ahead under the old limit.
        self._clear_thread_queue()

    def _put_back(self, batch: Batch) -> None:
        """Keep the messages of a batch whose caller was interrupted."""
        self._client.start().put_back(batch)

    async def _close(self, drain_timeout: float) -> DrainResult:
        if self._thread_queue is not None:
            self._thread_queue.end()
        return await self._client.close(drain_timeout)


def run(
    handlers: Mapping[Key, Handler],
    *,
    nsqd: str | Iterable[str] = (),
    lookupd: str | Iterable[str] = (),
    concurrency: int = 1,
    signals: bool = True,
    auto_answer: bool = True,
    drain_timeout: float = client.DRAIN_TIMEOUT,
    **options: Unpack[ConsumerOptions],
) -> dict[Key, DrainResult]:
    """Consume several channels, each with its handler, until SIGINT or SIGTERM.

    ``handlers`` maps (topic, channel) to a handler, which runs on ``concurrency`` threads. When
    one consumer fails, the others are drained within ``drain_timeout`` seconds, and its error
    is raised.
    """
    check_handlers(handlers)
    for handler in handlers.values():
        _check_handler(handler)
    consumers = {
        (topic, channel): Consumer(topic, channel, nsqd=nsqd, lookupd=lookupd, **options)
        for topic, channel in handlers
    }

    def stop(number: signal.Signals) -> None:
        for consumer in consumers.values():
            consumer._stop(number)

    function = partial(
        run_consumers,
        {key: consumer._client for key, consumer in consumers.items()},
        handlers,
        concurrency=concurrency,
        auto_answer=auto_answer,
        drain_timeout=drain_timeout,
    )
    threads = [consumer._start() for consumer in consumers.values()]  # the same for all
    try:
        with handle_signals(stop, enabled=signals):
            return threads[0].run(function)
    finally:
        for consumer in consumers.values():
            consumer._release_if_drained()


class _BatchCall(CoroutineCall[Batch | None]):
    """Waits for a batch in the loop; a batch whose caller is gone is put back."""

    __slots__ = ("_put_back",)

    def __init__(
        self,
        function: Callable[[], Coroutine[Any, Any, Batch | None]],
        put_back: Callable[[Batch], None],
    ) -> None:
        super().__init__(function)
        self._put_back = put_back

    def cancel(self) -> None:
        """Stop waiting; put back a batch that is complete already."""
        super().cancel()
        if self._future is not None:
            self._future.add_done_callback(self._put_back_result)

    def _put_back_result(self, future: asyncio.Future[Batch | None]) -> None:
        if not future.cancelled() and future.exception() is None and (batch := future.result()):
            self._put_back(batch)


def _run_callbacks_in_threads(options: ConsumerOptions) -> None:
    """Run callbacks that may block on threads, not in the loop."""
    dead_letter, on_giving_up = options.get("dead_letter"), options.get("on_giving_up")
    if callable(dead_letter):
        options["dead_letter"] = _in_thread(dead_letter)
    if on_giving_up is not None:
        options["on_giving_up"] = _in_thread(on_giving_up)


def _in_thread(callback: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, None]]:
    async def call(message: Message, error: BaseException | None) -> None:
        await asyncio.to_thread(callback, message, error)

    return call


def _check_handler(handler: Handler) -> None:
    """Raise for a coroutine function: plain code cannot await it."""
    if is_async(handler):
        raise ConfigError(f"handler={handler!r} is async: use nsqflow.Consumer")
