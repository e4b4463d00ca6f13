"""The background thread: one event loop for all blocking objects of the process.

    thread ──┐
    thread ──┼──> calls ──> the loop starts them, all in one turn ──> each thread is woken
    thread ──┘

It starts with the first object that needs it and stops when the last one is closed, or when
the interpreter exits. A forked child starts without it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from nsqflow.client.consumer.thread_queue import wait_slice
from nsqflow.errors import LocalProtocolError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSED = "it is closed, and so is nsqflow's background thread"
_CLOSE_TIMEOUT = 5.0  # seconds in which everything is closed when the interpreter exits
_CLOSE_TURNS = 3  # turns of the loop: an aborted transport closes its socket one or two turns later


@dataclass(frozen=True, eq=False, slots=True)
class LoopUser:
    """An object that needs the thread."""

    close_at_exit: Callable[[], Coroutine[Any, Any, None]]
    """Closes it quickly: the interpreter exits."""

    detach_after_fork: Callable[[], object]
    """Called in a forked child; returns objects that must not be used or garbage collected
    there."""


class PendingCall(Generic[T]):
    """A function that returns a future, called in the loop for a thread that waits.

    The thread waits on a bare lock: cheaper than anything built on locks.
    """

    __slots__ = ("_error", "_function", "_future", "_lock", "_value")

    _value: T

    def __init__(self, function: Callable[[], asyncio.Future[T]]) -> None:
        self._function = function
        self._future: asyncio.Future[T] | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    # In the loop

    def start(self) -> None:
        """Make the call; never raises."""
        try:
            self._future = self._function()
        except BaseException as error:
            self._error = error
            self._lock.release()
        else:
            self._future.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel the future: the thread waits no longer."""
        if self._future is not None:
            self._future.cancel()

    def _on_done(self, future: asyncio.Future[T]) -> None:
        if future.cancelled():
            self._error = LocalProtocolError(_CLOSED)
        elif (error := future.exception()) is not None:
            self._error = error
        else:
            self._value = future.result()
        self._lock.release()

    # In the thread

    def wait(self) -> None:
        """Wait for the result."""
        seconds = wait_slice() or -1
        while not self._lock.acquire(timeout=seconds):
            pass

    def wait_until(self, deadline: float) -> bool:
        """Wait for the result; return False at the deadline."""
        return self._lock.acquire(timeout=max(0.0, deadline - monotonic()))

    def result(self) -> T:
        """Return the result, or raise the error."""
        if self._error is None:
            return self._value
        # The exception's traceback holds this frame, which must not hold the exception.
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error


class CoroutineCall(PendingCall[T]):
    """Runs a coroutine as a task."""

    __slots__ = ()

    def __init__(self, function: Callable[[], Coroutine[Any, Any, T]]) -> None:
        super().__init__(lambda: asyncio.get_running_loop().create_task(function()))


class LoopThread:
    """A thread that runs an event loop, and calls from other threads in it."""

    def __init__(self) -> None:
        self.users: set[LoopUser] = set()
        # asyncio's own loop, not uvloop: the selector knows which descriptors are open, so that
        # a forked child can release them.
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._calls: deque[Callable[[], object]] = deque()  # at most one for each thread
        self._woken = False
        self._closing = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="nsqflow", daemon=True)
        self._thread.start()

    @property
    def inside(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._thread.ident

    # For other threads

    def post(self, call: Callable[[], object]) -> None:
        """Call a function in the loop, soon; a burst of calls wakes the loop once."""
        self._calls.append(call)
        # In this order: a call that is added after the loop has stopped must be refused here.
        if self._closing:
            raise LocalProtocolError(_CLOSED)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._start_calls)
            except BaseException as error:  # Ctrl-C: then the next call must wake the loop
                self._woken = False
                if isinstance(error, RuntimeError):
                    raise LocalProtocolError(_CLOSED) from None
                raise

    def wait_for(self, call: PendingCall[T]) -> T:
        """Make a call in the loop and return its result; cancel it if this is interrupted."""
        self.forbid_inside()
        try:
            self.post(call.start)
            call.wait()
        except BaseException:
            with contextlib.suppress(LocalProtocolError):
                self.post(call.cancel)
            raise
        return call.result()

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop and return its result."""
        return self.wait_for(CoroutineCall[T](function))

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop and return its result."""

        async def call() -> T:
            return function()

        return function() if self.inside else self.run(call)

    def forbid_inside(self) -> None:
        """Raise if the caller is this thread, which would wait for itself forever."""
        if self.inside:
            raise LocalProtocolError(
                "blocking call in nsqflow's own background thread (in on_event?): it would wait "
                "for itself; call it from another thread"
            )

    # Stopping

    def stop(self) -> None:
        """Stop the loop and wait for the thread's end."""
        self.post(self._start_stopping)
        self._thread.join(_CLOSE_TIMEOUT)

    def close_at_exit(self) -> None:
        """Close all users, because the interpreter exits, and stop."""
        calls = [CoroutineCall[None](user.close_at_exit) for user in self.users]
        deadline = monotonic() + _CLOSE_TIMEOUT
        for call in calls:
            self.post(call.start)
        for call in calls:
            call.wait_until(deadline)
        self.stop()

    def detach_after_fork(self) -> None:
        """Release the parent's sockets in a forked child, without sending anything.

        Nothing else may touch them: the child shares the epoll instance with the parent's
        loop, and what the child unregistered there would be lost for the parent too.
        """
        descriptors = {key.fd for key in self._selector.get_map().values()}
        if isinstance(self._selector, getattr(selectors, "EpollSelector", ())):
            descriptors.add(self._selector.fileno())
        # Not closed but replaced: the objects that own these descriptors will close them later.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        self._loop.set_exception_handler(lambda *_: None)

    # In the loop

    def _run(self) -> None:
        while not self._ended:
            # An exception ends the call that raised it, never the loop: other objects need it.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        self._loop.close()

    def _start_calls(self) -> None:
        # Cleared before the calls are read: a call added from now on must wake the loop again.
        self._woken = False
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            try:
                call()
            except Exception:
                logger.exception("%r raised; later calls continue", call)

    def _start_stopping(self) -> None:
        self._stopping = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        self._closing = True
        self._start_calls()
        tasks = asyncio.all_tasks() - {self._stopping}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT)
        await self._loop.shutdown_asyncgens()
        for _ in range(_CLOSE_TURNS):
            await asyncio.sleep(0)
        self._ended = True
        self._loop.stop()


# The shared thread

# Held while the thread starts or stops. Reentrant: a signal handler may close an object that
# its thread is just starting.
lock = threading.RLock()

_shared: LoopThread | None = None
_inherited: list[object] = []


def lease(user: LoopUser) -> LoopThread:
    """Return the thread, started if necessary; it runs at least until ``release``."""
    global _shared
    with lock:
        if _shared is None:
            _shared = LoopThread()
        _shared.users.add(user)
        return _shared


def release(user: LoopUser, thread: LoopThread) -> None:
    """Stop the thread if it has no other user."""
    global _shared
    with lock:
        thread.users.discard(user)
        last = _shared is thread and not thread.users
        if last:
            _shared = None
    if last:
        thread.stop()


def _before_fork() -> None:
    lock.acquire()


def _after_fork_in_parent() -> None:
    lock.release()


def _after_fork_in_child() -> None:
    global _shared, lock
    lock = threading.RLock()
    thread, _shared = _shared, None
    if thread is not None:
        thread.detach_after_fork()
        _inherited.extend([thread, *(user.detach_after_fork() for user in thread.users)])


def _at_exit() -> None:
    global _shared
    thread, _shared = _shared, None
    if thread is not None:
        thread.close_at_exit()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
