"""The handshake without I/O: what is sent, in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from nsqflow import protocol as nsq
from nsqflow.errors import (
    BadTopicError,
    ConfigError,
    RemoteProtocolError,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.transport.handshake import (
    ConnectionSettings,
    HandshakeStep,
    OptionalRefused,
    handshake,
    is_final,
)

ADDRESS = "nsqd-0:4150"
OK = nsq.encode_frame(nsq.FrameType.RESPONSE, b"OK")
SUB = nsq.Sub("orders", "billing")
PLAIN = ConnectionSettings(identify=nsq.IdentifyRequest())
REFUSED = b"E_BAD_BODY IDENTIFY "


def response(data: bytes) -> bytes:
    return nsq.encode_frame(nsq.FrameType.RESPONSE, data)


def error(text: bytes) -> bytes:
    return nsq.encode_frame(nsq.FrameType.ERROR, text)


def reply(**granted: Any) -> bytes:
    return response(nsq.IdentifyReply(version="1.3.0", **granted).encode())


AUTH_REPLY = response(nsq.AuthReply(identity="me", permission_count=1).encode())


class Wire:
    """Drives a handshake with the bytes that nsqd answers."""

    def __init__(
        self, settings: ConnectionSettings = PLAIN, subscription: nsq.Sub | None = None
    ) -> None:
        self.session = nsq.ClientSession(settings.identify)
        self.steps = handshake(ADDRESS, settings, self.session, subscription)
        self.step: HandshakeStep | None = next(self.steps)
        self.sent = [self.session.data_to_send()]

    def receive(self, data: bytes) -> HandshakeStep | None:
        """Return the step after these bytes; None once the connection is open."""
        self.session.receive_data(data)
        while events := self.session.events():
            for event in events:
                self._send(event)
        self.sent.append(self.session.data_to_send())
        return self.step

    def tls_started(self) -> HandshakeStep | None:
        self.session.tls_started()
        self._send(None)
        return self.step

    def _send(self, event: nsq.Event | None) -> None:
        try:
            self.step = self.steps.send(event)
        except StopIteration:
            self.step = None


@contextmanager
def refused(kind: type[Exception], text: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    assert str(caught.value) == text


def test_identify_alone_opens_a_plain_connection() -> None:
    wire = Wire()
    assert wire.step is HandshakeStep.READ
    [magic_and_identify] = wire.sent
    assert magic_and_identify.startswith(b"  V2IDENTIFY\n")
    assert wire.receive(reply()) is None
    assert wire.sent[1:] == [b""]


def test_each_step_waits_for_the_answer_to_the_one_before() -> None:
    settings = replace(PLAIN, secret=lambda: b"hunter2")
    wire = Wire(settings, SUB)
    assert wire.receive(reply(auth_required=True)) is HandshakeStep.AUTH
    assert wire.sent[-1] == b"AUTH\n\x00\x00\x00\x07hunter2"
    assert wire.receive(AUTH_REPLY) is HandshakeStep.READ
    assert wire.sent[-1] == b"SUB orders billing\n"
    assert wire.receive(OK) is None
    assert wire.session.state is nsq.ClientState.SUBSCRIBED


def test_bytes_may_come_one_by_one() -> None:
    wire = Wire(subscription=SUB)
    for number in reply():
        assert wire.step is HandshakeStep.READ
        wire.receive(bytes([number]))
    for number in OK:
        assert wire.step is HandshakeStep.READ
        wire.receive(bytes([number]))
    assert wire.step is None


def test_a_heartbeat_in_between_is_answered_and_changes_nothing() -> None:
    settings = replace(PLAIN, secret=lambda: b"hunter2")
    wire = Wire(settings)
    wire.receive(reply(auth_required=True))
    assert (
        wire.receive(response(b"_heartbeat_")) is HandshakeStep.READ
    )  # the warning is not repeated
    assert wire.sent[-1] == b"NOP\n"
    assert wire.receive(AUTH_REPLY) is None


def test_the_secret_is_asked_for_only_if_nsqd_asks_for_auth() -> None:
    def secret() -> bytes:
        raise AssertionError("nsqd did not ask")

    assert Wire(replace(PLAIN, secret=secret)).receive(reply()) is None


def test_settings_do_not_show_the_secret() -> None:
    assert "secret" not in repr(replace(PLAIN, secret=lambda: b"hunter2"))


# TLS


TLS = replace(PLAIN, identify=nsq.IdentifyRequest(tls_v1=True))


def test_tls_comes_before_auth_and_sub() -> None:
    wire = Wire(replace(TLS, secret=lambda: b"hunter2"), SUB)
    assert wire.receive(reply(tls_v1=True, auth_required=True)) is HandshakeStep.START_TLS
    assert wire.tls_started() is HandshakeStep.READ
    assert wire.sent[1:] == [b""]  # nothing but the handshake of TLS
    assert wire.receive(OK) is HandshakeStep.AUTH
    assert wire.receive(AUTH_REPLY) is HandshakeStep.READ
    assert wire.receive(OK) is None


def test_tls_that_is_not_granted_ends_it_before_another_byte() -> None:
    wire = Wire(TLS)
    with pytest.raises(TlsNotGrantedError):
        wire.receive(reply())
    assert wire.session.data_to_send() == b""


def test_bytes_before_tls_are_refused() -> None:
    with refused(RemoteProtocolError, f"{ADDRESS}: bytes between IDENTIFY's response and TLS"):
        Wire(TLS).receive(reply(tls_v1=True) + OK)


def test_compression_comes_after_tls() -> None:
    identify = nsq.IdentifyRequest(tls_v1=True, deflate=True)
    wire = Wire(replace(TLS, identify=identify), SUB)
    assert (
        wire.receive(reply(tls_v1=True, deflate=True, deflate_level=6)) is HandshakeStep.START_TLS
    )
    wire.tls_started()
    assert wire.receive(OK) is HandshakeStep.READ  # nsqd's OK to TLS; that to deflate is to come
    assert wire.session.compressed


def test_compression_that_is_refused_does_not_end_it() -> None:
    identify = nsq.IdentifyRequest(snappy=True)
    assert Wire(replace(PLAIN, identify=identify)).receive(reply()) is None


# What is refused


def test_a_redesigned_nsqd_is_refused_with_a_hint() -> None:
    redesigned = response(nsq.IdentifyReply(version="0.3.7-HA.1.13.0").encode())
    text = f"{ADDRESS} is an nsqd of the redesigned NSQ (version 0.3.7-HA.1.13.0): use lookupd="
    with refused(ConfigError, text):
        Wire(replace(PLAIN, redesigned_hint="use lookupd=")).receive(redesigned)


@pytest.mark.parametrize(
    ("names", "option"),
    [({}, "auth_secret"), ({"auth_secret": "authSecretFile"}, "authSecretFile")],
)
def test_without_a_secret_the_error_names_the_option(names: dict[str, str], option: str) -> None:
    with refused(ConfigError, f"{ADDRESS} asks for AUTH: set {option}"):
        Wire(replace(PLAIN, option_names=names)).receive(reply(auth_required=True))


@pytest.mark.parametrize("count", [0, -1])
def test_an_nsqd_that_allows_no_rdy_cannot_be_subscribed_to(count: int) -> None:
    text = f"{ADDRESS}: max_rdy_count={count} is invalid: must be >= 1"
    with refused(RemoteProtocolError, text):
        Wire(subscription=SUB).receive(reply(max_rdy_count=count))
    assert Wire().receive(reply(max_rdy_count=count)) is None  # publishing needs no RDY


def test_a_refused_subscription_raises_the_error_of_nsqd() -> None:
    wire = Wire(subscription=SUB)
    wire.receive(reply())
    with pytest.raises(BadTopicError, match="no such name"):
        wire.receive(error(b"E_BAD_TOPIC no such name"))


def test_a_refused_secret_raises_the_error_of_nsqd() -> None:
    wire = Wire(replace(PLAIN, secret=lambda: b"wrong"))
    wire.receive(reply(auth_required=True))
    with pytest.raises(ServerError, match="E_AUTH_FAILED"):
        wire.receive(error(b"E_AUTH_FAILED AUTH failed"))


def test_refused_options_raise_a_config_error_with_the_text_of_nsqd() -> None:
    words = REFUSED + b"heartbeat interval (1) is invalid"
    with refused(ConfigError, f"{ADDRESS} refused the options: {words.decode()}"):
        Wire().receive(error(words))


def test_an_nsqd_with_too_many_clients_has_refused_no_option() -> None:
    """A redesigned one says so without a code; later it may take the connection."""
    with pytest.raises(ServerError, match="too much client connections") as caught:
        Wire().receive(error(b"too much client connections"))
    assert not is_final(caught.value)


# Options that are left out


def asking(**fields: Any) -> ConnectionSettings:
    return ConnectionSettings(
        identify=nsq.IdentifyRequest(**fields),
        optional=frozenset({"output_buffer_size", "output_buffer_timeout"}),
        option_names={"msg_timeout": "msgTimeout"},
    )


@pytest.mark.parametrize("name", ["output_buffer_size", "output_buffer_timeout"])
def test_an_optional_option_that_is_refused_is_left_out(name: str) -> None:
    settings = asking(output_buffer_size=65536, output_buffer_timeout=250, msg_timeout=1000)
    words = REFUSED + name.replace("_", " ").encode() + b" (250) is invalid"
    with pytest.raises(OptionalRefused) as caught:
        Wire(settings).receive(error(words))
    without: dict[str, Any] = {name: None}
    assert caught.value.fallback.identify == replace(settings.identify, **without)


def test_an_option_that_was_not_sent_cannot_be_left_out() -> None:
    words = REFUSED + b"output buffer size (65536) is invalid"
    with pytest.raises(ConfigError) as caught:
        Wire(asking()).receive(error(words))
    assert type(caught.value) is ConfigError


def test_a_msg_timeout_that_is_refused_names_the_option_and_the_flag() -> None:
    words = REFUSED + b"msg timeout (31000) is invalid"
    text = (
        f"{ADDRESS} refused the options: {words.decode()} "
        "(msgTimeout=31 must not exceed its -max-msg-timeout)"
    )
    with refused(ConfigError, text):
        Wire(asking(msg_timeout=31000)).receive(error(words))


# Timeouts


@pytest.mark.parametrize(("interval", "timeout"), [(None, 60.0), (1000, 2.0), (-1, None)])
def test_the_read_timeout_is_two_heartbeats(interval: int | None, timeout: float | None) -> None:
    identify = nsq.IdentifyRequest(heartbeat_interval=interval)
    assert ConnectionSettings(identify=identify).read_timeout == timeout
