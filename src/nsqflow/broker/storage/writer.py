"""Who writes: units of changes, each of which is stored as a whole or fails as a whole.

All that wait share a transaction. If that fails it is halved, until what is at fault is alone,
so that one unit's failure is not that of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nsqflow.broker.storage.changes import Change
from nsqflow.broker.storage.database import Database, Page
from nsqflow.broker.storage.debt import Debt

Done = Callable[[Exception | None], None]


@dataclass(slots=True)
class Unit:
    """Changes, and who wants to know what became of them."""

    changes: list[Change]
    done: Done | None = None
    waiting: int = 0
    """How many publishers wait for it."""


@dataclass(slots=True)
class Outcome:
    """What became of some units, and the pages that were read with them."""

    units: Sequence[Unit]
    pages: list[Page] = field(default_factory=list)
    error: Exception | None = None


class Writer:
    """Writes units in their order.

    If a unit fails, whoever gave it is told that its new messages are not stored. But that others
    were finished, and that a topic was made, dropped or emptied, stays true, and a page is still
    waited for: these are *owed*. They come before anything else, and nothing is written until
    they are.
    """

    def __init__(self, database: Database, stopped: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self._stopped = stopped  # then nothing more is begun
        self._debt = Debt()

    @property
    def owes(self) -> bool:
        """There is something to be tried again, even if nothing new comes."""
        return bool(self._debt)

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write what is owed, then units."""
        if self._stopped():
            return []
        try:
            paid = self._pay()
        except Exception as error:
            # Nothing can be written, so these units need not be tried.
            refused = self._refuse(units, error)
            return [*self._read_ahead(), *refused]
        return [*paid, *self._write_new(units)] if units else paid

    def _pay(self) -> list[Outcome]:
        if not self._debt:
            return []
        pages = self._database.write(self._debt.changes())
        self._debt.clear()
        return [Outcome((), pages)]

    def _write_new(self, units: Sequence[Unit]) -> list[Outcome]:
        changes = [change for unit in units for change in unit.changes]
        try:
            pages = self._database.write(changes) if changes else []
        except Exception as error:
            if len(units) > 1:
                half = len(units) // 2
                return [*self.write(units[:half]), *self.write(units[half:])]
            refused = self._refuse(units, error)
            # Without what was at fault the rest of it may well succeed.
            return [*self.write([]), *refused]
        return [Outcome(units, pages)]

    def _refuse(self, units: Sequence[Unit], error: Exception) -> list[Outcome]:
        for unit in units:
            self._debt.add(unit.changes)
        return [Outcome(units, error=error)] if units else []

    def _read_ahead(self) -> list[Outcome]:
        """Read the pages that are owed, though nothing can be written."""
        loads = self._debt.readable()
        try:
            pages = self._database.write(loads) if loads else []
        except Exception:
            return []
        self._debt.forget(loads)
        return [Outcome((), pages)] if pages else []
