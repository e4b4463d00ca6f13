"""Publishes to several nsqd at once, from one thread.

Commands go to the nsqd in turn, several to each before its first response. Commands that a lost
connection leaves without a response go to the next nsqd: they may be stored twice, but are never
lost. An nsqd that failed is tried again later.
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
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from nsqflow.spark.sink.encoder import PackedMpub
from nsqflow.transport.sync_connection import SyncConnection, wait_for_any

logger = logging.getLogger(__name__)

Publication = PackedMpub | Dpub

_MAX_PENDING_PER_NSQD = 4 * 1024 * 1024  # bytes of bodies sent to one nsqd without a response
_MAX_PENDING = 16 * 1024 * 1024  # the same, for all nsqd together
_MIN_WRITE = 64 * 1024  # bytes that are worth a write
_CONNECT_TIMEOUT = 5.0
_FIRST_CONNECT_TIMEOUT = 3.0  # for an nsqd that has not failed yet: a dead one is reported soon
_SHORT_CONNECT_TIMEOUT = 1.0
_SLOW_RESPONSE = 3.0  # seconds without a response after which a warning is logged
_MIN_WAIT, _MAX_WAIT = 0.25, 10.0  # seconds until an nsqd that failed is tried again

# Another nsqd, or the same one later, may accept the command.
_RETRIABLE = (
    NetworkError,
    RemoteProtocolError,
    PublishFailedError,
    MultiPublishFailedError,
    DeferredPublishFailedError,
)


class Publisher:
    """Publishes commands; nsqd has stored all of them when ``finish()`` returns.

    An error is raised after ``give_up_after`` seconds without a response from any nsqd. One nsqd's
    connection is considered lost after ``response_timeout`` seconds without a response from it.
    """

    def __init__(
        self,
        nsqd: Iterable[str],
        access: Access,
        *,
        give_up_after: float = 60.0,
        response_timeout: float = 30.0,
    ) -> None:
        # Shuffled, so that tasks don't all begin with the same nsqd. (Spark forks its workers,
        # which would share the state of an ordinary generator.)
        addresses = list(dict.fromkeys(nsqd))
        SystemRandom().shuffle(addresses)
        self._nodes = deque(_NsqdConnection(address) for address in addresses)
        self._access = access
        self._give_up_after = give_up_after
        self._response_timeout = response_timeout
        self._waiting: deque[Publication] = deque()
        self._answered = 0.0  # when the last response arrived, or the wait for it began

    @property
    def acknowledged(self) -> dict[str, int]:
        """The number of messages that each nsqd has acknowledged, without zeros."""
        return {node.address: node.messages for node in self._nodes if node.messages}

    def publish(self, publication: Publication) -> None:
        """Send a command; wait while too many bytes have no response."""
        self._answered = monotonic()
        self._waiting.append(publication)
        self._dispatch()
        while self._waiting:
            self._step()

    def finish(self) -> None:
        """Wait until everything is acknowledged."""
        self._answered = monotonic()
        while self._waiting or any(node.unanswered for node in self._nodes):
            self._step()

    def close(self) -> None:
        """Close the connections; what is not acknowledged may be stored or not."""
        for node in self._nodes:
            node.close()

    # Private methods

    @property
    def _full(self) -> bool:
        return sum(node.size for node in self._nodes) >= _MAX_PENDING

    def _dispatch(self) -> None:
        """Send waiting commands to connections that are not full."""
        while self._waiting and (node := self._next_free()) is not None:
            node.send(self._waiting.popleft())

    def _next_free(self) -> _NsqdConnection | None:
        """Return the next connection in turn that is open and not full."""
        if self._full:
            return None
        for _ in range(len(self._nodes)):
            node = self._nodes[0]
            self._nodes.rotate(-1)
            if node.size < _MAX_PENDING_PER_NSQD and self._connected(node):
                return node
        return None

    def _connected(self, node: _NsqdConnection) -> bool:
        if node.link is None and monotonic() >= node.retry_at:
            try:
                # The others wait meanwhile: an nsqd that hangs must not delay them much.
                alone = all(other.link is None for other in self._nodes)
                timeout = _CONNECT_TIMEOUT if node.failures else _FIRST_CONNECT_TIMEOUT
                timeout = timeout if alone else _SHORT_CONNECT_TIMEOUT
                node.link = connect(node.address, self._access, timeout=timeout)
            except NsqError as error:
                self._failed(node, error)
        return node.link is not None

    def _step(self) -> None:
        """Write and read without blocking, or wait until that is possible."""
        changes = [self._receive(node) for node in self._nodes if node.link is not None]
        if not any(changes):
            self._check_progress()
            links = [node.link for node in self._nodes if node.link is not None]
            wait_for_any(links, self._longest_wait())
        self._dispatch()

    def _receive(self, node: _NsqdConnection) -> bool:
        """Process the responses of one nsqd; return whether anything has changed."""
        try:
            if node.receive_acks():
                self._answered = node.heard_at
                return True
            if node.unanswered:
                self._check_response(node)
        except NsqError as error:
            self._failed(node, error)
            return True
        return False

    def _check_response(self, node: _NsqdConnection) -> None:
        """Log an nsqd that is slow to respond, once; raise after ``response_timeout``."""
        quiet = monotonic() - node.heard_at
        if quiet >= self._response_timeout:
            raise NetworkError(f"{node.address}: no answer within {self._response_timeout:g} s")
        if quiet >= _SLOW_RESPONSE and not node.is_slow:
            node.is_slow = True
            logger.warning(
                "the sink waits for nsqd %s: no answer to %d commands for %.0f s; it waits up to "
                "%g s, and then tries again",
                node.address,
                len(node.unanswered),
                quiet,
                self._response_timeout,
            )

    def _failed(self, node: _NsqdConnection, error: NsqError) -> None:
        if not isinstance(error, _RETRIABLE) or isinstance(error, TlsNotGrantedError):
            raise error
        left = node.close()
        self._waiting.extendleft(reversed(left))
        node.error = error
        wait = min(_MAX_WAIT, _MIN_WAIT * 2.0 ** min(node.failures, 10))
        node.failures += 1
        node.retry_at = monotonic() + wait
        logger.warning(
            "the sink can't publish to nsqd %s; %d commands unanswered, next try in %g s; the task "
            "fails when no nsqd answers for %g s",
            error,
            len(left),
            wait,
            self._give_up_after,
        )

    def _check_progress(self) -> None:
        if monotonic() - self._answered >= self._give_up_after:
            reasons = "; ".join(
                str(node.error or f"{node.address}: no answer") for node in self._nodes
            )
            raise NetworkError(
                f"no nsqd has acknowledged anything for {self._give_up_after:g} s: {reasons}"
            )

    def _longest_wait(self) -> float:
        """Return the seconds until something is due that no connection signals."""
        times = [self._answered + self._give_up_after]
        times += [
            node.heard_at
            + (
                self._response_timeout
                if node.is_slow
                else min(_SLOW_RESPONSE, self._response_timeout)
            )
            for node in self._nodes
            if node.unanswered
        ]
        if self._waiting and not self._full:
            times += [node.retry_at for node in self._nodes if node.link is None]
        return max(0.0, min(times) - monotonic())


class _NsqdConnection:
    """One nsqd: its connection, and the commands without a response."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: SyncConnection | None = None
        self.unanswered: deque[Publication] = deque()
        self.size = 0  # bytes of their bodies
        self.messages = 0  # acknowledged ones
        self.heard_at = 0.0  # the last response, or the first command without one
        self.is_slow = False  # a warning was logged
        self.failures = 0  # in a row
        self.retry_at = 0.0
        self.error: NsqError | None = None  # the last one
        self._unwritten = 0  # bytes that the session has queued since the last write

    def send(self, publication: Publication) -> None:
        """Queue a command, and write if that is worth it; ``receive_acks`` writes too."""
        assert self.link is not None
        if not self.unanswered:
            self.heard_at = monotonic()
        size = _size(publication)
        self.link.session.send(publication)
        self.unanswered.append(publication)
        self.size += size
        self._unwritten += size
        if self._unwritten >= _MIN_WRITE:
            self._write()

    def receive_acks(self) -> bool:
        """Process responses and return whether there were any; raise what ends the connection."""
        assert self.link is not None
        self._write()
        events = self.link.receive(0)
        for event in events:
            if isinstance(event, Published):
                self._acknowledged(self.unanswered.popleft())
            elif isinstance(event, CommandFailed):
                refused = self.unanswered[0] if self.unanswered else None
                raise _with_hint(event.error, refused, self.address)
        return bool(events)

    def close(self) -> list[Publication]:
        """Close the connection; return the commands without a response."""
        if self.link is not None:
            self.link.close()
            self.link = None
        left = [*self.unanswered]
        self.unanswered.clear()
        self.size = self._unwritten = 0
        self.is_slow = False
        return left

    def _write(self) -> None:
        assert self.link is not None
        self._unwritten = 0
        self.link.write()

    def _acknowledged(self, publication: Publication) -> None:
        self.size -= _size(publication)
        self.messages += publication.count if isinstance(publication, PackedMpub) else 1
        self.heard_at = monotonic()
        self.is_slow = False
        self.failures = 0


def _size(publication: Publication) -> int:
    if isinstance(publication, PackedMpub):
        return len(publication.bodies)
    return len(publication.body)


def _with_hint(error: ServerError, refused: Publication | None, address: str) -> ServerError:
    """Return the error, with a hint about the option to change if it is known."""
    text = f"{error.text} (from {address})"
    if isinstance(refused, PackedMpub) and isinstance(error, BadMessageError):
        text += f": the largest has {refused.largest()} bytes, its -max-msg-size allows fewer"
    elif isinstance(refused, PackedMpub) and isinstance(error, BadBodyError):
        text += ": maxBatchBytes must not be above its -max-body-size"
    return type(error)(error.code, text)
