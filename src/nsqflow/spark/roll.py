"""Asks many servers at once, and remembers which of them don't answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import TypeVar

from nsqflow.errors import ConfigError, NetworkError, NsqError, RequestTimeout
from nsqflow.spark.budget import Patience

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WAIT = 10.0
"""Seconds until one that did not answer is asked again, at the most."""
BRIEF = 1.0
"""Seconds that one has which did not answer before: the others wait for it no longer."""


class Roll:
    """Servers of one kind, by their names: who of them answers.

    That one does not answer is logged when it begins and when it ends, and not in between.
    """

    def __init__(self, kind: str) -> None:
        self.missing: dict[str, str] = {}
        """Those that did not answer when they were asked last, and why."""
        self._kind = kind
        self._patience = Patience(most=MOST_WAIT)

    async def ask(
        self, questions: Mapping[str, Callable[[], Awaitable[T]]], timeout: float
    ) -> dict[str, T]:
        """Put each server its question; gives the answers of those that had one in time.

        Who failed before is left out for a while, unless there is nobody else.
        """
        now = monotonic()
        allowed = [name for name in questions if self._patience.allowed(name, now)]
        asked = allowed or list(questions)
        outcomes = await asyncio.gather(
            *(self._outcome(name, questions[name], timeout) for name in asked),
            return_exceptions=True,  # so that no question outlives this call
        )
        answers = {}
        for name, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, NsqError) and not isinstance(outcome, ConfigError):
                self._failed(name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self._answered(name)
                answers[name] = outcome
        return answers

    def keep(self, names: Iterable[str]) -> None:
        """Forget all others: nobody asks them any more."""
        kept = set(names)
        self._patience.keep(kept)
        self.missing = {name: why for name, why in self.missing.items() if name in kept}

    async def _outcome(self, name: str, question: Callable[[], Awaitable[T]], timeout: float) -> T:
        if name in self.missing:
            timeout = min(timeout, BRIEF)
        try:
            async with asyncio.timeout(timeout):
                return await question()
        except RequestTimeout:  # somebody else's, which says more
            raise
        except TimeoutError:
            raise NetworkError(f"{name}: no answer within {timeout:g} s") from None

    def _failed(self, name: str, error: NsqError) -> None:
        self._patience.failed(name, monotonic())
        if name not in self.missing:
            logger.warning("%s %s can't be asked: %s", self._kind, name, error)
        self.missing[name] = str(error)

    def _answered(self, name: str) -> None:
        if name in self.missing:
            del self.missing[name]
            self._patience.succeeded(name)
            logger.info("%s %s answers again", self._kind, name)
