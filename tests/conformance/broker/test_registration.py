"""What nsqd says to nsqlookupd over TCP, and what nsqlookupd answers."""

from __future__ import annotations

import json
import socket

from tests.conformance.broker.dialogue import (
    CLOSED,
    HANG_UP,
    LOOKUP_MAGIC,
    Dialogue,
    Line,
    Reply,
    Step,
    agreed,
    hold_with_lookupd,
    size,
    sized,
    table,
)
from tests.conformance.broker.peers import introduce
from tests.fixtures.servers import Kind, Nsqlookupd, start_nsqlookupd

OK = Reply(b"OK")


def body(content: bytes) -> bytes:
    return LOOKUP_MAGIC + b"IDENTIFY\n" + sized(content)


def refused(command: bytes, text: str) -> Dialogue:
    return (command, Reply(text.encode()), CLOSED)


KNOWN: tuple[Step, ...] = (introduce(), agreed())
UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"
MISSING = "E_BAD_BODY IDENTIFY missing fields"

COMMANDS: dict[str, Dialogue] = {
    "another magic": (b"  V2", Reply(b"E_BAD_PROTOCOL"), CLOSED),
    "no magic": (b"PING\n", Reply(b"E_BAD_PROTOCOL"), CLOSED),
    "half a magic": (b"  V", HANG_UP, CLOSED),
    "the magic alone": (LOOKUP_MAGIC,),
    "an end between two commands": (LOOKUP_MAGIC + b"PING\n", OK, HANG_UP, CLOSED),
    "an end within a line": (LOOKUP_MAGIC + b"PIN", HANG_UP, CLOSED),
    "PING": (LOOKUP_MAGIC + b"PING\n", OK),
    "PING after IDENTIFY": (*KNOWN, b"PING\n", OK, b"PING\n", OK),
    "PING with parameters": (LOOKUP_MAGIC + b"PING 1 2\n", OK),
    "white space around a line": (LOOKUP_MAGIC + b" \t PING \r\n", OK),
    "a line in pieces": (LOOKUP_MAGIC[:2], LOOKUP_MAGIC[2:] + b"PI", b"NG", b"\n", OK),
    "several lines at once": (LOOKUP_MAGIC + b"PING\nPING\nPING\n", OK, OK, OK),
    "an empty line": refused(LOOKUP_MAGIC + b"\n", "E_INVALID invalid command "),
    "a command in lower case": refused(LOOKUP_MAGIC + b"ping\n", "E_INVALID invalid command ping"),
    "a command of nsqd": refused(LOOKUP_MAGIC + b"NOP\n", "E_INVALID invalid command NOP"),
    "what follows a fatal error is not heard": refused(
        LOOKUP_MAGIC + b"HELLO\nPING\n", "E_INVALID invalid command HELLO"
    ),
    "IDENTIFY": KNOWN,
    "IDENTIFY in pieces": (
        introduce()[:9],
        introduce()[9:17],
        introduce()[17:40],
        introduce()[40:],
        agreed(),
    ),
    "IDENTIFY with parameters": (LOOKUP_MAGIC + b"IDENTIFY x\n" + introduce()[13:], agreed()),
    "IDENTIFY with unknown values": (introduce(mood="good"), agreed()),
    "IDENTIFY without a hostname": (introduce(hostname=""), agreed()),
    "IDENTIFY twice": (*KNOWN, b"IDENTIFY\n", Reply(b"E_INVALID cannot IDENTIFY again"), CLOSED),
    "IDENTIFY without JSON": refused(body(b"hello"), UNDECODABLE),
    "IDENTIFY with an empty body": refused(body(b""), UNDECODABLE),
    "IDENTIFY with a list": refused(body(b"[]"), UNDECODABLE),
    "IDENTIFY with a string for a port": refused(introduce(tcp_port="4150"), UNDECODABLE),
    "IDENTIFY with nothing in it": refused(body(b"{}"), MISSING),
    "IDENTIFY with null": refused(body(b"null"), MISSING),
    "IDENTIFY without an address": refused(introduce(broadcast_address=""), MISSING),
    "IDENTIFY without a TCP port": refused(introduce(tcp_port=0), MISSING),
    "IDENTIFY without an HTTP port": refused(introduce(http_port=0), MISSING),
    "IDENTIFY without a version": refused(introduce(version=""), MISSING),
}

for command in ("REGISTER", "UNREGISTER"):
    line = command.encode()
    COMMANDS |= {
        f"{command} of a topic": (*KNOWN, line + b" {topic}\n", OK),
        f"{command} of a channel": (*KNOWN, line + b" {topic} ch\n", OK),
        f"{command} of a channel, and more": (*KNOWN, line + b" {topic} ch 0\n", OK),
        f"{command} of an ephemeral channel": (*KNOWN, line + b" {topic} ch#ephemeral\n", OK),
        f"{command} of a topic of 64 letters": (*KNOWN, line + b" " + b"t" * 64 + b"\n", OK),
        f"{command} of a topic of 65 letters": (
            *KNOWN,
            line + b" " + b"t" * 65 + b"\n",
            Reply(f"E_BAD_TOPIC {command} topic name '{'t' * 65}' is not valid".encode()),
            CLOSED,
        ),
        f"{command} of a bad topic": (
            *KNOWN,
            line + b" a$b\n",
            Reply(f"E_BAD_TOPIC {command} topic name 'a$b' is not valid".encode()),
            CLOSED,
        ),
        f"{command} of a bad channel": (
            *KNOWN,
            line + b" {topic} a$b\n",
            Reply(f"E_BAD_CHANNEL {command} channel name 'a$b' is not valid".encode()),
            CLOSED,
        ),
        f"{command} of a topic that is no text": (
            *KNOWN,
            line + b" \xff\n",
            Reply(b"E_BAD_TOPIC " + line + b" topic name '\xff' is not valid"),
            CLOSED,
        ),
        f"{command} of a channel of 65 letters": (
            *KNOWN,
            line + b" {topic} " + b"c" * 65 + b"\n",
            Reply(f"E_BAD_CHANNEL {command} channel name '{'c' * 65}' is not valid".encode()),
            CLOSED,
        ),
        f"{command} of nothing": (
            *KNOWN,
            line + b"\n",
            Reply(f"E_INVALID {command} insufficient number of params".encode()),
            CLOSED,
        ),
        f"{command} before IDENTIFY": (
            LOOKUP_MAGIC + line + b" {topic}\n",
            Reply(b"E_INVALID client must IDENTIFY"),
            CLOSED,
        ),
    }


@table(COMMANDS)
def test_nsqlookupd_answers(nsqlookupd: Nsqlookupd, topic: str, dialogue: Dialogue) -> None:
    hold_with_lookupd(nsqlookupd, topic, dialogue)


def test_nsqlookupd_returns_its_addresses(nsqlookupd: Nsqlookupd, version: str) -> None:
    with Line(nsqlookupd) as line:
        line.say(introduce())
        answer = json.loads(line.take())
    assert answer == {
        "broadcast_address": "127.0.0.1",
        "hostname": socket.gethostname(),
        "tcp_port": int(nsqlookupd.tcp_address.rsplit(":", 1)[1]),
        "http_port": int(nsqlookupd.http_address.rsplit(":", 1)[1]),
        "version": version,
    }


def test_a_negative_size_ends_the_connection(server_kind: Kind) -> None:
    with start_nsqlookupd(kind=server_kind) as nsqlookupd, Line(nsqlookupd) as line:
        line.say(LOOKUP_MAGIC + b"IDENTIFY\n" + size(-1))
        if server_kind == "real":  # it ends altogether, with a panic
            line.expect_end()
        else:
            assert line.take().startswith(b"E_BAD_BODY ")
            line.expect_end()
            hold_with_lookupd(nsqlookupd, "t", KNOWN)
