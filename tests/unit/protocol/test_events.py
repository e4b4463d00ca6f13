"""What a session reports: values that can be kept, compared and logged."""

from dataclasses import FrozenInstanceError, fields
from typing import Any, get_args

import pytest

from nsqflow.errors import FinishFailedError, InvalidCommandError
from nsqflow.protocol import events
from nsqflow.protocol.events import (
    AnswerFailed,
    Authenticated,
    CloseWait,
    CommandFailed,
    CompressionRefused,
    CompressionStarted,
    Connected,
    Event,
    Heartbeat,
    Published,
    StartTls,
    Subscribed,
    TlsStarted,
)
from nsqflow.protocol.identify import AuthReply, IdentifyReply
from nsqflow.protocol.messages import MessageBatch, Receipt

EXAMPLES: list[Event] = [
    StartTls(b"\x16\x03"),
    TlsStarted(),
    CompressionStarted("snappy"),
    CompressionRefused("deflate"),
    Connected(IdentifyReply()),
    Authenticated(AuthReply()),
    Subscribed(),
    Published(Receipt(1, 2, 3, 4)),
    Heartbeat(),
    MessageBatch(b"", [], []),
    CloseWait(),
    AnswerFailed("FIN", b"0123456789abcdef", FinishFailedError("E_FIN_FAILED")),
    CommandFailed(InvalidCommandError("E_INVALID"), "SUB", True),
]


def test_every_event_is_of_the_type_event() -> None:
    here = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and value.__module__ == events.__name__
    }
    assert {*get_args(Event)} == {*here, MessageBatch} == {*map(type, EXAMPLES)}


@pytest.mark.parametrize("event", EXAMPLES)
def test_an_event_does_not_change(event: Any) -> None:
    for field in fields(event):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{field.name}'"):
            setattr(event, field.name, None)
    assert not hasattr(event, "__dict__")


def test_events_have_empty_defaults() -> None:
    assert StartTls() == StartTls(b"")
    assert Published() == Published(None)


def test_bytes_of_the_handshake_are_not_shown() -> None:
    assert repr(StartTls(b"secret")) == "StartTls()"
