"""What nsqlookupd gets from an nsqd that is stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.conformance.broker.dialogue import MAGIC, Client
from tests.fixtures.crashing import until
from tests.fixtures.servers import PATIENCE, Kind, Nsqlookupd, start_nsqd, start_nsqlookupd


def channels(nsqlookupd: Nsqlookupd, topic: str) -> list[str]:
    status, body = nsqlookupd.ask(f"/channels?topic={topic}")
    return sorted(json.loads(body)["channels"]) if status == 200 else []


@pytest.mark.parametrize("lookupd_kind", ["real", "ours"])
def test_the_ephemeral_channels_of_its_clients_are_unregistered_first(
    server_kind: Kind, lookupd_kind: Kind, tmp_path: Path, topic: str
) -> None:
    if server_kind == "real":
        pytest.skip("it does so as a rule, but on a busy machine it may be gone first")
    with start_nsqlookupd(kind=lookupd_kind) as nsqlookupd:
        options = [f"-lookupd-tcp-address={nsqlookupd.tcp_address}"]
        nsqd = start_nsqd(tmp_path, kind=server_kind, options=options)
        with nsqd, Client(nsqd, MAGIC) as passing, Client(nsqd, MAGIC) as lasting:
            passing.subscribe(topic, "passing#ephemeral")
            lasting.subscribe(topic, "lasting")
            until(lambda: channels(nsqlookupd, topic) == ["lasting", "passing#ephemeral"])
            nsqd.process.send_signal(signal.SIGTERM)
            assert nsqd.process.wait(PATIENCE) == 0
            until(lambda: channels(nsqlookupd, topic) == ["lasting"])
