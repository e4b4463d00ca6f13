"""What a client connection sends and when: timers, heartbeats, responses, buffered messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.nsqd.identify import ClientSettings
from nsqflow.protocol import ServerSession


class ConnectionTimers:
    """The timers of a connection, by name."""

    def __init__(self) -> None:
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        """Start the named timer, replacing a running one."""
        self.cancel(name)
        self._handles[name] = asyncio.get_running_loop().call_later(seconds, act)

    def cancel(self, name: str) -> None:
        """Stop a timer."""
        if handle := self._handles.pop(name, None):
            handle.cancel()

    def cancel_all(self) -> None:
        """Stop all timers."""
        for name in [*self._handles]:
            self.cancel(name)


class HeartbeatTimer:
    """Sends heartbeats, and reports a client that has sent nothing for two ``intervals``."""

    def __init__(
        self,
        timers: ConnectionTimers,
        beat: Callable[[], None],
        silent: Callable[[], None],
        intervals: int = 2,
    ) -> None:
        self.suspended = False
        """Nothing is expected, because the connection does not read."""
        self._timers = timers
        self._on_beat = beat
        self._on_timeout = silent
        self._intervals = intervals
        self._interval = 0.0
        self._heard_at = 0.0

    def start(self, interval: float) -> None:
        """Start with this interval; 0 stops."""
        self._interval = interval
        self.reset()
        if interval:
            self._timers.set("heartbeat", interval, self._send_heartbeat)
            self._timers.set("silence", self._intervals * interval, self._check)
        else:
            self._timers.cancel("heartbeat")
            self._timers.cancel("silence")

    def reset(self) -> None:
        """Restart the read timeout, because a command was received."""
        self._heard_at = asyncio.get_running_loop().time()

    def suspend(self, suspended: bool) -> None:
        """Suspend or resume the read timeout."""
        self.suspended = suspended
        self.reset()

    def _send_heartbeat(self) -> None:
        self._timers.set("heartbeat", self._interval, self._send_heartbeat)
        self._on_beat()

    def _check(self) -> None:
        silence = self._intervals * self._interval
        left = self._heard_at + silence - asyncio.get_running_loop().time()
        if self.suspended:
            left = self._interval
        if left > 0:
            self._timers.set("silence", left, self._check)
        else:
            self._on_timeout()


Answer = Callable[[], None]


@dataclass(slots=True)
class PendingResponse:
    """The position of a response in the queue."""

    send: Answer | None = None  # None: not known yet


class ResponseQueue:
    """The responses of one connection, in the order of its commands."""

    def __init__(self) -> None:
        self.unflushed = False
        """Some were sent since the last flush."""
        self._queue: deque[PendingResponse] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def send_in_order(self, answer: Answer) -> None:
        """Send a response after all earlier ones."""
        if self._queue:
            self._queue.append(PendingResponse(answer))
        else:
            answer()
            self.unflushed = True

    def reserve(self) -> PendingResponse:
        """Reserve the position of a response that is not known yet."""
        self._queue.append(pending := PendingResponse())
        return pending

    def resolve(self, pending: PendingResponse, answer: Answer) -> None:
        """Set a reserved response; send it and those that waited for it as soon as possible."""
        pending.send = answer
        while self._queue and (head := self._queue[0].send) is not None:
            self._queue.popleft()
            head()
            self.unflushed = True

    def clear(self) -> None:
        """Drop all responses: the connection is closed."""
        self._queue.clear()


class OutputBuffer:
    """Buffers messages as nsqd does and writes them in one piece.

    Messages wait until the buffer is full, the client accepts no more, or a timeout expires.
    Responses are written at once, with all messages buffered before.
    """

    def __init__(
        self,
        session: ServerSession,
        settings: ClientSettings,
        timers: ConnectionTimers,
        delay: Callable[[], float],
    ) -> None:
        self.settings = settings
        self._session = session
        self._timers = timers
        self._delay = delay  # injected by tests
        self._transport: asyncio.Transport | None = None
        self._buffered = 0  # bytes of messages
        self._waiting = False  # there is a timer for them
        self._delayed: deque[tuple[float, bytes]] = deque()  # with the time to write them
        self._then: Callable[[], None] | None = None

    def attach(self, transport: asyncio.Transport) -> None:
        """Write to this transport."""
        self._transport = transport

    def detach(self) -> None:
        """Write nothing more."""
        self._transport = None
        self._delayed.clear()

    def send_messages(self, messages: Sequence[QueuedMessage], more: bool) -> None:
        """Send messages; ``more``: the client accepts further ones."""
        self._added(self._session.send_plain_messages(messages), more)

    def send_frames(self, frames: bytes, more: bool) -> None:
        """Send messages that are encoded already."""
        self._session.send_frames(frames)
        self._added(len(frames), more)

    def _added(self, size: int, more: bool) -> None:
        self._buffered += size
        timeout = self.settings.output_buffer_timeout
        if not more or self._buffered >= self.settings.output_buffer_size:
            self.flush()
        elif not self._waiting and timeout:
            self._waiting = True
            self._timers.set("output", timeout, self.flush)

    def flush(self) -> None:
        """Write everything that is buffered."""
        self._buffered = 0
        if self._waiting:
            self._waiting = False
            self._timers.cancel("output")
        if self._transport is None or not (data := self._session.data_to_send()):
            return
        if (delay := self._delay()) or self._delayed:
            self._delayed.append((asyncio.get_running_loop().time() + delay, data))
            self._write_delayed()
        else:
            self._transport.write(data)

    def when_written(self, then: Callable[[], None]) -> None:
        """Call ``then`` once no injected delay holds back data."""
        self._then = then
        self._write_delayed()

    @property
    def has_delayed(self) -> bool:
        """Whether an injected delay holds back data."""
        return bool(self._delayed)

    def _write_delayed(self) -> None:
        # In order, even if the delay was shortened meanwhile.
        now = asyncio.get_running_loop().time()
        while self._delayed and self._delayed[0][0] <= now and self._transport is not None:
            self._transport.write(self._delayed.popleft()[1])
        if self._delayed:
            self._timers.set("late", self._delayed[0][0] - now, self._write_delayed)
        elif self._then is not None:
            then, self._then = self._then, None
            then()
