"""Stop signals as callbacks, in a loop and in plain code; handlers are restored."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from signal import SIGINT, SIGTERM

import pytest

from nsqflow.signals import (
    STOP_SIGNALS,
    RepeatedSignals,
    SignalRecorder,
    handle_signals,
    handle_signals_in_loop,
)
from tests.fixtures.loops import asynchronous, eventually


def test_the_same_signal_a_moment_later_is_the_same_request() -> None:
    now = [10.0]
    signals = RepeatedSignals(lambda: now[0])
    assert not signals.is_repeated(SIGTERM)
    assert signals.is_repeated(SIGTERM)
    now[0] += 0.2
    assert signals.is_repeated(SIGTERM)
    now[0] += 0.2
    assert not signals.is_repeated(SIGTERM)


def test_another_signal_is_another_request() -> None:
    signals = RepeatedSignals(lambda: 10.0)
    assert not signals.is_repeated(SIGTERM)
    assert not signals.is_repeated(SIGINT)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


def test_plain_code_is_called_for_each_signal_and_handlers_are_restored() -> None:
    before = handlers()
    received: list[signal.Signals] = []
    with handle_signals(received.append):
        os.kill(os.getpid(), SIGTERM)
        os.kill(os.getpid(), SIGTERM)  # the same request
        os.kill(os.getpid(), SIGINT)
    assert received == [SIGTERM, SIGINT]
    assert handlers() == before


@pytest.mark.parametrize("where", ["disabled", "another thread"])
def test_signals_are_left_alone(where: str) -> None:
    before, during = handlers(), list[object]()

    def block() -> None:
        with handle_signals(lambda _: None, enabled=where != "disabled"):
            during.extend(handlers())

    if where == "another thread":
        thread = threading.Thread(target=block)
        thread.start()
        thread.join()
    else:
        block()
    assert during == before


@asynchronous
async def test_the_loops_own_handler_is_restored() -> None:
    loop, before = asyncio.get_running_loop(), signal.getsignal(SIGTERM)
    own: list[str] = []
    received: list[signal.Signals] = []
    loop.add_signal_handler(SIGTERM, own.append, "own")
    try:
        with handle_signals_in_loop(received.append, signals=(SIGTERM,)):
            signal.raise_signal(SIGTERM)
            await eventually(lambda: received == [SIGTERM])
        assert own == []
        signal.raise_signal(SIGTERM)
        await eventually(lambda: own == ["own"])
        assert received == [SIGTERM]
    finally:
        loop.remove_signal_handler(SIGTERM)
        signal.signal(SIGTERM, before)


def test_asyncio_keeps_its_handlers_where_they_are_read() -> None:
    """The private names of asyncio that nsqflow.signals relies on."""
    loop = asyncio.SelectorEventLoop()
    before = signal.getsignal(SIGTERM)
    try:
        loop.add_signal_handler(SIGTERM, print, "x")
        handle = loop._signal_handlers[SIGTERM]  # type: ignore[attr-defined]
        assert (handle._callback, handle._args) == (print, ("x",))
    finally:
        loop.remove_signal_handler(SIGTERM)
        loop.close()
        signal.signal(SIGTERM, before)


class Terminated(BaseException):
    """What a command raises on SIGTERM."""


def test_a_recorder_raises_first_and_records_later() -> None:
    before, now = handlers(), [10.0]
    with SignalRecorder(Terminated, lambda: now[0]) as signals:
        with pytest.raises(Terminated):
            signal.raise_signal(SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(SIGINT)
        signal.raise_signal(SIGINT)  # the same request: what the first one raised is cleaning up
        now[0] += 1
        signals.start_recording()
        signals.raise_recorded()
        signal.raise_signal(SIGTERM)
        signal.raise_signal(SIGTERM)  # the same request
        assert (signals.number, signals.urgent) == (SIGTERM, False)
        now[0] += 1
        signal.raise_signal(SIGINT)
        assert (signals.number, signals.urgent) == (SIGTERM, True)
        with pytest.raises(Terminated):
            signals.raise_recorded()
    assert handlers() == before
