"""When an nsqd is dialled again, and when not; the schedule itself is in its own test."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from random import Random
from typing import Any, cast

import pytest

from nsqflow import News
from nsqflow.client.config import ConsumerConfig
from nsqflow.client.connection import Connection
from nsqflow.client.endpoint import Endpoint
from nsqflow.client.news import Newsroom
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
from tests.fixtures.loops import asynchronous, eventually

ADDRESS = "nsqd:4150"
REFUSED = NetworkError("refused")
LOST = NetworkError("lost")
INVALID = ServerError("E_INVALID", "no")


class NoChance(Random):
    """No chance: the longest delay, always."""

    def random(self) -> float:
        return 0.0


class Held:
    """A connection that ends when it is told to, or after so many seconds."""

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


class Trial:
    """An endpoint, what its dialling leads to, and what it says and waits for."""

    def __init__(self, fates: Iterable[NsqError | Held], **options: Any) -> None:
        self.news: list[News] = []
        self.dialled = 0
        self.changes = 0
        self._fates = iter(fates)
        config = ConsumerConfig(nsqd=(ADDRESS,), **options.pop("config", {}))
        options.setdefault("lasting", True)
        options.setdefault("random", NoChance())
        self.endpoint = Endpoint(
            ADDRESS, self._dial, config, Newsroom(self.news.append), changed=self._count, **options
        )

    @property
    def kinds(self) -> list[str]:
        return [news.kind for news in self.news]

    async def run(self) -> None:
        """Run it until the fates are used up, or to its end."""
        self.used_up = asyncio.Event()
        task = asyncio.create_task(self.endpoint.run())
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
        fate = next(self._fates, None)
        if isinstance(fate, NsqError):
            raise fate
        if fate is None:
            self.used_up.set()
        return cast(Connection, fate or Held())

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
async def test_one_given_by_the_user_is_tried_forever_and_ever_more_slowly(
    waited: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    trial = Trial([REFUSED] * 500)
    await trial.run()
    assert waited == [1, 2, 4, 8, 16, 32] + [60] * 494
    assert trial.dialled == 501
    assert trial.kinds == ["connect_failed"] * 500 + ["connected"]
    assert trial.news[0] == News("connect_failed", ADDRESS, "next try in 1.0 s", REFUSED)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings[0] == f"no connection to {ADDRESS}: refused; next try in 1.0 s"
    assert len(warnings) == 500


@asynchronous
async def test_a_connection_that_lasted_is_made_again_at_once(waited: list[float]) -> None:
    trial = Trial([Held(lasts=0.3)], config={"reconnect_delay": 0.2}, random=Random(5))
    await trial.run()
    assert trial.kinds == ["connected", "disconnected", "connect_failed", "connected"]
    assert trial.news[1] == News("disconnected", ADDRESS, "lost", LOST)
    assert 0 <= waited[0] <= 0.2


@asynchronous
async def test_one_that_throws_us_out_at_once_is_tried_ever_more_slowly(
    waited: list[float],
) -> None:
    trial = Trial([Held(lasts=0), Held(lasts=0), Held(lasts=0)])
    await trial.run()
    assert waited == [1, 2, 4]
    assert trial.endpoint.failures == 3


@asynchronous
async def test_one_that_throws_us_out_with_an_error_frame_is_tried_ever_more_slowly(
    waited: list[float],
) -> None:
    trial = Trial([Held(lasts=0, error=INVALID) for _ in range(5)])
    await trial.run()
    assert waited == [1, 2, 4, 8, 16]


@asynchronous
async def test_a_connection_closed_over_a_refused_command_is_made_again_at_once(
    waited: list[float],
) -> None:
    closed = [Held(lasts=0, error=INVALID, command_refused=True) for _ in range(5)]
    trial = Trial([REFUSED, *closed])
    await trial.run()
    assert waited == [1, 0, 0, 0, 0, 0]


@asynchronous
async def test_a_connection_that_lasts_makes_all_failures_forgotten(waited: list[float]) -> None:
    fates: list[NsqError | Held] = [REFUSED, REFUSED, Held(lasts=0.3), REFUSED]
    trial = Trial(fates, config={"reconnect_delay": 0.2})
    await trial.run()
    assert waited == [0.2, 0.4, 0, 0.2]


@asynchronous
async def test_one_that_waits_can_be_dialled_at_once() -> None:
    trial = Trial([REFUSED, REFUSED], config={"reconnect_delay": 60})
    endpoint = trial.endpoint
    endpoint.dial_now()  # nothing: it does not wait yet
    task = asyncio.create_task(endpoint.run())
    trial.used_up = asyncio.Event()
    await asyncio.sleep(0)
    planned = endpoint.retry_at
    assert planned is not None
    endpoint.dial_now()
    endpoint.dial_now()
    await eventually(lambda: trial.dialled == 2)
    await eventually(lambda: endpoint.retry_at is not None)
    assert endpoint.retry_at == planned, "the planned dial is not put off"
    endpoint.dial_now()
    await trial.used_up.wait()
    assert trial.dialled == 3
    task.cancel()
    await asyncio.wait([task])


# Named by nsqlookupd.


@asynchronous
async def test_one_named_by_nsqlookupd_is_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    trial = Trial([REFUSED, Held()], lasting=False)
    await trial.run()
    assert trial.dialled == 1
    assert trial.news == [News("connect_failed", ADDRESS, "waiting for nsqlookupd", REFUSED)]
    assert "waiting for nsqlookupd" in caplog.text
    assert trial.endpoint.ended


@asynchronous
async def test_one_named_by_nsqlookupd_is_not_tried_again_when_it_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trial = Trial([Held(lasts=0), Held()], lasting=False)
    await trial.run()
    assert (trial.dialled, trial.kinds) == (1, ["connected", "disconnected"])
    assert f"lost {ADDRESS} (lost); waiting for nsqlookupd" in caplog.text


# What no second try can mend.


@pytest.mark.parametrize(
    "error",
    [
        *(ConfigError("refused the options"), TlsNotGrantedError("no")),
        *(BadTopicError("E_BAD_TOPIC"), AuthFailedError("E_AUTH_FAILED")),
        UnauthorizedError("E_UNAUTHORIZED"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("lasting", [True, False])
@asynchronous
async def test_what_no_second_try_can_mend_is_raised(error: NsqError, lasting: bool) -> None:
    trial = Trial([error], lasting=lasting)
    with pytest.raises(type(error)):
        await trial.run()
    assert trial.dialled == 1
    assert trial.endpoint.ended


@asynchronous
async def test_what_a_second_try_may_mend_is_tried_again(waited: list[float]) -> None:
    trial = Trial([SubscribeFailedError("E_SUB_FAILED", "full"), REFUSED])
    await trial.run()
    assert trial.kinds == ["connect_failed", "connect_failed", "connected"]


@asynchronous
async def test_who_wants_to_tries_again_even_then(waited: list[float]) -> None:
    trial = Trial([ConfigError("no")], final=lambda _: False)
    await trial.run()
    assert trial.kinds == ["connect_failed", "connected"]


# What it shows meanwhile.


@asynchronous
async def test_it_tells_when_it_tries_again() -> None:
    trial = Trial([REFUSED])
    endpoint = trial.endpoint
    assert endpoint.retry_at is None
    task = asyncio.create_task(endpoint.run())
    await asyncio.sleep(0)
    now = asyncio.get_running_loop().time()
    assert endpoint.retry_at is not None
    assert now < endpoint.retry_at <= now + 1
    assert (endpoint.failures, endpoint.error) == (1, REFUSED)
    assert trial.changes == 1
    task.cancel()
    await asyncio.wait([task])
    assert (endpoint.ended, trial.changes) == (True, 2)


@asynchronous
async def test_it_shows_its_connection_as_long_as_it_has_one() -> None:
    held = Held()
    endpoint = Trial([held]).endpoint
    task = asyncio.create_task(endpoint.run())
    await asyncio.sleep(0)
    assert cast(object, endpoint.connection) is held
    task.cancel()
    await asyncio.wait([task])
    assert endpoint.connection is None
