"""Message ids: 16 hexadecimal digits that ascend, as those of nsqd do.

    | milliseconds (of 2**20 ns) since a date in 2012 | node: 10 bits | sequence: 12 bits |

nsqd waits when it runs out of sequence numbers; here the next millisecond is begun early.
"""

from __future__ import annotations

_EPOCH = 1288834974288  # nsqd/guid.go
_NODE_BITS = 10
_SEQUENCE_BITS = 12
_SEQUENCES = 1 << _SEQUENCE_BITS


class Ids:
    """Gives out ids, each above the one before, whatever the clock does."""

    def __init__(self, node_id: int, last: bytes = b"") -> None:
        self._node = node_id << _SEQUENCE_BITS
        number = int(last, 16) if last else 0
        # The first sequence number of a millisecond that nobody has used yet.
        self._tick = (number >> (_NODE_BITS + _SEQUENCE_BITS)) + 1 if last else 0
        self._sequence = 0

    def take(self, count: int, now: int) -> list[bytes]:
        """Return so many new ids."""
        tick = (now >> 20) - _EPOCH
        if tick > self._tick:
            self._tick, self._sequence = tick, 0
        ids: list[bytes] = []
        while len(ids) < count:
            if self._sequence == _SEQUENCES:
                self._tick, self._sequence = self._tick + 1, 0
            n = min(count - len(ids), _SEQUENCES - self._sequence)
            first = (self._tick << (_NODE_BITS + _SEQUENCE_BITS)) | self._node | self._sequence
            ids += [b"%016x" % number for number in range(first, first + n)]
            self._sequence += n
        return ids
