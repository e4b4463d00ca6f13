"""The options of the daemons: ranges, and their values over HTTP."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from nsqflow.broker.flags import nsqd_flags
from nsqflow.broker.options import DaemonOptions, NsqdOptions
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Nsqd, start_nsqd


def names_of(options: type[DaemonOptions]) -> list[str]:
    """Return the names of the options in config files and over HTTP."""
    known = [(f.name, f.metadata["option"]) for f in fields(options)]
    return [option.name or name for name, option in known if option.has_flag]


def ask_real(nsqd: Nsqd, name: str) -> tuple[int, Any]:
    """Return the value of an option of a real nsqd; text comes without quotes."""
    status, body = nsqd.ask(f"/config/{name}")
    try:
        return status, json.loads(body)
    except ValueError:
        return status, body.decode()


def test_every_option_has_the_default_that_the_real_nsqd_has(tmp_path: Path) -> None:
    ours = NsqdOptions()
    ours_alone = {"max_memory", "allowed_hosts"}
    given = {"data_path", "tcp_address", "http_address", "https_address"} | ours_alone
    names = [n for n in names_of(NsqdOptions) if n not in given and "broadcast" not in n]
    with start_nsqd(tmp_path) as nsqd:
        real = {name: ask_real(nsqd, name) for name in names}
    assert real == {name: (200, ours.value(name)) for name in names}


def test_every_option_has_the_same_value_as_in_the_real_nsqd(
    tmp_path: Path, certificates: Certificates
) -> None:
    given = [
        "-log-level=DEBUG",
        "-log-prefix=[other] ",
        "-https-address=127.0.0.1:0",
        "-broadcast-address=example.org",
        "-broadcast-tcp-port=1",
        "-broadcast-http-port=2",
        "-lookupd-tcp-address=127.0.0.1:1",
        "-lookupd-tcp-address=127.0.0.1:2",
        "-auth-http-address=127.0.0.1:3",
        "-auth-http-address=http://127.0.0.1:4/path",
        "-http-client-connect-timeout=1.5s",
        "-http-client-request-timeout=1m30s",
        "-node-id=7",
        "-mem-queue-size=0x10",
        "-msg-timeout=1h2m3s4ms",
        "-max-msg-timeout=2h",
        "-max-msg-size=1_000",
        "-max-body-size=2000",
        "-max-req-timeout=0",
        "-max-heartbeat-interval=.5s",
        "-max-rdy-count=3",
        "-max-output-buffer-size=4096",
        "-max-output-buffer-timeout=10s",
        "-min-output-buffer-timeout=1500us",
        "-output-buffer-timeout=100ms",
        "-max-channel-consumers=9",
        f"-tls-cert={certificates.cert}",
        f"-tls-key={certificates.key}",
        f"-tls-root-ca-file={certificates.ca}",
        "-tls-client-auth-policy=require-verify",
        "-tls-required=TCP-HTTPS",
        "-tls-min-version=TLS1.3",
        "-deflate=F",
        "-max-deflate-level=2",
        "-snappy=false",
    ]
    flags = nsqd_flags()
    ours, warnings = flags.options(flags.read([f"-data-path={tmp_path}", *given]))
    elsewhere = {"tcp_address", "http_address", "max_memory", "allowed_hosts"}
    names = [name for name in names_of(NsqdOptions) if name not in elsewhere]
    with start_nsqd(tmp_path, options=given) as nsqd:
        real = {name: ask_real(nsqd, name) for name in names}
    assert real == {name: (200, ours.value(name)) for name in names}
    assert warnings == []
    defaults = NsqdOptions()
    assert [name for name in names if ours.value(name) == defaults.value(name)] == []


@pytest.mark.parametrize("name", ["node_id", "client_timeout", "nope", "lookupd_tcp_address", ""])
def test_a_name_that_the_real_nsqd_does_not_know_is_unknown(name: str, nsqd: Nsqd) -> None:
    if name:
        assert ask_real(nsqd, name) == (400, {"message": "INVALID_OPTION"})
    with pytest.raises(KeyError):
        NsqdOptions().value(name)
