"""Authorization by auth servers: queries, answers, patterns."""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsqflow.broker.auth import Authorizer, AuthState
from nsqflow.config.go_regexp import compile_go_regexp
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

SECRET = "s3cret +&=/ü"


def authorizer(*addresses: str) -> Authorizer:
    return Authorizer(addresses, PATIENCE, PATIENCE)


async def state_of(auth: AuthServer, secret: str = SECRET) -> AuthState:
    return await authorizer(auth.address).query("127.0.0.1", False, "", secret)


class RealClient:
    """A client of a real nsqd that requires AUTH."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._socket = nsqd.connect()
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"  V2")

    def ask(self, line: str, body: bytes) -> bytes:
        """Send a command and return the data of the response."""
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
async def test_the_auth_server_gets_the_same_query_as_from_the_real_nsqd(tmp_path: Path) -> None:
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


PATTERNS = [
    r"^ord", r"s\z", r"\Aorders$", r"(?i)ORDERS", r"(?i:ORD)ers", r"^\Qorders\E$", r"\Q.*",
    r"[[:alpha:]]{6}", r"[^[:digit:]]s", r"[\d[]", r"(?P<name>o)r", r"(?<name>o)r", r"o{,2}r",
    r"[]o]r", r"or|xx", r"\.", r"o\x72d", r"\p{Lu}", r"(?=o)", r"(?!x)", r"(?<=o)r", r"(o)\1",
    r"o++r", r"o{1}+r", r"(?>o)r", r"(?#x)o", r"(", r"[", r"o**", r"\Z", r"\8", r"x??o",
    r"s$", r"o$", r"s$|x", r"[$]", r"\$", r"(?m)^orders$", r"(?im)S$", r"[\b]", r"\bo", r"\é",
    r"o{1,1001}", r"o{1001}", r"o{0,1000}r", r"o{x", r"o{\Q1\E}r", r"\x6f", r"[\x6f]r", r"\x6",
    r"\x4\Q1\E", r"[\x4[:alpha:]]", r"[+-[:lower:]]", r"[-[:lower:]]r", r"[[:\d:]", r"[a-\s]",
    r"(?m:s$)", r"[\S]", r"\157", r"\S\s*\S",
]  # fmt: skip


# Patterns that Go accepts and we refuse.
STRICTER = {
    r"s\z", r"^\Qorders\E$", r"\Q.*", r"o{\Q1\E}r", r"[[:alpha:]]{6}", r"[^[:digit:]]s",
    r"[+-[:lower:]]", r"[-[:lower:]]r", r"(?<name>o)r", r"o{,2}r", r"\157", r"\p{Lu}",
}  # fmt: skip


def test_patterns_match_as_in_the_real_nsqd(tmp_path: Path) -> None:
    secrets = {str(i): [Authorization(topic=p)] for i, p in enumerate(PATTERNS)}
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
    ours = {pattern: matches(pattern) for pattern in PATTERNS}
    assert {p for p in PATTERNS if ours[p] != real[p]} == STRICTER
    assert {ours[pattern] for pattern in STRICTER} == {None}


def matches(pattern: str) -> bool | None:
    """Return whether the pattern matches "orders"; None if it is refused."""
    try:
        return bool(compile_go_regexp(pattern).search("orders"))
    except ValueError:
        return None
