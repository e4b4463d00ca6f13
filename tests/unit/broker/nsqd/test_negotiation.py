"""What becomes of an IDENTIFY where the answer does not tell: all else is shown on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from nsqflow.broker.nsqd.negotiation import Settings, grant, settle
from nsqflow.broker.options import NsqdOptions
from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol import IdentifyRequest

OPTIONS = NsqdOptions(
    client_timeout=7,
    output_buffer_timeout=0.4,
    msg_timeout=5,
    max_heartbeat_interval=2,
    max_output_buffer_size=1000,
    min_output_buffer_timeout=0.05,
    max_output_buffer_timeout=0.5,
    max_msg_timeout=10,
    max_deflate_level=4,
)
DEFAULT = Settings.default(OPTIONS)


def settled(**values: Any) -> Settings:
    return settle(IdentifyRequest(**values), DEFAULT, OPTIONS)


def test_who_says_nothing_is_treated_as_the_options_say() -> None:
    expected = Settings(
        heartbeat_interval=3.5,
        output_buffer_size=16384,
        output_buffer_timeout=0.4,
        msg_timeout=5,
    )
    assert Settings.default(OPTIONS) == expected
    assert settled() == expected


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("heartbeat_interval", 1000, 2000),
        ("output_buffer_timeout", 50, 500),
        ("msg_timeout", 1000, 10_000),
    ],
)
def test_times_within_their_bounds_are_taken_in_seconds(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(settled(**{name: value}), name) == value / 1000
    for value in (least - 1, most + 1, -2):
        text = rf"IDENTIFY {name.replace('_', ' ')} \({value}\) is invalid"
        with pytest.raises(RemoteProtocolError, match=text) as raised:
            settled(**{name: value})
        assert raised.value.code == "E_BAD_BODY"


@pytest.mark.parametrize(
    ("name", "least", "most"), [("output_buffer_size", 64, 1000), ("sample_rate", 0, 99)]
)
def test_numbers_within_their_bounds_are_taken(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(settled(**{name: value}), name) == value
    for value in (least - 1, most + 1, -2):
        text = rf"IDENTIFY {name.replace('_', ' ')} \({value}\) is invalid"
        with pytest.raises(RemoteProtocolError, match=text):
            settled(**{name: value})


def test_heartbeats_and_buffers_can_be_turned_off_but_no_timeout() -> None:
    assert settled(heartbeat_interval=-1).heartbeat_interval == 0
    assert settled(output_buffer_timeout=-1).output_buffer_timeout == 0
    unbuffered = settled(output_buffer_size=-1, output_buffer_timeout=100)
    assert (unbuffered.output_buffer_size, unbuffered.output_buffer_timeout) == (1, 0)
    with pytest.raises(RemoteProtocolError, match=r"msg timeout \(-1\)"):
        settled(msg_timeout=-1)


def test_what_is_not_said_again_stays_but_for_the_sample_rate() -> None:
    first = settled(
        heartbeat_interval=1500, output_buffer_size=100, msg_timeout=2000, sample_rate=50
    )
    again = settle(IdentifyRequest(), first, OPTIONS)
    assert again == Settings(1.5, 100, 0.4, 2, 0)
    off = settled(heartbeat_interval=-1)
    assert settle(IdentifyRequest(), off, OPTIONS).heartbeat_interval == 0


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ({}, 4),
        ({"deflate_level": 2}, 4),  # of no account without deflate
        ({"deflate": True}, 4),
        ({"deflate": True, "deflate_level": 2}, 2),
        ({"deflate": True, "deflate_level": 4}, 4),
        ({"deflate": True, "deflate_level": 5}, 4),
    ],
)
def test_the_level_of_deflate_is_at_most_what_nsqd_has(values: dict[str, Any], level: int) -> None:
    assert grant(IdentifyRequest(**values), DEFAULT, OPTIONS, tls=False).deflate_level == level


def test_tls_is_granted_to_who_asks_for_it_where_there_is_some() -> None:
    asked = IdentifyRequest(tls_v1=True)
    assert grant(asked, DEFAULT, OPTIONS, tls=True).tls_v1
    assert not grant(asked, DEFAULT, OPTIONS, tls=False).tls_v1
    assert not grant(IdentifyRequest(), DEFAULT, OPTIONS, tls=True).tls_v1


def test_both_compressions_are_refused_to_who_negotiates() -> None:
    both: dict[str, Any] = {"snappy": True, "deflate": True}
    with pytest.raises(RemoteProtocolError, match="cannot enable both") as raised:
        grant(IdentifyRequest(**both), DEFAULT, OPTIONS, tls=False)
    assert raised.value.code == "E_IDENTIFY_FAILED"
    # Who does not negotiate gets neither, and is not refused.
    grant(IdentifyRequest(feature_negotiation=False, **both), DEFAULT, OPTIONS, tls=False)
