"""The full texts of the broker's errors; other tests check class, option and value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsqflow.broker import BackgroundBroker, Broker
from nsqflow.broker.flags import nsqd_flags
from nsqflow.broker.nsqd.fault_injection import FaultInjector
from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.storage.database import DataPathLock
from nsqflow.broker.tls import server_context
from nsqflow.errors import NsqError

COMMANDS = (
    "AUTH, CLS, DPUB, FIN, IDENTIFY, MPUB, MPUB_EXT, MPUB_TRACE, NOP, PUB, PUB_EXT, PUB_TRACE, "
    "RDY, REQ, SUB, TOUCH"
)

TEXTS: dict[str, Callable[[], object]] = {
    "dialect='x' is invalid: must be 'classic' or 'redesigned'": lambda: Broker("x"),
    "nodes=0 is invalid: must be an integer from 1 to 100": lambda: Broker(nodes=0),
    "Broker has no option 'nods'; did you mean 'nodes'?": lambda: Broker(nods=2),
    "tcp_address='./nsqd.sock' is invalid: must be host:port in a Broker": lambda: Broker(
        tcp_address="./nsqd.sock"
    ),
    "lookupd_tcp_address is not allowed: a Broker has its own nsqlookupd": lambda: Broker(
        lookupd_tcp_address=["127.0.0.1:4160"]
    ),
    "the broker is not running: call start() first": lambda: BackgroundBroker().stop_node(0),
    f"command='pub' is invalid: must be one of {COMMANDS}": lambda: FaultInjector().fail_next(
        "pub", "E_PUB_FAILED"
    ),
    "code='E_FIN_FAILED' is invalid for SUB: no server responds with it": (
        lambda: FaultInjector().fail_next("SUB", "E_FIN_FAILED")
    ),
    "seconds=-1 is invalid: must be a number from 0 to 3600": lambda: FaultInjector().slow(-1),
    "tls_cert without tls_key: set both or neither": lambda: NsqdOptions(tls_cert="c"),
    "tls_required without tls_cert and tls_key: TLS needs both": lambda: NsqdOptions(
        tls_required="true"
    ),
    "tls_cert='/missing' is invalid: No such file or directory": lambda: server_context(
        NsqdOptions(tls_cert="/missing", tls_key="/missing")
    ),
    "data_path='/missing' is invalid: there is no such folder": lambda: DataPathLock(
        Path("/missing")
    ),
    "unknown flag -msg-timeot (did you mean '-msg-timeout'?); -help lists all": lambda: (
        nsqd_flags().read(["-msg-timeot=5s"])
    ),
    "'stray' is not a flag: write -name=value, -help lists all": lambda: nsqd_flags().read(
        ["stray"]
    ),
    "-msg-timeout has no value: write -msg-timeout=VALUE": lambda: nsqd_flags().read(
        ["-msg-timeout"]
    ),
    "config file '/missing': No such file or directory": lambda: nsqd_flags().options(
        {"config": "/missing"}
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_errors_have_these_texts(text: str) -> None:
    with pytest.raises(NsqError) as caught:
        TEXTS[text]()
    assert str(caught.value) == text
