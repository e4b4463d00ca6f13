"""News: what a client tells its ``on_event`` callback, apart from raising and returning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from nsqflow.errors import NsqError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened to a producer or consumer on its own.

    ``kind`` is one of ``connected``, ``connect_failed``, ``disconnected``, ``backoff``,
    ``resumed``, ``expired``, ``answer_failed``, ``answer_late``, ``gave_up``,
    ``lookup_failed``, ``uncertain``.
    """

    kind: str
    nsqd: str | None = None
    text: str = ""
    error: BaseException | None = None


class Newsroom:
    """Passes news on to the callback, whatever that does."""

    def __init__(self, callback: Callable[[News], None] | None) -> None:
        self._callback = callback

    def tell(
        self, kind: str, nsqd: str | None = None, text: str = "", error: NsqError | None = None
    ) -> None:
        """Call the callback, if there is one; what it raises is logged."""
        if self._callback is None:
            return
        try:
            self._callback(News(kind, nsqd, text, error))
        except Exception:
            logger.exception("on_event raised on %s", kind)
