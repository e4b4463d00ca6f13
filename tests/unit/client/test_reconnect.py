"""When an nsqd is dialled again, and when not; the schedule itself is in its own test."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from random import Random
from typing import Any, cast

import pytest

from nsqflow import ClientEvent
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.events import EventEmitter
from nsqflow.client.reconnect import Reconnector
from nsqflow.errors import (
    AuthFailedError,
    BadTopicError,
    ConfigError,
    NetworkError,
    NsqError,
    ServerError,
    SubscribeFailedError,
    TlsNotGrantedError,
    UnauthorizedError,
)
from nsqflow.transport.connection import Connection
from tests.fixtures.loops import asynchronous, eventually

ADDRESS = "nsqd:4150"
REFUSED = NetworkError("refused")
LOST = NetworkError("lost")
INVALID = ServerError("E_INVALID", "no")


class NoJitter(Random):
    """No jitter: always the longest delay."""

    def random(self) -> float:
        return 0.0


class FakeConnection:
    """A connection that ends when the test ends it, or after ``seconds``."""

    def __init__(
        self, lasts: float | None = None, error: NsqError = LOST, *, command_refused: bool = False
    ) -> None:
        self.command_refused = command_refused
        self._lasts = lasts
        self._error = error

    async def wait_ended(self) -> NsqError:
        if self._lasts is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(self._lasts)
        return self._error


class Dialling:
    """A reconnector with scripted dials, its events and its waits."""

    def __init__(self, results: Iterable[NsqError | FakeConnection], **options: Any) -> None:
        self.events: list[ClientEvent] = []
        self.dialled = 0
        self.changes = 0
        self._results = iter(results)
        config = ConsumerConfig(nsqd=(ADDRESS,), **options.pop("config", {}))
        options.setdefault("retry_forever", True)
        options.setdefault("random", NoJitter())
        self.reconnector = Reconnector(
            ADDRESS,
            self._dial,
            config,
            EventEmitter(self.events.append),
            changed=self._count,
            **options,
        )

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def run(self) -> None:
        """Run it until the results are used up, or to its end."""
        self.used_up = asyncio.Event()
        task = asyncio.create_task(self.reconnector.run())
        waiter = asyncio.create_task(self.used_up.wait())
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait([task, waiter])
        if not task.cancelled():
            task.result()

    async def _dial(self, address: str) -> Connection:
        assert address == ADDRESS
        self.dialled += 1
        result = next(self._results, None)
        if isinstance(result, NsqError):
            raise result
        if result is None:
            self.used_up.set()
        return cast(Connection, result or FakeConnection())

    def _count(self) -> None:
        self.changes += 1


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays before each dial, which take no time any more."""
    delays: list[float] = []
    timeout_at, thread = asyncio.timeout_at, threading.get_ident()

    def fake(when: float | None) -> asyncio.Timeout:
        if threading.get_ident() != thread:  # a broker of other tests, on a thread of its own
            return timeout_at(when)
        assert when is not None
        delays.append(round(when - asyncio.get_running_loop().time(), 1))
        return timeout_at(0)

    monkeypatch.setattr(asyncio, "timeout_at", fake)
    return delays


# Given by the user.


@pytest.mark.proves(rows=[18, 19], wishes=[10])
@asynchronous
async def test_one_given_by_the_user_is_dialled_forever_and_less_and_less_often(
    waited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    dialling = Dialling([REFUSED] * 500)
    await dialling.run()
    assert waited == [1, 2, 4, 8, 16, 32] + [60] * 494
    assert dialling.dialled == 501
    assert dialling.kinds == ["connect_failed"] * 500 + ["connected"]
    assert dialling.events[0] == ClientEvent(
        "connect_failed", ADDRESS, "next try in 1.0 s", REFUSED
    )
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings[0] == f"no connection to {ADDRESS}: refused; next try in 1.0 s"
    assert len(warnings) == 500


@asynchronous
async def test_a_connection_that_lasted_is_reopened_at_once(waited: list[float]) -> None:
    dialling = Dialling(
        [FakeConnection(lasts=0.3)], config={"reconnect_delay": 0.2}, random=Random(5)
    )
    await dialling.run()
    assert dialling.kinds == ["connected", "disconnected", "connect_failed", "connected"]
    assert dialling.events[1] == ClientEvent("disconnected", ADDRESS, "lost", LOST)
    assert 0 <= waited[0] <= 0.2


@asynchronous
async def test_one_that_closes_at_once_is_dialled_less_and_less_often(
    waited: list[float],
) -> None:
    dialling = Dialling([FakeConnection(lasts=0), FakeConnection(lasts=0), FakeConnection(lasts=0)])
    await dialling.run()
    assert waited == [1, 2, 4]
    assert dialling.reconnector.failures == 3


@asynchronous
async def test_one_that_closes_with_an_error_frame_is_dialled_less_and_less_often(
    waited: list[float],
) -> None:
    dialling = Dialling([FakeConnection(lasts=0, error=INVALID) for _ in range(5)])
    await dialling.run()
    assert waited == [1, 2, 4, 8, 16]


@asynchronous
async def test_a_connection_closed_over_a_refused_command_is_reopened_at_once(
    waited: list[float],
) -> None:
    closed = [FakeConnection(lasts=0, error=INVALID, command_refused=True) for _ in range(5)]
    dialling = Dialling([REFUSED, *closed])
    await dialling.run()
    assert waited == [1, 0, 0, 0, 0, 0]


@asynchronous
async def test_a_connection_that_lasts_makes_all_failures_forgotten(waited: list[float]) -> None:
    results: list[NsqError | FakeConnection] = [
        REFUSED,
        REFUSED,
        FakeConnection(lasts=0.3),
        REFUSED,
    ]
    dialling = Dialling(results, config={"reconnect_delay": 0.2})
    await dialling.run()
    assert waited == [0.2, 0.4, 0, 0.2]


@asynchronous
async def test_one_that_waits_can_be_dialled_at_once(caplog: pytest.LogCaptureFixture) -> None:
    dialling = Dialling([REFUSED, REFUSED], config={"reconnect_delay": 60})
    reconnector = dialling.reconnector
    reconnector.dial_now()  # nothing: it does not wait yet
    task = asyncio.create_task(reconnector.run())
    dialling.used_up = asyncio.Event()
    await asyncio.sleep(0)
    planned = reconnector.retry_at
    assert planned is not None
    reconnector.dial_now()
    reconnector.dial_now()
    await eventually(lambda: dialling.dialled == 2)
    await eventually(lambda: reconnector.retry_at is not None)
    assert reconnector.retry_at == planned, "the planned dial is not put off"
    reconnector.dial_now()
    await dialling.used_up.wait()
    assert dialling.dialled == 3
    assert caplog.text.count("no connection to") == 1, "the same reason is logged once"
    task.cancel()
    await asyncio.wait([task])


# Named by nsqlookupd.


@asynchronous
async def test_one_named_by_nsqlookupd_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    dialling = Dialling([REFUSED, FakeConnection()], retry_forever=False)
    await dialling.run()
    assert dialling.dialled == 1
    assert dialling.events == [
        ClientEvent("connect_failed", ADDRESS, "waiting for nsqlookupd", REFUSED)
    ]
    assert "waiting for nsqlookupd" in caplog.text
    assert dialling.reconnector.ended


@asynchronous
async def test_one_named_by_nsqlookupd_is_not_tried_again_when_it_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dialling = Dialling([FakeConnection(lasts=0), FakeConnection()], retry_forever=False)
    await dialling.run()
    assert (dialling.dialled, dialling.kinds) == (1, ["connected", "disconnected"])
    assert f"lost {ADDRESS} (lost); waiting for nsqlookupd" in caplog.text


# What no retry can fix.


@pytest.mark.parametrize(
    "error",
    [
        *(ConfigError("refused the options"), TlsNotGrantedError("no")),
        *(BadTopicError("E_BAD_TOPIC"), AuthFailedError("E_AUTH_FAILED")),
        UnauthorizedError("E_UNAUTHORIZED"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("retry_forever", [True, False])
@asynchronous
async def test_what_no_retry_can_fix_is_raised(error: NsqError, retry_forever: bool) -> None:
    dialling = Dialling([error], retry_forever=retry_forever)
    with pytest.raises(type(error)):
        await dialling.run()
    assert dialling.dialled == 1
    assert dialling.reconnector.ended


@asynchronous
async def test_an_error_that_a_retry_may_fix_is_retried(waited: list[float]) -> None:
    dialling = Dialling([SubscribeFailedError("E_SUB_FAILED", "full"), REFUSED])
    await dialling.run()
    assert dialling.kinds == ["connect_failed", "connect_failed", "connected"]


@asynchronous
async def test_a_final_error_is_retried_on_request(waited: list[float]) -> None:
    dialling = Dialling([ConfigError("no")], final=lambda _: False)
    await dialling.run()
    assert dialling.kinds == ["connect_failed", "connected"]


# What it shows meanwhile.


@asynchronous
async def test_it_logs_when_it_dials_again() -> None:
    dialling = Dialling([REFUSED])
    reconnector = dialling.reconnector
    assert reconnector.retry_at is None
    task = asyncio.create_task(reconnector.run())
    await asyncio.sleep(0)
    now = asyncio.get_running_loop().time()
    assert reconnector.retry_at is not None
    assert now < reconnector.retry_at <= now + 1
    assert (reconnector.failures, reconnector.error) == (1, REFUSED)
    assert dialling.changes == 1
    task.cancel()
    await asyncio.wait([task])
    assert (reconnector.ended, dialling.changes) == (True, 2)


@asynchronous
async def test_it_shows_its_connection_as_long_as_it_has_one() -> None:
    held = FakeConnection()
    reconnector = Dialling([held]).reconnector
    task = asyncio.create_task(reconnector.run())
    await asyncio.sleep(0)
    assert cast(object, reconnector.connection) is held
    task.cancel()
    await asyncio.wait([task])
    assert reconnector.connection is None
