"""What a client is sent: gathered as nsqd does, and written in one piece."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.nsqd.negotiation import Settings
from nsqflow.broker.nsqd.timers import Timers
from nsqflow.protocol import ServerSession


class Output:
    """The way out of a connection.

    Messages wait until there are enough of them, until the client can have no more, or until
    some time has passed; answers don't wait, and take them along.
    """

    def __init__(
        self,
        session: ServerSession,
        settings: Settings,
        timers: Timers,
        delay: Callable[[], float],
    ) -> None:
        self.settings = settings
        self._session = session
        self._timers = timers
        self._delay = delay  # somebody wants us to be slow
        self._transport: asyncio.Transport | None = None
        self._gathered = 0  # bytes of messages
        self._waiting = False  # there is a timer for them
        self._late: deque[tuple[float, bytes]] = deque()  # written when their time has come
        self._then: Callable[[], None] | None = None

    def attach(self, transport: asyncio.Transport) -> None:
        """Write to this from now on."""
        self._transport = transport

    def detach(self) -> None:
        """Write nothing more."""
        self._transport = None
        self._late.clear()

    def messages(self, entries: Sequence[Entry], more: bool) -> None:
        """Send messages; ``more`` says that the client takes more than these."""
        self._gathered += self._session.send_plain_messages(entries)
        timeout = self.settings.output_buffer_timeout
        if not more or self._gathered >= self.settings.output_buffer_size:
            self.flush()
        elif not self._waiting and timeout:
            self._waiting = True
            self._timers.set("output", timeout, self.flush)

    def flush(self) -> None:
        """Write all that waits."""
        self._gathered = 0
        if self._waiting:
            self._waiting = False
            self._timers.cancel("output")
        if self._transport is None or not (data := self._session.data_to_send()):
            return
        if (delay := self._delay()) or self._late:
            self._late.append((asyncio.get_running_loop().time() + delay, data))
            self._write_late()
        else:
            self._transport.write(data)

    def when_written(self, then: Callable[[], None]) -> None:
        """Do something once no delay holds anything back."""
        self._then = then
        self._write_late()

    @property
    def is_late(self) -> bool:
        """Something waits that should have been written."""
        return bool(self._late)

    def _write_late(self) -> None:
        # In their order, even if the delay of a later piece was shorter.
        now = asyncio.get_running_loop().time()
        while self._late and self._late[0][0] <= now and self._transport is not None:
            self._transport.write(self._late.popleft()[1])
        if self._late:
            self._timers.set("late", self._late[0][0] - now, self._write_late)
        elif self._then is not None:
            then, self._then = self._then, None
            then()
