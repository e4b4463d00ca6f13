"""Draining: how a consumer takes leave of its nsqd and leaves no message in limbo.

nsqd would keep what a vanished client had in flight until its timeout, and count it as an
attempt; so everything is answered before the connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqflow.client.stats import Drained
from nsqflow.errors import NsqError

if TYPE_CHECKING:
    from nsqflow.client.intake import Intake
    from nsqflow.client.subscription import Subscription

logger = logging.getLogger(__name__)

_STRAGGLERS = 0.05  # seconds in which a message may still come after CLOSE_WAIT
_LAST_WORD = 2.0  # seconds for CLOSE_WAIT, and for nsqd to close its side


async def drain(intake: Intake, timeout: float) -> Drained:
    """Take no more, wait for what is in hands, give back the rest, disconnect."""
    intake.close_inbox()
    for subscription in intake.subscriptions.values():
        subscription.send_cls()
    await intake.sources.close()
    abandoned, given_back = await _await_hands(intake, timeout)
    await asyncio.gather(*map(_part, intake.subscriptions.values()))
    await intake.end_letters()
    counts = intake.counts
    return Drained(counts.finished, counts.requeued - given_back, abandoned)


async def _await_hands(intake: Intake, timeout: float) -> tuple[int, int]:
    """Wait until all is answered; after the timeout requeue the rest.

    Return how many messages that were, and how many of them nsqd could be told of.
    """
    try:
        async with asyncio.timeout(timeout):
            await intake.inbox.idle()
    except TimeoutError:
        logger.warning(
            "%s/%s: %d messages not answered in time; they are requeued",
            intake.topic, intake.channel, intake.inbox.in_hands,
        )  # fmt: skip
        before = intake.counts.requeued
        abandoned = sum(s.abandon() for s in list(intake.subscriptions.values()))
        return abandoned, intake.counts.requeued - before
    return 0, 0


async def _part(subscription: Subscription) -> None:
    connection = subscription.connection
    assert connection is not None
    try:
        async with asyncio.timeout(_LAST_WORD):
            await connection.close_wait()
            await asyncio.sleep(_STRAGGLERS)
    except (TimeoutError, NsqError) as error:
        logger.warning("%s: no CLOSE_WAIT: %s", subscription.address, error)
    subscription.flush()
    await connection.finish(_LAST_WORD)
