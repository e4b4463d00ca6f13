"""What is owed: all that failed units have said, but for their new messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nsqflow.broker.storage.changes import (
    Batch,
    Change,
    Clear,
    Create,
    Drop,
    Finish,
    Load,
    OfPlaces,
    Pause,
    Put,
    Requeue,
    Spread,
)


class Debt:
    """Changes that hold though they could not be written; nothing else is until they are.

    A disk can be full for long. So of what happens again and again to a place or a message only
    what counts is kept, and a debt is no larger than what is stored, and the pages waited for.
    """

    def __init__(self) -> None:
        self._of_places: list[OfPlaces | Load] = []
        self._of_messages = Batch()

    def __bool__(self) -> bool:
        batch = self._of_messages
        return bool(self._of_places or batch.finished or batch.requeued)

    def add(self, changes: Iterable[Change]) -> None:
        """Owe what a failed unit has said."""
        for change in changes:
            match change:
                case Put():
                    pass  # they are refused, and so are never finished or requeued
                case Finish() | Requeue():
                    self._of_messages.add(change)
                case Load():
                    self._of_places.append(change)
                case _:
                    self._add_of_place(change)

    def changes(self) -> list[Change]:
        """All that is owed, in an order in which it can be written."""
        # Those of messages can come last. Only the messages of topics are spread, and only those
        # of channels are finished or come again; and pages have none of these, as they were read
        # before.
        batch = self._of_messages
        return [
            *self._of_places,
            *(Finish(place, ids) for place, ids in batch.finished.items()),
            *(Requeue(*key, *values) for key, values in batch.requeued.items()),
        ]

    def clear(self) -> None:
        """Owe nothing more."""
        self._of_places.clear()
        self._of_messages.clear()

    def readable(self) -> list[Load]:
        """Pages that can be read now: what is owed makes no difference to them."""
        changing = self._targets()
        for each in self._of_places:
            if not isinstance(each, Load | Pause):
                changing.add(each.place)
        return [e for e in self._of_places if isinstance(e, Load) and e.place not in changing]

    def forget(self, loads: Sequence[Load]) -> None:
        """Owe these pages no more."""
        self._of_places = [each for each in self._of_places if each not in loads]

    def _add_of_place(self, change: OfPlaces) -> None:
        place = change.place
        match change:
            case Spread():
                # Another one finds nothing: what came in between was refused.
                if any(isinstance(e, Spread) and e.place == place for e in self._of_places):
                    return
            case Pause() | Clear():
                self._remove(place, type(change))
            case Drop():
                self._remove(place, Pause, Clear)
                if self._remove(place, Create) and place not in self._targets():
                    return  # nothing of it was stored
        self._of_places.append(change)

    def _remove(self, place: int, *kinds: type[OfPlaces]) -> bool:
        kept = [e for e in self._of_places if e.place != place or not isinstance(e, kinds)]
        removed = len(kept) < len(self._of_places)
        self._of_places = kept
        return removed

    def _targets(self) -> set[int]:
        return {
            target
            for each in self._of_places
            if isinstance(each, Spread)
            for target in each.targets
        }
