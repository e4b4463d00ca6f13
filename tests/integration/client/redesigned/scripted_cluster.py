"""A scripted nsqd and nsqlookupd of the redesigned NSQ: for what the broker does not do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from nsqflow.broker.version import REDESIGNED_VERSION
from nsqflow.protocol import Dialect, IdentifyReply, Publish
from tests.fixtures.scripted import Answer, ScriptedLookupd, ScriptedNsqd

QUICK: dict[str, Any] = {"lookupd_poll_jitter": 0.0, "publish_timeout": 10.0}


class ScriptedCluster(NamedTuple):
    """One nsqd, which leads all partitions, and the nsqlookupd that says so."""

    nsqd: ScriptedNsqd
    lookupd: ScriptedLookupd

    @property
    def published(self) -> list[Publish]:
        """What was sent to be published, in its order."""
        return [each for each in self.nsqd.commands if isinstance(each, Publish)]

    @property
    def lookups(self) -> int:
        """How often the topic was looked up."""
        return sum(each.path.startswith("/lookup?") for each in self.lookupd.requests)


def topic_answer(
    leaders: Mapping[int, str], count: int | None = None, **meta: bool
) -> tuple[int, bytes]:
    """Return the answer to a lookup: the leaders by partition, of ``count`` partitions."""
    nodes = {str(number): _node(address) for number, address in leaders.items()}
    number_of = len(leaders) if count is None else count
    answer = {
        "channels": [],
        "meta": {"partition_num": number_of, "replica": 1, **meta},
        "partitions": nodes,
        "producers": [*nodes.values()],
    }
    return 200, json.dumps(answer).encode()


def members_answer(addresses: list[str], leader: str | None = None) -> tuple[int, bytes]:
    """Return the answer to /listlookup; the first one leads unless another one is named."""
    leading = _member(leader or addresses[0]) if addresses else {}
    answer = {"lookupdleader": leading, "lookupdnodes": [_member(each) for each in addresses]}
    return 200, json.dumps(answer).encode()


def nodes_answer(*addresses: str) -> tuple[int, bytes]:
    """Return the answer to /nodes: nsqd of the redesigned NSQ."""
    nodes = [_node(address) | {"version": REDESIGNED_VERSION} for address in addresses]
    return 200, json.dumps({"producers": nodes}).encode()


def lookupd_answers(lookup: Answer, members: list[str]) -> dict[str, Answer]:
    """Return the answers of an nsqlookupd of a cluster."""
    return {"/listlookup": members_answer(members), "/lookup?": lookup}


@asynccontextmanager
async def scripted_cluster(partitions: int = 1, **meta: bool) -> AsyncIterator[ScriptedCluster]:
    """Start one nsqd that leads all partitions of each topic, and one nsqlookupd."""
    reply = IdentifyReply(version=REDESIGNED_VERSION)
    nsqd = ScriptedNsqd(reply, Dialect.REDESIGNED)
    async with nsqd, ScriptedLookupd({}) as lookupd:
        answer = topic_answer(dict.fromkeys(range(partitions), nsqd.address), **meta)
        lookupd.answers = lookupd_answers(answer, [lookupd.address])
        yield ScriptedCluster(nsqd, lookupd)


def _node(address: str) -> dict[str, Any]:
    host, port = address.split(":")
    return {"broadcast_address": host, "tcp_port": int(port), "http_port": 1, "hostname": host}


def _member(address: str) -> dict[str, str]:
    host, port = address.split(":")
    return {"ID": address, "NodeIP": host, "HttpPort": port, "TcpPort": "0", "RpcPort": "0"}
