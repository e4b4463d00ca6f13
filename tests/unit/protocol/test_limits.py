"""The limits of nsqd 1.3.0 (nsqd/options.go, and bufio's buffer in nsqd/client_v2.go)."""

from dataclasses import FrozenInstanceError, asdict

import pytest

from nsqflow.protocol.body_decoder import Limits


def test_the_defaults_are_those_of_nsqd() -> None:
    assert asdict(Limits()) == {
        "max_msg_size": 1048576,
        "max_body_size": 5242880,
        "max_rdy_count": 2500,
        "max_req_timeout_ms": 3600000,
        "max_line_size": 16384,
    }


def test_limits_do_not_change_under_a_connection() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().max_msg_size = 5  # type: ignore[misc]
