"""RDY on a plain subscription, and what makes a server deliver less than it asks for."""

from __future__ import annotations

import pytest

from nsqflow.broker import BackgroundBroker
from tests.conformance.redesigned.wire import (
    Connect,
    Wire,
    channel_stats,
    code_of,
    fin,
    numbered,
    read_message,
    touch,
)

SUB = "SUB t_part ch 0"


@pytest.mark.parametrize("count", [1, 7, 100, 2500])
def test_exactly_rdy_messages_are_in_flight(wire: Wire, producer: Wire, count: int) -> None:
    wire.subscribe(SUB, rdy=count)
    producer.publish_all(*numbered(count + 10))
    assert wire.bodies(count) == numbered(count)
    wire.expect_open()


def test_without_rdy_nothing_comes_and_rdy_0_does_not_recall(wire: Wire, producer: Wire) -> None:
    wire.subscribe(SUB, rdy=0)
    producer.publish_all(b"a", b"b")
    wire.expect_open()
    wire.rdy(1)
    message = wire.message()
    wire.rdy(0)
    wire.send(touch(message.id), fin(message.id))
    wire.expect_open()
    wire.rdy(1)
    assert wire.bodies(1) == [b"b"]


def test_rdy_2501_closes(wire: Wire) -> None:
    wire.subscribe(SUB, rdy=2500)
    assert code_of(wire.ask(b"RDY 2501\n")) == "E_INVALID"
    wire.expect_closed()


def test_after_many_failed_answers_rdy_counts_less(wire: Wire, producer: Wire) -> None:
    wire.subscribe(SUB, rdy=10)
    for _ in range(20):
        assert code_of(wire.ask(fin(bytes(16)))) == "E_FIN_FAILED"
    producer.publish_all(*numbered(100))
    in_flight = [wire.message()]
    wire.expect_open()  # 10 - 20 + 5, but at least one
    # Successful answers make up for it.
    for _ in range(20):
        wire.send(fin(in_flight.pop().id))
        in_flight += map(read_message, wire.arrived())
    assert len(in_flight) == 10


def test_five_failed_answers_change_nothing(wire: Wire, producer: Wire) -> None:
    wire.subscribe(SUB, rdy=10)
    for _ in range(5):
        assert code_of(wire.ask(fin(bytes(16)))) == "E_FIN_FAILED"
    producer.publish_all(*numbered(20))
    assert wire.bodies(10) == numbered(10)
    wire.expect_open()


# The window of finished messages behind the oldest that is not


def test_with_too_many_gaps_nothing_more_is_read_until_the_oldest_is_finished(
    node: BackgroundBroker, wire: Wire, producer: Wire, connect: Connect
) -> None:
    wire.subscribe(SUB, rdy=2500)
    producer.publish_all(*numbered(4000))
    messages = [wire.message() for _ in range(2500)]
    for each in messages[1:1003:2]:
        wire.send(fin(each.id))
        messages.append(wire.message())
    # That was one gap too many, and a message that was read ahead. Nothing more is read, for any
    # consumer.
    assert len(messages) == 3001
    wire.send(*[fin(each.id) for each in messages[1003:3001:2]])
    wire.expect_open()
    assert channel_stats(node)["in_flight_count"] == 1501
    other = connect()
    other.subscribe(SUB, rdy=10)
    other.expect_open()
    # The gaps close from the oldest on.
    wire.send(*[fin(each.id) for each in messages[0:2600:2]])
    assert wire.message().body == b"003001"


def test_finished_in_any_order_without_gaps_everything_is_read(
    node: BackgroundBroker, wire: Wire, producer: Wire
) -> None:
    wire.subscribe(SUB, rdy=2500)
    producer.publish_all(*numbered(4000))
    held, *rest = [wire.message() for _ in range(2500)]
    wire.send(*[fin(each.id) for each in reversed(rest)])
    assert wire.bodies(1500, finish=True) == numbered(4000)[2500:]
    wire.expect_open()
    assert channel_stats(node)["depth"] == 4000  # counted from the oldest that is not finished
    wire.send(fin(held.id))
    wire.expect_open()
    assert channel_stats(node)["depth"] == 0


def test_a_sample_rate_has_the_server_finish_the_rest(
    node: BackgroundBroker, wire: Wire, producer: Wire
) -> None:
    wire.identify(sample_rate=10)
    wire.subscribe(SUB, rdy=2500)
    producer.publish_all(*numbered(2000))
    received = wire.arrived()
    while not received[-1].endswith(b"the end"):  # each time it may be left out
        producer.publish_all(b"the end")
        received += wire.arrived()
    assert 0 < len(received) < 1000
    wire.send(*[fin(read_message(frame).id) for frame in received])
    wire.expect_open()
    assert channel_stats(node)["depth"] == 0
