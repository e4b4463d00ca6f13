"""Plans to begin a test with, and what is read of them."""

from collections.abc import Iterable
from random import Random

from nsqflow.client.consumer.rdy import RdyDistributor
from nsqflow.client.consumer.rdy_policy import RdyReason


def new_distributor(max_in_flight: int = 100, seed: int = 1) -> RdyDistributor[str]:
    return RdyDistributor(max_in_flight, random=Random(seed))


def started(keys: str, max_in_flight: int = 100, seed: int = 1) -> RdyDistributor[str]:
    """A plan with one connection per letter, added at time 0 and past their start at 1."""
    plan = new_distributor(max_in_flight, seed)
    for key in keys:
        plan.add(key, 2500, 0)
    plan.pending_updates(0)
    plan.pending_updates(1)
    return plan


def rdys(plan: RdyDistributor[str], keys: str) -> list[int]:
    return [plan.state(key).rdy for key in keys]


def reasons(plan: RdyDistributor[str], keys: str) -> list[RdyReason]:
    return [plan.state(key).reason for key in keys]


def with_rdy(plan: RdyDistributor[str], keys: str) -> list[str]:
    return [key for key in keys if plan.state(key).rdy]


def sole(keys: Iterable[str]) -> str:
    (key,) = keys
    return key
