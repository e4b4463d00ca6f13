"""Answers that must wait: a publish is not done before it is stored, and none overtakes another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Answer = Callable[[], None]


class Ticket:
    """A place in the queue of a connection's answers."""

    __slots__ = ("answer",)

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer  # None: it is not known yet


class Answers:
    """The answers of one connection, given in the order of its commands."""

    def __init__(self) -> None:
        self.given = False
        """Some have been given since this was last reset: they are to be sent at once."""
        self._queue: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def give(self, answer: Answer) -> None:
        """Answer, as soon as all that was asked before has been answered."""
        if self._queue:
            self._queue.append(Ticket(answer))
        else:
            answer()
            self.given = True

    def reserve(self) -> Ticket:
        """Keep a place for an answer that is not known yet."""
        self._queue.append(ticket := Ticket())
        return ticket

    def settle(self, ticket: Ticket, answer: Answer) -> None:
        """Give the answer that a place was kept for, and those that waited behind it."""
        ticket.answer = answer
        while self._queue and (head := self._queue[0].answer) is not None:
            self._queue.popleft()
            head()
            self.given = True

    def clear(self) -> None:
        """Forget them: there is nobody to be answered."""
        self._queue.clear()
