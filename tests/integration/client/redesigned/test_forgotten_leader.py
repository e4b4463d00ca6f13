"""A leader that nsqlookupd names no longer when it is dialled: its dialect is still known."""

from __future__ import annotations

from nsqflow.broker import Broker
from nsqflow.client.events import EventEmitter
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.routing import LookupRouter
from nsqflow.protocol import Dialect
from tests.fixtures.loops import asynchronous, eventually


@asynchronous
async def test_a_leader_that_is_forgotten_again_keeps_its_dialect() -> None:
    async with Broker("redesigned", 2, election_delay=60) as broker:
        await broker.create_topic("orders", partitions=2)
        config = ProducerConfig(lookupd=tuple(broker.lookupd_addresses))
        router = LookupRouter(config, EventEmitter(None), lambda: None)
        try:
            route = router.route("orders")
            await eventually(lambda: len(route.leaders) == 2, what="both leaders")
            forgotten = route.leaders[1]
            await broker.kill_node(broker.nsqd_addresses.index(forgotten))
            router.refresh("orders", 1)
            await eventually(lambda: forgotten not in route.nsqds, what="one leader")
            assert router.dialect_of(forgotten) is Dialect.REDESIGNED
        finally:
            await router.close()
