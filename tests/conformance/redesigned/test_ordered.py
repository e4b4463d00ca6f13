"""Ordered consumption: one message in flight per channel and partition, and what REQ does to it."""

from __future__ import annotations

import pytest

from nsqflow.broker import BackgroundBroker
from tests.conformance.redesigned.wire import (
    ERROR,
    Connect,
    Delivered,
    Wire,
    code_of,
    data_of,
    fin,
    read_message,
    req,
    request,
    touch,
)

ORDERED = "SUB_ORDERED t_order ch 0"
FAST = pytest.mark.nsq_redesigned_broker(msg_timeout=0.2)
LETTERS = [b"a", b"b", b"c", b"d", b"e", b"f"]


def publish(producer: Wire, *bodies: bytes) -> None:
    producer.publish_all(*bodies, topic="t_order")


def receive(wire: Wire) -> Delivered:
    return wire.message(positioned=True)


def post(node: BackgroundBroker, path: str) -> None:
    """Send a request to nsqd, which must succeed."""
    assert request(node.nsqd_http_addresses[0], "POST", path)[0] == 200


def test_without_rdy_nothing_comes_and_rdy_0_pauses(wire: Wire, producer: Wire) -> None:
    wire.subscribe(ORDERED, rdy=0)
    publish(producer, b"a", b"b")
    wire.expect_open()
    wire.rdy(1)
    first = receive(wire)
    wire.rdy(0)
    wire.send(fin(first.id))
    wire.expect_open()
    wire.rdy(1)
    assert receive(wire).body == b"b"


def test_rdy_10_is_as_good_as_1(wire: Wire, producer: Wire) -> None:
    wire.subscribe(ORDERED, rdy=10)
    publish(producer, *LETTERS)
    for body in LETTERS:
        message = receive(wire)
        assert (message.body, message.attempts) == (body, 1)
        wire.expect_open()
        wire.send(fin(message.id))
    wire.expect_open()


def test_consumers_share_the_one_message_in_flight_and_take_turns(
    connect: Connect, producer: Wire
) -> None:
    consumers = [connect(), connect()]
    for each in consumers:
        each.subscribe(ORDERED)
    publish(producer, *LETTERS)
    turns: list[int] = []
    for body in LETTERS:
        [(turn, message)] = [
            (number, read_message(frame, positioned=True))
            for number, each in enumerate(consumers)
            for frame in each.arrived()
        ]
        assert message.body == body
        turns.append(turn)
        consumers[turn].send(fin(message.id))
        consumers[turn].expect_open()
    assert turns in ([0, 1] * 3, [1, 0] * 3)


def test_partitions_have_a_message_in_flight_each(connect: Connect, producer: Wire) -> None:
    for number in (0, 1):
        consumer = connect()
        consumer.subscribe(f"SUB_ORDERED t_order ch {number}", rdy=10)
        producer.publish_all(b"a", b"b", topic="t_order", partition=number)
        assert receive(consumer).body == b"a"
        consumer.expect_open()


@pytest.mark.nsq_redesigned_broker(msg_timeout=1)
def test_a_message_that_times_out_comes_again_before_the_next(wire: Wire, producer: Wire) -> None:
    wire.subscribe(ORDERED)
    publish(producer, b"a", b"b")
    first = receive(wire)
    assert receive(wire) == first._replace(attempts=2)
    wire.send(fin(first.id))
    assert receive(wire).body == b"b"


def test_a_client_that_does_not_own_the_message_can_not_finish_it(
    wire: Wire, connect: Connect, producer: Wire
) -> None:
    other = connect()
    wire.subscribe(ORDERED)
    publish(producer, b"a", b"b")
    message = receive(wire)
    other.subscribe(ORDERED)
    answer = data_of(other.ask(fin(message.id)), ERROR)
    assert answer.startswith(b"E_FIN_FAILED ")
    assert b"client does not own message" in answer
    other.expect_open()


def test_requeued_at_once_a_message_comes_again_before_the_next(wire: Wire, producer: Wire) -> None:
    wire.subscribe(ORDERED)
    publish(producer, b"a", b"b")
    first = receive(wire)
    for attempts in (2, 3):
        wire.send(req(first.id))
        assert receive(wire) == first._replace(attempts=attempts)
    wire.send(fin(first.id))
    assert receive(wire).body == b"b"


def test_a_requeue_with_a_delay_is_ignored_and_the_message_stays_in_flight(
    wire: Wire, producer: Wire
) -> None:
    wire.subscribe(ORDERED)
    publish(producer, b"a", b"b")
    first = receive(wire)
    wire.send(req(first.id, 1))
    wire.expect_open()
    wire.send(touch(first.id), fin(first.id))
    assert receive(wire).body == b"b"


@FAST
def test_after_a_requeue_with_a_delay_the_message_times_out(wire: Wire, producer: Wire) -> None:
    wire.subscribe(ORDERED)
    publish(producer, b"a", b"b")
    first = receive(wire)
    wire.send(req(first.id, 60_000))
    assert receive(wire) == first._replace(attempts=2)


def test_what_a_consumer_leaves_goes_to_another_with_the_same_attempts(
    wire: Wire, connect: Connect, producer: Wire
) -> None:
    other = connect()
    wire.subscribe(ORDERED)
    publish(producer, b"a", b"b")
    first = receive(wire)
    other.subscribe(ORDERED)
    other.expect_open()
    wire.close()
    assert receive(other) == first


def test_an_ordered_subscription_makes_the_channel_of_an_ordinary_topic_ordered(
    node: BackgroundBroker, wire: Wire, connect: Connect, producer: Wire
) -> None:
    wire.subscribe("SUB_ORDERED t_part ch 0", rdy=0)
    wire.leave()
    producer.publish_all(*LETTERS)
    plain = connect()
    plain.subscribe("SUB t_part ch 0", rdy=5)
    assert plain.bodies(1) == [b"a"]
    plain.expect_open()
    post(node, "/channel/setorder?topic=t_part&partition=0&channel=ch&order=false")
    plain.expect_closed()
    again = connect()
    again.subscribe("SUB t_part ch 0", rdy=5)
    assert sorted(again.bodies(5)) == LETTERS[:5]
    again.expect_open()


def test_a_sample_rate_closes(wire: Wire) -> None:
    wire.identify(sample_rate=10)
    assert code_of(wire.ask(ORDERED.encode() + b"\n")) == "E_INVALID"
    wire.expect_closed()


@pytest.mark.parametrize("command", ["SUB", "SUB_ADVANCED"])
def test_an_ordered_topic_must_be_read_in_order(wire: Wire, command: str) -> None:
    answer = wire.ask(f"{command} t_order ch 0\n".encode())
    assert code_of(answer) == "E_SUB_ORDER_IS_MUST"
    wire.expect_closed()


def test_an_ordered_channel_that_its_first_client_made_repeats_nothing(
    connect: Connect, wire: Wire, producer: Wire
) -> None:
    wire.subscribe(ORDERED, rdy=0)
    wire.leave()
    publish(producer, b"a", b"b")
    consumer = connect()
    consumer.subscribe(ORDERED)
    assert receive(consumer).body == b"a"
    consumer.expect_open()


@pytest.mark.nsq_redesigned_broker(repeat_messages=True)
def test_a_channel_that_http_made_repeats_the_first_message_of_an_ordered_subscription(
    node: BackgroundBroker, wire: Wire, producer: Wire
) -> None:
    post(node, "/channel/create?topic=t_order&partition=0&channel=ch")
    publish(producer, b"a", b"b")
    wire.subscribe(ORDERED)
    first = receive(wire)
    assert first.attempts == 1
    assert receive(wire) == first
    wire.send(fin(first.id))
    assert receive(wire).body == b"b"
    assert code_of(wire.ask(fin(first.id))) == "E_FIN_FAILED"
    wire.expect_open()
