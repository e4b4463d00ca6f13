"""An outlet: one connection that a producer publishes through."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from nsqflow.client.connection import Connection
from nsqflow.client.parcel import Parcel
from nsqflow.errors import NsqError, ServerError
from nsqflow.protocol import AnswerFailed, CommandFailed, MessageBatch, Receipt

_AT_ONCE = 256 * 1024  # bytes; only what is written tells whether nsqd keeps up


class Sender(Protocol):
    """Who is told what became of the parcels."""

    def done(self, parcel: Parcel) -> None:
        """It has its outcome."""

    def refused(self, parcel: Parcel, nsqd: str, error: ServerError) -> None:
        """Its nsqd answered with an error."""

    def untouched(self, parcels: list[Parcel]) -> None:
        """They were not read by nsqd."""

    def lost(self, parcels: list[Parcel], nsqd: str, error: NsqError) -> None:
        """They were sent, and no answer will come."""

    def pump(self) -> None:
        """More can be sent."""


class Outlet:
    """Sends parcels one behind the other, and matches the answers to them."""

    def __init__(self, address: str, sender: Sender) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.unanswered: deque[Parcel] = deque()
        self._sender = sender
        self._loaded = 0  # bytes since the last flush

    @property
    def ready(self) -> bool:
        """It can take a parcel now."""
        connection = self.connection
        return connection is not None and connection.can_write and not connection.closed

    @property
    def stalled(self) -> bool:
        """It reads, and does not answer: what was sent first is out of time already."""
        return bool(self.unanswered) and self.unanswered[0].expired

    def load(self, parcel: Parcel) -> bool:
        """Queue a parcel, if anybody still waits for it; ``flush`` sends what is left."""
        command = parcel.command()
        if command is None:
            self._sender.done(parcel)
            return False
        assert self.connection is not None
        self.connection.session.send(command)
        self.unanswered.append(parcel)
        self._loaded += parcel.size
        if self._loaded >= _AT_ONCE:
            self.flush()
        return True

    def flush(self) -> None:
        """Write what was loaded."""
        assert self.connection is not None
        self._loaded = 0
        self.connection.flush()

    # What the connection tells

    def published(self, receipt: Receipt | None) -> None:
        """The oldest parcel is stored."""
        parcel = self.unanswered.popleft()
        if not parcel.expired:
            parcel.stored(receipt)
            self._sender.done(parcel)

    def command_failed(self, event: CommandFailed) -> None:
        """The oldest parcel was refused; if nsqd closes, it reads nothing of those behind."""
        if not self.unanswered:
            return
        parcel = self.unanswered.popleft()
        if event.closes:
            self._sender.untouched(self._take_unanswered())
        if not parcel.expired:
            self._sender.refused(parcel, self.address, event.error)

    def writable(self) -> None:
        """What had filled the write buffer has gone out."""
        self._sender.pump()

    def connection_lost(self, error: NsqError) -> None:
        """All that was sent and not answered is uncertain."""
        self._sender.lost(self._take_unanswered(), self.address, error)

    def messages_received(self, batch: MessageBatch) -> None:
        """Can't be: the session lets no message through without a subscription."""

    def answer_failed(self, event: AnswerFailed) -> None:
        """Can't be: nothing was answered."""

    def _take_unanswered(self) -> list[Parcel]:
        parcels = [parcel for parcel in self.unanswered if not parcel.expired]
        self.unanswered.clear()
        return parcels
