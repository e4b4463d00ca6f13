"""Authorization by auth servers: queries, answers, patterns."""

import logging
import re
import socket
import time
from typing import Any

import pytest

from nsqflow.broker.auth import AuthorizationFailed, Authorizer, AuthState
from nsqflow.config.go_regexp import compile_go_regexp
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE

SECRET = "s3cret +&=/ü"


def authorizer(*addresses: str) -> Authorizer:
    return Authorizer(addresses, PATIENCE, PATIENCE)


async def state_of(auth: AuthServer, secret: str = SECRET) -> AuthState:
    return await authorizer(auth.address).query("127.0.0.1", False, "", secret)


class FixedAuthServer(AuthServer):
    """An auth server with a fixed answer."""

    def __init__(self, value: Any, status: int = 200) -> None:
        super().__init__({})
        self.value = value
        self.status = status
        self.paths: list[str] = []

    def answer(self, path: str) -> tuple[int, Any]:
        self.paths.append(path)
        return self.status, self.value


@asynchronous
async def test_the_auth_server_gets_what_nsqd_knows_of_the_client() -> None:
    with AuthServer({"x": [Authorization()]}) as auth:
        await authorizer(auth.address).query("::1", True, "billing & co", b"x")
    assert auth.requests == [
        {"remote_ip": "::1", "tls": "true", "secret": "x", "common_name": "billing & co"}
    ]


@asynchronous
async def test_a_secret_may_be_any_bytes() -> None:
    with FixedAuthServer({"ttl": 1}) as auth:
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
async def test_a_url_is_requested_as_it_is_and_an_address_at_its_usual_path(
    url: str, path: str
) -> None:
    with FixedAuthServer({"ttl": 1}) as auth:
        await authorizer(url.format(auth.address)).query("", False, "", "x")
    assert [asked.partition("?")[0] for asked in auth.paths] == [path]


@asynchronous
async def test_an_answer_expires_after_its_ttl() -> None:
    with AuthServer({SECRET: []}) as auth:
        auth.ttl = 7
        before = time.time_ns()
        state = await state_of(auth)
        after = time.time_ns()
    assert not state.expired(before + 7 * 10**9)
    assert state.expired(after + 7 * 10**9 + 1)
    assert state.count == 0
    assert not state.allows("orders")


# An authorization, a topic and a channel (none: to publish), and whether it is allowed.
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
async def test_patterns_and_permissions_decide_what_is_allowed(
    granted: Authorization, topic: str, channel: str, allowed: bool
) -> None:
    with AuthServer({SECRET: [Authorization(topic="^other$"), granted]}) as auth:
        state = await state_of(auth)
    assert state.allows(topic, channel) is allowed
    assert state.allows("other", "any")


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        (r"(o)\1", "a backreference"),
        (r"(?P<x>o)(?P=x)", "a backreference"),
        ("(?=o)", "lookahead"),
        ("(?!o)", "lookahead"),
        ("(?<=o)r", "lookbehind"),
        ("(?<!o)r", "lookbehind"),
        ("(?>o)r", "an atomic group"),
        ("o++r", "a possessive quantifier"),
        ("o{1}+r", "a possessive quantifier"),
        ("(o)?(?(1)r|x)", "a conditional group"),
        ("(?#x)o", "a comment"),
        ("(?x)o", "a Python-only flag"),
        (r"s\Z", "a Python-only escape"),
        ("[[:alpha:]]", "a character class in a set"),
        (r"[\b]", "an escape in a set"),
        ("o{,2}", "a repeat without a lower bound"),
        ("o{2,1001}", "a repeat of more than 1000"),
    ],
)
def test_a_construct_that_go_lacks_is_refused_by_name(pattern: str, construct: str) -> None:
    with pytest.raises(ValueError, match=f"^{construct} is not supported: "):
        compile_go_regexp(pattern)


@asynchronous
async def test_the_next_server_is_asked_if_one_does_not_answer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as closed,
        FixedAuthServer({}, status=500) as failing,
        AuthServer({SECRET: [Authorization()]}) as auth,
    ):
        unreachable = "{}:{}".format(*closed.getsockname())
        closed.close()
        asking = authorizer(unreachable, failing.address, auth.address)
        for _ in range(8):  # the first server is random
            assert (await asking.query("", False, "", SECRET)).count == 1
    assert len(auth.requests) == 8


@asynchronous
async def test_the_first_server_is_random() -> None:
    secrets = {SECRET: [Authorization()]}
    with AuthServer(secrets) as one, AuthServer(secrets) as two:
        asking = authorizer(one.address, two.address)
        for _ in range(64):
            await asking.query("", False, "", SECRET)
    assert one.requests
    assert two.requests


@asynchronous
async def test_if_no_server_answers_the_error_names_each_with_its_reason() -> None:
    with FixedAuthServer({"message": SECRET}, 403) as one, FixedAuthServer({"ttl": 0}) as two:
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
async def test_an_invalid_answer_is_a_failure(answer: Any, words: str) -> None:
    with (
        FixedAuthServer(answer) as auth,
        pytest.raises(AuthorizationFailed, match=re.escape(words)),
    ):
        await state_of(auth)


@asynchronous
async def test_missing_fields_of_an_answer_are_empty() -> None:
    with FixedAuthServer({"ttl": 1, "identity": None, "authorizations": [{}]}) as auth:
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
