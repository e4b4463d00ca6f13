"""The texts of the client's errors: asserted here, elsewhere only class, option and value count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nsqflow import Consumer, Producer, blocking
from nsqflow.client.allowed_addresses import AllowedAddresses
from nsqflow.client.consumer.workers import make_workers
from nsqflow.client.producer.publish_batch import (
    check_bodies,
    check_body,
    timeout_error,
    uncertain_error,
)
from nsqflow.client.producer.semaphore import WeightedSemaphore
from nsqflow.client.run import check_handlers
from nsqflow.errors import BufferFullError, ConfigError, LocalProtocolError
from tests.fixtures.loops import asynchronous
from tests.unit.client.fakes import FakeSubscription


async def handle(message: object) -> None:
    """Do nothing."""


def consume(**options: Any) -> Consumer:
    return Consumer("orders", "ch", nsqd="127.0.0.1:4150", **options)


async def send(**arguments: Any) -> None:
    await Producer("127.0.0.1:4150").send(**{"topic": "t", "body": b"x"} | arguments)


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: consume(max_in_flight=0), "max_in_flight=0 is invalid: must be an integer >= 1"),
    (
        lambda: consume(dead_letter=7),
        "dead_letter=7 is invalid: must be a topic, a path or a function, or None",
    ),
    (
        lambda: consume(heartbeat_interval=-1),
        "heartbeat_interval=-1 is invalid for a Consumer: nsqd requires heartbeats to subscribe",
    ),
    (
        lambda: consume(snappy=True, deflate=True),
        "both snappy and deflate are set: choose one of them",
    ),
    (
        lambda: Consumer("orders", "ch"),
        "neither nsqd nor lookupd is given: give one of them",
    ),
    (lambda: consume().batches(0), "size=0 is invalid: must be an integer >= 1"),
    (
        lambda: AllowedAddresses(()),
        "allowed_addresses=() is invalid: must be one or more hosts or networks, as strings",
    ),
    (
        lambda: AllowedAddresses("10.0.0.0/33"),
        "allowed_addresses='10.0.0.0/33' is invalid: '10.0.0.0/33' must be a host name, an IP "
        "address or a network such as '10.0.0.0/8'",
    ),
    (
        lambda: make_workers(7, 1, True),  # type: ignore[arg-type]
        "handler=7 is invalid: must be callable with a message",
    ),
    (
        lambda: make_workers(handle, 0, True),
        "concurrency=0 is invalid: must be an integer >= 1",
    ),
    (lambda: check_handlers({}), "handlers={} is invalid: must map at least one (topic, channel)"),
    (
        lambda: check_body(b"", 10),
        "body of 0 bytes is invalid: must have 1 to 10 bytes (max_msg_size)",
    ),
    (lambda: check_body("text", 10, "body 3"), "body 3 is str: must be bytes"),
    (lambda: check_bodies(b"text", 10), "bodies is bytes: must be a list of bytes"),
    (
        lambda: FakeSubscription().message().requeue(-1),
        "delay=-1 is invalid: must be a number from 0 to 1000000000",
    ),
    (
        lambda: asyncio.run(send(delay=-1)),
        "delay=-1 is invalid: must be a number from 0 to 1000000000",
    ),
    (lambda: asyncio.run(send(timeout=0)), "timeout=0 is invalid: must be a number > 0"),
    (
        lambda: asyncio.run(send(key=b"k")),
        "key=b'k' is invalid: it is for topics of the redesigned NSQ; pass lookupd=",
    ),
]


@pytest.mark.parametrize(("call", "text"), CALLS, ids=[text[:30] for _, text in CALLS])
def test_an_invalid_value_is_named_with_what_is_allowed(
    call: Callable[[], object], text: str
) -> None:
    with pytest.raises((ConfigError, TypeError)) as raised:
        call()
    assert str(raised.value) == text


def test_a_handler_of_the_other_kind_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        blocking.Consumer("t", "ch", nsqd="127.0.0.1:1").run(handle)
    assert str(raised.value) == f"handler={handle!r} is async: use nsqflow.Consumer"


def test_an_answer_that_was_given_is_named() -> None:
    message = FakeSubscription().message()
    message.finish()
    with pytest.raises(LocalProtocolError) as raised:
        message.requeue()
    assert str(raised.value) == f"REQ for {message!r}, which was answered by FIN"


def test_a_closed_producer_is_named() -> None:
    @asynchronous
    async def publish() -> None:
        producer = Producer("127.0.0.1:4150")
        await producer.close()
        with pytest.raises(LocalProtocolError) as raised:
            producer.send("t", b"x")
        assert str(raised.value) == "the producer is closed"

    publish()


def test_what_became_of_a_publish_is_said() -> None:
    assert str(timeout_error("t", "no nsqd")) == "publish to 't' was not sent in time: no nsqd"
    text = "publish to 't' was sent to host:1, stored or not: closed by nsqd"
    assert str(uncertain_error("t", "host:1", "closed by nsqd")) == text


@asynchronous
async def test_a_full_buffer_is_described() -> None:
    semaphore = WeightedSemaphore(100, lambda _: None)
    assert semaphore.try_acquire(100)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(BufferFullError) as raised:
        semaphore.call_when_acquired(5, 1.0, future, lambda: None, wait=False)
    assert str(raised.value) == (
        "5 bytes do not fit: max_pending=100 bytes are pending; await futures of earlier messages, "
        "or publish()"
    )
    semaphore.call_when_acquired(5, 1.0, future, lambda: None)
    semaphore.expire(1.0)
    assert str(future.exception()) == (
        "publish of 5 bytes was not sent in time: max_pending=100 bytes are waiting already"
    )
