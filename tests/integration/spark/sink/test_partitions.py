"""Rows for topics of the redesigned NSQ: where they go, in which order, and what disturbs it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import count, islice
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from nsqflow import blocking
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import (
    BadBodyError,
    BadMessageError,
    ConfigError,
    LocalProtocolError,
    RequestTimeout,
)
from nsqflow.spark.options import parse_sink
from nsqflow.spark.sink import partition_publisher, topics
from nsqflow.spark.sink.columns import find_columns
from nsqflow.spark.sink.partition_encoder import PartitionEncoder
from nsqflow.spark.sink.partition_publisher import PartitionPublisher
from nsqflow.spark.sink.rows import RowChecker
from nsqflow.spark.sink.task import NsqCommitMessage
from nsqflow.spark.sink.writer import NsqStreamWriter, NsqWriter
from tests.fixtures.crashing import until
from tests.fixtures.servers import PATIENCE
from tests.integration.spark.sink.partition_messages import (
    CHANNEL,
    bodies_by_partition,
    new_topic,
    stored,
)

TYPES: dict[str, tuple[DataType, Any]] = {
    "body": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "key": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "headers": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    "tag": (StringType(), pa.string()),
    "trace_id": (LongType(), pa.int64()),
    "delay_ms": (IntegerType(), pa.int32()),
}

Rows = Mapping[str, list[Any]]
"""Columns by name."""

numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", 3) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"partitions_{next(numbers)}"


def schema_of(*names: str) -> StructType:
    made = StructType()
    for name in names:
        made.add(name, TYPES[name][0])
    return made


def batch_of(rows: Rows) -> pa.RecordBatch:
    arrays = [pa.array(values, TYPES[name][1]) for name, values in rows.items()]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows])


def options_of(broker: BackgroundBroker, topic: str | None, **more: str) -> dict[str, str]:
    options = {"lookupd": ",".join(broker.lookupd_addresses)} | more
    return options if topic is None else options | {"topic": topic}


def write(
    broker: BackgroundBroker, topic: str | None, *batches: Rows, **options: str
) -> NsqCommitMessage:
    """Write batches with the same columns, as one task does."""
    writer = NsqWriter(schema_of(*batches[0]), options_of(broker, topic, **options))
    return writer.write(iter(map(batch_of, batches)))


# Where rows go


@pytest.mark.parametrize("partitioner", ["murmur3", "java"])
def test_a_key_has_the_partition_that_producers_give_it(
    broker: BackgroundBroker, topic: str, partitioner: str
) -> None:
    other = new_topic(broker, f"{topic}_other")
    new_topic(broker, topic)
    keys = [f"user-{n} ä" for n in range(200)]
    rows: Rows = {"body": [key.encode() for key in keys], "key": keys}
    written = write(broker, topic, rows, partitioner=partitioner)
    with blocking.Producer(lookupd=broker.lookupd_addresses, partitioner=partitioner) as producer:
        for key in keys:
            producer.publish(other, key.encode(), key=key.encode())
    ours = bodies_by_partition(stored(broker, topic, 200))
    assert ours == bodies_by_partition(stored(broker, other, 200))
    assert len(ours) == 4
    assert written.messages == 200
    assert written.bytes == sum(len(key.encode()) for key in keys)
    assert written.partitions == {f"{topic}/{n}": len(bodies) for n, bodies in ours.items()}
    assert written.nsqd == {}


def test_rows_of_a_partition_keep_their_order_over_all_batches(
    broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic, ordered=True, replicas=3)
    bodies = [b"%05d" % n for n in range(9000)]
    batches: list[Rows] = [
        {"body": bodies[n : n + 1000], "partition": [n % 4 for n in range(1000)]}
        for n in range(0, 9000, 1000)
    ]
    write(broker, topic, *batches, maxBatchBytes="1k")
    assert bodies_by_partition(stored(broker, topic, 9000)) == {
        n: [body for body in bodies if int(body) % 4 == n] for n in range(4)
    }


def test_rows_without_keys_are_spread_over_the_partitions(
    broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic)
    rows: Rows = {"body": [b"%05d" % n for n in range(4000)]}
    written = write(broker, topic, rows, maxBatchBytes="1k")
    assert sorted(written.partitions) == [f"{topic}/{n}" for n in range(4)]
    found = bodies_by_partition(stored(broker, topic, 4000))
    assert sorted(body for bodies in found.values() for body in bodies) == rows["body"]


def test_writes_of_a_few_rows_do_not_all_begin_with_the_same_partition(
    broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic)
    used = set()
    for _ in range(100):
        used |= {*write(broker, topic, {"body": [b"x"]}).partitions}
        if len(used) == 4:
            break
    assert len(used) == 4


def test_headers_tag_and_trace_id_arrive(broker: BackgroundBroker, topic: str) -> None:
    new_topic(broker, topic, 1, extended=True)
    rows: Rows = {
        "body": [b"a", b"b", b"c"],
        "headers": [[("region", "eu"), ("note", "ä")], None, None],
        "tag": ["fast", None, None],
        "trace_id": [7, None, 2**40],
    }
    write(broker, topic, rows)
    first, second, third = stored(broker, topic, 3)
    assert [each.body for each in (first, second, third)] == rows["body"]
    assert first.headers is not None
    assert {"region": "eu", "note": "ä"}.items() <= first.headers.items()
    assert (first.tag, first.trace_id) == ("fast", 7)
    assert (second.tag, second.trace_id) == (None, 0)
    assert (third.tag, third.trace_id) == (None, 2**40)


def test_a_topic_without_headers_takes_trace_ids(broker: BackgroundBroker, topic: str) -> None:
    new_topic(broker, topic, ordered=True)
    rows: Rows = {"body": [b"a", b"b", b"c"], "trace_id": [5, None, 6], "partition": [1, 1, 2]}
    write(broker, topic, rows)
    found = [(each.partition, each.body, each.trace_id) for each in stored(broker, topic, 3)]
    assert found == [(1, b"a", 5), (1, b"b", 0), (2, b"c", 6)]


def test_rows_name_topics_of_both_kinds(broker: BackgroundBroker, topic: str) -> None:
    ordered, plain, old = f"{topic}_ordered", f"{topic}_plain", f"{topic}_classic"
    new_topic(broker, ordered, ordered=True)
    new_topic(broker, plain)
    with BackgroundBroker() as classic:
        classic.create_topic(old)
        classic.create_channel(old, CHANNEL)
        rows: Rows = {
            "body": [b"%d" % n for n in range(300)],
            "topic": [[ordered, old, None][n % 3] for n in range(300)],
            "key": [[f"k{n}", None, None][n % 3] for n in range(300)],
            "delay_ms": [1 if n == 1 else None for n in range(300)],
        }
        lookupd = ",".join([*classic.lookupd_addresses, *broker.lookupd_addresses])
        written = write(broker, plain, rows, rows, lookupd=lookupd)
        received = []
        with blocking.Consumer(old, CHANNEL, lookupd=classic.lookupd_addresses) as consumer:
            for message in islice(consumer, 200):
                received.append(message.body)
                message.finish()
        assert written.nsqd == {classic.nsqd_addresses[0]: 200}
    assert sorted(received) == sorted(rows["body"][1::3] * 2)
    assert written.messages == 600
    assert sum(written.partitions.values()) == 400
    for name, first in [(ordered, 0), (plain, 2)]:
        bodies = [message.body for message in stored(broker, name, 200)]
        assert sorted(bodies) == sorted(rows["body"][first::3] * 2)


# What is refused, and where


@pytest.mark.parametrize("writer", [NsqWriter, NsqStreamWriter])
def test_a_missing_topic_is_named_before_there_is_a_task(
    broker: BackgroundBroker, topic: str, writer: type[NsqWriter | NsqStreamWriter]
) -> None:
    new_topic(broker, f"{topic}_orders")
    with pytest.raises(ConfigError) as caught:
        writer(schema_of("body"), options_of(broker, f"{topic}_ordrs"))
    words = str(caught.value)
    assert words.startswith(f"topic '{topic}_ordrs' does not exist at nsqlookupd at 127.0.0.1:")
    assert words.endswith(f"create it first; did you mean '{topic}_orders'?")


def test_a_topic_without_channels_is_named_where_it_needs_one(topic: str) -> None:
    with BackgroundBroker("redesigned", allow_write_without_channels=False) as strict:
        strict.create_topic(topic)
        with pytest.raises(ConfigError, match=f"topic '{topic}' has no channel at nsqlookupd at"):
            NsqWriter(schema_of("body"), options_of(strict, topic))
        strict.create_channel(topic, CHANNEL)
        assert write(strict, topic, {"body": [b"x"]}).partitions == {f"{topic}/0": 1}


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("delay_ms", "is one of the redesigned NSQ, which delays no publish"),
        ("headers", "was created without extend=true"),
    ],
)
def test_a_column_that_the_topic_does_not_take_is_refused_before_there_is_a_task(
    broker: BackgroundBroker, topic: str, column: str, words: str
) -> None:
    new_topic(broker, topic)
    with pytest.raises(
        ConfigError, match=f"^column '{column}' is invalid: topic '{topic}' {words}"
    ):
        NsqWriter(schema_of("body", column), options_of(broker, topic))


def test_a_row_that_its_topic_does_not_take_fails_before_any_of_its_batch_is_sent(
    broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic)
    new_topic(broker, f"{topic}_other")
    bad: Rows = {"body": [b"a", b"b"], "topic": [None, f"{topic}_other"], "partition": [0, 4]}
    with pytest.raises(LocalProtocolError) as caught:
        write(broker, topic, bad)
    assert str(caught.value) == (
        "row 1 of its partition (the first is 0): partition=4 is invalid for topic "
        f"'{topic}_other': must be 0 to 3"
    )
    write(broker, topic, {"body": [b"end"], "partition": [0]})
    assert [each.body for each in stored(broker, topic, 1)] == [b"end"]


def test_a_row_for_a_classic_topic_has_no_key(broker: BackgroundBroker, topic: str) -> None:
    with BackgroundBroker() as classic:
        classic.create_topic(topic)
        rows: Rows = {"body": [b"a", b"b"], "topic": [topic] * 2, "key": [None, "k"]}
        with pytest.raises(LocalProtocolError) as caught:
            write(classic, None, rows)
    assert str(caught.value).endswith(
        f"row 1 of its partition (the first is 0): key is invalid: topic '{topic}' is one of the "
        "classic NSQ"
    )


def test_a_missing_topic_of_a_row_fails_the_task(broker: BackgroundBroker, topic: str) -> None:
    with pytest.raises(ConfigError, match=f"topic '{topic}' does not exist at nsqlookupd"):
        write(broker, None, {"body": [b"a"], "topic": [topic]})


def test_what_nsqd_does_not_take_is_an_error_that_says_so(topic: str) -> None:
    with BackgroundBroker("redesigned", max_msg_size=100, max_body_size=2000) as small:
        new_topic(small, topic, 2)
        with pytest.raises(BadMessageError) as large:
            write(small, topic, {"body": [b"a", b"b" * 101], "partition": [1, 1]})
        assert f"(partition 1 of '{topic}')" in str(large.value)
        assert "the largest has 101 bytes, nsqd's -max-msg-size allows fewer" in str(large.value)
        with pytest.raises(BadBodyError, match="maxBatchBytes must not be above nsqd's -max-body"):
            write(small, topic, {"body": [b"b" * 99] * 30})


# What disturbs it


def interrupted(bodies: list[bytes], events: Mapping[int, Callable[[], object]]) -> Iterator[Rows]:
    """Batches of 100 rows with keys; before some of them, something happens."""
    for number, start in enumerate(range(0, len(bodies), 100)):
        events.get(number, lambda: None)()
        some = bodies[start : start + 100]
        yield {"body": some, "key": [f"k{int(body) % 10}" for body in some]}


def write_interrupted(
    broker: BackgroundBroker, topic: str, rows: Iterator[Rows], **options: str
) -> NsqCommitMessage:
    writer = NsqWriter(schema_of("body", "key"), options_of(broker, topic, **options))
    return writer.write(map(batch_of, rows))


def assert_in_order(broker: BackgroundBroker, topic: str, bodies: list[bytes]) -> None:
    """Check that each key's bodies are there, in order but for those that came twice."""
    firsts: dict[bytes, None] = {}
    for message in read_until(broker, topic, {*bodies}):
        firsts.setdefault(message)
    for key in range(10):
        mine = [body for body in bodies if int(body) % 10 == key]
        assert [body for body in firsts if int(body) % 10 == key] == mine


def read_until(broker: BackgroundBroker, topic: str, expected: set[bytes]) -> list[bytes]:
    """Read until all of these have come; return what came, in order within each partition."""
    bodies: list[bytes] = []
    missing = set(expected)
    with blocking.Consumer(topic, CHANNEL, lookupd=broker.lookupd_addresses) as consumer:
        for message in consumer:
            bodies.append(message.body)
            message.finish()
            missing.discard(message.body)
            if not missing:
                break
    return bodies


def every_event(
    cluster: BackgroundBroker, topic: str
) -> dict[str, dict[int, Callable[[], object]]]:
    """What happens before which batches, by name."""
    return {
        "move_leader": {
            n: partial(cluster.move_leader, topic, n % 2, n % 3) for n in range(5, 40, 5)
        },
        "kill_node": {10: partial(cluster.kill_node, 0)},
        "stop_node": {10: partial(cluster.stop_node, 0), 30: partial(cluster.start_node, 0)},
        "drop_connections": dict.fromkeys(range(5, 40, 5), cluster.drop_connections),
    }


@pytest.mark.parametrize("event", ["move_leader", "kill_node", "stop_node", "drop_connections"])
def test_a_leader_that_changes_in_mid_write_costs_neither_rows_nor_their_order(
    topic: str, event: str
) -> None:
    with BackgroundBroker("redesigned", 3) as cluster:
        new_topic(cluster, topic, 2, 3, ordered=True)
        bodies = [b"%05d" % n for n in range(4000)]
        rows = interrupted(bodies, every_event(cluster, topic)[event])
        written = write_interrupted(cluster, topic, rows, maxBatchBytes="1k")
        assert written.messages == sum(written.partitions.values()) == 4000
        assert_in_order(cluster, topic, bodies)


@pytest.mark.parametrize(
    "code",
    [
        "E_FAILED_ON_NOT_LEADER",
        "E_FAILED_ON_NOT_WRITABLE",
        "E_MPUB_FAILED",
        "E_PUB_TOO_MUCH_WAITING",
        "E_TOPIC_NOT_EXIST",
    ],
)
def test_what_nsqd_refuses_for_a_while_is_sent_again_in_its_place(topic: str, code: str) -> None:
    with BackgroundBroker("redesigned") as single:
        new_topic(single, topic, 1, ordered=True)
        bodies = [b"%05d" % n for n in range(1000)]
        events = {3: lambda: single.fail_next("MPUB", code)}
        write_interrupted(single, topic, interrupted(bodies, events), maxBatchBytes="1k")
        assert read_until(single, topic, {*bodies}) == bodies


def test_headers_are_sent_again_after_nsqd_has_refused_them(topic: str) -> None:
    with BackgroundBroker("redesigned") as single:
        new_topic(single, topic, 1, extended=True)
        single.fail_next("MPUB_EXT", "E_FAILED_ON_NOT_WRITABLE")
        rows: Rows = {"body": [b"a", b"b"], "headers": [[("x", "1")], None], "partition": [0, 0]}
        write(single, topic, rows, rows)
        assert [each.body for each in stored(single, topic, 4)] == [b"a", b"b"] * 2


def publisher_of(
    broker: BackgroundBroker, topic: str, **limits: float
) -> tuple[PartitionPublisher, Callable[[Rows], None]]:
    """A publisher, and a function that publishes rows with it."""
    options = parse_sink(options_of(broker, topic))
    target = topics.TopicDirectory(options.servers, options.access).find(topic)
    columns = find_columns(schema_of("body", "partition"), topic)
    encoder = PartitionEncoder(target, columns, options)
    checker = RowChecker(columns, topic)
    publisher = PartitionPublisher(options, **limits)

    def publish(rows: Rows) -> None:
        for batch in encoder.batches(encoder.check(checker.check(batch_of(rows)))):
            publisher.publish(batch)

    return publisher, publish


def test_a_partition_without_a_leader_fails_the_task_and_is_named(
    topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_publisher, "_SLOW_RESPONSE", 0.1)
    with BackgroundBroker("redesigned", 2) as pair:
        new_topic(pair, topic, 2)
        publisher, publish = publisher_of(pair, topic, give_up_after=5.0)
        with closing(publisher):
            publish({"body": [b"a", b"b"], "partition": [0, 1]})
            publisher.finish()
            pair.move_leader(topic, 0, 0)
            pair.move_leader(topic, 1, 1)
            pair.kill_node(1)
            publish({"body": [b"c", b"d"], "partition": [0, 1]})
            with (
                caplog.at_level(logging.WARNING, partition_publisher.logger.name),
                pytest.raises(RequestTimeout) as caught,
            ):
                publisher.finish()
        assert str(caught.value).startswith(
            f"publish to partition 1 of '{topic}' was not sent in time: "
        )
        assert publisher.acknowledged == {f"{topic}/0": 2, f"{topic}/1": 1}
    (warning,) = [each for each in caplog.messages if each.startswith("the sink waits for ")]
    assert warning.startswith(
        f"the sink waits for partition 1 of '{topic}': 1 batches are not stored after 0.1 s; it "
        "tries for up to 5 s: "
    )


def test_no_more_waits_for_answers_than_is_bounded(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_publisher, "_MAX_PENDING", 100_000)
    with BackgroundBroker("redesigned") as single:
        new_topic(single, topic, 1)
        publisher, publish = publisher_of(single, topic)
        sent = threading.Semaphore(0)

        def work() -> None:
            for _ in range(10):
                publish({"body": [b"x" * 40_000], "partition": [0]})
                sent.release()
            publisher.finish()

        with closing(publisher):
            publish({"body": [b"first"], "partition": [0]})
            publisher.finish()
            single.slow(5)
            thread = threading.Thread(target=work)
            thread.start()
            assert all(sent.acquire(timeout=PATIENCE) for _ in range(2))
            assert publisher.acknowledged == {f"{topic}/0": 1}  # the third has to wait
            assert not sent.acquire(blocking=False)
            single.slow(0)
            thread.join(PATIENCE)
            assert publisher.acknowledged == {f"{topic}/0": 11}


def test_nothing_is_left_behind(broker: BackgroundBroker, topic: str) -> None:
    new_topic(broker, topic)
    write(broker, topic, {"body": [b"warm"]})
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        write(broker, topic, {"body": [b"x"] * 10, "partition": [0] * 10})
    with pytest.raises(LocalProtocolError):
        write(broker, topic, {"body": [b"x"]}, {"body": [b""]})
    assert threading.active_count() == threads
    until(lambda: len(os.listdir("/proc/self/fd")) == files)  # the broker's ends close a bit later


def test_the_driver_asks_for_a_topic_once_a_minute(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with BackgroundBroker("redesigned") as single:
        new_topic(single, topic)
        options = options_of(single, topic)
        NsqStreamWriter(schema_of("body"), options)
    with caplog.at_level(logging.WARNING, "nsqflow.spark"):
        NsqStreamWriter(schema_of("body"), options)  # no server is there any more
    assert caplog.messages == []


def test_a_driver_that_reaches_no_nsqlookupd_leaves_it_to_the_tasks(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with BackgroundBroker("redesigned") as single:
        options = options_of(single, topic)
    with caplog.at_level(logging.WARNING, "nsqflow.spark"):
        NsqStreamWriter(schema_of("body", "key"), options)
    assert f"topic '{topic}' could not be looked up: no server is reachable" in caplog.text
