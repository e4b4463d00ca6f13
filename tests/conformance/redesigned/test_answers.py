"""FIN, REQ, TOUCH and CLS on a plain subscription, and what an end leaves behind."""

from __future__ import annotations

import select
import socket

import pytest

from nsqflow.broker import BackgroundBroker
from tests.conformance.redesigned.wire import (
    CLOSE_WAIT,
    ERROR,
    Connect,
    Delivered,
    Wire,
    channel_stats,
    code_of,
    data_of,
    fin,
    numbered,
    pub_trace,
    req,
    touch,
    unhex,
)

AWKWARD = 0x0A200A200A200A0A  # a trace id of newlines and spaces
SUB = "SUB t_part ch 0"
FAST = pytest.mark.nsq_redesigned_broker(msg_timeout=0.2)
ANSWERS = {"FIN": fin, "REQ": req, "TOUCH": touch}


def delivered(wire: Wire, producer: Wire, trace: int = 0) -> Delivered:
    """Subscribe, publish a message and return it."""
    wire.subscribe(SUB)
    assert data_of(producer.ask(pub_trace("t_part", trace, b"x")))[:2] == b"OK"
    return wire.message()


# Ids


def test_an_id_of_spaces_and_newlines_is_taken_byte_for_byte(wire: Wire, producer: Wire) -> None:
    # The recorded message was number 0x27.
    producer.publish_all(*[b"x"] * 37)
    message = delivered(wire, producer, AWKWARD)
    id = unhex("00 00 00 00 00 00 00 27 0a 20 0a 20 0a 20 0a 0a")
    assert message.id == id
    wire.send(unhex("54 4f 55 43 48 20"), id, b"\n")
    wire.expect_open()
    wire.send(unhex("52 45 51 20"), id, unhex("20 30 0a"))
    assert wire.message() == message._replace(attempts=2)
    wire.send(unhex("46 49 4e 20"), id, unhex("0a"))
    wire.expect_open()
    # It was finished: another FIN fails.
    answer = data_of(wire.ask(fin(id)), ERROR)
    assert answer.startswith(b"E_FIN_FAILED FIN [0 0 0 0 0 0 0 39 10 32 10 32 10 32 10 10] failed ")


def test_a_delayed_requeue_of_an_awkward_id_is_taken(wire: Wire, producer: Wire) -> None:
    message = delivered(wire, producer, AWKWARD)
    wire.send(req(message.id, 50))
    assert wire.message() == message._replace(attempts=2)


@pytest.mark.parametrize("command", ANSWERS)
def test_only_the_first_half_of_an_id_counts(wire: Wire, producer: Wire, command: str) -> None:
    message = delivered(wire, producer, 7)
    wire.send(ANSWERS[command](message.id[:8] + b"garbage!"))
    if command == "REQ":
        assert wire.message().attempts == 2
    wire.expect_open()


def test_an_id_in_hex_is_not_in_flight(wire: Wire, producer: Wire) -> None:
    message = delivered(wire, producer, 7)
    answer = data_of(wire.ask(fin(message.id.hex().encode())), ERROR)
    # The first 16 characters are taken for the id.
    assert answer.startswith(b"E_FIN_FAILED FIN [" + b" ".join([b"48"] * 15) + b" 50] failed ")
    assert answer.endswith(b"Message ID not in flight")
    wire.expect_open()


# Errors


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_to_an_unknown_message_fails_and_closes_nothing(wire: Wire, command: str) -> None:
    wire.subscribe(SUB)
    id = unhex("00 00 00 00 00 0f 42 3f 00 00 00 00 00 00 00 00")
    answer = data_of(wire.ask(ANSWERS[command](id)), ERROR).decode()
    begin = f"E_{command}_FAILED {command} [0 0 0 0 0 15 66 63 0 0 0 0 0 0 0 0] failed "
    assert answer.startswith(begin)
    assert answer.endswith("Message ID not in flight")
    wire.expect_open()


@pytest.mark.parametrize("command", ANSWERS)
def test_a_second_answer_to_a_message_fails_and_closes_nothing(
    wire: Wire, producer: Wire, command: str
) -> None:
    message = delivered(wire, producer)
    wire.send(fin(message.id))
    assert code_of(wire.ask(ANSWERS[command](message.id))) == f"E_{command}_FAILED"
    wire.expect_open()


@pytest.mark.parametrize("command", ANSWERS)
def test_a_client_that_does_not_own_a_message_can_not_answer_it(
    wire: Wire, producer: Wire, connect: Connect, command: str
) -> None:
    message = delivered(wire, producer)
    other = connect()
    other.subscribe(SUB)
    answer = data_of(other.ask(ANSWERS[command](message.id)), ERROR)
    assert answer.startswith(f"E_{command}_FAILED ".encode())
    assert b"client does not own message" in answer
    other.expect_open()
    wire.send(fin(message.id))
    wire.expect_open()


# REQ


@pytest.mark.parametrize("delay", ["0", ""])
def test_a_message_requeued_at_once_comes_again(wire: Wire, producer: Wire, delay: str) -> None:
    message = delivered(wire, producer)
    for attempts in (2, 3, 4):
        wire.send(req(message.id, delay))
        assert wire.message() == message._replace(attempts=attempts)


def test_a_message_requeued_with_a_delay_lets_later_ones_go_first(
    wire: Wire, producer: Wire
) -> None:
    message = delivered(wire, producer)
    producer.publish_all(b"later")
    wire.send(req(message.id, 50))
    assert wire.message().body == b"later"
    wire.rdy(2)
    assert wire.message() == message._replace(attempts=2)


@pytest.mark.parametrize(
    ("delay", "counts"),
    [
        (900_000, {"depth": 1, "in_flight_count": 1, "deferred_count": 1}),
        (900_001, {"delayed_queue_count": 1}),
        (3 * 24 * 3600_000, {"delayed_queue_count": 1}),
        (10**12, {"delayed_queue_count": 1}),  # cut to three days
    ],
)
def test_a_long_delay_takes_a_message_out_of_the_queue(
    node: BackgroundBroker, wire: Wire, producer: Wire, delay: int, counts: dict[str, int]
) -> None:
    message = delivered(wire, producer)
    wire.send(req(message.id, delay))
    wire.expect_open()
    channel = channel_stats(node)
    nothing = dict.fromkeys(("depth", "in_flight_count", "deferred_count"), 0)
    expected = {**nothing, "delayed_queue_count": 0, **counts}
    assert {name: channel[name] for name in expected} == expected
    # It is not in flight any more.
    assert code_of(wire.ask(touch(message.id))) == "E_TOUCH_FAILED"
    wire.expect_open()


@pytest.mark.parametrize("delay", ["-1", "abc", "1.5"])
def test_a_delay_that_is_no_number_closes(wire: Wire, producer: Wire, delay: str) -> None:
    message = delivered(wire, producer)
    assert code_of(wire.ask(req(message.id, delay))) == "E_INVALID"
    wire.expect_closed()


# Timeouts


@FAST
def test_a_message_that_times_out_comes_again(wire: Wire, producer: Wire) -> None:
    message = delivered(wire, producer)
    assert wire.message() == message._replace(attempts=2)


@pytest.mark.nsq_redesigned_broker(msg_timeout=1)
def test_touch_keeps_a_message_beyond_its_timeout(
    wire: Wire, producer: Wire, connect: Connect
) -> None:
    untouched = connect()
    untouched.subscribe("SUB t_part other 0")
    message = delivered(wire, producer)
    assert untouched.message() == message
    while not select.select([untouched.socket], [], [], 0.05)[0]:
        wire.send(touch(message.id))
    assert untouched.message() == message._replace(attempts=2)
    wire.send(fin(message.id))
    wire.expect_open()


# Leaving


def test_what_a_client_leaves_in_flight_comes_at_once_and_as_if_for_the_first_time(
    wire: Wire, producer: Wire, connect: Connect
) -> None:
    count, other = 500, connect()
    other.subscribe(SUB, rdy=0)
    wire.subscribe(SUB, rdy=count)
    producer.publish_all(*numbered(count))
    assert wire.bodies(count) == numbered(count)
    wire.close()
    other.rdy(count)
    messages = [other.message() for _ in range(count)]
    assert {each.attempts for each in messages} == {1}
    bodies = [each.body for each in messages]
    assert bodies != numbered(count)  # shuffled
    assert sorted(bodies) == numbered(count)


def test_what_a_client_has_deferred_stays_deferred_when_it_leaves(
    wire: Wire, producer: Wire, connect: Connect
) -> None:
    other = connect()
    other.subscribe(SUB, rdy=0)
    message = delivered(wire, producer)
    wire.send(req(message.id, 60_000))
    wire.leave()
    other.rdy(5)
    other.expect_open()


@pytest.mark.parametrize("half", [False, True])
def test_fins_sent_before_the_end_are_processed(
    wire: Wire, producer: Wire, connect: Connect, half: bool
) -> None:
    other = connect()
    other.subscribe(SUB, rdy=0)
    wire.subscribe(SUB, rdy=100)
    producer.publish_all(*numbered(100))
    messages = [wire.message() for _ in range(100)]
    wire.send(*[fin(each.id) for each in messages[:-1]])
    if half:
        wire.socket.shutdown(socket.SHUT_WR)
        wire.expect_closed()
    else:
        wire.close()
    other.rdy(2)
    assert other.message() == messages[-1]
    other.expect_open()


def test_fins_before_cls_are_processed_before_close_wait(
    wire: Wire, producer: Wire, connect: Connect
) -> None:
    other = connect()
    other.subscribe(SUB, rdy=0)
    wire.subscribe(SUB, rdy=2500)
    producer.publish_all(*numbered(2500))
    messages = [wire.message() for _ in range(2500)]
    wire.send(*[fin(each.id) for each in messages], b"CLS\n")
    assert wire.frame() == CLOSE_WAIT
    wire.leave()
    other.rdy(1)
    other.expect_open()


def test_after_close_wait_messages_can_be_answered_and_rdy_is_ignored(
    wire: Wire, producer: Wire, connect: Connect
) -> None:
    wire.subscribe(SUB, rdy=3)
    producer.publish_all(*numbered(10))
    first, second, third = (wire.message() for _ in range(3))
    assert wire.ask(b"CLS\n") == CLOSE_WAIT
    wire.send(fin(first.id), req(second.id), touch(third.id))
    wire.rdy(10)
    wire.expect_open()
    other = connect()
    other.subscribe(SUB, rdy=1)
    assert other.message() == second._replace(attempts=2)
    other.expect_open()


def test_a_second_cls_closes(wire: Wire) -> None:
    wire.subscribe(SUB)
    assert wire.ask(b"CLS\n") == CLOSE_WAIT
    assert code_of(wire.ask(b"CLS\n")) == "E_INVALID"
    wire.expect_closed()
