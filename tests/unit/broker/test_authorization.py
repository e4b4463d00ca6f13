"""Asking auth servers, as the real nsqd does, and what their answers allow."""

import json
import logging
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsqflow.broker.authorization import AuthorizationFailed, Authorizer, AuthState
from nsqflow.broker.regexp import compile_go
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

SECRET = "s3cret +&=/ü"


def authorizer(*addresses: str) -> Authorizer:
    return Authorizer(addresses, PATIENCE, PATIENCE)


async def state_of(auth: AuthServer, secret: str = SECRET) -> AuthState:
    return await authorizer(auth.address).query("127.0.0.1", False, "", secret)


class Answering(AuthServer):
    """Gives a fixed answer."""

    def __init__(self, value: Any, status: int = 200) -> None:
        super().__init__({})
        self.value = value
        self.status = status
        self.paths: list[str] = []

    def answer(self, path: str) -> tuple[int, Any]:
        self.paths.append(path)
        return self.status, self.value


class RealClient:
    """Speaks to a real nsqd that wants to know who it is."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._socket = nsqd.connect()
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"  V2")

    def ask(self, line: str, body: bytes) -> bytes:
        """The frame that answers a command."""
        self._socket.sendall(f"{line}\n".encode() + struct.pack(">i", len(body)) + body)
        return self._file.read(struct.unpack(">i", self._file.read(4))[0])[4:]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def real_client(nsqd: Nsqd) -> Iterator[RealClient]:
    client = RealClient(nsqd)
    try:
        yield client
    finally:
        client.close()


@asynchronous
async def test_an_auth_server_is_asked_what_the_real_nsqd_asks_it(tmp_path: Path) -> None:
    with AuthServer({SECRET: [Authorization()]}) as auth:
        with (
            start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as nsqd,
            real_client(nsqd) as client,
        ):
            reply = json.loads(client.ask("AUTH", SECRET.encode()))
        state = await state_of(auth)
    real, ours = auth.requests
    assert ours == real == {
        "remote_ip": "127.0.0.1", "tls": "false", "secret": SECRET, "common_name": ""
    }  # fmt: skip
    assert reply == {
        "identity": state.identity,
        "identity_url": state.identity_url,
        "permission_count": state.count,
    }


@asynchronous
async def test_what_is_known_of_a_client_is_told() -> None:
    with AuthServer({"x": [Authorization()]}) as auth:
        await authorizer(auth.address).query("::1", True, "billing & co", b"x")
    assert auth.requests == [
        {"remote_ip": "::1", "tls": "true", "secret": "x", "common_name": "billing & co"}
    ]


@asynchronous
async def test_a_secret_may_be_any_bytes() -> None:
    with Answering({"ttl": 1}) as auth:
        await authorizer(auth.address).query("", False, "", b"\xff\x00")
    assert auth.paths == ["/auth?common_name=&remote_ip=&secret=%FF%00&tls=false"]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("{}", "/auth"),
        ("http://{}", "/"),
        ("http://{}/", "/"),
        ("http://{}/who/is", "/who/is"),
        ("http://{}/who/is/", "/who/is/"),
    ],
)
@asynchronous
async def test_a_url_is_asked_as_it_is_and_an_address_at_its_usual_path(
    url: str, path: str
) -> None:
    with Answering({"ttl": 1}) as auth:
        await authorizer(url.format(auth.address)).query("", False, "", "x")
    assert [asked.partition("?")[0] for asked in auth.paths] == [path]


@asynchronous
async def test_an_answer_holds_for_the_time_it_names() -> None:
    with AuthServer({SECRET: []}) as auth:
        auth.ttl = 7
        before = time.time_ns()
        state = await state_of(auth)
        after = time.time_ns()
    assert not state.expired(before + 7 * 10**9)
    assert state.expired(after + 7 * 10**9 + 1)
    assert state.count == 0
    assert not state.allows("orders")


# For a topic and a channel (none: to publish), which authorizations allow it.
@pytest.mark.parametrize(
    ("granted", "topic", "channel", "allowed"),
    [
        (Authorization(), "orders", "", True),
        (Authorization(), "orders", "billing", True),
        (Authorization(permissions=["publish"]), "orders", "", True),
        (Authorization(permissions=["publish"]), "orders", "billing", False),
        (Authorization(permissions=["subscribe"]), "orders", "", False),
        (Authorization(permissions=["subscribe"]), "orders", "billing", True),
        (Authorization(permissions=[]), "orders", "", False),
        (Authorization(topic="rder"), "orders", "", True),
        (Authorization(topic="^rder"), "orders", "", False),
        (Authorization(topic="^orders$"), "orders2", "", False),
        (Authorization(channels=["^billing$"]), "orders", "billing", True),
        (Authorization(channels=["^billing$"]), "orders", "mail", False),
        (Authorization(channels=["^billing$"]), "orders", "", False),
        (Authorization(channels=["^billing$", "^$"]), "orders", "", True),
        (Authorization(channels=[]), "orders", "", False),
        (Authorization(topic=""), "orders", "", True),
    ],
)
@asynchronous
async def test_patterns_and_permissions_say_what_is_allowed(
    granted: Authorization, topic: str, channel: str, allowed: bool
) -> None:
    with AuthServer({SECRET: [Authorization(topic="^other$"), granted]}) as auth:
        state = await state_of(auth)
    assert state.allows(topic, channel) is allowed
    assert state.allows("other", "any")


MEANT_ALIKE = [
    r"^ord", r"s\z", r"\Aorders$", r"(?i)ORDERS", r"(?i:ORD)ers", r"^\Qorders\E$", r"\Q.*",
    r"[[:alpha:]]{6}", r"[^[:digit:]]s", r"[\d[]", r"(?P<name>o)r", r"(?<name>o)r", r"o{,2}r",
    r"[]o]r", r"or|xx", r"\.", r"o\x72d", r"\p{Lu}", r"(?=o)", r"(?!x)", r"(?<=o)r", r"(o)\1",
    r"o++r", r"o{1}+r", r"(?>o)r", r"(?#x)o", r"(", r"[", r"o**", r"\Z", r"\8", r"x??o",
    r"s$", r"o$", r"s$|x", r"[$]", r"\$", r"(?m)^orders$", r"(?im)S$", r"[\b]", r"\bo", r"\é",
    r"o{1,1001}", r"o{1001}", r"o{0,1000}r", r"o{x", r"o{\Q1\E}r", r"\x6f", r"[\x6f]r", r"\x6",
    r"\x4\Q1\E", r"[\x4[:alpha:]]", r"[+-[:lower:]]", r"[-[:lower:]]r", r"[[:\d:]", r"[a-\s]",
    r"(?m:s$)", r"[\S]", r"\157", r"\S\s*\S",
]  # fmt: skip
# What Go knows and Python does not, or has another meaning for.
STRICTER = {r"\p{Lu}", r"(?m:s$)", r"[\S]", r"\157", r"[+-[:lower:]]"}


def test_patterns_mean_to_us_what_they_mean_to_the_real_nsqd(tmp_path: Path) -> None:
    secrets = {str(i): [Authorization(topic=p)] for i, p in enumerate(MEANT_ALIKE)}
    real: dict[str, bool | None] = {}
    with (
        AuthServer(secrets) as auth,
        start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as nsqd,
    ):
        for secret, [granted] in secrets.items():
            with real_client(nsqd) as client:
                known = client.ask("AUTH", secret.encode()) != b"E_AUTH_FAILED AUTH failed"
                allowed = known and client.ask("PUB orders", b"x") == b"OK"
                real[granted.topic] = allowed if known else None
    assert {True, False, None} == set(real.values())
    ours = {pattern: meaning(pattern) for pattern in MEANT_ALIKE}
    assert {p for p in MEANT_ALIKE if ours[p] != real[p]} == STRICTER
    assert {ours[pattern] for pattern in STRICTER} == {None}


def meaning(pattern: str) -> bool | None:
    """Whether it is found in "orders"; None if it can't be understood."""
    try:
        return bool(compile_go(pattern).search("orders"))
    except ValueError:
        return None


# What no topic can be named, so that the real nsqd can't be asked.
@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("^a$", "a", True),
        ("^a$", "a\n", False),
        (r"^a\z", "a\n", False),
        ("(^a$)|b", "a\n", False),
        ("(?i)^A$", "a\n", False),
        ("(?m)^a$", "a\n", True),
        ("(?sm)^a$", "b\na\nb", True),
        ("a[$]", "a$", True),
        (r"\Qa$\E", "a$", True),
        (r"\s", "\v", False),
        (r"\S", "\v", True),
        (r"[\s-z]", "a", False),
        (r"[\s-z]", "-", True),
        (r"^\s$", "\r", True),
    ],
)
def test_a_pattern_finds_in_any_text_what_go_would_find(
    pattern: str, text: str, found: bool
) -> None:
    assert bool(compile_go(pattern).search(text)) is found


def test_a_count_that_go_does_not_take_is_named() -> None:
    with pytest.raises(ValueError, match=r"'\{2,1001\}' is more than 1000 times"):
        compile_go("a{2,1001}")


@asynchronous
async def test_the_next_server_is_asked_when_one_gives_no_answer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as closed,
        Answering({}, status=500) as failing,
        AuthServer({SECRET: [Authorization()]}) as auth,
    ):
        nobody = "{}:{}".format(*closed.getsockname())
        closed.close()
        asking = authorizer(nobody, failing.address, auth.address)
        for _ in range(8):  # wherever it begins
            assert (await asking.query("", False, "", SECRET)).count == 1
    assert len(auth.requests) == 8


@asynchronous
async def test_any_of_the_servers_may_be_the_first() -> None:
    secrets = {SECRET: [Authorization()]}
    with AuthServer(secrets) as one, AuthServer(secrets) as two:
        asking = authorizer(one.address, two.address)
        for _ in range(64):
            await asking.query("", False, "", SECRET)
    assert one.requests
    assert two.requests


@asynchronous
async def test_if_no_server_answers_each_is_named_with_its_reason() -> None:
    with Answering({"message": SECRET}, 403) as one, Answering({"ttl": 0}) as two:
        asking = authorizer(one.address, f"http://u:pass@{two.address}/x")
        with pytest.raises(AuthorizationFailed) as caught:
            await asking.query("", False, "", SECRET)
    text = str(caught.value)
    assert f"failed to auth against {one.address} - got response 403" in text
    assert f"failed to auth against http://{two.address}/x - invalid TTL 0 (must be >0)" in text
    assert "s3cret" not in text
    assert "pass" not in text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([], "not an object"),
        ({"ttl": -1}, "invalid TTL -1"),
        ({"ttl": "1"}, "ttl is not int"),
        ({"ttl": True}, "ttl is not int"),
        ({"ttl": 1.5}, "ttl is not int"),
        ({"ttl": 1, "identity": 5}, "identity is not str"),
        ({"ttl": 1, "authorizations": {}}, "authorizations is not list"),
        ({"ttl": 1, "authorizations": [5]}, "an authorization is not an object"),
        ({"ttl": 1, "authorizations": [{"topic": 5}]}, "topic is not str"),
        ({"ttl": 1, "authorizations": [{"topic": "("}]}, "unable to compile topic '('"),
        ({"ttl": 1, "authorizations": [{"channels": ["("]}]}, "unable to compile channel '('"),
        ({"ttl": 1, "authorizations": [{"channels": [1]}]}, "a channel is not text"),
        ({"ttl": 1, "authorizations": [{"permissions": ["own"]}]}, "unknown permission 'own'"),
        ({"ttl": 1, "authorizations": [{"permissions": [[]]}]}, "unknown permission []"),
    ],
)
@asynchronous
async def test_an_answer_that_makes_no_sense_is_a_failure(answer: Any, words: str) -> None:
    with Answering(answer) as auth, pytest.raises(AuthorizationFailed, match=re.escape(words)):
        await state_of(auth)


@asynchronous
async def test_what_is_missing_from_an_answer_is_empty() -> None:
    with Answering({"ttl": 1, "identity": None, "authorizations": [{}]}) as auth:
        state = await state_of(auth)
    assert (state.identity, state.identity_url, state.count) == ("", "", 1)
    assert not state.allows("orders")


@asynchronous
async def test_the_secret_is_in_no_log_and_no_repr(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with AuthServer({SECRET: [Authorization()]}) as auth:
        asking = authorizer(auth.address)
        state = await asking.query("", False, "", SECRET)
    assert "s3cret" not in repr(asking) + repr(state) + repr(vars(asking)) + caplog.text
