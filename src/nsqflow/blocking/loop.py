"""The background thread: one event loop for all blocking objects of the process.

    thread ──┐
    thread ──┼──> calls ──> the loop begins them, all at once ──> each thread is woken
    thread ──┘

It begins with the first object that needs it and ends with the last that is closed, or when
the interpreter exits. A forked child starts with none.
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
from time import monotonic
from typing import Any, Protocol, TypeVar

from nsqflow.blocking.calls import CLOSED, Call, Errand
from nsqflow.errors import LocalProtocolError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LAST_WORDS = 5.0  # seconds in which everything is closed when the interpreter exits
_LAST_TURNS = 3  # of the loop: a transport that is aborted closes its socket one or two later


class Tenant(Protocol):
    """An object that needs the thread."""

    async def _leave(self) -> None:
        """Close, soon: the interpreter exits."""

    def _forked(self) -> object:
        """This is a child now; return what must neither be used nor thrown away."""


class LoopThread:
    """A thread that runs an event loop, and calls from other threads in it."""

    def __init__(self) -> None:
        self.tenants: set[Tenant] = set()
        # asyncio's own loop, never uvloop: with a selector of ours we know which descriptors
        # it has open, so that a forked child can let go of them.
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._calls: deque[Callable[[], object]] = deque()  # one for each thread, at most
        self._woken = False
        self._closing = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="nsqflow", daemon=True)
        self._thread.start()

    @property
    def inside(self) -> bool:
        """The caller is this thread itself."""
        return threading.get_ident() == self._thread.ident

    # For other threads

    def post(self, call: Callable[[], object]) -> None:
        """Have a function called in the loop, soon; a burst of them wakes it once."""
        self._calls.append(call)
        # In this order: who comes too late for the last look at the calls sees that here.
        if self._closing:
            raise LocalProtocolError(CLOSED)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._begin_calls)
            except BaseException as error:  # Ctrl-C: then the next one must wake it
                self._woken = False
                if isinstance(error, RuntimeError):
                    raise LocalProtocolError(CLOSED) from None
                raise

    def ask(self, call: Call[T]) -> T:
        """Make a call and wait for its outcome."""
        self.forbid_inside()
        try:
            self.post(call.begin)
            call.wait()
        except BaseException:
            with contextlib.suppress(LocalProtocolError):
                self.post(call.withdraw)
            raise
        return call.result()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop, and wait for its outcome."""
        return self.ask(Errand[T](work))

    def call(self, work: Callable[[], T]) -> T:
        """Call a function that does not wait in the loop."""
        return work() if self.inside else self.ask(Errand[T](work))

    def forbid_inside(self) -> None:
        """Raise in the thread itself, which would wait for its own work for ever."""
        if self.inside:
            raise LocalProtocolError(
                "a blocking call from nsqflow's own background thread, as in on_event: it would "
                "wait for itself; make it from another thread"
            )

    # The end

    def end(self) -> None:
        """Stop the loop, and wait until the thread is gone."""
        self.post(self._begin_end)
        self._thread.join(_LAST_WORDS)

    def leave(self) -> None:
        """Close all objects, because the interpreter exits, and end."""
        errands = [Errand[None](tenant._leave) for tenant in self.tenants]
        deadline = monotonic() + _LAST_WORDS
        for errand in errands:
            self.post(errand.begin)
        for errand in errands:
            errand.wait_until(deadline)
        self.end()

    def forsake(self) -> None:
        """Let go of what was inherited from the parent, without a word to the servers.

        Nothing else may touch it: the child shares the epoll instance with the parent's loop,
        and what it took out there the parent would not hear of any more.
        """
        descriptors = {key.fd for key in self._selector.get_map().values()}
        if isinstance(self._selector, getattr(selectors, "EpollSelector", ())):
            descriptors.add(self._selector.fileno())
        # Not closed but replaced: the objects that own these numbers will close them one day.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        self._loop.set_exception_handler(lambda *_: None)

    # In the loop

    def _run(self) -> None:
        while not self._ended:
            # They end a handler, which is told; never the loop, which others need too.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        self._loop.close()

    def _begin_calls(self) -> None:
        # Before they are read: who appends from now on wakes the loop again.
        self._woken = False
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            try:
                call()
            except Exception:
                logger.exception("%r raised; those behind it go on", call)

    def _begin_end(self) -> None:
        self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        self._closing = True
        self._begin_calls()
        tasks = asyncio.all_tasks() - {self._ending}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_WORDS)
        await self._loop.shutdown_asyncgens()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)
        self._ended = True
        self._loop.stop()


# The one that is shared

# For who begins and who ends. A signal's handler may close what its thread is just starting.
lock = threading.RLock()

_shared: LoopThread | None = None
_inherited: list[object] = []


def lease(tenant: Tenant) -> LoopThread:
    """Return the thread, begun if need be; it stays until the tenant is released."""
    global _shared
    with lock:
        if _shared is None:
            _shared = LoopThread()
        _shared.tenants.add(tenant)
        return _shared


def release(tenant: Tenant, thread: LoopThread) -> None:
    """End the thread if nobody else needs it."""
    global _shared
    with lock:
        thread.tenants.discard(tenant)
        last = _shared is thread and not thread.tenants
        if last:
            _shared = None
    if last:
        thread.end()


def _before_fork() -> None:
    lock.acquire()


def _after_fork_in_parent() -> None:
    lock.release()


def _after_fork_in_child() -> None:
    global _shared, lock
    lock = threading.RLock()
    thread, _shared = _shared, None
    if thread is not None:
        thread.forsake()
        _inherited.extend([thread, *(tenant._forked() for tenant in thread.tenants)])


def _at_exit() -> None:
    global _shared
    thread, _shared = _shared, None
    if thread is not None:
        thread.leave()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
