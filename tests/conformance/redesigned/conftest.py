"""Clusters of the redesigned NSQ for raw sockets: each test has its own, with ids from the start.

One starts within milliseconds, so that ids and offsets can be compared with what was recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from nsqflow.broker import BackgroundBroker
from tests.conformance.redesigned.wire import PROBE_TOPIC, Connect, Wire, create_topics


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[BackgroundBroker]:
    """One nsqd that leads everything, with the topics of the recordings.

    The marker ``nsq_redesigned_broker`` sets its options.
    """
    mark = request.node.get_closest_marker("nsq_redesigned_broker")
    options = mark.kwargs if mark else {}
    with BackgroundBroker(dialect="redesigned", nodes=1, **options) as broker:
        create_topics(broker)
        yield broker


@pytest.fixture
def cluster() -> Iterator[BackgroundBroker]:
    """Three nsqd; topics are up to the test, but for the one that probes use."""
    with BackgroundBroker(dialect="redesigned", nodes=3) as broker:
        broker.create_topic(PROBE_TOPIC, partitions=3)
        yield broker


@pytest.fixture
def connect(node: BackgroundBroker) -> Iterator[Connect]:
    """Opens connections to the one nsqd, and closes them."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Wire(node.nsqd_addresses[0]))


@pytest.fixture
def wire(connect: Connect) -> Wire:
    """One connection, after the magic."""
    return connect()


@pytest.fixture
def producer(connect: Connect) -> Wire:
    """Another one, which publishes."""
    return connect()
