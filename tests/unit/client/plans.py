"""Plans to begin a test with, and what is read of them."""

from collections.abc import Iterable
from random import Random

from nsqflow.client.rdy import RdyPlan, Standing


def new_plan(max_in_flight: int = 100, seed: int = 1) -> RdyPlan[str]:
    return RdyPlan(max_in_flight, random=Random(seed))


def started(keys: str, max_in_flight: int = 100, seed: int = 1) -> RdyPlan[str]:
    """A plan with one connection per letter, added at time 0 and past their start at 1."""
    plan = new_plan(max_in_flight, seed)
    for key in keys:
        plan.add(key, 2500, 0)
    plan.changes(0)
    plan.changes(1)
    return plan


def rdys(plan: RdyPlan[str], keys: str) -> list[int]:
    return [plan.state(key).rdy for key in keys]


def standings(plan: RdyPlan[str], keys: str) -> list[Standing]:
    return [plan.state(key).standing for key in keys]


def with_rdy(plan: RdyPlan[str], keys: str) -> list[str]:
    return [key for key in keys if plan.state(key).rdy]


def sole(keys: Iterable[str]) -> str:
    (key,) = keys
    return key
