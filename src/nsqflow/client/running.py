"""Several consumers as one program: they run together and stop together."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from typing import Unpack

from nsqflow.client.consumer import DRAIN_TIMEOUT, Consumer
from nsqflow.client.options import ConsumerOptions
from nsqflow.client.signals import stopping
from nsqflow.client.stats import Drained
from nsqflow.client.workers import Handler
from nsqflow.errors import ConfigError


async def run(
    handlers: Mapping[tuple[str, str], Handler],
    *,
    nsqd: str | Iterable[str] = (),
    lookupd: str | Iterable[str] = (),
    concurrency: int = 1,
    signals: bool = True,
    auto_answer: bool = True,
    drain_timeout: float = DRAIN_TIMEOUT,
    **options: Unpack[ConsumerOptions],
) -> dict[tuple[str, str], Drained]:
    """Consume several channels, each by its handler, until SIGINT or SIGTERM.

    ``handlers`` maps (topic, channel) to what handles its messages. When one ends by an
    error the others are drained, within ``drain_timeout`` seconds, and it is raised.
    """
    if not handlers:
        raise ConfigError("no handlers; give at least one (topic, channel)")
    consumers = {
        (topic, channel): Consumer(topic, channel, nsqd=nsqd, lookupd=lookupd, **options)
        for topic, channel in handlers
    }
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

    def stop(number: signal.Signals) -> None:
        for consumer in consumers.values():
            consumer._stop(number)

    with stopping(stop, wanted=signals):
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # cancelled: so are the handlers
            for task in tasks.values():
                task.cancel()
            raise
        finally:
            await asyncio.gather(
                *(consumer.close(drain_timeout) for consumer in consumers.values())
            )
            await asyncio.wait(tasks.values())
            errors = [task.exception() for task in tasks.values() if not task.cancelled()]
    for error in filter(None, errors):
        raise error
    return {key: task.result() for key, task in tasks.items()}
