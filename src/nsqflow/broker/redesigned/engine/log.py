"""The log of a partition: its messages in the order in which they were published.

A message is kept as the frame that a plain subscription gets with its first delivery, so that
delivering a stretch of the log takes one join:

    | size: int32 | type: int32 | timestamp: int64 ns | attempts: uint16 | internal id: uint64 |
    | trace id: uint64 | version: uint8 [| length: uint16 | headers |] | body |

The version and what follows it are there in extended topics only. The size on nsqd's disk is that
of the frame without its type. The internal id is the partition, shifted by 50 bits, plus a number
that begins at 2: an id and the *index* of a message, counted from 0, follow from each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, repeat
from struct import Struct
from typing import NamedTuple

from nsqflow.protocol.messages import JSON_HEADERS, Receipt

_HEAD = Struct(">iiqHQQ")
_HEAD_SIZE = _HEAD.size  # 34
_FRAME_TYPE = 2
_TYPE_SIZE = 4
_TIMESTAMP = slice(8, 16)
_POSITION = Struct(">QI")
_SIZE = Struct(">i")
_PARTITION_BITS = 50
_FIRST_NUMBER = 2

MESSAGE_OVERHEAD = 120  # bytes per message in memory besides its frame


class LogMessage(NamedTuple):
    """A message of a log."""

    log_index: int
    internal_id: int
    trace_id: int
    timestamp: int
    ext: bytes
    """The headers of an extended message; empty if it has none."""
    body: bytes
    offset: int


class PartitionLog:
    """The messages of a partition, of which the oldest may have been dropped."""

    __slots__ = ("_batches", "_ends", "_start", "base_id", "end", "extended", "first", "frames")

    def __init__(self, partition: int, *, extended: bool = False) -> None:
        self.extended = extended
        self.base_id = (partition << _PARTITION_BITS) + _FIRST_NUMBER
        """The internal id of the message with the index 0."""
        self.frames: list[bytes] = []
        """The messages that are kept."""
        self.first = 0
        """The index of the oldest message that is kept."""
        self.end = 0
        """The index of the next message: how many were ever published."""
        self._start = 0  # the offset of the oldest message that is kept
        self._ends: list[int] = []  # the offset at which each message ends
        self._batches: list[int] = []  # the index of the first message of each publish

    @property
    def start_offset(self) -> int:
        """The offset of the oldest byte that is kept."""
        return self._start

    @property
    def end_offset(self) -> int:
        """The offset of the next message: how many bytes were ever written."""
        return self._ends[-1] if self._ends else self._start

    @property
    def memory(self) -> int:
        """Approximate size in memory."""
        return self.end_offset - self._start + MESSAGE_OVERHEAD * len(self.frames)

    def append(
        self,
        bodies: Sequence[bytes],
        now: int,
        traces: Sequence[int] | None = None,
        headers: Sequence[bytes] | None = None,
    ) -> Receipt:
        """Add messages; return where the first one is, and the size of all of them.

        ``headers`` are for extended topics; an empty one stands for none.
        """
        if self.extended:
            blocks = map(_ext_block, repeat(b"", len(bodies)) if headers is None else headers)
            bodies = [block + body for block, body in zip(blocks, bodies, strict=True)]
        pack, id = _HEAD.pack, self.base_id + self.end
        frames = [
            pack(30 + len(body), _FRAME_TYPE, now, 1, number, trace) + body
            for number, trace, body in zip(
                range(id, id + len(bodies)), traces or repeat(0), bodies, strict=False
            )
        ]
        offset = self.end_offset
        self._batches.append(self.end)
        sizes = [len(frame) - _TYPE_SIZE for frame in frames]
        self._ends += [*accumulate(sizes, initial=offset)][1:]
        self.frames += frames
        self.end += len(frames)
        return Receipt(id, traces[0] if traces else 0, offset, self._ends[-1] - offset)

    def offset_of(self, index: int) -> int:
        """Return where a message begins, or where the next one will."""
        at = index - self.first
        return self._ends[at - 1] if at > 0 else self._start

    def timestamp_of(self, index: int) -> int:
        """Return when a message was published; 0 if there is none of this index."""
        if not self.first <= index < self.end:
            return 0
        return int.from_bytes(self.frames[index - self.first][_TIMESTAMP], "big")

    def read(self, index: int) -> LogMessage:
        """Return a message."""
        frame = self.frames[index - self.first]
        _, _, timestamp, _, id, trace = _HEAD.unpack_from(frame)
        body = self._body_at(frame)
        ext = frame[_HEAD_SIZE + 3 : body]  # empty where there is a version only, or nothing
        return LogMessage(index, id, trace, timestamp, ext, frame[body:], self.offset_of(index))

    def ext_of(self, index: int) -> bytes:
        """Return the headers of a message; empty if it has none."""
        frame = self.frames[index - self.first]
        return frame[_HEAD_SIZE + 3 : self._body_at(frame)]

    # Encoding

    def encode(self, stretch: range, *, positioned: bool) -> bytes:
        """Return the frames of messages on their first delivery."""
        kept = slice(stretch.start - self.first, stretch.stop - self.first)
        frames = self.frames[kept]
        if not positioned:
            return b"".join(frames)
        parts: list[bytes] = []
        begin = self.offset_of(stretch.start)
        for frame, end in zip(frames, self._ends[kept], strict=True):
            parts += self._positioned(frame, begin, end)
            begin = end
        return b"".join(parts)

    def encode_one(self, index: int, attempts: int, *, positioned: bool) -> bytes:
        """Return the frame of a message on any delivery."""
        frame = self.frames[index - self.first]
        if attempts != 1:
            frame = frame[:16] + attempts.to_bytes(2, "big") + frame[18:]
        if not positioned:
            return frame
        return b"".join(self._positioned(frame, self.offset_of(index), self.offset_of(index + 1)))

    # Searching

    def bytes_end(self, index: int, size: int) -> int:
        """Return the index of the first message that begins ``size`` bytes after this one."""
        at = bisect_left(self._ends, self.offset_of(index) + size)
        return min(self.first + at + 1, self.end)

    def at_offset(self, offset: int) -> int:
        """Return the index of the first message that begins there or later."""
        if offset <= self._start:
            return self.first
        return min(self.first + bisect_left(self._ends, offset) + 1, self.end)

    def at_count(self, count: int) -> int:
        """Return the index of the message number ``count``, counted from 1."""
        return min(max(count - 1, self.first), self.end)

    def at_time(self, time: int) -> int:
        """Return the index of the first message of that time or later."""
        key = min(max(time, 0), 2**63 - 1).to_bytes(8, "big")
        return self.first + bisect_left(self.frames, key, key=lambda frame: frame[_TIMESTAMP])

    def batch_of(self, id: int) -> int:
        """Return the index of the first message of the publish that has an internal id.

        nsqd searches its commit log, which has one entry for each publish; a number that is not
        there finds the nearest entry.
        """
        at = bisect_right(self._batches, id - self.base_id) - 1
        return max(self._batches[max(at, 0)], self.first)

    def drop_before(self, index: int) -> None:
        """Drop messages."""
        count = index - self.first
        if count > 0:
            self._start = self.offset_of(index)
            del self.frames[:count], self._ends[:count]
            self.first = index
            del self._batches[: max(bisect_right(self._batches, index) - 1, 0)]

    # Private methods

    def _body_at(self, frame: bytes) -> int:
        """Return where the body begins in a frame."""
        if not self.extended:
            return _HEAD_SIZE
        if not frame[_HEAD_SIZE]:
            return _HEAD_SIZE + 1
        return _HEAD_SIZE + 3 + int.from_bytes(frame[_HEAD_SIZE + 1 : _HEAD_SIZE + 3], "big")

    def _positioned(self, frame: bytes, begin: int, end: int) -> tuple[bytes, ...]:
        """Return the parts of a frame with its offset and size, which are before the body."""
        body = self._body_at(frame) if self.extended else _HEAD_SIZE
        size = _SIZE.pack(len(frame) - 4 + _POSITION.size)
        return size, frame[4:body], _POSITION.pack(begin, end - begin), frame[body:]


def _ext_block(headers: bytes) -> bytes:
    if not headers:
        return b"\0"
    return bytes((JSON_HEADERS,)) + len(headers).to_bytes(2, "big") + headers
