"""Fixtures for the tests of your own services. pytest finds them once nsqflow is installed.

@pytest.mark.nsq_broker(nodes=2, msg_timeout=1)
def test_orders_survive_a_restart(nsq_broker): ...

@pytest.mark.nsq_redesigned_broker(nodes=3)
def test_orders_survive_a_move(nsq_redesigned_broker): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nsqflow.broker.background import BackgroundBroker


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for name in ("nsq_broker", "nsq_redesigned_broker"):
        config.addinivalue_line(
            "markers", f"{name}(**options): options of the Broker in the fixture {name}"
        )


@pytest.fixture
def nsq_broker(request: pytest.FixtureRequest) -> Iterator[BackgroundBroker]:
    """A broker for one test, on a thread, so that plain and async tests can use it.

    Its options are those of the marker ``nsq_broker``.
    """
    yield from _broker(request, "nsq_broker")


@pytest.fixture
def nsq_redesigned_broker(request: pytest.FixtureRequest) -> Iterator[BackgroundBroker]:
    """A cluster of the redesigned NSQ for one test, on a thread; by default with three nodes.

    Its options are those of the marker ``nsq_redesigned_broker``.
    """
    yield from _broker(request, "nsq_redesigned_broker", dialect="redesigned", nodes=3)


def _broker(
    request: pytest.FixtureRequest, marker: str, **defaults: Any
) -> Iterator[BackgroundBroker]:
    # Every pytest run loads this module, few use the fixtures.
    from nsqflow.broker.background import BackgroundBroker

    mark = request.node.get_closest_marker(marker)
    options = defaults | (mark.kwargs if mark else {})
    with BackgroundBroker(*(mark.args if mark else ()), **options) as broker:
        yield broker
