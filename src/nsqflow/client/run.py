"""Runs several consumers as one program: they start and stop together."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from typing import Unpack

from nsqflow.client.consumer.consumer import DRAIN_TIMEOUT, Consumer
from nsqflow.client.consumer.stats import DrainResult
from nsqflow.client.consumer.workers import Handler
from nsqflow.client.options import ConsumerOptions
from nsqflow.errors import ConfigError
from nsqflow.signals import handle_signals_in_loop

Key = tuple[str, str]
"""Topic and channel."""


async def run(
    handlers: Mapping[Key, Handler],
    *,
    nsqd: str | Iterable[str] = (),
    lookupd: str | Iterable[str] = (),
    concurrency: int = 1,
    signals: bool = True,
    auto_answer: bool = True,
    drain_timeout: float = DRAIN_TIMEOUT,
    **options: Unpack[ConsumerOptions],
) -> dict[Key, DrainResult]:
    """Consume several channels, each with its handler, until SIGINT or SIGTERM.

    ``handlers`` maps (topic, channel) to a handler. When one consumer fails, the others are
    drained within ``drain_timeout`` seconds, and its error is raised.
    """
    check_handlers(handlers)
    consumers = {
        (topic, channel): Consumer(topic, channel, nsqd=nsqd, lookupd=lookupd, **options)
        for topic, channel in handlers
    }

    def stop(number: signal.Signals) -> None:
        for consumer in consumers.values():
            consumer.stop(number)

    with handle_signals_in_loop(stop, enabled=signals):
        return await run_consumers(
            consumers,
            handlers,
            concurrency=concurrency,
            auto_answer=auto_answer,
            drain_timeout=drain_timeout,
        )


async def run_consumers(
    consumers: Mapping[Key, Consumer],
    handlers: Mapping[Key, Handler],
    *,
    concurrency: int,
    auto_answer: bool,
    drain_timeout: float,
) -> dict[Key, DrainResult]:
    """Run each consumer with its handler until one of them ends, then close the others."""
    tasks = {
        key: asyncio.create_task(
            consumer.run(
                handlers[key],
                concurrency,
                signals=False,
                auto_answer=auto_answer,
                drain_timeout=drain_timeout,
            )
        )
        for key, consumer in consumers.items()
    }
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
    except BaseException:  # cancelled: so are the handlers
        for task in tasks.values():
            task.cancel()
        raise
    finally:
        await asyncio.gather(*(consumer.close(drain_timeout) for consumer in consumers.values()))
        await asyncio.wait(tasks.values())
        errors = [task.exception() for task in tasks.values() if not task.cancelled()]
    for error in filter(None, errors):
        raise error
    return {key: task.result() for key, task in tasks.items()}


def check_handlers(handlers: Mapping[Key, object]) -> None:
    """Raise if there is no handler."""
    if not handlers:
        raise ConfigError("handlers={} is invalid: must map at least one (topic, channel)")
