"""The text of ``Consumer.explain()``: the state of each connection, and why nothing arrives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsqflow.client.allowed_addresses import first_few
from nsqflow.client.consumer.backoff import BackoffPhase
from nsqflow.client.consumer.prefetch import PrefetchLimit
from nsqflow.client.reconnect import Reconnector

if TYPE_CHECKING:
    from nsqflow.client.consumer.coordinator import Coordinator
    from nsqflow.client.consumer.subscription import Subscription


def explain(coordinator: Coordinator) -> str:
    """Return a line for the consumer, one per nsqd, and one per failing nsqlookupd."""
    now = coordinator.now()
    lines = [f"{coordinator.topic}/{coordinator.channel}: {', '.join(_consumer(coordinator, now))}"]
    queued = [address for address, e in coordinator.connections.reconnectors.items() if e.queued]
    for address, reconnector in sorted(coordinator.connections.reconnectors.items()):
        subscription = coordinator.subscriptions.get(address)
        if reconnector.queued:
            continue  # there may be thousands; see below
        if subscription is None:
            looked_up = coordinator.connections.poller is not None
            lines.append(f"{address}: {_unconnected(reconnector, looked_up, now)}")
        else:
            lines.append(f"{address}: {_connected(coordinator, subscription, now)}")
    if queued:
        lines.append(f"{len(queued)} nsqd are queued for dialling: {first_few(queued)}")
    lines += _lookups(coordinator)
    return "\n".join(lines)


def _consumer(coordinator: Coordinator, now: float) -> Iterator[str]:
    queue = coordinator.queue
    if queue.error is not None:
        yield f"ended by {queue.error}"
    elif queue.closed:
        yield "closed"
    if coordinator.paused:
        yield "paused"
    if coordinator.backoff.level:
        yield _backing_off(coordinator, now)
    if not queue.closed and not coordinator.backoff.level and not coordinator.paused:
        yield from _prefetch(coordinator)
    if queue.outstanding >= queue.max_in_flight:
        yield (
            f"all {queue.max_in_flight} messages that max_in_flight allows are outstanding: "
            "finish or requeue some"
        )
    else:
        yield f"{queue.outstanding} of {queue.max_in_flight} messages outstanding"
    if queue.gate is not None:
        yield "one of each partition at a time, in order"
    if queue.queued:
        yield f"{queue.queued} queued"
    if coordinator.postponed_count:
        yield f"{coordinator.postponed_count} failed, waiting to be requeued"
    if coordinator.rdy.orphans:
        orphans = coordinator.rdy.orphans
        yield f"{orphans} of the outstanding messages are of lost connections or timed out"
    if coordinator.counts.expired:
        yield f"{coordinator.counts.expired} timed out before a handler was free"


def _prefetch(coordinator: Coordinator) -> Iterator[str]:
    """Describe prefetch if it is the lowest limit."""
    prefetch = coordinator.prefetch
    if prefetch.limit is PrefetchLimit.NO_DEMAND:
        yield "RDY 0: no reader; iterate, take a batch or run a handler"
    elif prefetch.limit is PrefetchLimit.STALLED:
        seconds = prefetch.msg_timeout / 2
        yield (
            f"RDY 0: no handler was free for {seconds:g} s, half of msg_timeout, "
            "or messages have waited too long"
        )
    elif prefetch.limit is PrefetchLimit.RATE:
        rate = prefetch.rate
        pace = "nothing measured yet" if rate is None else f"handlers take {rate:.3g} per second"
        yield f"prefetch allows {prefetch.window} in flight ({pace})"


def _backing_off(coordinator: Coordinator, now: float) -> str:
    level, until = coordinator.backoff.level, coordinator.backoff.until or now
    if coordinator.backoff.phase(now) is BackoffPhase.TESTING:
        return f"in backoff (level {level}), waiting for one message to test with"
    return f"in backoff for {until - now:.1f} s more (level {level})"


def _unconnected(reconnector: Reconnector, looked_up: bool, now: float) -> str:
    error = ""
    if reconnector.error is not None:
        error = ": " + str(reconnector.error).removeprefix(f"{reconnector.address}: ")
    if reconnector.ended:
        then = "dialled when nsqlookupd names it again" if looked_up else "not dialled again"
        return f"not connected{error}; {then} (failure {reconnector.failures})"
    if reconnector.retry_at is None:
        return f"connecting{error and ' again after'}{error}"
    seconds = reconnector.retry_at - now
    return f"not connected{error}; next try in {seconds:.1f} s (failure {reconnector.failures})"


def _connected(coordinator: Coordinator, subscription: Subscription, now: float) -> str:
    state = coordinator.rdy.state(subscription)
    words = [f"connected, RDY {state.rdy}, {state.in_flight} in flight"]
    if state.rdy and state.in_flight >= state.rdy:
        words.append("as many as RDY allows: nsqd waits for answers")
    elif state.is_short:
        words.append(f"RDY {state.wanted} as soon as other connections release it")
    effective = subscription.effective_rdy
    if effective < state.rdy:
        words.append(f"nsqd applies only {effective} of it, after failed answers and timeouts")
    words.append(state.reason.value)
    if state.last_message_at is None:
        words.append("no message yet: is there anything in the channel?")
    else:
        words.append(f"last message {now - state.last_message_at:.1f} s ago")
    return "; ".join(words)


def _lookups(coordinator: Coordinator) -> Iterator[str]:
    poller = coordinator.connections.poller
    if poller is None:
        return
    refused = coordinator.connections.refused
    if refused:
        yield f"not dialled, outside allowed_addresses: {first_few(refused)}"
    elif coordinator.connections.unled:
        numbers = first_few([str(number) for number in coordinator.connections.unled])
        yield f"nsqlookupd names no leader of partition {numbers}"
    elif coordinator.connections.answered and not coordinator.connections.reconnectors:
        yield f"nsqlookupd knows no nsqd with topic {coordinator.topic!r}"
    for address, health in poller.health().items():
        if health.failures:
            yield f"nsqlookupd {address}: failed {health.failures} times, last: {health.last_error}"
