"""Publishes over several nsqd at once, by one thread.

Commands go to the nsqd in turns, several to each before its first answer. What a lost connection
leaves unanswered goes to the next nsqd: it may have been stored, so it may come twice, but it is
never lost. An nsqd that failed is tried again later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from random import SystemRandom
from time import monotonic

from nsqflow.errors import (
    BadBodyError,
    BadMessageError,
    DeferredPublishFailedError,
    MultiPublishFailedError,
    NetworkError,
    NsqError,
    PublishFailedError,
    RemoteProtocolError,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.protocol import CommandFailed, Dpub, Published
from nsqflow.spark.access import Access
from nsqflow.spark.link import Link, wait_for_any
from nsqflow.spark.mpub import PackedMpub

logger = logging.getLogger(__name__)

Publication = PackedMpub | Dpub

_LANE = 4 * 1024 * 1024  # bytes of bodies up to which an nsqd that owes answers is given more
_ALL = 16 * 1024 * 1024  # the same, for all of them together
_WRITE = 64 * 1024  # bytes that are worth a write
_DIAL_TIMEOUT = 5.0
_BRIEF_DIAL = 1.0
_FIRST_WAIT, _MOST_WAIT = 0.25, 10.0  # seconds until an nsqd that failed is tried again

# Another nsqd, or the same one a little later, may do what this one did not.
_PASSING = (
    NetworkError,
    RemoteProtocolError,
    PublishFailedError,
    MultiPublishFailedError,
    DeferredPublishFailedError,
)


class Publisher:
    """Takes commands, and has them all stored when ``finish()`` returns.

    ``patience`` is how long no nsqd at all may answer before that is an error, ``silence`` how
    long one may that owes an answer before its connection is taken for lost.
    """

    def __init__(
        self,
        nsqd: Iterable[str],
        access: Access,
        *,
        patience: float = 60.0,
        silence: float = 30.0,
    ) -> None:
        # In an order of its own, so that tasks don't all begin with the same nsqd. (The workers
        # of Spark are forked, and share the state of an ordinary generator.)
        addresses = list(dict.fromkeys(nsqd))
        SystemRandom().shuffle(addresses)
        self._lanes = deque(_Lane(address) for address in addresses)
        self._access = access
        self._patience = patience
        self._silence = silence
        self._waiting: deque[Publication] = deque()
        self._answered = 0.0  # when one last was, or the wait for it began

    @property
    def acknowledged(self) -> dict[str, int]:
        """How many messages each nsqd has acknowledged, of those that have any."""
        return {lane.address: lane.messages for lane in self._lanes if lane.messages}

    def publish(self, publication: Publication) -> None:
        """Take one; wait while too much is unanswered."""
        self._answered = monotonic()
        self._waiting.append(publication)
        self._hand_out()
        while self._waiting:
            self._turn()

    def finish(self) -> None:
        """Wait until everything is acknowledged."""
        self._answered = monotonic()
        while self._waiting or any(lane.unanswered for lane in self._lanes):
            self._turn()

    def close(self) -> None:
        """Hang up; what is not acknowledged may be stored, or not."""
        for lane in self._lanes:
            lane.hang_up()

    # Private methods

    @property
    def _full(self) -> bool:
        return sum(lane.size for lane in self._lanes) >= _ALL

    def _hand_out(self) -> None:
        """Give what waits to those who have room."""
        while self._waiting and (lane := self._free_lane()) is not None:
            lane.send(self._waiting.popleft())

    def _free_lane(self) -> _Lane | None:
        """Find the next in turn that has room and can be reached."""
        if self._full:
            return None
        for _ in range(len(self._lanes)):
            lane = self._lanes[0]
            self._lanes.rotate(-1)
            if lane.size < _LANE and self._connected(lane):
                return lane
        return None

    def _connected(self, lane: _Lane) -> bool:
        if lane.link is None and monotonic() >= lane.retry_at:
            try:
                # The others wait meanwhile: one that hangs must not cost them much.
                alone = all(other.link is None for other in self._lanes)
                timeout = _DIAL_TIMEOUT if alone else _BRIEF_DIAL
                lane.link = Link.open(lane.address, self._access, timeout=timeout)
            except NsqError as error:
                self._failed(lane, error)
        return lane.link is not None

    def _turn(self) -> None:
        """Write and read what can be, or wait until something can."""
        changes = [self._listen(lane) for lane in self._lanes if lane.link is not None]
        if not any(changes):
            self._check_patience()
            links = [lane.link for lane in self._lanes if lane.link is not None]
            wait_for_any(links, self._longest_wait())
        self._hand_out()

    def _listen(self, lane: _Lane) -> bool:
        """Take the answers of one; tell whether anything has changed."""
        try:
            if lane.take_answers():
                self._answered = lane.heard
                return True
            if lane.unanswered and monotonic() - lane.heard >= self._silence:
                raise NetworkError(f"{lane.address}: no answer within {self._silence:g} s")
        except NsqError as error:
            self._failed(lane, error)
            return True
        return False

    def _failed(self, lane: _Lane, error: NsqError) -> None:
        if not isinstance(error, _PASSING) or isinstance(error, TlsNotGrantedError):
            raise error
        left = lane.hang_up()
        self._waiting.extendleft(reversed(left))
        lane.error = error
        wait = min(_MOST_WAIT, _FIRST_WAIT * 2.0 ** min(lane.failures, 10))
        lane.failures += 1
        lane.retry_at = monotonic() + wait
        logger.warning("%s; %d commands unanswered, next try in %g s", error, len(left), wait)

    def _check_patience(self) -> None:
        if monotonic() - self._answered >= self._patience:
            reasons = "; ".join(
                str(lane.error or f"{lane.address}: no answer") for lane in self._lanes
            )
            raise NetworkError(
                f"no nsqd has acknowledged anything for {self._patience:g} s: {reasons}"
            )

    def _longest_wait(self) -> float:
        """Tell how long nothing can happen that is not seen on a connection."""
        times = [self._answered + self._patience]
        times += [lane.heard + self._silence for lane in self._lanes if lane.unanswered]
        if self._waiting and not self._full:
            times += [lane.retry_at for lane in self._lanes if lane.link is None]
        return max(0.0, min(times) - monotonic())


class _Lane:
    """One nsqd: its connection, and what it has not answered yet."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: Link | None = None
        self.unanswered: deque[Publication] = deque()
        self.size = 0  # bytes of those
        self.messages = 0  # that it has acknowledged
        self.heard = 0.0  # when it last answered, or began to owe an answer
        self.failures = 0  # in a row
        self.retry_at = 0.0
        self.error: NsqError | None = None  # the last one
        self._unwritten = 0  # bytes that the session has queued since the last write

    def send(self, publication: Publication) -> None:
        """Queue one, and write if that is worth it; ``take_answers`` writes too."""
        assert self.link is not None
        if not self.unanswered:
            self.heard = monotonic()
        size = _size(publication)
        self.link.session.send(publication)
        self.unanswered.append(publication)
        self.size += size
        self._unwritten += size
        if self._unwritten >= _WRITE:
            self._write()

    def take_answers(self) -> bool:
        """Take what was answered, if anything was; raise what ends the connection."""
        assert self.link is not None
        self._write()
        events = self.link.receive(0)
        for event in events:
            if isinstance(event, Published):
                self._acknowledged(self.unanswered.popleft())
            elif isinstance(event, CommandFailed):
                refused = self.unanswered[0] if self.unanswered else None
                raise _in_words(event.error, refused, self.address)
        return bool(events)

    def hang_up(self) -> list[Publication]:
        """End the connection; return what is unanswered."""
        if self.link is not None:
            self.link.close()
            self.link = None
        left = [*self.unanswered]
        self.unanswered.clear()
        self.size = self._unwritten = 0
        return left

    def _write(self) -> None:
        assert self.link is not None
        self._unwritten = 0
        self.link.write()

    def _acknowledged(self, publication: Publication) -> None:
        self.size -= _size(publication)
        self.messages += publication.count if isinstance(publication, PackedMpub) else 1
        self.heard = monotonic()
        self.failures = 0


def _size(publication: Publication) -> int:
    if isinstance(publication, PackedMpub):
        return len(publication.bodies)
    return len(publication.body)


def _in_words(error: ServerError, refused: Publication | None, address: str) -> ServerError:
    """Say what to do about an error, as far as it is known."""
    text = f"{error.text} (from {address})"
    if isinstance(refused, PackedMpub) and isinstance(error, BadMessageError):
        text += f": the largest has {refused.largest()} bytes, its -max-msg-size allows fewer"
    elif isinstance(refused, PackedMpub) and isinstance(error, BadBodyError):
        text += ": maxBatchBytes must not be above its -max-body-size"
    return type(error)(error.code, text)
