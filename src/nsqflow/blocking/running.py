"""Several consumers as one plain program: they run together and stop together."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Unpack

from nsqflow.blocking.consumer import Consumer, Handler, check_handler
from nsqflow.blocking.signals import stopping
from nsqflow.client.consumer import DRAIN_TIMEOUT
from nsqflow.client.options import ConsumerOptions
from nsqflow.client.stats import Drained
from nsqflow.errors import ConfigError

Key = tuple[str, str]


def run(
    handlers: Mapping[Key, Handler],
    *,
    nsqd: str | Iterable[str] = (),
    lookupd: str | Iterable[str] = (),
    concurrency: int = 1,
    signals: bool = True,
    auto_answer: bool = True,
    drain_timeout: float = DRAIN_TIMEOUT,
    **options: Unpack[ConsumerOptions],
) -> dict[Key, Drained]:
    """Consume several channels, each by its handler, until SIGINT or SIGTERM.

    ``handlers`` maps (topic, channel) to what handles its messages, on ``concurrency``
    threads each. When one ends by an error the others are drained, within ``drain_timeout``
    seconds, and it is raised.
    """
    if not handlers:
        raise ConfigError("no handlers; give at least one (topic, channel)")
    for handler in handlers.values():
        check_handler(handler)
    consumers = {
        (topic, channel): Consumer(topic, channel, nsqd=nsqd, lookupd=lookupd, **options)
        for topic, channel in handlers
    }

    def stop(number: signal.Signals) -> None:
        for consumer in consumers.values():
            consumer._stop(number)

    work = partial(_together, consumers, handlers, concurrency, auto_answer, drain_timeout)
    threads = [consumer._begin() for consumer in consumers.values()]  # the same for all
    try:
        with stopping(stop, wanted=signals):
            return threads[0].run(work)
    finally:
        for consumer in consumers.values():
            consumer._part()


async def _together(
    consumers: Mapping[Key, Consumer],
    handlers: Mapping[Key, Handler],
    concurrency: int,
    auto_answer: bool,
    drain_timeout: float,
) -> dict[Key, Drained]:
    clients = {key: consumer._client for key, consumer in consumers.items()}
    tasks = {
        key: asyncio.create_task(
            client.run(
                handlers[key],
                concurrency,
                signals=False,
                auto_answer=auto_answer,
                drain_timeout=drain_timeout,
            )
        )
        for key, client in clients.items()
    }
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await asyncio.gather(*(client.close(drain_timeout) for client in clients.values()))
        await asyncio.wait(tasks.values())
    return {key: task.result() for key, task in tasks.items()}
