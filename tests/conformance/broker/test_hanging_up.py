"""A client that hangs up in the middle of a command, and listens on."""

from __future__ import annotations

from tests.conformance.broker.dialogue import (
    CLOSED,
    HANG_UP,
    LOOKUP_MAGIC,
    MAGIC,
    Dialogue,
    Reply,
    error,
    hold,
    hold_with_lookupd,
    size,
    sized,
    table,
)
from tests.fixtures.servers import Nsqd, Nsqlookupd


def cut(command: bytes, text: str) -> Dialogue:
    return (MAGIC + command, HANG_UP, error(text), CLOSED)


CUT = {
    "before the size of IDENTIFY": cut(
        b"IDENTIFY\n\x00", "E_BAD_BODY IDENTIFY failed to read body size"
    ),
    "within IDENTIFY": cut(
        b"IDENTIFY\n" + sized(b"{}")[:-1], "E_BAD_BODY IDENTIFY failed to read body"
    ),
    "before the size of AUTH": cut(b"AUTH\n\x00", "E_BAD_BODY AUTH failed to read body size"),
    "within AUTH": cut(b"AUTH\n" + sized(b"me")[:-1], "E_BAD_BODY AUTH failed to read body"),
    "before the size of PUB": cut(
        b"PUB {topic}\n\x00", "E_BAD_MESSAGE PUB failed to read message body size"
    ),
    "within PUB": cut(
        b"PUB {topic}\n" + sized(b"hello")[:-1], "E_BAD_MESSAGE PUB failed to read message body"
    ),
    "before the size of DPUB": cut(
        b"DPUB {topic} 0\n\x00", "E_BAD_MESSAGE DPUB failed to read message body size"
    ),
    "within DPUB": cut(
        b"DPUB {topic} 0\n" + sized(b"hello")[:-1],
        "E_BAD_MESSAGE DPUB failed to read message body",
    ),
    "before the size of MPUB": cut(
        b"MPUB {topic}\n\x00", "E_BAD_BODY MPUB failed to read body size"
    ),
    "before the count of MPUB": cut(
        b"MPUB {topic}\n" + size(20) + b"\x00", "E_BAD_BODY MPUB failed to read message count"
    ),
    "before the size of a message of MPUB": cut(
        b"MPUB {topic}\n" + size(20) + size(2) + sized(b"a") + b"\x00",
        "E_BAD_MESSAGE MPUB failed to read message(1) body size",
    ),
    "within a message of MPUB": cut(
        b"MPUB {topic}\n" + size(20) + size(2) + sized(b"a") + sized(b"bbb")[:-1],
        "E_BAD_MESSAGE MPUB failed to read message body",
    ),
}


@table(CUT)
def test_a_client_that_closes_within_a_command_gets_an_error(
    nsqd: Nsqd, topic: str, dialogue: Dialogue
) -> None:
    hold(nsqd, topic, dialogue)


CUT_OF_LOOKUPD = {
    "before the size of IDENTIFY": (
        LOOKUP_MAGIC + b"IDENTIFY\n\x00",
        HANG_UP,
        Reply(b"E_BAD_BODY IDENTIFY failed to read body size"),
        CLOSED,
    ),
    "within IDENTIFY": (
        LOOKUP_MAGIC + b"IDENTIFY\n" + sized(b"{}")[:-1],
        HANG_UP,
        Reply(b"E_BAD_BODY IDENTIFY failed to read body"),
        CLOSED,
    ),
}


@table(CUT_OF_LOOKUPD)
def test_nsqlookupd_answers_a_peer_that_closes_within_a_command(
    nsqlookupd: Nsqlookupd, topic: str, dialogue: Dialogue
) -> None:
    hold_with_lookupd(nsqlookupd, topic, dialogue)
