"""Programs of other projects: each test runs with both kinds of broker."""

from collections.abc import Iterator
from itertools import count
from typing import cast

import pytest

from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Kind, start_nsqd, start_nsqlookupd
from tests.outside.brokers import Broker

NUMBERS = count(1)


@pytest.fixture(scope="session", params=["real", "ours"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return cast(Kind, request.param)


@pytest.fixture(scope="session")
def broker(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp
    with (
        start_nsqlookupd(kind=kind) as lookupd,
        start_nsqd(folder("one"), kind=kind, lookupd=[lookupd], tls=certificates) as nsqd,
        start_nsqd(folder("other"), kind=kind, lookupd=[lookupd]) as other,
    ):
        yield Broker(nsqd, other, lookupd)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"outside-{next(NUMBERS)}"
