"""Why nothing arrives: the state of a consumer, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsqflow.client.allowed_addresses import first_few
from nsqflow.client.backoff import Phase
from nsqflow.client.endpoint import Endpoint
from nsqflow.client.prefetch import Limit

if TYPE_CHECKING:
    from nsqflow.client.intake import Intake
    from nsqflow.client.subscription import Subscription


def explain(intake: Intake) -> str:
    """Return a line for the consumer, one for each nsqd, one for each sick nsqlookupd."""
    now = intake.now()
    lines = [f"{intake.topic}/{intake.channel}: {', '.join(_whole(intake, now))}"]
    queued = [address for address, e in intake.sources.endpoints.items() if e.queued]
    for address, endpoint in sorted(intake.sources.endpoints.items()):
        subscription = intake.subscriptions.get(address)
        if endpoint.queued:
            continue  # there may be thousands
        if subscription is None:
            looked_up = intake.sources.poller is not None
            lines.append(f"{address}: {_unconnected(endpoint, looked_up, now)}")
        else:
            lines.append(f"{address}: {_connected(intake, subscription, now)}")
    if queued:
        lines.append(f"{len(queued)} nsqd wait for their turn to be dialled: {first_few(queued)}")
    lines += _lookups(intake)
    return "\n".join(lines)


def _whole(intake: Intake, now: float) -> Iterator[str]:
    inbox = intake.inbox
    if inbox.error is not None:
        yield f"ended by {inbox.error}"
    elif inbox.closed:
        yield "closed"
    if intake.paused:
        yield "paused"
    if intake.backoff.level:
        yield _backing_off(intake, now)
    if not inbox.closed and not intake.backoff.level and not intake.paused:
        yield from _prefetch(intake)
    if inbox.outstanding >= inbox.max_in_flight:
        yield (
            f"all {inbox.max_in_flight} messages that max_in_flight allows are in your hands: "
            "finish or requeue some"
        )
    else:
        yield f"{inbox.outstanding} of {inbox.max_in_flight} messages in hands"
    if inbox.queued:
        yield f"{inbox.queued} wait to be taken"
    if intake.rdy.orphans:
        yield f"{intake.rdy.orphans} of the messages in hands are of lost connections or timed out"
    if intake.counts.expired:
        yield f"{intake.counts.expired} timed out before a handler was free"


def _prefetch(intake: Intake) -> Iterator[str]:
    """Name what prefetch does where it is the lowest limit."""
    prefetch = intake.prefetch
    if prefetch.limit is Limit.NO_DEMAND:
        yield "RDY 0: nothing asks for messages; iterate, gather a batch or run a handler"
    elif prefetch.limit is Limit.STALLED:
        seconds = prefetch.msg_timeout / 2
        yield (
            f"RDY 0: no handler was free for {seconds:g} s, half of msg_timeout, "
            "or messages wait for too long"
        )
    elif prefetch.limit is Limit.RATE:
        rate = prefetch.rate
        pace = "nothing measured yet" if rate is None else f"handlers take {rate:.3g} per second"
        yield f"prefetch allows {prefetch.window} in flight ({pace})"


def _backing_off(intake: Intake, now: float) -> str:
    level, until = intake.backoff.level, intake.backoff.until or now
    if intake.backoff.phase(now) is Phase.TESTING:
        return f"in backoff (level {level}), waiting for one message to test with"
    return f"in backoff for {until - now:.1f} s more (level {level})"


def _unconnected(endpoint: Endpoint, looked_up: bool, now: float) -> str:
    error = ""
    if endpoint.error is not None:
        error = ": " + str(endpoint.error).removeprefix(f"{endpoint.address}: ")
    if endpoint.ended:
        then = "tried again when nsqlookupd names it again" if looked_up else "not tried again"
        return f"not connected{error}; {then} (failure {endpoint.failures})"
    if endpoint.retry_at is None:
        return f"connecting{error and ' again after'}{error}"
    seconds = endpoint.retry_at - now
    return f"not connected{error}; next try in {seconds:.1f} s (failure {endpoint.failures})"


def _connected(intake: Intake, subscription: Subscription, now: float) -> str:
    state = intake.rdy.state(subscription)
    words = [f"connected, RDY {state.rdy}, {state.in_flight} in flight"]
    if state.rdy and state.in_flight >= state.rdy:
        words.append("as many as RDY allows: it waits for answers")
    elif state.waits_for_room:
        words.append(f"RDY {state.wanted} as soon as others have given it up")
    words.append(state.standing.value)
    if state.last_message_at is None:
        words.append("no message yet: is there anything in the channel?")
    else:
        words.append(f"last message {now - state.last_message_at:.1f} s ago")
    return "; ".join(words)


def _lookups(intake: Intake) -> Iterator[str]:
    poller = intake.sources.poller
    if poller is None:
        return
    refused = intake.sources.refused
    if refused:
        yield f"not dialled, outside allowed_addresses: {first_few(refused)}"
    elif intake.sources.answered and not intake.sources.endpoints:
        yield f"no nsqd has the topic {intake.topic!r}, says nsqlookupd"
    for address, health in poller.health().items():
        if health.failures:
            yield f"nsqlookupd {address}: failed {health.failures} times, last: {health.last_error}"
