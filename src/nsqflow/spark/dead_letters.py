"""Dead letters: messages that were delivered too often, published to a topic of their own."""

from __future__ import annotations

from time import monotonic

from nsqflow.errors import NetworkError
from nsqflow.protocol import CommandFailed, Mpub, Published
from nsqflow.spark.link import Link
from nsqflow.spark.options import Access

_MAX_BODY = 1024 * 1024  # bytes in one command, unless a single message is larger
_TIMEOUT = 30.0


class DeadLetters:
    """Publishes to the nsqd that the messages came from; returns once it has them."""

    def __init__(self, nsqd: str, access: Access, topic: str) -> None:
        self._topic = topic
        self._link = Link.open(nsqd, access)

    def publish(self, bodies: list[bytes]) -> None:
        """Publish all of them; who asks then finishes them."""
        batch: list[bytes] = []
        size = 0
        for body in bodies:
            if batch and size + len(body) > _MAX_BODY:
                self._publish(batch)
                batch, size = [], 0
            batch.append(body)
            size += len(body)
        if batch:
            self._publish(batch)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def _publish(self, batch: list[bytes]) -> None:
        self._link.send(Mpub(self._topic, batch))
        deadline = monotonic() + _TIMEOUT
        while (left := deadline - monotonic()) > 0:
            for event in self._link.receive(left):
                if type(event) is Published:
                    return
                if type(event) is CommandFailed:
                    raise event.error
        raise NetworkError(f"{self._link.address}: dead letters not answered in {_TIMEOUT:g} s")
