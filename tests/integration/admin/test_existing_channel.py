"""A channel that exists can be created again, in topics of either kind."""

from __future__ import annotations

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from tests.fixtures.loops import asynchronous


@pytest.mark.parametrize("registered", [False, True])
@asynchronous
async def test_a_channel_that_exists_is_left_as_it_is(registered: bool) -> None:
    async with Broker("redesigned", 1) as broker:
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await cluster.create_topic("orders", registered_channels=registered, wait=5)
        for _ in range(2):
            await cluster.create_channel("orders", "billing")
        assert (await cluster.topic("orders")).channels == ("billing",)
