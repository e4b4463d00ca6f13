"""Fixtures for the tests of your own services. pytest finds them once nsqflow is installed.

@pytest.mark.nsq_broker(nodes=2, msg_timeout=1)
def test_orders_survive_a_restart(nsq_broker): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nsqflow.broker.background import BackgroundBroker


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers", "nsq_broker(**options): what the fixture nsq_broker's Broker is made with"
    )


@pytest.fixture
def nsq_broker(request: pytest.FixtureRequest) -> Iterator[BackgroundBroker]:
    """A broker of the test's own: on a thread, so that plain and async tests can use it alike.

    Its options are those of the mark ``nsq_broker``.
    """
    # Every run of pytest loads this module, few use the fixture.
    from nsqflow.broker.background import BackgroundBroker

    mark = request.node.get_closest_marker("nsq_broker")
    with BackgroundBroker(*mark.args, **mark.kwargs) if mark else BackgroundBroker() as broker:
        yield broker
