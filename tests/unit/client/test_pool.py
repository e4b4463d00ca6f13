"""The producer's connections: which nsqd are dialled for what waits, and at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from nsqflow.client.config import ProducerConfig
from nsqflow.client.connection import Connection
from nsqflow.client.dial_order import MAX_DIALS
from nsqflow.client.news import Newsroom
from nsqflow.client.parcel import Parcel
from nsqflow.client.pool import Pool
from nsqflow.client.routes import DirectRoutes
from nsqflow.errors import AuthFailedError, NetworkError
from tests.fixtures.loops import asynchronous, eventually

Open = Callable[[str], Awaitable[None]]
A = "10.0.0.1:4150"


class Addresses(tuple[str, ...]):
    """Counts how often one of them is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        for address in super().__iter__():
            type(self).looks += 1
            yield address


class Looked(DirectRoutes):
    """Routes as nsqlookupd names them: each nsqd is dialled once."""

    lasting = False

    def name(self, *addresses: str) -> None:
        self._addresses = Addresses(addresses)


def pool_of(monkeypatch: pytest.MonkeyPatch, opened: Open) -> tuple[Pool, Looked]:
    """A pool with no nsqd yet, whose connections open as the function says."""

    async def fake(connection: Connection, *_: Any) -> None:
        await opened(connection.address)

    monkeypatch.setattr(Connection, "open", fake)
    monkeypatch.setattr("nsqflow.client.pool.DirectRoutes", Looked)
    pool = Pool(ProducerConfig(nsqd=(A,)), Newsroom(None))
    routes = pool._routes
    assert isinstance(routes, Looked)
    return pool, routes


def wait_in(pool: Pool, topic: str = "t") -> asyncio.Future[Any]:
    """Put a parcel in that waits for the end of the turn."""
    loop = asyncio.get_running_loop()
    parcel = Parcel(topic, loop.time() + 1000)
    parcel.add(b"x", outcome := loop.create_future())
    pool.outbox.put(parcel, at_once=False)
    return outcome


async def shut(pool: Pool) -> None:
    pool.outbox.abandon(NetworkError("closed"))
    await pool.close()


@asynchronous
async def test_thousands_of_refusing_addresses_are_not_all_looked_at_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = 0

    async def opened(address: str) -> None:
        nonlocal refused
        refused += 1
        raise NetworkError(f"{address}: refused")

    pool, routes = pool_of(monkeypatch, opened)
    outcome = wait_in(pool)
    await eventually(lambda: not pool._tasks)
    routes.name(*(f"10.0.{number // 250}.{number % 250}:4150" for number in range(1000)))
    Addresses.looks = refused = 0
    pool._found()
    await eventually(lambda: refused >= 1000 and not pool._tasks)
    assert Addresses.looks < 20 * 1000
    await shut(pool)
    assert isinstance(outcome.exception(), NetworkError)


@pytest.mark.parametrize(
    ("addresses", "final"),
    [
        ([], None),
        (["a:1", "b:1"], "E_AUTH_FAILED"),
        (["a:1", "c:1"], None),
        (["c:1", "a:1"], None),
    ],
)
@asynchronous
async def test_an_error_is_final_only_if_it_is_so_for_every_nsqd(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], final: str | None
) -> None:
    verdicts = {"a:1": "E_AUTH_FAILED", "b:1": "E_AUTH_DENIED"}

    async def opened(address: str) -> None:
        code = verdicts.get(address)
        raise NetworkError("refused") if code is None else AuthFailedError(code)

    pool, routes = pool_of(monkeypatch, opened)
    routes.name(*addresses)
    pool._found()
    await eventually(lambda: not pool._tasks)
    error = pool.final_error("t")
    assert (None if error is None else str(error)) == final
    await shut(pool)


@asynchronous
async def test_a_publish_while_a_dial_fails_has_the_next_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dials, outcomes = list[str](), list[asyncio.Future[Any]]()

    async def opened(address: str) -> None:
        dials.append(address)
        if len(dials) == 1:
            outcomes.append(wait_in(pool))
        raise NetworkError("refused")

    pool, _ = pool_of(monkeypatch, opened)
    for _ in range(10):
        await asyncio.sleep(0)
    assert dials == [A, A]
    await shut(pool)
    assert outcomes[0].exception() is not None


@asynchronous
async def test_an_nsqd_that_is_named_again_while_its_dial_is_given_up_is_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dials, go_on = list[str](), asyncio.Event()

    async def opened(address: str) -> None:
        dials.append(address)
        await go_on.wait()
        raise NetworkError("refused")

    pool, routes = pool_of(monkeypatch, opened)
    others = [f"10.1.0.{number}:4150" for number in range(MAX_DIALS)]
    go_on.set()
    await eventually(lambda: not pool._tasks)
    go_on.clear()
    dials.clear()
    routes.name(*others)
    pool._found()
    await eventually(lambda: len(dials) == MAX_DIALS)
    routes.name(*others, A)
    pool._found()
    await eventually(lambda: any(endpoint.queued for endpoint in pool._endpoints[A]))
    routes.name(*others)
    pool._found()
    routes.name(*others, A)
    pool._found()
    go_on.set()
    await eventually(lambda: not pool._tasks)
    assert A in dials
    await shut(pool)
