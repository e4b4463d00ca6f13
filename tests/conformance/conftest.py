"""One suite, two kinds of servers: the real ones and ours must pass the same tests."""

from collections.abc import Iterator
from typing import cast

import pytest

from nsqflow.broker.version import VERSION
from tests.conformance.differences import DIFFERENCES
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Kind, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd


@pytest.fixture(scope="session", params=["real", "ours"])
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """Which servers the test is run against; whoever starts one hands it on."""
    return cast(Kind, request.param)


@pytest.fixture(scope="session")
def version(server_kind: Kind) -> str:
    """What these servers say that they are."""
    return VERSION if server_kind == "ours" else "1.3.0"


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
    """Expect of ours what is said of it in the table of differences."""
    for item in items:
        name, bracket, case = item.name.removesuffix("]").partition("[ours")
        if bracket:
            whole = f"{name}[{case.removeprefix('-')}]"
            if reason := DIFFERENCES.get(name) or DIFFERENCES.get(whole):
                item.add_marker(pytest.mark.xfail(reason=reason))
