"""AUTH, and what can be done without it, with it, and not even with it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.conformance.broker.dialogue import (
    CLOSED,
    MAGIC,
    OK,
    Client,
    Dialogue,
    Frame,
    Table,
    agreed,
    error,
    hold,
    identify,
    negotiate,
    several,
    size,
    sized,
    table,
)
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, start_nsqd


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


def welcome(permissions: int) -> Frame:
    answer = {"identity": "a-user", "identity_url": "", "permission_count": permissions}
    return Frame(0, json.dumps(answer, separators=(",", ":")).encode())


ALL = (MAGIC + auth(b"all"), welcome(1))
LITTLE = (MAGIC + auth(b"little"), welcome(2))


def unauthorized(command: str, channel: str = "", topic: str = "{topic}") -> Frame:
    return error(f'E_UNAUTHORIZED AUTH failed for {command} on "{topic}" "{channel}"')


AUTH: Table = {
    "IDENTIFY says that it is needed": (negotiate(), agreed(auth_required=True)),
    "a good secret": ALL,
    "a good secret after IDENTIFY": (identify(), OK, auth(b"all"), welcome(1)),
    "an unknown secret": (
        MAGIC + auth(b"guess"),
        error("E_AUTH_FAILED AUTH failed"),
        CLOSED,
    ),
    "a secret that is no text": (
        MAGIC + auth(b"\xff\x00"),
        error("E_AUTH_FAILED AUTH failed"),
        CLOSED,
    ),
    "a secret without permissions": (
        MAGIC + auth(b"nothing"),
        error("E_UNAUTHORIZED AUTH no authorizations found"),
        CLOSED,
    ),
    "twice": (*ALL, auth(b"all"), error("E_INVALID AUTH already set"), CLOSED),
    "after SUB": (
        *ALL,
        b"SUB {topic} ch\n",
        OK,
        b"AUTH\n",
        error("E_INVALID cannot AUTH in current state"),
        CLOSED,
    ),
    "with a parameter": (
        MAGIC + b"AUTH all\n",
        error("E_INVALID AUTH invalid number of parameters"),
        CLOSED,
    ),
    "an empty secret": (MAGIC + auth(b""), error("E_BAD_BODY AUTH invalid body size 0"), CLOSED),
    "a negative size": (
        MAGIC + b"AUTH\n" + size(-1),
        error("E_BAD_BODY AUTH invalid body size -1"),
        CLOSED,
    ),
    "the longest secret": (MAGIC + auth(b"x" * 1000), error("E_AUTH_FAILED AUTH failed"), CLOSED),
    "a secret one byte too long": (
        MAGIC + b"AUTH\n" + size(1001),
        error("E_BAD_BODY AUTH body too big 1001 > 1000"),
        CLOSED,
    ),
    "SUB without AUTH": (
        MAGIC + b"SUB {topic} ch\n",
        error("E_AUTH_FIRST AUTH required before SUB"),
        CLOSED,
    ),
    "SUB of a bad topic without AUTH": (
        MAGIC + b"SUB a$b ch\n",
        error('E_BAD_TOPIC SUB topic name "a$b" is not valid'),
        CLOSED,
    ),
    "PUB without AUTH": (
        MAGIC + b"PUB {topic}\n" + sized(b"x"),
        error("E_AUTH_FIRST AUTH required before PUB"),
        CLOSED,
    ),
    "PUB of an empty message without AUTH": (
        MAGIC + b"PUB {topic}\n" + sized(b""),
        error("E_BAD_MESSAGE PUB invalid message body size 0"),
        CLOSED,
    ),
    "MPUB without AUTH": (
        MAGIC + b"MPUB {topic}\n" + several(b"x"),
        error("E_AUTH_FIRST AUTH required before MPUB"),
        CLOSED,
    ),
    "DPUB without AUTH": (
        MAGIC + b"DPUB {topic} 0\n" + sized(b"x"),
        error("E_AUTH_FIRST AUTH required before DPUB"),
        CLOSED,
    ),
    "NOP without AUTH": (MAGIC + b"NOP\n",),
    "all that is allowed with any secret": (
        *ALL,
        b"PUB {topic}\n" + sized(b"x"),
        OK,
        b"MPUB {topic}\n" + several(b"x"),
        OK,
        b"DPUB {topic} 0\n" + sized(b"x"),
        OK,
        b"SUB {topic} ch\n",
        OK,
    ),
    "SUB of a channel that is allowed": (*LITTLE, b"SUB readable ch\n", OK),
    "a permission counts for names that contain its own": (*LITTLE, b"SUB unreadable ch2\n", OK),
    "SUB of a channel that is not allowed": (
        *LITTLE,
        b"SUB readable other\n",
        unauthorized("SUB", "other", "readable"),
        CLOSED,
    ),
    "SUB of a topic that is not allowed": (
        *LITTLE,
        b"SUB {topic} ch\n",
        unauthorized("SUB", "ch"),
        CLOSED,
    ),
    "PUB to a topic that is allowed": (*LITTLE, b"PUB open\n" + sized(b"x"), OK),
    "PUB to a topic that may only be read": (
        *LITTLE,
        b"PUB readable\n" + sized(b"x"),
        unauthorized("PUB", topic="readable"),
        CLOSED,
    ),
    "PUB to a topic that is not allowed": (
        *LITTLE,
        b"PUB {topic}\n" + sized(b"x"),
        unauthorized("PUB"),
        CLOSED,
    ),
    "MPUB to a topic that is not allowed": (
        *LITTLE,
        b"MPUB {topic}\n" + several(b"x"),
        unauthorized("MPUB"),
        CLOSED,
    ),
    "DPUB to a topic that is not allowed": (
        *LITTLE,
        b"DPUB {topic} 0\n" + sized(b"x"),
        unauthorized("DPUB"),
        CLOSED,
    ),
}


@table(AUTH)
def test_auth(guarded_nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(guarded_nsqd, topic, dialogue)


NO_AUTH: Table = {
    "AUTH": (MAGIC + auth(b"all"), error("E_AUTH_DISABLED AUTH disabled"), CLOSED),
    "a bad AUTH": (MAGIC + auth(b""), error("E_BAD_BODY AUTH invalid body size 0"), CLOSED),
    "AUTH after SUB": (
        MAGIC + b"SUB {topic} ch\n",
        OK,
        b"AUTH\n",
        error("E_INVALID cannot AUTH in current state"),
        CLOSED,
    ),
}


@table(NO_AUTH)
def test_auth_that_was_not_asked_for(nsqd: Nsqd, topic: str, dialogue: Dialogue) -> None:
    hold(nsqd, topic, dialogue)


def test_nsqd_identifies_the_client_to_the_auth_server(
    guarded_nsqd: Nsqd, auth_server: AuthServer
) -> None:
    with Client(guarded_nsqd, MAGIC + auth(b"s p&c=")) as client:
        client.expect(error("E_AUTH_FAILED AUTH failed"))
    assert auth_server.requests[-1] == {
        "remote_ip": "127.0.0.1",
        "tls": "false",
        "secret": "s p&c=",
        "common_name": "",
    }


def test_a_permission_that_has_expired_is_asked_for_again(
    server_kind: Kind, tmp_path: Path, topic: str
) -> None:
    command = b"PUB %s\n" % topic.encode() + sized(b"x")
    with (
        AuthServer({"once": [Authorization()]}) as authority,
        start_nsqd(
            tmp_path, kind=server_kind, options=[f"-auth-http-address={authority.address}"]
        ) as nsqd,
        Client(nsqd, MAGIC + auth(b"once")) as client,
    ):
        authority.ttl = 1
        client.hear()
        authority.secrets.clear()
        deadline = time.monotonic() + PATIENCE
        client.say(command)
        while (frame := client.hear()) == OK and time.monotonic() < deadline:
            client.say(command)
        assert frame == error("E_AUTH_FAILED AUTH failed")
        client.expect_end()


def test_without_the_auth_server_every_secret_is_refused(server_kind: Kind, tmp_path: Path) -> None:
    with AuthServer({}) as gone:
        pass
    with start_nsqd(
        tmp_path, kind=server_kind, options=[f"-auth-http-address={gone.address}"]
    ) as nsqd:
        hold(nsqd, "t", (MAGIC + auth(b"all"), error("E_AUTH_FAILED AUTH failed"), CLOSED))
