"""The servers that the broker's tests need: of each kind one per set of options."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Kind, Nsqd, start_nsqd

numbers = count(1)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, on servers that it shares with others."""
    return f"dialogue_{next(numbers)}"


@pytest.fixture(scope="session")
def small_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd whose limits are small enough to be tried from both sides."""
    options = [
        "-max-msg-size=100",
        "-max-body-size=1000",
        "-max-rdy-count=7",
        "-max-req-timeout=5s",
        "-max-msg-timeout=10s",
        "-max-heartbeat-interval=2s",
        "-max-output-buffer-size=1000",
        "-max-output-buffer-timeout=500ms",
        "-min-output-buffer-timeout=50ms",
        "-output-buffer-timeout=100ms",
        "-max-deflate-level=3",
        "-max-channel-consumers=1",
        "-node-id=5",
    ]
    with start_nsqd(tmp_path_factory.mktemp("small"), kind=server_kind, options=options) as server:
        yield server


@pytest.fixture(scope="session")
def modest_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that neither encrypts nor compresses."""
    options = ["-snappy=false", "-deflate=false"]
    with start_nsqd(tmp_path_factory.mktemp("modest"), kind=server_kind, options=options) as server:
        yield server


@pytest.fixture(scope="session")
def encrypted_nsqd(
    server_kind: Kind, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Nsqd]:
    """An nsqd that speaks TLS only, over HTTP too."""
    folder = tmp_path_factory.mktemp("encrypted")
    options = ["-tls-required=true"]
    with start_nsqd(folder, kind=server_kind, tls=certificates, options=options) as server:
        yield server


@pytest.fixture(scope="session")
def auth_server() -> Iterator[AuthServer]:
    """Knows three secrets: with all permissions, with a few, and with none."""
    secrets = {
        "all": [Authorization()],
        "little": [Authorization("readable", ["ch"], ["subscribe"]), Authorization("open")],
        "nothing": [],
    }
    with AuthServer(secrets) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_nsqd(
    server_kind: Kind, tmp_path_factory: pytest.TempPathFactory, auth_server: AuthServer
) -> Iterator[Nsqd]:
    """An nsqd that asks ``auth_server`` for permissions."""
    options = [f"-auth-http-address={auth_server.address}", "-max-body-size=1000"]
    with start_nsqd(
        tmp_path_factory.mktemp("guarded"), kind=server_kind, options=options
    ) as server:
        yield server


TIMELY = [f"timely_{number}" for number in range(12)]


@pytest.fixture(scope="session")
def hasty_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd with short timeouts that looks after the timely topics from its first moment on.

    The real one looks only every five seconds which channels there are that may have messages in
    flight or deferred (nsqd/nsqd.go: queueScanLoop). Those that it finds on its disk it knows at
    once.
    """
    folder = tmp_path_factory.mktemp("hasty")
    with start_nsqd(folder, kind=server_kind) as server:
        create_timely_topics(server)
    options = ["-msg-timeout=500ms", "-max-msg-timeout=1200ms", "-max-req-timeout=300ms"]
    with start_nsqd(folder, kind=server_kind, options=options) as server:
        create_timely_topics(server)  # one without a disk has forgotten them
        yield server


def create_timely_topics(server: Nsqd) -> None:
    for topic in TIMELY:
        assert server.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
        assert server.ask(f"/channel/create?topic={topic}&channel=ch", "POST")[0] == 200


@pytest.fixture(scope="session")
def timely_topics(server_kind: Kind) -> Iterator[str]:
    """Those of one hasty nsqd that no test has used."""
    return iter(TIMELY)


@pytest.fixture
def timely_topic(timely_topics: Iterator[str]) -> str:
    """A topic of ``hasty_nsqd`` that is the test's own; it has the channel "ch"."""
    return next(timely_topics)
