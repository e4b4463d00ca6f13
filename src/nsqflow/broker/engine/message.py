"""A message in the queue of a topic or channel, and the generator of message ids."""

from __future__ import annotations

MAX_ATTEMPTS = 0xFFFF  # two bytes on the wire; nsqd's counter wraps to 0 instead
MESSAGE_OVERHEAD = 300  # bytes per message besides its body: object, id, references


class QueuedMessage:
    """One message of one channel, or of a topic that has no channels yet."""

    __slots__ = ("attempts", "body", "deadline", "delivered", "due", "id", "timestamp")

    def __init__(
        self, id: bytes, timestamp: int, body: bytes, attempts: int = 0, due: int = 0
    ) -> None:
        self.id = id
        self.timestamp = timestamp
        self.body = body
        self.attempts = attempts
        self.due = due
        """The earliest time of delivery; 0 if it was never deferred."""
        # Set on delivery.
        self.delivered = 0
        self.deadline = 0

    def __repr__(self) -> str:
        return f"QueuedMessage({self.id!r}, attempts={self.attempts}, due={self.due})"

    @property
    def size(self) -> int:
        """Approximate size in memory."""
        return MESSAGE_OVERHEAD + len(self.body)

    def copy(self) -> QueuedMessage:
        """Return the same message for another channel; the body is shared."""
        return QueuedMessage(self.id, self.timestamp, self.body, self.attempts, self.due)


_EPOCH = 1288834974288  # nsqd/guid.go
_NODE_BITS = 10
_SEQUENCE_BITS = 12
_SEQUENCES = 1 << _SEQUENCE_BITS
_ENDINGS = [b"%03x" % number for number in range(_SEQUENCES)]  # formatting each is slow


class GuidFactory:
    """Generates ids of 16 hexadecimal digits that ascend, even if the clock does not.

        | milliseconds (of 2**20 ns) since a date in 2012 | node: 10 bits | sequence: 12 bits |

    nsqd waits when it runs out of sequence numbers; here the next millisecond begins early.
    """

    def __init__(self, node_id: int, last: bytes = b"") -> None:
        self._node = node_id
        # Sequence numbers of the last millisecond may be used; those of the next are not.
        self._start_tick((int(last, 16) >> (_NODE_BITS + _SEQUENCE_BITS)) + 1 if last else 0)

    def take(self, count: int, now: int) -> list[bytes]:
        """Return ``count`` new ids."""
        tick = (now >> 20) - _EPOCH
        if tick > self._tick:
            self._start_tick(tick)
        ids: list[bytes] = []
        while count:
            if self._sequence == _SEQUENCES:
                self._start_tick(self._tick + 1)
            endings = _ENDINGS[self._sequence : self._sequence + count]
            ids += [self._prefix + ending for ending in endings]
            self._sequence += len(endings)
            count -= len(endings)
        return ids

    def _start_tick(self, tick: int) -> None:
        self._tick = tick
        self._prefix = b"%013x" % (tick << _NODE_BITS | self._node)
        self._sequence = 0
