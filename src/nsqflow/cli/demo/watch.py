"""Watching the demo: from the first visitor until the last result is back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqflow.cli.demo.progress import Progress
from nsqflow.cli.errors import Failure

if TYPE_CHECKING:
    from nsqflow.cli.demo.live import View
    from nsqflow.cli.demo.site import Site
    from nsqflow.cli.signals import Signals
    from nsqflow.pipelines.running import Running

_TICK = 0.25  # seconds between two looks
_STILL = 15.0  # seconds without a batch, after which no message will come any more
_STUCK = 120.0  # seconds without a batch while messages are published
_SETTLING = 30.0  # seconds for the last results to come back, and for NSQ to get rid of all


class Watch:
    """Lets the visitors in when Spark is ready, and shows how it goes."""

    def __init__(self, site: Site, view: View, signals: Signals) -> None:
        self.site = site
        self.view = view
        self.signals = signals
        self.picture = ""
        """The screen of half-time, as SVG."""

    def follow(self, running: Running, sinks: Sequence[str]) -> Progress:
        """Watch until all that was published has been through all queries, or a signal comes."""
        progress = Progress(self.site, sinks)
        last = time.monotonic()
        while not (self.signals.number or progress.is_done() or self._is_still(running, last)):
            for batch in running.news():
                progress.add(batch)
                last = time.monotonic()
            self._check(running)
            self._open_when_ready(progress)
            self._show(progress)
            time.sleep(_TICK)
        self._settle(running, progress)
        self._show(progress)
        return progress

    def _open_when_ready(self, progress: Progress) -> None:
        # The first batch of a query is empty, and takes longest.
        if not self.site.begun and all(progress.batches.values()):
            self.site.open()

    def _is_still(self, running: Running, last: float) -> bool:
        """Whether nothing comes any more: what is missing then, the account tells."""
        idle = time.monotonic() - last
        if idle < _STILL or running.is_busy():
            return False
        if not self.site.is_over and idle > _STUCK:
            raise Failure(f"there was no batch for {idle:.0f} s", "--debug tells more")
        return self.site.is_over

    def _check(self, running: Running) -> None:
        if self.site.error:  # first: if the broker is gone, the queries fail as well
            raise self.site.error
        running.check()

    def _show(self, progress: Progress) -> None:
        from nsqflow.cli.demo.live import draw

        if not self.site.begun:
            return
        progress.mark(time.monotonic())
        self.view.show(progress)
        if not self.picture and progress.passed >= self.site.seconds / 2:
            self.picture = draw(progress)

    def _settle(self, running: Running, progress: Progress) -> None:
        """Wait for the last results; then let Spark end the batches in which it cleans up.

        To break one off would be an error to it. What does not come, the account tells.
        """
        deadline = time.monotonic() + _SETTLING
        while not (self.signals.number or progress.is_settled() or time.monotonic() > deadline):
            self._check(running)
            time.sleep(_TICK)
        if self.signals.number:
            return
        running.end()
        while running.is_busy() and not self.signals.number:
            self._check(running)
            time.sleep(_TICK)
