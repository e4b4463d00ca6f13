"""The settings negotiated by IDENTIFY."""

from __future__ import annotations

from typing import Any

import pytest

from nsqflow.broker.nsqd.identify import ClientSettings, build_reply, negotiate
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
DEFAULT = ClientSettings.default(OPTIONS)


def negotiated(**values: Any) -> ClientSettings:
    return negotiate(IdentifyRequest(**values), DEFAULT, OPTIONS)


def test_an_empty_identify_gives_the_default_settings() -> None:
    expected = ClientSettings(
        heartbeat_interval=3.5,
        output_buffer_size=16384,
        output_buffer_timeout=0.4,
        msg_timeout=5,
    )
    assert ClientSettings.default(OPTIONS) == expected
    assert negotiated() == expected


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("heartbeat_interval", 1000, 2000),
        ("output_buffer_timeout", 50, 500),
        ("msg_timeout", 1000, 10_000),
    ],
)
def test_times_within_their_bounds_are_accepted(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(negotiated(**{name: value}), name) == value / 1000
    for value in (least - 1, most + 1, -2):
        text = rf"IDENTIFY {name.replace('_', ' ')} \({value}\) is invalid"
        with pytest.raises(RemoteProtocolError, match=text) as raised:
            negotiated(**{name: value})
        assert raised.value.code == "E_BAD_BODY"


@pytest.mark.parametrize(
    ("name", "least", "most"), [("output_buffer_size", 64, 1000), ("sample_rate", 0, 99)]
)
def test_numbers_within_their_bounds_are_accepted(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(negotiated(**{name: value}), name) == value
    for value in (least - 1, most + 1, -2):
        text = rf"IDENTIFY {name.replace('_', ' ')} \({value}\) is invalid"
        with pytest.raises(RemoteProtocolError, match=text):
            negotiated(**{name: value})


def test_heartbeats_and_buffers_can_be_turned_off_but_not_msg_timeout() -> None:
    assert negotiated(heartbeat_interval=-1).heartbeat_interval == 0
    assert negotiated(output_buffer_timeout=-1).output_buffer_timeout == 0
    unbuffered = negotiated(output_buffer_size=-1, output_buffer_timeout=100)
    assert (unbuffered.output_buffer_size, unbuffered.output_buffer_timeout) == (1, 0)
    with pytest.raises(RemoteProtocolError, match=r"msg timeout \(-1\)"):
        negotiated(msg_timeout=-1)


def test_a_second_identify_keeps_all_settings_but_the_sample_rate() -> None:
    first = negotiated(
        heartbeat_interval=1500, output_buffer_size=100, msg_timeout=2000, sample_rate=50
    )
    again = negotiate(IdentifyRequest(), first, OPTIONS)
    assert again == ClientSettings(1.5, 100, 0.4, 2, 0)
    off = negotiated(heartbeat_interval=-1)
    assert negotiate(IdentifyRequest(), off, OPTIONS).heartbeat_interval == 0


@pytest.mark.parametrize(
    ("values", "level"),
    [
        ({}, 4),
        ({"deflate_level": 2}, 4),  # ignored without deflate
        ({"deflate": True}, 4),
        ({"deflate": True, "deflate_level": 2}, 2),
        ({"deflate": True, "deflate_level": 4}, 4),
        ({"deflate": True, "deflate_level": 5}, 4),
    ],
)
def test_the_deflate_level_is_limited_by_max_deflate_level(
    values: dict[str, Any], level: int
) -> None:
    assert (
        build_reply(IdentifyRequest(**values), DEFAULT, OPTIONS, tls=False).deflate_level == level
    )


def test_tls_is_granted_if_requested_and_available() -> None:
    asked = IdentifyRequest(tls_v1=True)
    assert build_reply(asked, DEFAULT, OPTIONS, tls=True).tls_v1
    assert not build_reply(asked, DEFAULT, OPTIONS, tls=False).tls_v1
    assert not build_reply(IdentifyRequest(), DEFAULT, OPTIONS, tls=True).tls_v1


def test_both_compressions_at_once_are_refused() -> None:
    both: dict[str, Any] = {"snappy": True, "deflate": True}
    with pytest.raises(RemoteProtocolError, match="cannot enable both") as raised:
        build_reply(IdentifyRequest(**both), DEFAULT, OPTIONS, tls=False)
    assert raised.value.code == "E_IDENTIFY_FAILED"
    # Without feature negotiation neither is granted or refused.
    build_reply(IdentifyRequest(feature_negotiation=False, **both), DEFAULT, OPTIONS, tls=False)
