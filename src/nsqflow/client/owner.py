"""The owner of a connection: a producer's outlet, or a consumer's subscription."""

from __future__ import annotations

from typing import Protocol

from nsqflow.errors import NsqError
from nsqflow.protocol import AnswerFailed, CommandFailed, MessageBatch, Receipt


class Owner(Protocol):
    """Who is told what arrives on a connection. None of these may raise or wait."""

    def messages_received(self, batch: MessageBatch) -> None:
        """Messages have come."""

    def published(self, receipt: Receipt | None) -> None:
        """The oldest unanswered publish was stored."""

    def command_failed(self, event: CommandFailed) -> None:
        """The server refused a command; ``connection_lost`` follows if it closes."""

    def answer_failed(self, event: AnswerFailed) -> None:
        """FIN, REQ or TOUCH came too late."""

    def writable(self) -> None:
        """What had filled the write buffer has gone out."""

    def connection_lost(self, error: NsqError) -> None:
        """Nothing more will come; called once, and only after ``open`` had succeeded."""
