"""One suite for all kinds of servers: the real ones and ours must pass the same tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from nsqflow.broker.version import VERSION
from tests.conformance.differences import DIFFERENCES, difference_in
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Kind, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd

BROKER = Path(__file__).parent / "broker"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the broker's tests with all kinds; the client's would show nothing new of the third."""
    if "server_kind" in metafunc.fixturenames:
        kinds = ["real", "ours"]
        if metafunc.definition.path.is_relative_to(BROKER):
            kinds.append("memory")
        metafunc.parametrize("server_kind", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """The kind of servers that the test is run against."""
    return cast(Kind, request.param)


@pytest.fixture(scope="session")
def version(server_kind: Kind) -> str:
    """What these servers say that they are."""
    return "1.3.0" if server_kind == "real" else VERSION


@pytest.fixture(scope="session")
def nsqd(
    server_kind: Kind, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Nsqd]:
    """One nsqd of each kind, with TLS; snappy and deflate are on by default."""
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), kind=server_kind, tls=certificates) as server:
        yield server


@pytest.fixture(scope="session")
def nsqlookupd(server_kind: Kind) -> Iterator[Nsqlookupd]:
    """One nsqlookupd of each kind."""
    with start_nsqlookupd(kind=server_kind) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect of ours what is said of them in the table of differences."""
    for item in items:
        if name := difference_in(item.name):
            item.add_marker(pytest.mark.xfail(reason=DIFFERENCES[name]))
