"""Message ids: 16 hexadecimal digits that ascend, as those of nsqd do.

    | milliseconds (of 2**20 ns) since a date in 2012 | node: 10 bits | sequence: 12 bits |

nsqd waits when it runs out of sequence numbers; here the next millisecond is begun early.
"""

from __future__ import annotations

_EPOCH = 1288834974288  # nsqd/guid.go
_NODE_BITS = 10
_SEQUENCE_BITS = 12
_SEQUENCES = 1 << _SEQUENCE_BITS
_ENDINGS = [b"%03x" % number for number in range(_SEQUENCES)]  # to format each is slow


class Ids:
    """Gives out ids, each above the one before, whatever the clock does."""

    def __init__(self, node_id: int, last: bytes = b"") -> None:
        self._node = node_id
        # Whatever sequence numbers were used in the last millisecond, those of the next were not.
        self._begin((int(last, 16) >> (_NODE_BITS + _SEQUENCE_BITS)) + 1 if last else 0)

    def take(self, count: int, now: int) -> list[bytes]:
        """Return so many new ids."""
        tick = (now >> 20) - _EPOCH
        if tick > self._tick:
            self._begin(tick)
        ids: list[bytes] = []
        while count:
            if self._sequence == _SEQUENCES:
                self._begin(self._tick + 1)
            endings = _ENDINGS[self._sequence : self._sequence + count]
            ids += [self._beginning + ending for ending in endings]
            self._sequence += len(endings)
            count -= len(endings)
        return ids

    def _begin(self, tick: int) -> None:
        self._tick = tick
        self._beginning = b"%013x" % (tick << _NODE_BITS | self._node)
        self._sequence = 0
