"""Who writes: units of changes, each of which is stored as a whole or fails as a whole.

All that wait share a transaction. If that fails it is halved, until what is at fault is alone,
so that one unit's failure is not that of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nsqflow.broker.storage.changes import Change, Load, OfPlaces, Put, Spread
from nsqflow.broker.storage.database import Database, Page

Done = Callable[[Exception | None], None]


@dataclass(slots=True)
class Unit:
    """Changes, and who wants to know what became of them."""

    changes: list[Change]
    size: int = 0
    done: Done | None = None


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
        self._owed: list[Change] = []

    @property
    def owes(self) -> bool:
        """There is something to be tried again, even if nothing new comes."""
        return bool(self._owed)

    def write(self, units: Sequence[Unit]) -> list[Outcome]:
        """Write units, or (if there are none) what is owed."""
        if self._stopped():
            return []
        changes = [*self._owed]
        for unit in units:
            changes += unit.changes
        try:
            pages = self._database.write(changes) if changes else []
        except Exception as error:
            return self._fail(units, error) if units else self._read_ahead()
        self._owed.clear()
        return [Outcome(units, pages)]

    def _fail(self, units: Sequence[Unit], error: Exception) -> list[Outcome]:
        paid = self.write([]) if self._owed else []
        if self._owed:
            # Nothing can be written; what is in these units need not be tried one by one.
            refused = self._refuse(units, error)
            return [*paid, *self._read_ahead(), refused]
        if len(units) > 1:
            half = len(units) // 2
            return [*paid, *self.write(units[:half]), *self.write(units[half:])]
        refused = self._refuse(units, error)
        # Without what was at fault the rest of it may well succeed.
        return [*paid, *(self.write([]) if self._owed else ()), refused]

    def _refuse(self, units: Sequence[Unit], error: Exception) -> Outcome:
        for unit in units:
            self._owed += [each for each in unit.changes if not isinstance(each, Put)]
        return Outcome(units, error=error)

    def _read_ahead(self) -> list[Outcome]:
        """Read the pages that are owed, though nothing can be written."""
        # That messages were finished, or come again, makes no difference: no page has them, as
        # they were read before. But a place may have been emptied.
        changing = {each.place for each in self._owed if isinstance(each, OfPlaces)}
        for each in self._owed:
            changing.update(each.targets if isinstance(each, Spread) else ())
        loads = [e for e in self._owed if isinstance(e, Load) and e.place not in changing]
        try:
            pages = self._database.write(loads) if loads else []
        except Exception:
            return []
        self._owed = [each for each in self._owed if each not in loads]
        return [Outcome((), pages)] if pages else []
