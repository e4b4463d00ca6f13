"""Nothing is lost and no key is out of order while leaders move and nodes end under load.

The long runs are ``./dev chaos``; this is a shorter one of the same kind.
"""

from __future__ import annotations

import logging

import pytest

from tests.faults.redesigned_campaign import (
    KEYS,
    KeyOrder,
    RedesignedPlan,
    SwitchTimes,
    run_redesigned_campaign,
)
from tests.fixtures.loops import asynchronous


@pytest.mark.proves(rows=[62, 66, 69, 71, 73, 75, 76, 78])
@pytest.mark.timeout(300)
@asynchronous
async def test_every_acknowledged_message_arrives_and_each_key_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "nsqflow")
    campaign = await run_redesigned_campaign(RedesignedPlan(seconds=60, seed=1))
    print(campaign.account)
    print("from the lookup that names a new leader to the subscription:", campaign.switches)
    assert campaign.account.faults() == []
    assert campaign.account.ends["leader"] >= 10
    assert campaign.account.ends.total() >= 20
    assert campaign.switches.seconds
    assert len({*campaign.order.key_of.values()}) == KEYS
    assert len(campaign.ledger.consumed) > 1000


# What the campaign is judged by.


def test_a_message_that_comes_after_a_later_one_of_its_key_is_noticed() -> None:
    order = KeyOrder()
    order.key_of |= {1: b"a", 2: b"b", 3: b"a", 4: b"a"}
    for number in (1, 2, 3, 3):
        order.handled(number)
    assert (order.faults, order.repeated) == ([], 1)
    order.handled(4)
    order.handled(3)
    assert order.faults == ["3 of key b'a' came after 4"]


def test_a_switch_without_a_leader_that_changed_is_not_timed() -> None:
    assert str(SwitchTimes()) == "no leader changed"
