"""The HTTP API of nsqd: storing, limits, delivery, TLS, options."""

from __future__ import annotations

import json

from nsqflow.broker.nsqd.daemon import NsqdDaemon
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import Nsqlookupd
from tests.unit.broker.nsqd.running import ask, make_nsqd


async def put(nsqd: NsqdDaemon, option: str, value: object) -> tuple[int, bytes]:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return await ask(nsqd.http_address, "PUT", f"/config/{option}", body)


# Options.


@asynchronous
async def test_the_addresses_of_nsqlookupd_can_be_set(nsqlookupd: Nsqlookupd) -> None:
    option = "nsqlookupd_tcp_addresses"
    addresses = [nsqlookupd.tcp_address]
    async with make_nsqd() as nsqd:
        assert await put(nsqd, option, addresses) == (200, json.dumps(addresses).encode())
        await eventually(lambda: nsqd.lookup_peers.http_addresses == (nsqlookupd.http_address,))
        status, body = await ask(nsqd.http_address, "GET", f"/config/{option}")
        assert (status, json.loads(body)) == (200, addresses)
