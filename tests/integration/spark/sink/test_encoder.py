"""Rows become commands: what the real nsqd hands out is what went in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.protocol import MessageBatch, Published, Rdy
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from nsqflow.spark.sink.columns import ColumnIndexes
from nsqflow.transport.sync_connection import SyncConnection
from tests.fixtures.servers import PATIENCE, Nsqd
from tests.unit.spark.sink.record_batches import BatchEncoder, Row, batch_of

EVERYTHING = ColumnIndexes(body=1, topic=0, delay_ms=2)


numbers = count(1)


# With the real nsqd


@pytest.fixture(scope="module")
def consumers(nsqd: Nsqd) -> Iterator[dict[str, SyncConnection]]:
    """Who reads all that is published, by topics of this run's own."""
    links: dict[str, SyncConnection] = {}
    for _ in range(3):
        topic = f"mpub_{next(numbers)}"
        links[topic] = connect(
            nsqd.tcp_address, Access(), topic=topic, channel="c", output_buffer_timeout=0.025
        )
        links[topic].send(Rdy(1000))
    yield links
    for link in links.values():
        link.close()


@pytest.fixture(scope="module")
def producer(nsqd: Nsqd) -> Iterator[SyncConnection]:
    with closing(connect(nsqd.tcp_address, Access())) as link:
        yield link


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=400), st.integers(0, 2), st.sampled_from([None, 0, 1])
        ),
        min_size=1,
        max_size=60,
    ),
    st.integers(20, 5000),
)
def test_what_comes_out_of_nsqd_is_what_went_in(
    producer: SyncConnection,
    consumers: dict[str, SyncConnection],
    given: list[tuple[bytes, int, int | None]],
    most: int,
) -> None:
    topics = [*consumers]
    sent: list[Row] = [(body, topics[topic], delay) for body, topic, delay in given]
    for command in BatchEncoder(EVERYTHING, None, most).commands(batch_of(sent)):
        producer.send(command)
        assert isinstance(producer.receive(PATIENCE)[0], Published)
    for topic, link in consumers.items():
        expected = Counter(body for body, name, _ in sent if name == topic)
        received: Counter[bytes] = Counter()
        while received.total() < expected.total():
            events = link.receive(PATIENCE)
            assert events, f"nothing came of {expected - received}"
            for event in events:
                assert isinstance(event, MessageBatch)
                columns = event.columns()
                received.update(columns.bodies())
                link.session.finish_packed(columns.ids)
            link.flush()
        assert received == expected
