"""Events that a client reports to its ``on_event`` callback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from nsqflow.errors import NsqError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Something that happened in the background of a producer or consumer.

    ``kind`` is one of ``connected``, ``connect_failed``, ``disconnected``, ``backoff``,
    ``resumed``, ``expired``, ``answer_failed``, ``answer_late``, ``gave_up``,
    ``lookup_failed``, ``uncertain``, ``leader_changed``, ``blocked``, ``order_violation``.
    """

    kind: str
    nsqd: str | None = None
    text: str = ""
    error: BaseException | None = None


class EventEmitter:
    """Calls the ``on_event`` callback; its exceptions are logged."""

    def __init__(self, callback: Callable[[ClientEvent], None] | None) -> None:
        self._callback = callback

    def emit(
        self, kind: str, nsqd: str | None = None, text: str = "", error: NsqError | None = None
    ) -> None:
        """Report an event, if there is a callback."""
        if self._callback is None:
            return
        try:
            self._callback(ClientEvent(kind, nsqd, text, error))
        except Exception:
            logger.exception("on_event raised on %s", kind)
