"""The producer's connections: which nsqd are dialled for what waits, and at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from nsqflow.client.events import EventEmitter
from nsqflow.client.producer.accumulator import Accumulator
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.pool import ConnectionPool
from nsqflow.client.producer.routing import LookupRouter
from nsqflow.errors import AuthFailedError, NetworkError
from nsqflow.transport.connection import Connection
from nsqflow.transport.dial_order import MAX_DIALS
from tests.fixtures.loops import asynchronous, eventually

Open = Callable[[str], Awaitable[None]]
A = "10.0.0.1:4150"


class Addresses(tuple[str, ...]):
    """Counts how often one of them is read."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        for address in super().__iter__():
            type(self).reads += 1
            yield address


class FakeRouter(LookupRouter):
    """Names the same nsqd for every topic, without nsqlookupd."""

    named = Addresses((A,))

    def name(self, *addresses: str) -> None:
        self.named = Addresses(addresses)

    def addresses(self, topic: str) -> tuple[str, ...]:
        return self.named

    def all_addresses(self) -> set[str]:
        return set(self.named)


def pool_of(
    monkeypatch: pytest.MonkeyPatch, opened: Open
) -> tuple[ConnectionPool, FakeRouter, Accumulator]:
    """Return a pool whose connections open as the function says."""

    async def fake(connection: Connection, *_: Any) -> None:
        await opened(connection.address)

    monkeypatch.setattr(Connection, "open", fake)
    monkeypatch.setattr("nsqflow.client.producer.pool.LookupRouter", FakeRouter)
    config, events = ProducerConfig(lookupd=("127.0.0.1:4161",)), EventEmitter(None)
    pool = ConnectionPool(config, events)
    accumulator = Accumulator(config, pool, events)
    router = pool._router
    assert isinstance(router, FakeRouter)
    return pool, router, accumulator


@asynchronous
async def test_thousands_of_refusing_addresses_are_not_all_read_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = 0

    async def opened(address: str) -> None:
        nonlocal refused
        refused += 1
        raise NetworkError(f"{address}: refused")

    pool, router, accumulator = pool_of(monkeypatch, opened)
    future = accumulator.send("t", b"x", 1000)
    await eventually(lambda: not pool._tasks)
    router.name(*(f"10.0.{number // 250}.{number % 250}:4150" for number in range(1000)))
    Addresses.reads = refused = 0
    pool.update_addresses()
    await eventually(lambda: refused >= 1000 and not pool._tasks)
    assert Addresses.reads < 20 * 1000
    await accumulator.close(NetworkError("closed"))
    assert isinstance(future.exception(), NetworkError)


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

    pool, router, accumulator = pool_of(monkeypatch, opened)
    router.name(*addresses)
    pool.update_addresses()
    await eventually(lambda: not pool._tasks)
    error = pool.unreachable_error("t")
    assert (None if error is None else str(error)) == final
    await accumulator.close(NetworkError("closed"))


@asynchronous
async def test_a_publish_while_a_dial_fails_has_the_next_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dials, futures = list[str](), list[asyncio.Future[Any]]()

    async def opened(address: str) -> None:
        dials.append(address)
        if len(dials) == 1:
            futures.append(accumulator.send("t", b"x", 1000))
        raise NetworkError("refused")

    _, _, accumulator = pool_of(monkeypatch, opened)
    for _ in range(10):
        await asyncio.sleep(0)
    assert dials == [A, A]
    await accumulator.close(NetworkError("closed"))
    assert futures[0].exception() is not None


@asynchronous
async def test_an_nsqd_that_is_named_again_while_its_dial_is_given_up_is_dialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dials, go_on = list[str](), asyncio.Event()

    async def opened(address: str) -> None:
        dials.append(address)
        await go_on.wait()
        raise NetworkError("refused")

    pool, router, accumulator = pool_of(monkeypatch, opened)
    others = [f"10.1.0.{number}:4150" for number in range(MAX_DIALS)]
    go_on.set()
    await eventually(lambda: not pool._tasks)
    go_on.clear()
    dials.clear()
    router.name(*others)
    pool.update_addresses()
    await eventually(lambda: len(dials) == MAX_DIALS)
    router.name(*others, A)
    pool.update_addresses()
    await eventually(lambda: any(reconnector.queued for reconnector in pool._reconnectors[A]))
    router.name(*others)
    pool.update_addresses()
    router.name(*others, A)
    pool.update_addresses()
    go_on.set()
    await eventually(lambda: not pool._tasks)
    assert A in dials
    await accumulator.close(NetworkError("closed"))
