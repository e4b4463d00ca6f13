"""Calls: what the loop does for a thread that waits for the outcome."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Generic, TypeVar

from nsqflow.client.handoff import wait_slice
from nsqflow.errors import LocalProtocolError

T = TypeVar("T")

CLOSED = "it is closed, and so is nsqflow's background thread"


class Call(Generic[T]):
    """One call and its outcome.

    The thread waits on a bare lock: it costs less than anything that is made of locks.
    """

    __slots__ = ("_error", "_lock", "_value")

    _value: T

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    # In the loop

    def begin(self) -> None:
        """Do it, or begin to; never raise."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Stop it if that can be: nobody waits for it any more."""
        raise NotImplementedError

    def settle(self, future: asyncio.Future[T]) -> None:
        """Take the outcome of a future, and wake the thread."""
        if future.cancelled():
            self._error = LocalProtocolError(CLOSED)
        else:
            self._error = future.exception()
            if self._error is None:
                self._value = future.result()
        self._lock.release()

    def fail(self, error: BaseException) -> None:
        """Wake the thread with an error."""
        self._error = error
        self._lock.release()

    # In the thread

    def wait(self) -> None:
        """Wait for the outcome."""
        seconds = wait_slice() or -1
        while not self._lock.acquire(timeout=seconds):
            pass

    def wait_until(self, deadline: float) -> bool:
        """Wait for the outcome; False: time is up."""
        return self._lock.acquire(timeout=max(0.0, deadline - monotonic()))

    def result(self) -> T:
        """Return or raise the outcome."""
        if self._error is None:
            return self._value
        # The exception's traceback holds this frame, which must not hold the exception.
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error


class Errand(Call[T]):
    """A function called in the loop; if that gives a coroutine, it is run there."""

    __slots__ = ("_task", "_work")

    def __init__(self, work: Callable[[], T] | Callable[[], Coroutine[Any, Any, T]]) -> None:
        super().__init__()
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Call it."""
        try:
            outcome = self._work()
        except BaseException as error:
            self.fail(error)
            return
        if isinstance(outcome, Coroutine):
            self._task = asyncio.get_running_loop().create_task(outcome)
            self._task.add_done_callback(self.settle)
        else:
            self._value = outcome
            self._lock.release()

    def withdraw(self) -> None:
        """Cancel what runs."""
        if self._task is not None:
            self._task.cancel()
