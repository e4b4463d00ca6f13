"""Drives the demo: from the first message until the last result is back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqflow.cli.demo.display import DemoProgress, draw
from nsqflow.cli.errors import CommandError

if TYPE_CHECKING:
    from nsqflow.cli.demo.display import Display
    from nsqflow.cli.demo.workload import Workload
    from nsqflow.pipelines.runner import PipelineRun
    from nsqflow.signals import SignalRecorder

_TICK = 0.25  # seconds between two polls
_IDLE_TIMEOUT = 15.0  # seconds without a batch before the end is assumed
_STALL_TIMEOUT = 120.0  # seconds without a batch while messages are published
_SETTLE_TIMEOUT = 30.0  # seconds for the last results to arrive and NSQ to be empty


class DemoRunner:
    """Starts the workload once Spark is ready, and shows the progress."""

    def __init__(self, workload: Workload, view: Display, signals: SignalRecorder) -> None:
        self.workload = workload
        self.view = view
        self.signals = signals
        self.picture = ""
        """The screen in the middle of the run, as SVG."""

    def follow(self, running: PipelineRun, sinks: Sequence[str]) -> DemoProgress:
        """Wait until every query has read everything, or a signal arrives."""
        progress = DemoProgress(self.workload, sinks)
        last = time.monotonic()
        while not (self.signals.number or progress.is_done() or self._is_still(running, last)):
            for batch in running.new_batches():
                progress.add(batch)
                last = time.monotonic()
            self._check(running)
            self._open_when_ready(progress)
            self._show(progress)
            time.sleep(_TICK)
        self._settle(running, progress)
        self._show(progress)
        return progress

    def _open_when_ready(self, progress: DemoProgress) -> None:
        # The first batch of a query is empty and the slowest.
        if not self.workload.begun and all(progress.batches.values()):
            self.workload.open()

    def _is_still(self, running: PipelineRun, last: float) -> bool:
        """Return whether no more batches are expected; the report lists what is missing."""
        idle = time.monotonic() - last
        if idle < _IDLE_TIMEOUT or running.is_busy():
            return False
        if not self.workload.is_over and idle > _STALL_TIMEOUT:
            raise CommandError(f"there was no batch for {idle:.0f} s", "--debug shows more")
        return self.workload.is_over

    def _check(self, running: PipelineRun) -> None:
        if self.workload.error:  # first: if the broker fails, the queries fail as well
            raise self.workload.error
        running.check()

    def _show(self, progress: DemoProgress) -> None:
        if not self.workload.begun:
            return
        progress.mark(time.monotonic())
        self.view.show(progress)
        if not self.picture and progress.passed >= self.workload.seconds / 2:
            self.picture = draw(progress)

    def _settle(self, running: PipelineRun, progress: DemoProgress) -> None:
        """Wait for the last results, then for the batches in which Spark cleans up.

        Interrupting such a batch would be an error. The report lists what is missing.
        """
        deadline = time.monotonic() + _SETTLE_TIMEOUT
        while not (self.signals.number or progress.is_settled() or time.monotonic() > deadline):
            self._check(running)
            time.sleep(_TICK)
        if self.signals.number:
            return
        running.end()
        while running.is_busy() and not self.signals.number:
            self._check(running)
            time.sleep(_TICK)
