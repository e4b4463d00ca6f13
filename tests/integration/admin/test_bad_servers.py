"""Servers whose answers can't be read, or that do not answer."""

from __future__ import annotations

import json

import pytest

from nsqflow.admin import AdminError, RedesignedCluster
from nsqflow.admin.partition import PartitionApi
from nsqflow.broker import Broker
from nsqflow.errors import NoResponseError
from tests.fixtures.loops import CLOSE, asynchronous
from tests.fixtures.scripted import Answer, ScriptedLookupd


@asynchronous
async def test_headers_that_can_not_be_read_are_an_error() -> None:
    found = dict.fromkeys(("id", "trace_id", "timestamp", "offset", "queue_cnt_index"), 1)
    deep = '{"h":' + "[" * 20_000 + "]" * 20_000 + "}"
    answer = json.dumps({**found, "body": "a", "ext": deep}).encode()
    servers = ScriptedLookupd({"/message/get": (200, answer)})
    async with servers as web, PartitionApi(web.address) as api:
        with pytest.raises(AdminError, match="unexpected answer"):
            await api.get_message("orders", 0, 0)


@asynchronous
async def test_the_errors_of_an_nsqlookupd_that_is_not_needed_do_not_pile_up() -> None:
    async with Broker("redesigned") as broker:
        await broker.create_topic("orders")
        cluster = RedesignedCluster(lookupd=["127.0.0.1:1", *broker.lookupd_addresses])
        for _ in range(3):
            await cluster.topic("orders")
        assert cluster._cluster.errors == []


@asynchronous
async def test_a_change_that_is_not_answered_is_not_sent_again() -> None:
    answers: dict[str, Answer] = {"/listlookup": (200, b""), "/topic/delete": CLOSE}
    async with ScriptedLookupd(answers) as first, ScriptedLookupd(answers) as second:
        cluster = RedesignedCluster(lookupd=[first.address, second.address])
        with pytest.raises(NoResponseError, match="the change may have been made"):
            await cluster.delete_topic("orders")
        sent = [each for server in (first, second) for each in server.requests]
    assert sum(each.path.startswith("/topic/delete") for each in sent) == 1
